//! The node that is broken: the real program on a data directory of its own, killed and started again.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::{self, Process};
use super::wire::{Request, Wire};
use crate::clock::{eventually, pause};

/// Nothing here takes this long; past it, something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a point is waited for. Under load every one of them is passed many times a second.
const STRIKE_WITHIN: Duration = Duration::from_secs(2);

/// Lines of a node's last words.
const LAST_LINES: usize = 12;

/// A node and its surroundings.
#[derive(Debug)]
pub(crate) struct Victim {
    exe: PathBuf,
    dir: TempDir,
    slots: u32,
    child: Option<Child>,
    door: Arc<Door>,
    /// How many processes of the node there have been.
    lives: u64,
}

/// Where clients find the node at present; while it is down they wait here.
#[derive(Debug, Default)]
pub(crate) struct Door {
    standing: Mutex<Option<Standing>>,
    opened: Condvar,
}

/// A life of the node, and where it listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) address: SocketAddr,
    pub(crate) life: u64,
}

impl Door {
    /// Where the node is, once it is up; `None` if it is not for a while.
    pub(crate) fn wait(&self) -> Option<Standing> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.opened.wait_timeout_while(standing, Duration::from_secs(1), |now| now.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn set(&self, standing: Option<Standing>) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
        self.opened.notify_all();
    }
}

/// Is it the runner that comes by this point, and not the node?
pub(crate) fn kills_runner(point: &str) -> bool {
    point.starts_with("runner.")
}

/// The program of this name that was built beside this very program, by the same profile.
pub(crate) fn program_beside_us(name: &str) -> Result<PathBuf> {
    let us = std::env::current_exe().context("cannot tell where this program is")?;
    // A test lies one directory deeper than what it tests.
    let beside = us.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    beside.with_context(|| {
        let dir = us.parent().unwrap_or(&us).display();
        format!(
            "there is no `{name}` beside `{dir}`: build it first, `cargo build -p {name} --features cis/failpoints`"
        )
    })
}

