//! One running attempt: its process, its pipes, its log, and what is to happen to it when.

use std::ffi::CString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::clock::{NS_PER_MS, boot_ns, wall_ms};
use crate::journal::Leader;
use crate::log::{self, Stream};
use crate::outputs::read_outputs;
use crate::process::TICK_NS;
use crate::protocol::{AttemptKey, FromRunner, LogSummary, Outcome, STARTED_AFTER_MS, Start};
use crate::remnant::{SWEEP_NS_MAX, SWEEP_NS_MIN};
use crate::spawn::{Context, Descriptors, Spawner};
use crate::stray::{Birth, COOKIE, Strays};

/// Pipes are watched only from this age on: what a shorter attempt writes waits in the pipe until its end, and
/// the loop is not woken once more for each pipe that closes.
const WATCH_AFTER_MS: u64 = 4;

/// The most that is read from a pipe of which no living process of the attempt can hold the other end.
const DRAIN_READS_MAX: usize = 64;

/// Why an attempt is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Timeout,
    Stop,
    OwnerGone,
}

impl Cause {
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Cause::Timeout => Outcome::TimedOut,
            Cause::Stop => Outcome::Stopped,
            Cause::OwnerGone => Outcome::OwnerGone,
        }
    }
}

/// An attempt being ended: asked to go, and from `kill_ns` on made to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopping {
    pub(crate) cause: Cause,
    pub(crate) kill_ns: u64,
    pub(crate) killed: bool,
}

/// Text on its way into the attempt's standard input.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) pipe: File,
    text: Vec<u8>,
    sent: usize,
}

/// What came out of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poured {
    Some,
    Nothing,
    /// Nothing will ever come again.
    Dry,
}

/// What is left of an attempt that is over: descriptors to close, memory to free.
pub(crate) type Husk = ([Option<File>; 2], OwnedFd, Box<Start>);

/// A started attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) start: Box<Start>,
    /// The connection it ends with, if it is tied to one.
    pub(crate) owner: Option<u64>,
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// Standard output and standard error, until they have ended.
    pub(crate) pipes: [Option<File>; 2],
    pub(crate) watched: bool,
    pub(crate) feed: Option<Feed>,
    log: log::Writer,
    pub(crate) birth: Birth,
    pub(crate) started_ms: i64,
    started_ns: u64,
    pub(crate) told: bool,
    pub(crate) stopping: Option<Stopping>,
    /// How the leader exited; it is not reaped before nothing of the attempt is left.
    pub(crate) exit: Option<i32>,
    /// When to look again for what is left after the leader, and how long to wait after that.
    pub(crate) sweep: Option<(u64, u64)>,
    /// The timer entry that counts; any other one of this attempt is out of date.
    pub(crate) armed_ns: Option<u64>,
    /// Leftover processes that have a line in the log.
    noted: Vec<i32>,
    /// Processes that are not ours to signal.
    pub(crate) spared: Vec<i32>,
}

