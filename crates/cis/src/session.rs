//! Being the coordinator of a data directory, or talking to the process that is: the same calls either way.
//!
//! ```text
//!   open: lock free? ── yes ─► coordinate here, serve the API on cis.sock to other processes
//!             │ no
//!             └─► call the API on cis.sock; if its process goes away meanwhile, start over
//! ```
//!
//! When the process that coordinates is done with its own run while others' runs go on, it hands over: tasks live in the
//! runner and do not notice. A node that starts takes over from any other coordinator.

use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cis_api::calls::{AttachRun, FollowChanges, HandOver, ShowCoordinator};
use cis_api::node::{CoordinatorInfo, CoordinatorKind, HandOverBody};
use cis_api::run::{RunPath, RunStarted};
use cis_api::{Call, Nothing, Request};
use cis_client::{CallError, CallOptions, Client, Held};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunId;
use cis_engine::app::{Answer, App, Sender, Settings};
use cis_engine::coordinator::handle::{leaving, next_look};
use cis_engine::coordinator::{Changes, Options};
use cis_engine::data_dir::{CoordinatorLock, DataDir};
use cis_engine::host::{Ended, Host, spawn_background, unusable};
use cis_engine::system::user;
use cis_server::Server;
use cis_server::socket::Socket;
use tokio::sync::watch;

/// How often an unreachable coordinator is tried again, and for how long: it may be starting or just going.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const RETRIES_MAX: u32 = 3_000;

/// Connections in a row that are closed without an answer before the other side counts as one of an older version.
const UNANSWERED_MAX: u32 = 10;

/// Tries for which a process that has handed over leaves the lock to its successor.
const SUCCESSOR_TRIES: u32 = 300;

/// How long a coordinator may take to say that it is there: longer than any commit.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Followers in this process are told of changes at most this often.
const TICK: Duration = Duration::from_millis(50);

/// How long a background coordinator without runs stays, in case another comes.
const LINGER: Duration = Duration::from_secs(2);

/// A way to the coordinator of a data directory.
#[derive(Debug)]
pub struct Session {
    options: Options,
    settings: Settings,
    link: Link,
    /// Runs that end with this process.
    owned: Vec<Owned>,
}

#[derive(Debug)]
enum Link {
    Here(Box<Here>),
    There(Client),
    /// Let go of already.
    Closed,
}

/// A run that ends with this process.
#[derive(Debug)]
struct Owned {
    run: RunId,
    /// The stream that is its ownership, where another process coordinates.
    _held: Option<Held>,
}

/// The coordinator in this process, and what serves its calls to others.
#[derive(Debug)]
pub struct Here {
    host: Host,
    leaving: watch::Sender<bool>,
    /// Gone before the lock is.
    socket: Option<Socket>,
}

impl Here {
    /// Coordinates in this process, and serves the socket of the data directory.
    fn open(options: Options, settings: Settings, lock: CoordinatorLock) -> Result<Self, Refusal> {
        let host = Host::open(options, settings, lock)?;
        let (leaving, left) = watch::channel(false);
        let _entered = host.runtime().enter();
        let (app, data_dir) = (host.app().clone(), host.app().options().data_dir.clone());
        let key = read_key(&data_dir)?;
        let server = move || Server::new(app, cis_server::Options::default(), Some(&key), left);
        let socket = Socket::listen(&data_dir.socket(), server).map_err(|e| unusable(&e))?;
        drop(_entered);
        Ok(Self { host, leaving, socket: Some(socket) })
    }

