//! One task in a worker's hands: its command, what it prints, and heartbeats while it runs.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cis_api::calls::{AppendLog, CompleteTask, FailTask, ReleaseTask, RenewLease, ReportProgress};
use cis_api::work::{
    ClaimedTask, CompleteBody, FailBody, HeartbeatBody, LogBody, ProgressBody, ReleaseBody, StreamName,
};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::{BootTime, Clock, Millis};
use cis_engine::report::parse_outputs;
use cis_engine::system::System;
use cis_runner::outputs::{read_outputs, read_tail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value};

use super::Wake;
use super::files::WorkFiles;
use super::start::{self, NotStarted, Started};
use super::voice::{Voice, is_passing};

/// Between SIGTERM and SIGKILL.
const GRACE: Millis = Millis(10_000);

/// How long output may still come from what escaped the command's group.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What is read of the command's output at once.
const READ_BYTES: usize = 16 << 10;

/// What is read of the end of `$CIS_PROGRESS`: a note's worth.
const PROGRESS_BYTES_MAX: u64 = 16 << 10;

/// What happens to a job.
#[derive(Debug)]
pub(super) enum Event {
    Exited(ExitStatus),
    /// A stream has ended.
    Quiet,
    /// The node wants it stopped.
    Cancel,
    /// The claim is over, or cannot be trusted any more.
    Lost(String),
}

/// What became of it.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    Completed {
        outputs: Option<Map<String, Value>>,
    },
    Failed {
        why: String,
        exit_code: Option<i32>,
    },
    Cancelled,
    Lost {
        why: String,
    },
    Interrupted,
    /// This machine could not prepare the command.
    Unable {
        why: String,
    },
}

impl Ending {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost { .. } => "lost",
            Self::Interrupted | Self::Unable { .. } => "given back",
        }
    }

    pub(super) fn why(&self) -> Option<String> {
        match self {
            Self::Failed { why, .. } | Self::Lost { why } | Self::Unable { why } => Some(why.clone()),
            _ => None,
        }
    }

    /// The exit code of a worker that does one task.
    pub(super) fn exit(&self) -> u8 {
        match self {
            Self::Completed { .. } => 0,
            Self::Failed { exit_code, .. } => exit_code.and_then(|exit| u8::try_from(exit).ok()).unwrap_or(1),
            Self::Cancelled | Self::Lost { .. } | Self::Unable { .. } => 1,
            Self::Interrupted => 130,
        }
    }
}

/// Why the command is being stopped.
#[derive(Debug)]
enum Stop {
    Cancel,
    Interrupted,
    Lost(String),
}

/// A job under way.
pub(super) struct Job {
    voice: Voice,
    group: Option<Pid>,
    dir: tempfile::TempDir,
    wake: mpsc::Sender<Wake>,
    trusted: BootTime,
}

impl Job {
    /// Starts the command. One that cannot be started has failed its task, and the node is told: given back, it would meet
    /// every worker in turn.
    pub(super) fn start(
        task: &ClaimedTask,
        command: &[String],
        files: &WorkFiles,
        voice: Voice,
        wake: mpsc::Sender<Wake>,
    ) -> Result<Self, Ending> {
        let trusted = voice.trusted(System.since_boot(), GRACE);
        let Started { child, dir, input } = match start::start(task, command, files) {
            Ok(started) => started,
            Err(NotStarted::Broken(why)) => {
                return Err(tell_ending(&voice, Ending::Failed { why, exit_code: None }));
            }
            Err(NotStarted::Unable(why)) => return Err(tell_ending(&voice, Ending::Unable { why })),
        };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let job = Self { voice, group, dir, wake, trusted };
        job.attend(child, input);
        Ok(job)
    }

    /// Threads that wait for what the command does.
    fn attend(&self, mut child: Child, input: String) {
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input is none the worse for it.
            thread::spawn(move || stdin.write_all(input.as_bytes()));
        }
        if let Some(stdout) = child.stdout.take() {
            self.listen(stdout, StreamName::Stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            self.listen(stderr, StreamName::Stderr);
        }
        let wake = self.wake.clone();
        thread::spawn(move || {
            let status = child.wait().unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
            let _ = wake.send(Wake::Job(Event::Exited(status)));
        });
        let (voice, wake, trusted) = (self.voice.clone(), self.wake.clone(), self.trusted);
        let progress = self.dir.path().join("progress");
        thread::spawn(move || beat(&voice, &wake, &progress, trusted));
    }

