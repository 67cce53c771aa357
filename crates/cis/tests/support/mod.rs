//! A place to run the real `cis` in: writes files, runs commands, waits on events, and leaves nothing behind.
//!
//! Every process started from a [`Node`], however far removed, carries its mark in the environment; that is how
//! survivors are counted, and how what a failed test leaves is ended.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fifo;
pub mod http;
pub mod process;
pub mod pty;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use cis_store::{Reader, check};
use rustix::process::Signal;
use serde_json::Value;

pub use fifo::Fifo;
pub use process::{Process, peer, wait_gone};

pub const EXE: &str = env!("CARGO_BIN_EXE_cis");

/// Nothing in these tests takes this long; past it, something hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of DAG files with a data directory of its own.
pub struct Node {
    dir: tempfile::TempDir,
    pub data: PathBuf,
    mark: String,
    env: Vec<(String, String)>,
    /// Who runs it, if not the user of the tests.
    user: Option<u32>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub line: String,
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

/// A command that runs.
pub struct Running {
    line: String,
    child: Child,
    /// What it printed, a line at a time, and what of it was taken already.
    lines: Receiver<String>,
    taken: String,
    err: JoinHandle<String>,
}

static NODES: AtomicU32 = AtomicU32::new(0);

impl Node {
    /// A node with room for many tasks at once, however few cores there are.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("cis").tempdir().unwrap();
        let data = dir.path().join("data");
        let mark = format!("E2E_MARK={}-{}", std::process::id(), NODES.fetch_add(1, Ordering::Relaxed));
        let node = Self { dir, data, mark, env: Vec::new(), user: None };
        node.with("CIS_SLOTS", "8").with("CIS_DURABILITY", "process")
    }

    /// The same with a variable set for every command.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same for a plain user, as only the superuser can arrange it.
    #[must_use]
    pub fn for_user(mut self, id: u32) -> Self {
        std::os::unix::fs::chown(self.dir(), Some(id), Some(id)).unwrap();
        self.lend(Path::new(EXE), "cis");
        self.user = Some(id);
        self
    }

    /// Puts a program where the node's user can run it: not every user reaches where it was built.
    pub fn lend(&self, program: &Path, name: &str) -> PathBuf {
        let path = self.path(name);
        if std::fs::hard_link(program, &path).is_err() {
            std::fs::copy(program, &path).unwrap();
        }
        path
    }

    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// The program of this node.
    pub fn exe(&self) -> PathBuf {
        self.user.map_or(PathBuf::from(EXE), |_| self.path("cis"))
    }