    fn call<C: Call>(&self, request: &Request<C>) -> Result<C::Response, Refusal>
    where
        App: Answer<C>,
    {
        let (app, request) = (self.host.app().clone(), request.clone());
        let (reply, answer) = mpsc::sync_channel(1);
        // On the coordinator's own thread: what the call writes and tells the loop goes on there, without a change of threads for
        // each of its steps.
        let call: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let _ = reply.send(app.call(&Sender::own_process(), request).await);
        });
        self.host.runtime().spawn(call);
        // Without an answer, the coordinator has ended before it came to the call.
        answer.recv().map_err(|_| leaving())??.answer
    }

    fn leave(mut self) -> Result<Ended, Refusal> {
        self.socket = None;
        self.leaving.send_replace(true);
        self.host.leave()
    }

    /// Waits for one that ends by itself.
    fn join_ended(mut self) -> Result<Ended, Refusal> {
        self.socket = None;
        self.leaving.send_replace(true);
        self.host.join_ended()
    }
}

impl Session {
    /// Becomes the coordinator, or connects to it.
    pub fn open(options: Options, settings: Settings) -> Result<Self, Refusal> {
        let link = open_link(&options, &settings, 0)?;
        Ok(Self { options, settings, link, owned: Vec::new() })
    }

    /// What the coordinator in this process took up when it began, in words.
    pub fn recovery(&self) -> Option<&str> {
        match &self.link {
            Link::Here(here) => here.host.recovery(),
            Link::There(_) | Link::Closed => None,
        }
    }

    /// What the coordinator says of itself.
    pub fn coordinator(&mut self) -> Result<CoordinatorInfo, Refusal> {
        self.call(&Request::<ShowCoordinator>::new(Nothing {}, Nothing {}, Nothing {}))
    }

    /// Makes a call, and makes it again if the coordinator goes away before it answers: each call is safe to repeat.
    pub fn call<C: Call>(&mut self, request: &Request<C>) -> Result<C::Response, Refusal>
    where
        App: Answer<C>,
    {
        loop {
            let answer = match &self.link {
                Link::Here(here) => here.call(request).map_err(CallError::Refused),
                Link::There(client) => client.try_call(request, CallOptions::default()),
                Link::Closed => Err(CallError::Refused(Refusal::leaving("not connected"))),
            };
            match answer {
                Err(error) if may_ask_next(&error) => self.reopen()?,
                answer => return Ok(answer?),
            }
        }
    }

    /// Starts a run that ends with this process.
    pub fn start_attached<C>(&mut self, request: &Request<C>) -> Result<RunStarted, Refusal>
    where
        C: Call<Response = RunStarted>,
        App: Answer<C>,
    {
        loop {
            let answer = match &self.link {
                Link::Here(here) => {
                    here.call(request).map(|started| (started, None)).map_err(CallError::Refused)
                }
                Link::There(client) => {
                    let held = client.hold(request, CallOptions::default());
                    held.map(|(started, held)| (started, Some(held)))
                }
                Link::Closed => Err(CallError::Refused(Refusal::leaving("not connected"))),
            };
            match answer {
                Err(error) if may_ask_next(&error) => self.reopen()?,
                answer => {
                    let (started, _held) = answer?;
                    self.owned.push(Owned { run: started.run_id, _held });
                    return Ok(started);
                }
            }
        }
    }

    /// After the coordinator went away: finds or becomes the next one, and takes its own runs along. Of one that failed
    /// in this very process it says why: the next would fail, too.
    pub fn reopen(&mut self) -> Result<(), Refusal> {
        loop {
            let mut patience = 0;
            if let Link::Here(here) = std::mem::replace(&mut self.link, Link::Closed) {
                here.join_ended()?.result?;
                // It ended without being told to by this process: it has handed over.
                patience = SUCCESSOR_TRIES;
            }
            self.link = open_link(&self.options, &self.settings, patience)?;
            let owned: Vec<RunId> = self.owned.drain(..).map(|owned| owned.run).collect();
            let mut is_attached = true;
            for run in owned {
                let held = match is_attached {
                    true => self.attach(run),
                    false => Err(()),
                };
                is_attached &= held.is_ok();
                self.owned.push(Owned { run, _held: held.unwrap_or_default() });
            }
            if is_attached {
                return Ok(());
            }
        }
    }

