//! A coordinator for tests: talks to a real runner process, waits on messages, and counts survivors.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cis_runner::client::{Decoder, connect, connect_or_spawn, encode};
use cis_runner::directory::Directory;
use cis_runner::protocol::*;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Nothing in these tests takes this long; past it, something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub const EXE: &str = env!("CARGO_BIN_EXE_cis-runner-alone");

/// A data directory with a mark that every process started from it carries.
pub struct Node {
    pub dir: tempfile::TempDir,
    pub data: PathBuf,
    pub mark: String,
}

/// What the runner complained about is part of what went wrong.
impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.data.join("runner.log")).unwrap_or_default();
            eprintln!("runner.log:\n{log}");
        }
    }
}

static NODES: AtomicU32 = AtomicU32::new(0);

impl Node {
    pub fn new() -> Node {
        Node::below("data")
    }

    pub fn below(path: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join(path);
        let mark = format!("CIS_TEST_MARK={}-{}", std::process::id(), NODES.fetch_add(1, Ordering::Relaxed));
        Node { dir, data, mark }
    }

    /// Lets a thread of this process be the runner.
    pub fn runner_here(&self) -> &Node {
        let data = self.data.clone();
        std::thread::spawn(move || cis_runner::serve::run(&data).unwrap());
        // It is there when its door is.
        while connect(&self.data).unwrap().is_none() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self
    }

    pub fn connect(&self, epoch: i64, slots: u32) -> Coordinator {
        let mut coordinator = self.stranger();
        coordinator.say(&hello(epoch, slots, Directory::at(&self.data).ok()));
        let FromRunner::Welcome { attempts, pid, .. } = coordinator.hear() else { panic!("no welcome") };
        coordinator.known = attempts;
        coordinator.runner = pid;
        coordinator.say(&self.context());
        coordinator
    }

    /// A connection that has not introduced itself.
    pub fn stranger(&self) -> Coordinator {
        Coordinator::at(&self.data)
    }

    pub fn context(&self) -> ToRunner {
        let (name, value) = self.mark.split_once('=').unwrap();
        let path = std::env::var("PATH").unwrap();
        let text = |text: &str| Text::Utf8(text.into());
        let env = vec![(text("PATH"), text(&path)), (text(name), text(value))];
        ToRunner::Context { context: 1, env, cwd: self.dir.path().to_owned() }
    }