    /// Where commands run and files are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes `NAME.toml`.
    pub fn dag(&self, name: &str, text: &str) {
        self.write(&format!("{name}.toml"), text);
    }

    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }

    pub fn fifo(&self, name: &str) -> Fifo {
        Fifo::new(&self.path(name))
    }

    /// `cis` with this node's surroundings and no data directory named.
    pub fn bare(&self) -> Command {
        let mut command = Command::new(self.exe());
        if let Some(id) = self.user {
            command.uid(id).gid(id);
        }
        let (name, value) = self.mark.split_once('=').unwrap();
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.path("home"));
        command.env(name, value).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    /// `cis` on this node's data directory.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.bare();
        command.env("CIS_DATA_DIR", &self.data).args(args);
        command
    }

    /// Starts `cis` with these arguments.
    pub fn spawn<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running::start(self.command(args))
    }

    /// Runs `cis` with these arguments to its end.
    pub fn cis<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.spawn(args).wait()
    }

    /// Runs `cis` and expects it to end well.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.cis(args).code(0)
    }

    /// What `cis … --json` says.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        let mut command = self.command(args);
        command.arg("--json");
        Running::start(command).wait().json()
    }

    /// What to decide about `dag` by: its pending revision, or the task of it that waits.
    pub fn review(&self, dag: &str) -> String {
        let pending = self.json(["pending"])["pending"].clone();
        let found = pending.as_array().unwrap().iter().rev().find(|one| one["dag_id"] == dag);
        found.unwrap_or_else(|| panic!("nothing of `{dag}` waits: {pending}"))["review_id"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Confirms what waits of `dag`, as a person does who has read it.
    pub fn confirm(&self, dag: &str) -> Ran {
        self.ok(["confirm", &self.review(dag)])
    }

    /// How a task of the latest run of `dag` stands, with everything known of it.
    pub fn task(&self, dag: &str, task: &str) -> Value {
        let status = self.json(["status", dag]);
        let tasks = status["tasks"].as_array().unwrap_or_else(|| panic!("no tasks: {status}"));
        tasks
            .iter()
            .find(|row| row["task_id"] == task)
            .unwrap_or_else(|| panic!("no `{task}`: {status}"))
            .clone()
    }

    /// The statuses of all tasks of the latest run of `dag`, as `a=completed b=skipped`.
    pub fn states(&self, dag: &str) -> String {
        let status = self.json(["status", dag]);
        let tasks = status["tasks"].as_array().unwrap_or_else(|| panic!("no tasks: {status}")).iter();
        let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        tasks
            .map(|row| format!("{}={}", word(row, "task_id"), word(row, "status")))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The same from the store itself: `cis status` gives an abandoned run a coordinator, this does nothing.
    pub fn stored(&self, dag: &str) -> String {
        let reader = Reader::open(&self.data.join("dag.db")).unwrap();
        let key = reader.dag(dag, None).unwrap()[0].key;
        let run = reader.runs(Some(key), 1).unwrap().remove(0);
        let tasks = reader.tasks(&run, &[], u32::MAX).unwrap();
        tasks.iter().map(|task| format!("{}={}", task.task_id, task.status)).collect::<Vec<_>>().join(" ")
    }

    /// What a task of the latest run of `dag` printed.
    pub fn logs(&self, dag: &str, task: &str) -> String {
        self.ok(["logs", dag, "--task", task]).out
    }

    /// Every invariant of the store holds.
    pub fn assert_sound(&self) {
        let wrong = check::violations(&Reader::open(&self.data.join("dag.db")).unwrap()).unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// The process that coordinates, once there is one.
    pub fn coordinator(&self) -> u32 {
        eventually("a coordinator", || peer(&self.data.join("cis.sock")))
    }

    /// The process that owns task processes, once there is one.
    pub fn runner(&self) -> u32 {
        eventually("a runner", || peer(&self.data.join("runner.sock")))
    }

    /// Living processes that carry the mark.
    pub fn processes(&self) -> Vec<Process> {
        process::carrying(&self.mark, &self.data)
    }

    /// Living processes of tasks.
    pub fn survivors(&self) -> Vec<Process> {
        self.processes().into_iter().filter(|process| !process.is_cis).collect()
    }

    pub fn assert_no_survivors(&self) {
        assert_eq!(self.survivors(), []);
    }

    /// Waits until every `cis` process has gone by itself, as idle ones do.
    pub fn wait_idle(&self) {
        loop {
            let left: Vec<Process> = self.processes().into_iter().filter(|process| process.is_cis).collect();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|process| assert!(wait_gone(process.pid), "stays forever: {process:?}"));
        }
    }

    /// What coordinator and runner complained about.
    pub fn complaints(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.data.join(name)).unwrap_or_default();
        format!("{}{}", read("coordinator.log"), read("runner.log"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("complaints:\n{}\nprocesses: {:#?}", self.complaints(), self.processes());
        }
        // Whatever forks while it is looked for is found by the next look.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            left.iter().for_each(|process| process::kill(process.pid));
        }
    }
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let line = format!("{command:?}");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let _ = tell.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
        });
        let err = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { line, child, lines, taken: String::new(), err }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        process::signal(self.pid(), signal);
    }

    /// Waits for a line of its output that has `text` in it.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("{}: `{text}` never came:\n{}", self.line, self.taken)
            };
            self.taken += &line;
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Waits until it has ended.
    pub fn wait(mut self) -> Ran {
        if !wait_gone(self.child.id()) {
            process::kill(self.child.id());
            let _ = self.child.wait();
            panic!("{}: does not end:\n{}", self.line, self.taken + &self.lines.iter().collect::<String>());
        }
        let status = self.child.wait().unwrap();
        let out = self.taken + &self.lines.iter().collect::<String>();
        Ran { line: self.line, status, out, err: self.err.join().unwrap() }
    }
}

impl Ran {
    /// It ended with this exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self
    }

    /// It printed this.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.out.contains(text), "no `{text}`: {self}");
        self
    }

    /// It told people this on stderr.
    #[track_caller]
    pub fn tells(self, text: &str) -> Self {
        assert!(self.err.contains(text), "no `{text}`: {self}");
        self
    }

    /// It printed nothing.
    #[track_caller]
    pub fn says_nothing(self) -> Self {
        assert!(self.out.is_empty(), "{self}");
        self
    }

    /// Its output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self}"))
    }

    /// Its output as one JSON value a line.
    #[track_caller]
    pub fn ndjson(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self}")))
            .collect()
    }

    /// The last of its NDJSON lines: how the run ended.
    #[track_caller]
    pub fn summary(&self) -> Value {
        self.ndjson().pop().unwrap_or_else(|| panic!("nothing said: {self}"))
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, status, out, err } = self;
        write!(f, "{line}: {status}\n--- stdout\n{out}--- stderr\n{err}")
    }
}

/// Looks again and again until there is an answer: for what does not announce itself.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..30_000 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    panic!("{what} never came");
}