impl Victim {
    /// A node on an empty data directory, up.
    pub(crate) fn start(slots: u32) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cis-crash").tempdir()?;
        let exe = program_beside_us("cis")?;
        let mut victim = Self { exe, dir, slots, child: None, door: Arc::default(), lives: 0 };
        victim.rise()?;
        Ok(victim)
    }

    pub(crate) fn door(&self) -> Arc<Door> {
        self.door.clone()
    }

    pub(crate) fn lives(&self) -> u64 {
        self.lives
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Keeps the directory, for somebody to look at.
    pub(crate) fn keep(&mut self) -> &Path {
        self.dir.disable_cleanup(true);
        self.dir.path()
    }

    /// Starts the node, and waits until it serves.
    pub(crate) fn rise(&mut self) -> Result<()> {
        let (tell, told) = mpsc::channel();
        let child = self.spawn()?;
        let stdout = child.stdout.take().context("no output")?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("http://") {
                    let _ = tell.send(address.trim().parse());
                }
            }
        });
        let Ok(address) = told.recv_timeout(PATIENCE) else {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            bail!("the node does not come up ({ended:?}):\n{}", self.last_words());
        };
        self.door.set(Some(Standing { address: address?, life: self.lives }));
        Ok(())
    }

    /// Starts the node and kills it after a while, wherever it is by then.
    pub(crate) fn rise_and_fall(&mut self, after: Duration) -> Result<()> {
        self.spawn()?;
        pause(after);
        self.fall()
    }

    fn spawn(&mut self) -> Result<&mut Child> {
        self.lives += 1;
        let log = OpenOptions::new().append(true).create(true).open(self.path("node.log"))?;
        let mut command = Command::new(&self.exe);
        command.args(["node", "start", "--bind", "127.0.0.1:0"]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.path("home"));
        command.env("CIS_DATA_DIR", self.data()).env("CIS_SLOTS", self.slots.to_string());
        command.env("CIS_LOG", "warn").env(cis_fail::VARIABLE, self.path("fail"));
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start `{}`", self.exe.display()))?;
        Ok(self.child.insert(child))
    }

    /// Kills the node, and whoever waits for it knows.
    pub(crate) fn fall(&mut self) -> Result<()> {
        self.door.set(None);
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// An error if the node ended though nobody killed it.
    pub(crate) fn must_live(&mut self) -> Result<()> {
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?,
            None => None,
        };
        match ended {
            None => Ok(()),
            Some(status) => bail!("the node ended by itself, {status}:\n{}", self.last_words()),
        }
    }

    /// Lets whoever comes by this point first die there.
    pub(crate) fn arm(&self, point: &str) -> Result<()> {
        let new = self.path("fail.new");
        std::fs::write(&new, point)?;
        Ok(std::fs::rename(&new, self.path("fail"))?)
    }

    /// Waits until somebody has died at the point that was armed; false if nobody does.
    pub(crate) fn struck(&mut self, point: &str) -> Result<bool> {
        let file = self.path("fail");
        let struck = eventually(STRIKE_WITHIN, || (!file.exists()).then_some(())).is_some();
        // It may have been the last moment.
        let struck = struck || std::fs::remove_file(&file).is_err();
        if struck && !kills_runner(point) {
            self.door.set(None);
            let mut child = self.child.take().context("nobody is there to strike")?;
            let status = eventually(PATIENCE, || child.try_wait().ok().flatten());
            let killed = status.is_some_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
            ensure!(killed, "struck at `{point}`, the node did not die: {status:?}");
        }
        Ok(struck)
    }

    pub(crate) fn runner(&self) -> Option<u32> {
        process::listener(&self.data().join("runner.sock"))
    }

    /// Kills the runner; false if there is none.
    pub(crate) fn kill_runner(&self) -> bool {
        self.runner().is_some_and(|pid| process::end(pid, Signal::KILL, PATIENCE))
    }

    /// Stops the node as its owner would, and waits until nobody needs the runner any more.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.door.set(None);
        let Some(mut child) = self.child.take() else { return Ok(()) };
        ensure!(process::end(child.id(), Signal::TERM, PATIENCE), "the node does not stop");
        let status = child.wait()?;
        ensure!(status.success(), "the node ended with {status}:\n{}", self.last_words());
        eventually(PATIENCE, || self.processes().is_empty().then_some(()));
        Ok(())
    }

    /// Living processes of the data directory.
    pub(crate) fn processes(&self) -> Vec<Process> {
        process::of_data_dir(&self.data(), &self.exe)
    }

    /// Living processes of tasks.
    pub(crate) fn strays(&self) -> Vec<Process> {
        self.processes().into_iter().filter(|process| !process.is_cis).collect()
    }

    /// Calls the node as its owner, and expects it to be well.
    pub(crate) fn ask(&self, request: &Request) -> Result<Value> {
        let token = std::fs::read_to_string(self.data().join("admin.token"))?;
        let standing = self.door.wait().context("the node is down")?;
        let reply = Wire::open(standing.address)?.call(token.trim(), request)?;
        ensure!(reply.status < 300, "{} {}: {}", request.method, request.path, reply.body);
        Ok(reply.body)
    }

    /// A token for a caller that may do everything.
    pub(crate) fn token(&self, identity: &str) -> Result<String> {
        self.token_for(&json!({"identity": identity, "as": "owner"}))
    }

    /// A token as it is asked for.
    pub(crate) fn token_for(&self, wanted: &Value) -> Result<String> {
        let made = self.ask(&Request::post("/api/v1/tokens", wanted))?;
        Ok(made["token"].as_str().with_context(|| format!("no token in {made}"))?.to_owned())
    }

    /// Publishes and confirms; answers the run's id.
    pub(crate) fn run(&self, dag: &Value) -> Result<String> {
        let published = self.ask(&Request::post("/api/v1/dag/publish", dag))?;
        let id = published["dag_id"].as_str().with_context(|| format!("no DAG in {published}"))?;
        let confirmed = self.ask(&Request::post(format!("/api/v1/dag/{id}/confirm"), &json!({})))?;
        Ok(confirmed["run_id"].as_str().with_context(|| format!("no run in {confirmed}"))?.to_owned())
    }

    /// Waits until a DAG's run is over; an error if it does not end.
    pub(crate) fn wait_over(&self, dag: &str) -> Result<Value> {
        let mut told = self.ask(&Request::get(format!("/api/v1/dag/{dag}/status")))?;
        for _ in 0..PATIENCE.as_secs() {
            if ["completed", "failed", "cancelled", "timed_out"].iter().any(|word| told["status"] == **word) {
                return Ok(told);
            }
            let version = &told["version"];
            told = self.ask(&Request::get(format!("/api/v1/dag/{dag}/status?wait=1s&after={version}")))?;
        }
        bail!("`{dag}` does not end: {told}")
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.door.wait().context("the node is down")?.address)
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("the node is down")?.id())
    }

    /// A command about the node's data directory and this file.
    pub(crate) fn cis(&self, command: &[&str], file: &Path) -> Command {
        let mut cis = Command::new(&self.exe);
        cis.args(command).arg(file).env("CIS_DATA_DIR", self.data()).env("HOME", self.path("home"));
        cis.stdin(Stdio::null());
        cis
    }

    fn last_words(&self) -> String {
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let said = read(self.path("node.log")) + &read(self.data().join("runner.log"));
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.fall();
        // Whatever forks while it is looked for is found by the next look.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|process| {
                process::end(process.pid, Signal::KILL, PATIENCE);
            });
        }
    }
}
