//! `cis work`: a worker for scripts. Claims tasks of a node, runs a command for each, and tells how it ended.
//!
//! ```text
//!   claim ──► job: the command, its output to the log, heartbeats ──► complete │ fail │ release ──► claim …
//! ```

mod job;
mod voice;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cis_client::{Client, Method};
use cis_core::dag::parse::duration;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Millis;
use serde::Deserialize;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Failure, Outcome, Setup};
use crate::cli::WorkArgs;
use crate::term::face::{BOLD, DIM, paint};
use crate::term::{Face, reveal};
use cis_core::task::TaskStatus;
use job::{Ending, Job};
use voice::Voice;

/// How long one claim waits for something to do.
const WAIT: Duration = Duration::from_secs(30);

/// Between tries to reach a node that is not there: at first, and at most.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A task as a claim answers it: what the worker itself needs of it.
#[derive(Debug, Clone, Deserialize)]
struct Task {
    execution_id: i64,
    fence: i64,
    lease_secs: u64,
    run: String,
    run_id: String,
    dag_id: String,
    task_id: String,
    attempt: u32,
    input: Value,
    handoff: Value,
}

impl Task {
    fn label(&self) -> String {
        format!("{}/{}", self.run, self.task_id)
    }
}

/// What wakes the worker.
#[derive(Debug)]
enum Wake {
    Claimed(Result<Vec<Task>, Refusal>),
    Job(job::Event),
    Interrupted,
}

pub(super) fn work(setup: &Setup, args: &WorkArgs) -> Outcome {
    let lease = args.lease.as_deref().map(duration::from_text).transpose().map_err(Failure::usage)?;
    let client = setup.remote()?;
    let (wake, woken) = mpsc::channel();
    listen_for_signals(wake.clone())?;
    let claim = claim_body(args, lease);
    let mut pause = PAUSE;
    loop {
        let task = match next(&client, &claim, &wake, &woken) {
            Ok(Some(tasks)) => tasks.into_iter().next(),
            Ok(None) => return Ok(130),
            // A node that restarts, or has no room, is worth waiting for; one that says no is not.
            Err(refusal) if is_worth_waiting(&refusal) && !args.once => {
                crate::term::report::warn(&refusal.message);
                if let Ok(Wake::Interrupted) = woken.recv_timeout(pause) {
                    return Ok(130);
                }
                pause = (2 * pause).min(PAUSE_MAX);
                continue;
            }
            Err(refusal) => return Err(refusal.into()),
        };
        pause = PAUSE;
        let Some(task) = task else { continue };
        let voice = Voice::new(client.clone(), &task);
        let ending = Job::start(&task, &args.command, voice, wake.clone())?.see_through(&woken);
        tell(setup, &task, &ending);
        match ending {
            Ending::Interrupted => return Ok(130),
            ending if args.once => return Ok(ending.exit()),
            _ => {}
        }
    }
}

fn is_worth_waiting(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::Unavailable | ErrorCode::DiskFull)
}

fn claim_body(args: &WorkArgs, lease: Option<Millis>) -> Value {
    let mut claim = json!({"capabilities": args.needs, "wait_secs": WAIT.as_secs()});
    if !args.scopes.is_empty() {
        claim["scopes"] = json!(args.scopes);
    }
    if let Some(name) = &args.name {
        claim["worker"] = json!(name);
    }
    if let Some(lease) = lease {
        claim["lease_secs"] = json!(lease.0.div_ceil(1_000));
    }
    claim
}

/// The next tasks; `None` if the worker was told to go.
fn next(
    client: &Client,
    claim: &Value,
    wake: &mpsc::Sender<Wake>,
    woken: &mpsc::Receiver<Wake>,
) -> Result<Option<Vec<Task>>, Refusal> {
    let (client, claim, told) = (client.clone(), claim.clone(), wake.clone());
    // On a thread of its own: whoever wants the worker to go need not wait for a task.
    thread::spawn(move || {
        let answer = client.call(Method::POST, "/api/v1/tasks/claim", Some(&claim), WAIT);
        let tasks = answer.and_then(|mut answer| {
            serde_json::from_value(answer["tasks"].take()).map_err(|e| {
                Refusal::new(ErrorCode::Internal, format!("the node's answer does not read: {e}"))
            })
        });
        let _ = told.send(Wake::Claimed(tasks));
    });
    loop {
        match woken.recv() {
            Ok(Wake::Claimed(tasks)) => return tasks.map(Some),
            Ok(Wake::Interrupted) | Err(_) => return Ok(None),
            // A late word of a job that is over.
            Ok(Wake::Job(_)) => {}
        }
    }
}

fn listen_for_signals(wake: mpsc::Sender<Wake>) -> Result<(), Failure> {
    let unable =
        |e: std::io::Error| Failure::new(ErrorCode::Unavailable, format!("cannot catch signals: {e}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(unable)?;
    let thread = thread::Builder::new().name("cis-signals".into());
    let caught = thread.spawn(move || signals.forever().all(|_| wake.send(Wake::Interrupted).is_ok()));
    caught.map(drop).map_err(unable)
}

/// One line per task, for whoever watches the worker.
fn tell(setup: &Setup, task: &Task, ending: &Ending) {
    if setup.json {
        let told = json!({"task": task.label(), "execution_id": task.execution_id, "attempt": task.attempt,
                          "ending": ending.word(), "why": ending.why()});
        say_json!(told);
        return;
    }
    let face = Face::from(match ending {
        Ending::Completed => TaskStatus::Completed,
        Ending::Failed { .. } | Ending::Lost { .. } => TaskStatus::Failed,
        Ending::Cancelled | Ending::Interrupted => TaskStatus::Cancelled,
    });
    let why = ending.why().map(|why| format!(": {}", reveal(&why))).unwrap_or_default();
    tell!(
        "{} {} {}{}",
        face.mark(),
        paint(BOLD, &reveal(&task.label())),
        paint(face.tone.style(), ending.word()),
        paint(DIM, &why)
    );
}