    /// Owns a run again; an error means that this coordinator is gone as well.
    fn attach(&self, run: RunId) -> Result<Option<Held>, ()> {
        let request = Request::<AttachRun>::new(RunPath::from(run), Nothing {}, Nothing {});
        match &self.link {
            Link::Here(here) => match here.call(&request) {
                Err(refusal) if refusal.is_leaving() => Err(()),
                // A run that is over, or that was pruned since, is owned by nothing.
                _ => Ok(None),
            },
            Link::There(client) => match client.hold(&request, CallOptions::default()) {
                Ok((_, held)) => Ok(Some(held)),
                Err(error) if may_ask_next(&error) => Err(()),
                Err(_) => Ok(None),
            },
            Link::Closed => Err(()),
        }
    }

    /// Calls `wake` whenever something changed, until it says no or the coordinator goes away (`false`).
    pub fn follow(&self, wake: impl FnMut(bool) -> bool + Send + 'static) -> Result<(), Refusal> {
        let mut follower = Follower(wake);
        match &self.link {
            Link::Here(here) => {
                let mut changes = here.host.app().changes();
                here.host.runtime().spawn(async move {
                    let mut seen = Changes::default();
                    while next_look(&mut changes, seen, TICK).await {
                        seen = *changes.borrow();
                        if !follower.wake() {
                            return;
                        }
                    }
                });
            }
            Link::There(_) | Link::Closed => {
                let client = client(&self.options.data_dir)?;
                let thread = thread::Builder::new().name("cis-follow".into());
                let followed = thread.spawn(move || {
                    let request = Request::<FollowChanges>::new(Nothing {}, Nothing {}, Nothing {});
                    // However it ends, the follower hears of it.
                    let _ = client.follow(&request, |_| follower.wake());
                });
                followed.map_err(|e| unusable(&e))?;
            }
        }
        Ok(())
    }

    /// Lets go. If runs of others are left here, a background coordinator takes over.
    pub fn close(mut self) -> Result<(), Refusal> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Refusal> {
        let Link::Here(here) = std::mem::replace(&mut self.link, Link::Closed) else { return Ok(()) };
        let Ended { lock, unfinished, result } = here.leave()?;
        if let Some(lock) = lock.filter(|_| unfinished > 0) {
            spawn_background(&self.options, lock)?;
        }
        result
    }
}

impl Drop for Session {
    /// However a command ends, runs of others that it took up are handed on.
    fn drop(&mut self) {
        // There is no caller left to tell; the next `cis` that writes or looks takes the runs up.
        let _ = self.leave();
    }
}

/// A follower. That there is nothing more to follow it hears in any case: what follows for it may end together with the
/// coordinator, in the midst of waiting.
struct Follower<W: FnMut(bool) -> bool>(W);

impl<W: FnMut(bool) -> bool> Follower<W> {
    fn wake(&mut self) -> bool {
        (self.0)(true)
    }
}

impl<W: FnMut(bool) -> bool> Drop for Follower<W> {
    fn drop(&mut self) {
        (self.0)(false);
    }
}

/// Did nothing come of a call because the coordinator went away, so that the next one may be asked the same?
fn may_ask_next(error: &CallError) -> bool {
    match error {
        CallError::Refused(refusal) => refusal.is_leaving(),
        CallError::Unreachable(..) | CallError::NoAnswer(..) => true,
        CallError::TimedOut(_) | CallError::NotUnderstood(..) => false,
    }
}