impl Attempt {
    /// Starts the process. The error is for people.
    pub(crate) fn start(
        start: Box<Start>,
        context: &Context,
        logs: &Path,
        spawner: &mut Spawner,
        strays: &mut Strays,
    ) -> Result<(Attempt, Leader), String> {
        let made = |error: rustix::io::Errno| format!("cannot make a pipe: {error}");
        let (stdout, stdout_end) = pipe_with(PipeFlags::CLOEXEC).map_err(made)?;
        let (stderr, stderr_end) = pipe_with(PipeFlags::CLOEXEC).map_err(made)?;
        for pipe in [&stdout, &stderr] {
            rustix::fs::fcntl_setfl(pipe, OFlags::NONBLOCK).map_err(made)?;
        }
        let (stdin_end, feed) = match &start.stdin {
            Some(text) => {
                let (end, pipe) = pipe_with(PipeFlags::CLOEXEC).map_err(made)?;
                rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK).map_err(made)?;
                (Some(end), Some(Feed { pipe: pipe.into(), text: text.clone().into_bytes(), sent: 0 }))
            }
            None => (None, None),
        };
        let descriptors = Descriptors {
            stdin: stdin_end.as_ref().map(AsFd::as_fd),
            stdout: stdout_end.as_fd(),
            stderr: stderr_end.as_fd(),
        };
        let cookie = CString::new(format!("{COOKIE}={}", strays.cookies().text(start.key)));
        let cookie = cookie.map_err(|_| "no cookie")?;
        let birth = strays.birth();
        let started_ns = boot_ns();
        cis_fail::point("runner.before_spawn");
        let (pid, pidfd) = spawner.spawn(&start, context, &cookie, descriptors)?;
        cis_fail::point("runner.after_spawn");
        strays.add_leader(pid, start.key);
        let leader = Leader {
            pid: pid.as_raw_nonzero().get(),
            from_tick: started_ns / TICK_NS,
            to_tick: boot_ns() / TICK_NS,
        };
        let log = log::Writer::new(logs.join(&start.log), start.log_cap_bytes);
        let mut attempt = Attempt {
            start,
            owner: None,
            pid,
            pidfd,
            pipes: [Some(stdout.into()), Some(stderr.into())],
            watched: false,
            feed,
            log,
            birth,
            started_ms: wall_ms(),
            started_ns,
            told: false,
            stopping: None,
            exit: None,
            sweep: None,
            armed_ns: None,
            noted: Vec::new(),
            spared: Vec::new(),
        };
        // Most texts fit into the pipe at once and never bother the loop.
        if !attempt.feed_more() {
            attempt.feed = None;
        }
        Ok((attempt, leader))
    }

    pub(crate) fn key(&self) -> AttemptKey {
        self.start.key
    }

    /// What the coordinator hears of it while it runs.
    pub(crate) fn started(&self) -> FromRunner {
        let pid = self.pid.as_raw_nonzero().get().cast_unsigned();
        FromRunner::Started { key: self.key(), pid, at_ms: self.started_ms }
    }

    /// When the loop has to look at it next.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let watch = (!self.watched).then_some(self.started_ns + WATCH_AFTER_MS * NS_PER_MS);
        let tell = (!self.told).then_some(self.started_ns + STARTED_AFTER_MS * NS_PER_MS);
        let timeout = self.stopping.is_none().then(|| self.timeout_ns()).flatten();
        let kill = self.stopping.filter(|stopping| !stopping.killed).map(|stopping| stopping.kill_ns);
        let sweep = self.sweep.map(|(at, _)| at);
        match self.exit {
            None => [watch, tell, timeout, kill].into_iter().flatten().min(),
            Some(_) => [kill, sweep].into_iter().flatten().min(),
        }
    }

    pub(crate) fn is_due_to_watch(&self, now_ns: u64) -> bool {
        !self.watched && now_ns >= self.started_ns + WATCH_AFTER_MS * NS_PER_MS
    }

    pub(crate) fn is_due_to_tell(&self, now_ns: u64) -> bool {
        !self.told && now_ns >= self.started_ns + STARTED_AFTER_MS * NS_PER_MS
    }

    pub(crate) fn timeout_ns(&self) -> Option<u64> {
        let span_ns = self.start.timeout_ms?.saturating_mul(NS_PER_MS);
        Some(self.started_ns.saturating_add(span_ns))
    }

    /// Signals the whole process group. Safe as long as the leader is not reaped: its pid is taken.
    pub(crate) fn signal_group(&self, signal: Signal) {
        // Nobody left in it, or not ours to signal: what is left is looked for separately.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Schedules the next look for what is left, each one later than the one before.
    pub(crate) fn sweep_later(&mut self, now_ns: u64) {
        let wait = self.sweep.map_or(SWEEP_NS_MIN, |(_, wait)| wait);
        self.sweep = Some((now_ns + wait, (2 * wait).min(SWEEP_NS_MAX)));
    }

    /// Puts a line into the log about a leftover process that is going to be ended.
    pub(crate) fn note_leftover(&mut self, process: &crate::process::Process) {
        if !self.noted.contains(&process.pid) {
            self.noted.push(process.pid);
            self.note(&format!("ended leftover process {} ({})", process.pid, process.command()));
        }
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.log.write(Stream::Runner, wall_ms(), format!("cis: {text}\n").as_bytes());
    }

    /// Reads once from a pipe into the log.
    pub(crate) fn read_pipe(&mut self, index: usize, buffer: &mut [u8]) -> Poured {
        let Some(Some(pipe)) = self.pipes.get_mut(index) else { return Poured::Dry };
        match pipe.read(buffer) {
            Ok(0) => Poured::Dry,
            Ok(n) => {
                self.log.write(Stream::ALL[index], wall_ms(), &buffer[..n]);
                Poured::Some
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Poured::Some,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Poured::Nothing,
            Err(_) => Poured::Dry,
        }
    }

    /// Reads what is left in the pipes. Nothing of the attempt is alive, so this is all there will ever be;
    /// a stranger who was handed the other end does not keep the attempt from ending.
    pub(crate) fn drain(&mut self, buffer: &mut [u8]) {
        for index in [0, 1] {
            for _ in 0..DRAIN_READS_MAX {
                if self.read_pipe(index, buffer) != Poured::Some {
                    break;
                }
            }
        }
    }

    /// Feeds standard input as much as it takes; true while there is more.
    pub(crate) fn feed_more(&mut self) -> bool {
        let Some(feed) = &mut self.feed else { return false };
        loop {
            match feed.pipe.write(&feed.text[feed.sent..]) {
                Ok(n) if feed.sent + n < feed.text.len() => feed.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // All of it, or a reader that wants no more.
                Ok(_) | Err(_) => return false,
            }
        }
    }

    /// What the task wrote to `$CIS_OUTPUT`; the file is removed.
    pub(crate) fn take_outputs(&self) -> Result<Option<String>, String> {
        let Some((_, path)) = self.start.env.iter().rev().find(|(name, _)| name == "CIS_OUTPUT") else {
            return Ok(None);
        };
        let outputs = read_outputs(Path::new(path)).map_err(|error| {
            format!(
                "cannot read the outputs in `{path}`: {error}; `$CIS_OUTPUT` takes a plain file of at most 1 MiB"
            )
        });
        remove_outputs(Path::new(path));
        outputs
    }

    /// Closes the log. What else there is of it is to be dropped when there is time.
    pub(crate) fn finish_log(self, ended_ms: i64) -> (LogSummary, Husk) {
        (self.log.finish(ended_ms), (self.pipes, self.pidfd, self.start))
    }
}

/// Removes what is in the place of the outputs. Of directories only an empty one: a large tree would hold up the runner, and
/// the next coordinator removes it.
fn remove_outputs(path: &Path) {
    if std::fs::remove_file(path).is_err_and(|error| error.kind() == ErrorKind::IsADirectory) {
        let _ = std::fs::remove_dir(path);
    }
}
