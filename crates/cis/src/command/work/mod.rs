//! `cis work`: a worker for scripts. Claims tasks of a node, runs a command for each, and tells how it ended.
//!
//! ```text
//!   claim ──► job: the command, its output to the log, heartbeats ──► complete │ fail │ release ──► claim …
//! ```

mod files;
mod job;
mod start;
mod voice;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cis_api::calls::ClaimTasks;
use cis_api::work::{ClaimBody, ClaimedTask};
use cis_api::{Nothing, Request};
use cis_client::Client;
use cis_core::dag::parse::duration;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Millis;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Failure, Outcome, Setup, token};
use crate::cli::WorkArgs;
use crate::term::face::{BOLD, DIM, paint};
use crate::term::{Face, reveal};
use cis_core::task::TaskStatus;
use files::WorkFiles;
use job::{Ending, Job};
use voice::Voice;

/// How long one claim waits for something to do.
const WAIT: Duration = Duration::from_secs(30);

/// Between tries to reach a node that is not there, or after a command that could not be started: at first, and at most.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What people call a task: `backup#42/dump`.
fn label(task: &ClaimedTask) -> String {
    format!("{}/{}", task.run, task.task_id)
}

/// What wakes the worker.
#[derive(Debug)]
enum Wake {
    Claimed(Result<Vec<ClaimedTask>, Refusal>),
    Job(job::Event),
    Interrupted,
}

pub(super) fn work(setup: &Setup, args: &WorkArgs) -> Outcome {
    let lease = args.lease.as_deref().map(duration::from_text).transpose().map_err(Failure::usage)?;
    start::check_program(&args.command)?;
    let client = setup.client()?;
    let files = match setup.token {
        Some(_) => WorkFiles::Temporary,
        None => WorkFiles::in_data_dir(setup.data_dir().root()).map_err(|e| {
            Failure::new(
                ErrorCode::Unavailable,
                format!("cannot make a directory for the files of tasks: {e}"),
            )
        })?,
    };
    let (wake, woken) = mpsc::channel();
    listen_for_signals(wake.clone())?;
    let claim = Request::new(Nothing {}, Nothing {}, claim_body(args, lease)?);
    let (mut pause, mut was_answered) = (PAUSE, false);
    loop {
        let task = match next(&client, &claim, &wake, &woken) {
            Ok(Some(tasks)) => tasks.into_iter().next(),
            Ok(None) => return Ok(130),
            // A node that restarts, or has no room, is worth waiting for; one that says no is not.
            Err(refusal) if is_worth_waiting(&refusal, was_answered) && !args.once => {
                crate::term::report::warn(&refusal.message);
                if let Ok(Wake::Interrupted) = woken.recv_timeout(pause) {
                    return Ok(130);
                }
                pause = (2 * pause).min(PAUSE_MAX);
                continue;
            }
            Err(refusal) => return Err(refusal.into()),
        };
        was_answered = true;
        let Some(task) = task else {
            pause = PAUSE;
            continue;
        };
        let voice = Voice::new(client.clone(), &task);
        let job = Job::start(&task, &args.command, &files, voice, wake.clone());
        let started = job.is_ok();
        let ending = job.map_or_else(|ending| ending, |job| job.see_through(&woken));
        tell(setup, &task, &ending);
        match ending {
            Ending::Interrupted => return Ok(130),
            ending if args.once => return Ok(ending.exit()),
            _ if started => pause = PAUSE,
            // It may be this worker that cannot start anything: others get a chance at the tasks that wait.
            _ => {
                if let Ok(Wake::Interrupted) = woken.recv_timeout(pause) {
                    return Ok(130);
                }
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }
}

fn is_worth_waiting(refusal: &Refusal, was_answered: bool) -> bool {
    match refusal.code {
        ErrorCode::Unavailable | ErrorCode::DiskFull => true,
        // While another process has the node's port, nothing is told to it: the node that answered before may come back. One
        // that never did may be another one than is meant.
        ErrorCode::WrongNode => was_answered,
        _ => false,
    }
}

fn claim_body(args: &WorkArgs, lease: Option<Millis>) -> Result<ClaimBody, Failure> {
    Ok(ClaimBody {
        worker: args.name.clone(),
        capabilities: args.needs.clone(),
        scopes: token::scopes(&args.scopes)?,
        lease_secs: lease.map(|lease| lease.0.div_ceil(1_000)),
        wait_secs: Some(WAIT.as_secs()),
        ..ClaimBody::default()
    })
}

/// The next tasks; `None` if the worker was told to go.
fn next(
    client: &Client,
    claim: &Request<ClaimTasks>,
    wake: &mpsc::Sender<Wake>,
    woken: &mpsc::Receiver<Wake>,
) -> Result<Option<Vec<ClaimedTask>>, Refusal> {
    let (client, claim, told) = (client.clone(), claim.clone(), wake.clone());
    // On a thread of its own: a worker that is told to go need not wait for a task.
    thread::spawn(move || {
        let claimed = client.call_waiting(&claim, WAIT);
        let _ = told.send(Wake::Claimed(claimed.map(|claimed| claimed.tasks)));
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
fn tell(setup: &Setup, task: &ClaimedTask, ending: &Ending) {
    if setup.json {
        let told = json!({"task": label(task), "execution_id": task.execution_id, "attempt": task.attempt,
                          "ending": ending.word(), "why": ending.why()});
        say_json!(told);
        return;
    }
    let face = Face::from(match ending {
        Ending::Completed { .. } => TaskStatus::Completed,
        Ending::Failed { .. } | Ending::Lost { .. } => TaskStatus::Failed,
        Ending::Cancelled | Ending::Interrupted | Ending::Unable { .. } => TaskStatus::Cancelled,
    });
    let why = ending.why().map(|why| format!(": {}", reveal(&why))).unwrap_or_default();
    tell!(
        "{} {} {}{}",
        face.mark(),
        paint(BOLD, &reveal(&label(task))),
        paint(face.tone.style(), ending.word()),
        paint(DIM, &why)
    );
}