/// Coordinates until no run is left: what a background coordinator does. Ends at once if another process coordinates.
pub fn coordinate(options: Options, settings: Settings) -> Result<(), Refusal> {
    // Without a standard input there is nothing to inherit.
    let here = match options.data_dir.inherited_lock().unwrap_or_default() {
        Some(lock) => Box::new(Here::open(options, settings, lock)?),
        None => match open_link(&options, &settings, 0)? {
            Link::Here(here) => here,
            Link::There(_) | Link::Closed => return Ok(()),
        },
    };
    let mut idle = here.host.idle();
    let (finished, wait) = mpsc::channel();
    here.host.runtime().spawn(async move {
        loop {
            if idle.wait_for(|idle| *idle).await.is_err() {
                break;
            }
            let busy_again = tokio::time::timeout(LINGER, idle.wait_for(|idle| !*idle));
            if busy_again.await.is_err() {
                break;
            }
        }
        let _ = finished.send(());
    });
    // The thread may also end by itself, if the store or the runner fails it for good, or when it has handed over.
    while !here.host.has_ended() {
        match wait.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    here.leave()?.result
}

/// The lock of a data directory, for a node that starts: another coordinator hands over to it, and its runs go on. A second
/// node is refused, unless this one may `wait` for it to go. What it waits for is told to `tell`, once each.
pub fn take_over(
    data_dir: &DataDir,
    wait: bool,
    mut tell: impl FnMut(&str),
) -> Result<CoordinatorLock, Refusal> {
    let (mut told, mut unreachable) = (String::new(), Unreachable::default());
    let mut tell_once = |words: String| {
        if told != words {
            tell(&words);
            told = words;
        }
    };
    loop {
        if let Some(lock) = data_dir.try_lock().map_err(|e| unusable(&e))? {
            return Ok(lock);
        }
        let client = client(data_dir)?;
        match greet(&client) {
            Ok(info) if info.kind == CoordinatorKind::Node && !wait => return Err(second_node(&info)),
            Ok(info) if info.kind == CoordinatorKind::Node => {
                let at = info.address.unwrap_or_default();
                tell_once(format!("waiting until the node at {at} (process {}) goes", info.pid));
            }
            Ok(info) => {
                let body = HandOverBody { pid: Some(std::process::id()) };
                let request = Request::<HandOver>::new(Nothing {}, Nothing {}, body);
                match client.try_call(&request, hello()) {
                    Err(CallError::Refused(refusal)) if !refusal.is_leaving() => {
                        let hint = refusal.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
                        tell_once(format!("waiting for process {}: {refusal}{hint}", info.pid));
                    }
                    // It goes; that it cannot answer any more means the same.
                    _ => {}
                }
            }
            Err(error) => unreachable.count(&client, error)?,
        }
        pause();
    }
}

fn second_node(info: &CoordinatorInfo) -> Refusal {
    let at = info.address.as_deref().unwrap_or("an unknown address");
    let why = format!("a node serves this data directory already: process {}, at {at}", info.pid);
    Refusal::new(ErrorCode::AlreadyExists, why)
        .hint("stop it first, or `cis node start --wait` until it goes; `--data-dir` names another directory")
}

/// What the coordinator of a data directory says of itself; nothing if there is none that answers.
pub fn coordinator_of(data_dir: &DataDir) -> Option<CoordinatorInfo> {
    greet(&client(data_dir).ok()?).ok()
}

/// Why the process that holds the coordinator's lock does not answer, and what to do about it.
pub fn why_silent(data_dir: &DataDir) -> Refusal {
    let mut unreachable = Unreachable::default();
    for _ in 0..UNANSWERED_MAX {
        let tried = client(data_dir).and_then(|client| match greet(&client) {
            Ok(_) => Ok(()),
            Err(error) => unreachable.count(&client, error),
        });
        if let Err(refusal) = tried {
            return refusal;
        }
    }
    silent(None)
}

/// Asks a coordinator about itself.
fn greet(client: &Client) -> Result<CoordinatorInfo, CallError> {
    let request = Request::<ShowCoordinator>::new(Nothing {}, Nothing {}, Nothing {});
    client.try_call(&request, hello())
}

fn hello() -> CallOptions<'static> {
    CallOptions { patience: HELLO_MAX, ..CallOptions::default() }
}