    /// Passes a stream on: to whoever watches the worker, and to the log.
    fn listen(&self, from: impl Read + Send + 'static, stream: StreamName) {
        let (voice, wake) = (self.voice.clone(), self.wake.clone());
        thread::spawn(move || {
            pass_on(from, stream, |text, offset| {
                if !voice.is_over_within(Duration::ZERO) {
                    let text = text.to_owned();
                    let _ = voice.insist::<AppendLog>(|fence| LogBody { fence, stream, offset, text });
                }
            });
            let _ = wake.send(Wake::Job(Event::Quiet));
        });
    }

    /// Stays with the job to its end, and tells the node of it.
    pub(super) fn see_through(self, woken: &mpsc::Receiver<Wake>) -> Ending {
        let (mut stop, mut streams) = (None, 2);
        let status = loop {
            // Once it is being stopped, it has no more than the grace.
            let event = match &stop {
                Some((_, until)) => {
                    woken.recv_timeout(Duration::from_millis(BootTime::since(*until, System.since_boot()).0))
                }
                None => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Wake::Job(Event::Exited(status))) => break status,
                Ok(Wake::Job(Event::Quiet)) => streams -= 1,
                Ok(Wake::Job(Event::Cancel)) => self.stop(&mut stop, Stop::Cancel),
                Ok(Wake::Job(Event::Lost(why))) => self.stop(&mut stop, Stop::Lost(why)),
                Ok(Wake::Interrupted) if stop.is_some() => self.signal(Signal::KILL),
                Ok(Wake::Interrupted) => self.stop(&mut stop, Stop::Interrupted),
                Ok(Wake::Claimed(_)) => {}
                Err(_) => {
                    self.signal(Signal::KILL);
                    // Killed, it ends soon; and it is asked no more often than this.
                    stop = stop.map(|(why, _)| (why, System.since_boot().after(GRACE)));
                }
            }
        };
        // Nothing of the command outlives it.
        self.signal(Signal::KILL);
        while streams > 0 {
            match woken.recv_timeout(LAST_WORDS) {
                Ok(Wake::Job(Event::Quiet)) => streams -= 1,
                Ok(Wake::Job(Event::Lost(why))) => self.stop(&mut stop, Stop::Lost(why)),
                Ok(Wake::Interrupted) => self.stop(&mut stop, Stop::Interrupted),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let ending = self.conclude(stop.map(|(why, _)| why), status);
        self.voice.end();
        ending
    }

    /// Asks the command to end; it has until the grace is over. What was lost stays lost.
    fn stop(&self, stop: &mut Option<(Stop, BootTime)>, why: Stop) {
        *stop = match stop.take() {
            None => {
                self.signal(Signal::TERM);
                Some((why, System.since_boot().after(GRACE)))
            }
            Some((lost @ Stop::Lost(_), until)) => Some((lost, until)),
            Some((_, until)) => Some((why, until)),
        };
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    fn conclude(&self, stop: Option<Stop>, status: ExitStatus) -> Ending {
        let ending = match (stop, status.success()) {
            (Some(Stop::Lost(why)), _) => return Ending::Lost { why },
            (Some(Stop::Interrupted), false) => Ending::Interrupted,
            (Some(Stop::Cancel), false) => Ending::Cancelled,
            (_, true) => match self.outputs() {
                Ok(outputs) => Ending::Completed { outputs },
                Err(why) => Ending::Failed { why, exit_code: None },
            },
            (None, false) => {
                let exit = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                Ending::Failed { why: format!("exit {exit}"), exit_code: Some(exit) }
            }
        };
        tell_ending(&self.voice, ending)
    }

    /// What the command handed on.
    fn outputs(&self) -> Result<Option<Map<String, Value>>, String> {
        match read_outputs(&self.dir.path().join("output")) {
            Ok(text) => text.as_deref().map(parse_outputs).transpose(),
            Err(e) => {
                Err(format!("`$CIS_OUTPUT` cannot be read: {e}; it takes a plain file of at most 1 MiB"))
            }
        }
    }
}

/// Tells the node how it ended, as long as the lease may live: what is not heard by then would be refused. The answer is what
/// became of it.
fn tell_ending(voice: &Voice, ending: Ending) -> Ending {
    let told = match ending.clone() {
        Ending::Completed { outputs } => {
            match voice.insist::<CompleteTask>(|fence| CompleteBody { fence, outputs }) {
                // They would be refused again: left alone, the task would wait for its lease to run out.
                Err(refusal) if is_refused_content(&refusal) => {
                    let why = format!("its outputs were refused: {}", refusal.message);
                    return tell_ending(voice, Ending::Failed { why, exit_code: None });
                }
                told => told.map(drop),
            }
        }
        Ending::Failed { why, exit_code } => {
            voice.insist::<FailTask>(|fence| FailBody { fence, error: why, exit_code }).map(drop)
        }
        Ending::Cancelled | Ending::Interrupted | Ending::Unable { .. } => {
            voice.insist::<ReleaseTask>(|fence| ReleaseBody { fence }).map(drop)
        }
        // There is no claim any more to say anything of.
        Ending::Lost { .. } => Ok(()),
    };
    match told {
        Ok(()) => ending,
        Err(refusal) => Ending::Lost { why: refusal.message },
    }
}

fn is_refused_content(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::ValidationFailed | ErrorCode::PayloadTooLarge)
}

/// Keeps the claim until nothing more is to be said.
fn beat(voice: &Voice, wake: &mpsc::Sender<Wake>, progress: &Path, mut trusted: BootTime) {
    let (mut noted, mut cancelled) = (None, false);
    while !voice.is_over_within(voice.beat()) {
        let sent = System.since_boot();
        let renewed = voice.say::<RenewLease>(|fence| HeartbeatBody { fence, lease_secs: None });
        let event = match renewed {
            Ok(renewed) if renewed.cancel => (!cancelled).then_some(Event::Cancel),
            Ok(_) => {
                trusted = voice.trusted(sent, GRACE);
                note(voice, progress, &mut noted);
                None
            }
            Err(refusal) if is_passing(&refusal) && System.since_boot() < trusted => None,
            Err(Refusal { message, .. }) => Some(Event::Lost(message)),
        };
        cancelled |= matches!(event, Some(Event::Cancel));
        let lost = matches!(event, Some(Event::Lost(_)));
        if let Some(event) = event {
            let _ = wake.send(Wake::Job(event));
        }
        if lost {
            return;
        }
    }
}

/// Tells the last line of `$CIS_PROGRESS`, if it is new: `NOTE`, or `PERCENT NOTE`.
fn note(voice: &Voice, progress: &Path, noted: &mut Option<String>) {
    let Ok(Some(text)) = read_tail(progress, PROGRESS_BYTES_MAX) else { return };
    let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) else { return };
    if noted.as_deref() == Some(line) {
        return;
    }
    *noted = Some(line.to_owned());
    let (first, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let percent = first.trim_end_matches('%').parse::<f64>().ok().filter(|n| (0.0..=100.0).contains(n));
    let words = if percent.is_some() { rest } else { line };
    let note = Some(words.to_owned());
    let _ = voice.say::<ReportProgress>(|fence| ProgressBody { fence, percent, note });
}

/// Reads a stream to its end and hands it out as text, with where each piece stands.
fn pass_on(mut from: impl Read, stream: StreamName, mut tell: impl FnMut(&str, u64)) {
    let mut buffer = vec![0; READ_BYTES];
    let (mut kept, mut offset) = (Vec::new(), 0);
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        kept.extend_from_slice(&buffer[..read]);
        // A character may come in two pieces; at the end there is no second one.
        let whole = match std::str::from_utf8(&kept) {
            Err(e) if read > 0 && e.error_len().is_none() => e.valid_up_to(),
            _ => kept.len(),
        };
        let bytes: Vec<u8> = kept.drain(..whole).collect();
        let text = String::from_utf8_lossy(&bytes);
        if !text.is_empty() {
            let _ = match stream {
                StreamName::Stderr => std::io::stderr().write_all(text.as_bytes()),
                StreamName::Stdout => std::io::stdout().write_all(text.as_bytes()),
            };
            tell(&text, offset);
            offset += text.len() as u64;
        }
        if read == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out what it holds in the pieces it came in.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            into[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn a_character_in_two_pieces_is_one() {
        let mut told = Vec::new();
        pass_on(Pieces(vec![b"a\xc3", b"\xa9b", b"\xff", b"\xc3"]), StreamName::Stderr, |text, at| {
            told.push((text.to_owned(), at));
        });
        let expected = [("a", 0), ("éb", 1), ("\u{fffd}", 4), ("\u{fffd}", 7)];
        assert_eq!(told, expected.map(|(text, at)| (text.to_owned(), at)));
    }
}