    /// A pipe in the directory: what reads it waits until somebody writes.
    pub fn fifo(&self, name: &str) -> PathBuf {
        let (path, mode) = (self.dir.path().join(name), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.data.join("logs").join(name)
    }

    /// Living processes that carry the mark, as pid and command line.
    pub fn survivors(&self) -> Vec<(i32, String)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // In one read: an exec between two of them would hide the rest.
            let mut environ = vec![0; 128 << 10];
            let Ok(mut file) = std::fs::File::open(entry.path().join("environ")) else { continue };
            let n = file.read(&mut environ).unwrap_or(0);
            if environ[..n].split(|b| *b == 0).any(|entry| entry == self.mark.as_bytes()) {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// Waits until exactly so many carry the mark: one in the middle of an exec shows it a moment later.
    pub fn wait_for_survivors(&self, count: usize) {
        for _ in 0..30_000 {
            if self.survivors().len() == count {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("not {count}: {:?}", self.survivors());
    }

    pub fn assert_no_survivors(&self) {
        assert_eq!(self.survivors(), []);
    }

    /// Waits until a live log ends with `text`. Files do not announce themselves, so this looks again and again.
    pub fn wait_for_output(&self, log: &str, text: &str) {
        for _ in 0..30_000 {
            if self.output(log, cis_runner::log::Stream::Stdout).0.ends_with(text.as_bytes()) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("`{text}` never came");
    }

    /// Reads the output of one stream back from the log, and how much of it was cut.
    pub fn output(&self, name: &str, stream: cis_runner::log::Stream) -> (Vec<u8>, u64) {
        use cis_runner::log::Entry;
        let (mut all, mut cut) = (Vec::new(), 0);
        let Ok(reader) = cis_runner::log::read(&self.log(name)) else {
            return (all, cut);
        };
        for entry in reader {
            match entry.unwrap() {
                Entry::Record(record) if record.stream == stream => all.extend(record.bytes),
                Entry::Cut { stream: of, bytes, .. } if of == stream => cut += bytes,
                _ => {}
            }
        }
        (all, cut)
    }
}

/// One end of a connection to a runner.
pub struct Coordinator {
    pub stream: UnixStream,
    decoder: Decoder,
    pub known: Vec<Known>,
    pub runner: u32,
    /// Attempts heard of as started.
    pub started: Vec<AttemptKey>,
    /// Outcomes heard while waiting for something else.
    pub ended: Vec<Ended>,
}

/// A message as another version of the program says it.
pub fn said(message: &serde_json::Value) -> Vec<u8> {
    let json = message.to_string();
    let length = u32::try_from(json.len()).unwrap().to_le_bytes();
    [&length[..], json.as_bytes()].concat()
}

/// How a coordinator introduces itself.
pub fn hello(epoch: i64, slots: u32, directory: Option<Directory>) -> ToRunner {
    ToRunner::Hello { protocol: PROTOCOL, oldest: OLDEST, epoch, slots, key: None, directory }
}

pub fn key(execution: i64) -> AttemptKey {
    AttemptKey { execution, fence: (1 << 32) | execution }
}

/// An attempt at a shell script.
pub fn script(execution: i64, text: &str) -> Start {
    Start {
        key: key(execution),
        context: 1,
        argv: vec!["sh".into(), "-c".into(), text.into()],
        env: vec![("CIS_FENCE".into(), key(execution).fence.to_string())],
        workdir: None,
        stdin: None,
        log: format!("run/{execution}.log"),
        timeout_ms: None,
        grace_ms: 10_000,
        log_cap_bytes: 10 << 20,
        tied: false,
        detach: false,
        lane: None,
    }
}

impl Coordinator {
    /// One that has not introduced itself, at the runner of this directory.
    pub fn at(data: &Path) -> Coordinator {
        let stream = connect_or_spawn(data, Path::new(EXE)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Coordinator {
            stream,
            decoder: Decoder::new(),
            known: Vec::new(),
            runner: 0,
            started: Vec::new(),
            ended: Vec::new(),
        }
    }

    pub fn say(&mut self, message: &ToRunner) {
        self.stream.write_all(&encode(message).unwrap()).unwrap();
    }

    pub fn start(&mut self, start: Start) {
        self.say(&ToRunner::Start(Box::new(start)));
    }

    pub fn stop(&mut self, execution: i64, kill: bool) {
        self.say(&ToRunner::Stop { key: key(execution), kill });
    }

    /// Hands over what is tied to this connection, and goes.
    pub fn hand_over(mut self, keep_ms: u64) {
        self.prepare_hand_over(keep_ms);
    }

    pub fn prepare_hand_over(&mut self, keep_ms: u64) {
        self.say(&ToRunner::HandOver { keep_ms });
        loop {
            match self.hear() {
                FromRunner::HandOverReady => break,
                FromRunner::Started { key, .. } => self.started.push(key),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// What the runner knew of when we came, and where it stood.
    pub fn states(&self) -> Vec<(i64, KnownState)> {
        self.known.iter().map(|known| (known.key.execution, known.state)).collect()
    }

    pub fn ack(&mut self, executions: impl IntoIterator<Item = i64>) {
        self.say(&ToRunner::Ack { keys: executions.into_iter().map(key).collect() });
    }

    pub fn try_hear(&mut self) -> Option<FromRunner> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.decoder.pull().unwrap() {
                return Some(message);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the runner says nothing: {error}"),
            }
        }
    }

    pub fn hear(&mut self) -> FromRunner {
        self.try_hear().expect("the runner closed the connection")
    }

    /// The next outcome; what started meanwhile is remembered.
    pub fn ended(&mut self) -> Ended {
        loop {
            if let Some(ended) = self.ended.pop() {
                return ended;
            }
            match self.hear() {
                FromRunner::Ended(ended) => return *ended,
                FromRunner::Started { key, .. } => self.started.push(key),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    pub fn ended_many(&mut self, count: usize) -> Vec<Ended> {
        let mut all: Vec<Ended> = (0..count).map(|_| self.ended()).collect();
        all.sort_by_key(|ended| ended.key);
        all
    }

    pub fn wait_started(&mut self, execution: i64) {
        while !self.started.contains(&key(execution)) {
            match self.hear() {
                FromRunner::Started { key, .. } => self.started.push(key),
                FromRunner::Ended(ended) => self.ended.push(*ended),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// What the runner's loop may be woken for: the descriptors in its epoll.
    pub fn watched(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.runner)).unwrap().flatten() {
            if std::fs::read_link(entry.path()).is_ok_and(|link| link.ends_with("anon_inode:[eventpoll]")) {
                let info = format!("/proc/{}/fdinfo/{}", self.runner, entry.file_name().display());
                let info = std::fs::read_to_string(info).unwrap();
                found.extend(info.lines().filter(|line| line.starts_with("tfd:")).map(ToOwned::to_owned));
            }
        }
        found.sort();
        // Where descriptors have copies, so has the epoll.
        found.dedup();
        found
    }

    /// Runs one attempt to its end.
    pub fn run(&mut self, start: Start) -> Ended {
        let key = start.key;
        self.start(start);
        let ended = self.ended();
        assert_eq!(ended.key, key);
        ended
    }
}

/// Looks again and again: files do not announce themselves.
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if is() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("{what} never came");
}

/// Kills a process and waits until it is gone.
pub fn kill_and_wait(pid: u32) {
    let fd = pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&fd, Signal::KILL).unwrap();
    wait_gone(&fd);
}

/// Waits until the process of a pidfd has exited.
pub fn wait_gone(fd: &OwnedFd) {
    assert!(exits_within(fd, PATIENCE), "the process does not go away");
}

pub fn is_gone(fd: &OwnedFd) -> bool {
    exits_within(fd, Duration::ZERO)
}

fn exits_within(fd: &OwnedFd, span: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: span.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

pub fn exited(code: i32) -> Outcome {
    Outcome::Exited { code }
}