/// A caller of the coordinator of a data directory, as its owner.
pub fn client(data_dir: &DataDir) -> Result<Client, Refusal> {
    Client::socket(&data_dir.socket(), &read_key(data_dir)?, &user())
}

/// What the owner shows on the socket of a data directory.
pub fn read_key(data_dir: &DataDir) -> Result<String, Refusal> {
    std::fs::read_to_string(data_dir.door_key()).map_err(|e| unusable(&e)).map(|key| key.trim().to_owned())
}

/// Becomes the coordinator or connects to it; the lock is left to another process for `patience` tries.
fn open_link(options: &Options, settings: &Settings, patience: u32) -> Result<Link, Refusal> {
    let mut unreachable = Unreachable::default();
    for nth in 0..RETRIES_MAX {
        if nth >= patience
            && let Some(lock) = options.data_dir.try_lock().map_err(|e| unusable(&e))?
        {
            let here = Here::open(options.clone(), settings.clone(), lock)?;
            return Ok(Link::Here(Box::new(here)));
        }
        let client = client(&options.data_dir)?;
        match greet(&client) {
            Ok(_) => return Ok(Link::There(client)),
            Err(error) => unreachable.count(&client, error)?,
        }
        pause();
    }
    Err(silent(None))
}

fn silent(pid: Option<u32>) -> Refusal {
    let who = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    let refusal = Refusal::new(
        ErrorCode::Unavailable,
        format!("{who} holds the coordinator's lock but does not answer"),
    );
    match pid.filter(|pid| is_stopped(*pid)) {
        Some(pid) => refusal.hint(format!("it is stopped: `kill -CONT {pid}` lets it go on")),
        None => refusal.hint("look for a stopped or hanging `cis` process on this data directory"),
    }
}

/// Is a process held by a SIGSTOP?
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything, parentheses included.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Tries that failed to reach the holder of the lock.
#[derive(Debug, Default)]
struct Unreachable {
    unanswered: u32,
    tries: u32,
}

impl Unreachable {
    /// Takes one in. It may be worth another: a coordinator that starts or goes does not answer. One that always closes the
    /// connection is of a version that speaks otherwise.
    fn count(&mut self, client: &Client, error: CallError) -> Result<(), Refusal> {
        match error {
            CallError::NoAnswer(..) => {
                self.unanswered += 1;
                match client.peer_pid() {
                    Ok(pid) if self.unanswered >= UNANSWERED_MAX => Err(older_coordinator(pid)),
                    _ => Ok(()),
                }
            }
            CallError::TimedOut(_) => Err(silent(client.peer_pid().ok())),
            CallError::Refused(refusal) if !refusal.is_leaving() => Err(refusal),
            CallError::NotUnderstood(..) => Err(error.into()),
            CallError::Refused(_) | CallError::Unreachable(..) => {
                (self.unanswered, self.tries) = (0, self.tries + 1);
                if self.tries < RETRIES_MAX { Ok(()) } else { Err(silent(None)) }
            }
        }
    }
}

/// What to do about a coordinator that was started from an older `cis`.
fn older_coordinator(pid: u32) -> Refusal {
    let why = format!("process {pid} coordinates this data directory and is an older version of `cis`");
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command: Vec<String> =
        command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let has = |word: &str| command.iter().skip(1).any(|given| given == word);
    let hint = if has("coordinator") {
        format!("`kill {pid}` ends it; its tasks go on, and the next `cis` takes them up")
    } else if has("node") || has("glm") {
        format!("restart the node: `kill {pid}`, then `cis node start`; its tasks go on meanwhile")
    } else {
        "it goes when its run has ended; until then use the `cis` it was started with".to_owned()
    };
    Refusal::new(ErrorCode::Unavailable, why).hint(hint)
}

/// No event announces that a lock was released; this is the one place that has to look again.
#[allow(clippy::disallowed_methods, reason = "a file lock cannot be waited for together with a socket")]
fn pause() {
    thread::sleep(RETRY_PAUSE);
}
