//! Tasks that others work on: claiming them, keeping the claim, logging, and telling how it ended.
//!
//! ```text
//!   claim ──► lease ──► heartbeat, progress, log … ──► complete │ fail │ release
//!     └─ nothing there: wait at the desk        └─ silence: the lease runs out, somebody else may claim it
//! ```

use std::time::Duration;

use cis_api::Request;
use cis_api::calls::{
    AppendLog, ClaimTasks, CompleteTask, FailTask, ReleaseTask, RenewLease, ReportProgress,
};
use cis_api::fence::SentFence;
use cis_api::run::run_label;
use cis_api::work::{
    AttemptEnded, ClaimBody, ClaimedTask, ClaimedTasks, CompleteBody, ExecutionPath, FailBody, HeartbeatBody,
    LeaseRenewed, LogBody, LogWritten, Noted, ProgressBody, ReleaseBody, StreamName,
};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, Scope};
use cis_core::retry::Failure;
use cis_core::source::{Clock, Millis, Random, Timestamp};
use cis_core::template;
use cis_runner::log::{Record, Stream};
use cis_store::port::{
    ClaimWork, Conclude, Concluded, Ending, Held, Holding, IdempotencyKey, Once, Progress,
};
use serde_json::Value;

use super::look::not_found;
use super::{Answer, App, Permit, Sender, broke_off, invalid};
use crate::coordinator::handle::News;
use crate::desk::Able;
use crate::dispatch::scene;
use crate::system::System;

/// A lease, unless the claim says otherwise, and what it may say.
const LEASE_SECS: u64 = 300;
const LEASE_SECS_MAX: u64 = 24 * 60 * 60;

/// Tasks one claim takes at most.
const CLAIM_MAX: u32 = 100;

/// The longest a claim waits.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The longest name of a worker, a claim or a capability, and how many capabilities and scopes there may be.
const NAME_MAX: usize = 255;
const CAPABILITIES_MAX: usize = 100;
const SCOPES_MAX: usize = 100;

/// The longest note, and the longest outputs, a holder may leave.
const NOTE_BYTES_MAX: usize = 16 << 10;
const OUTPUTS_BYTES_MAX: usize = 1 << 20;

/// Where a stream of output ends at the latest: every JSON client counts as far, and sums of two streams fit a column.
const LOG_OFFSET_MAX: u64 = (1 << 53) - 1;

/// How an attempt ended, as its holder tells it.
enum Outcome {
    Completed { outputs: Option<Value> },
    Failed { error: String, exit_code: Option<i32> },
    Released,
}

impl Answer<ClaimTasks> for App {
    /// Claims tasks; if there are none, waits for some, but no longer than the claim says.
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ClaimTasks>,
    ) -> Result<Once<ClaimedTasks>, Refusal> {
        let wait = Duration::from_secs(request.body.wait_secs.unwrap_or(0)).min(WAIT_MAX);
        let tasks = self.claim(claim_request(sender, request.body)?, wait).await?;
        Ok(Once::new(ClaimedTasks { tasks }))
    }
}

impl Answer<RenewLease> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RenewLease>,
    ) -> Result<Once<LeaseRenewed>, Refusal> {
        let HeartbeatBody { fence, lease_secs } = request.body;
        let (holding, term) = (holding(sender, &request.path, fence)?, term(lease_secs)?);
        let (now, since_boot) = (holding.now, holding.since_boot);
        let beat = self.store.get()?.heartbeat(holding, term).await?;
        let lease_expires = now.after(beat.expires.since(since_boot));
        if term.is_some() {
            // It may run out sooner than it would have.
            self.handle.wrote(News { due: Some(lease_expires), ..News::default() }).await;
        }
        Ok(Once::new(LeaseRenewed { lease_expires, lease_secs: beat.term.0 / 1_000, cancel: beat.cancel }))
    }
}

impl Answer<ReportProgress> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ReportProgress>,
    ) -> Result<Once<Noted>, Refusal> {
        let ProgressBody { fence, percent, note } = request.body;
        if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            return Err(invalid("`percent` is 0 to 100"));
        }
        if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(invalid(format!("`note` is at most {NOTE_BYTES_MAX} bytes")));
        }
        let holding = holding(sender, &request.path, fence)?;
        self.store.get()?.note_progress(holding, Progress { percent, note }).await?;
        Ok(Once::new(Noted {}))
    }
}

impl Answer<AppendLog> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<AppendLog>,
    ) -> Result<Once<LogWritten>, Refusal> {
        let LogBody { fence, stream, offset, text } = request.body;
        if offset.saturating_add(text.len() as u64) > LOG_OFFSET_MAX {
            let why =
                format!("`offset` counts bytes of the stream: it is, with `text`, at most {LOG_OFFSET_MAX}");
            return Err(invalid(why));
        }
        let stream = match stream {
            StreamName::Stdout => Stream::Stdout,
            StreamName::Stderr => Stream::Stderr,
        };
        let holding = holding(sender, &request.path, fence)?;
        let attempt =
            self.reads.read_for(&sender.caller.identity, move |reader| Ok(reader.attempt(&holding)?)).await?;
        let record = Record { stream, at_ms: System.now().0, offset, bytes: text.into_bytes() };
        Ok(Once::new(LogWritten { offset: self.append_log(attempt, record).await? }))
    }
}

impl Answer<CompleteTask> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<CompleteTask>,
    ) -> Result<Once<AttemptEnded>, Refusal> {
        let CompleteBody { fence, outputs } = request.body;
        let outputs = outputs.map(Value::Object);
        if outputs.as_ref().is_some_and(|outputs| outputs.to_string().len() > OUTPUTS_BYTES_MAX) {
            return Err(Refusal::new(
                ErrorCode::PayloadTooLarge,
                format!("`outputs` are over {OUTPUTS_BYTES_MAX} bytes"),
            )
            .hint("leave large things where others find them, and hand on where that is"));
        }
        let holding = holding(sender, &request.path, fence)?;
        self.conclude(sender.key.clone(), holding, Outcome::Completed { outputs }).await
    }
}

impl Answer<FailTask> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<FailTask>,
    ) -> Result<Once<AttemptEnded>, Refusal> {
        let FailBody { fence, mut error, exit_code } = request.body;
        error.truncate(error.floor_char_boundary(NOTE_BYTES_MAX));
        let holding = holding(sender, &request.path, fence)?;
        self.conclude(sender.key.clone(), holding, Outcome::Failed { error, exit_code }).await
    }
}

impl Answer<ReleaseTask> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ReleaseTask>,
    ) -> Result<Once<AttemptEnded>, Refusal> {
        let ReleaseBody { fence } = request.body;
        let holding = holding(sender, &request.path, fence)?;
        self.conclude(sender.key.clone(), holding, Outcome::Released).await
    }
}

impl App {
    /// The moment of the request is taken anew with every look, and so is a list of what the claimer can do: thousands wait
    /// with the same one, which is in memory once.
    async fn claim(&self, mut request: ClaimWork, wait: Duration) -> Result<Vec<ClaimedTask>, Refusal> {
        let (scopes, capabilities) = (request.scopes.take(), std::mem::take(&mut request.capabilities));
        let able = self.desk.share(Able::new(scopes, capabilities));
        let waited = tokio::time::sleep(wait);
        tokio::pin!(waited);
        let mut changes = self.changes();
        loop {
            let drained = changes.wait_for(|now| !now.draining);
            tokio::select! {
                biased;
                open = drained => if open.is_err() { return Ok(Vec::new()) },
                () = &mut waited => return Ok(Vec::new()),
            }
            let request = ClaimWork {
                scopes: able.scopes.as_deref().map(<[Scope]>::to_vec),
                capabilities: able.capabilities.to_vec(),
                now: System.now(),
                since_boot: System.since_boot(),
                ..request.clone()
            };
            let app = self.clone();
            // On its own: a caller that goes away before the answer must not keep the loop from hearing of the lease,
            // or nobody would look when it runs out.
            let claiming = tokio::spawn(async move { app.claim_now(request).await });
            let jobs = claiming.await.map_err(|_| broke_off("claiming"))??;
            if !jobs.is_empty() || wait.is_zero() {
                return Ok(jobs);
            }
            tokio::select! {
                () = self.desk.wait(able.clone()) => {}
                () = &mut waited => return Ok(Vec::new()),
            }
        }
    }

    async fn claim_now(&self, request: ClaimWork) -> Result<Vec<ClaimedTask>, Refusal> {
        let (now, since_boot, term) = (request.now, request.since_boot, request.term);
        let (identity, scopes) = (request.identity.clone(), request.scopes.clone());
        let held = self.store.get()?.claim_work(request).await?;
        if !held.is_empty() {
            // Each task may have a time of its own that is over sooner.
            let times = held.iter().filter_map(|held| held.claim.task().more().timeout);
            let due = times.fold(term, Millis::min);
            self.handle.wrote(News { due: Some(now.after(due)), ..News::default() }).await;
        }
        let mut tasks = Vec::with_capacity(held.len());
        for held in held {
            let input = held.claim.task().kind.input().cloned().unwrap_or_default();
            match template::fill_json(&input, &scene(&held.claim)) {
                Ok(input) => {
                    let lease_expires = now.after(held.expires.since(since_boot));
                    tasks.push(claimed_task(held, input, lease_expires));
                }
                Err(e) => {
                    let (execution, fence) = (held.claim.execution, held.claim.fence);
                    let (identity, scopes) = (identity.clone(), scopes.clone());
                    let holding = Holding { execution, fence, identity, scopes, now, since_boot };
                    self.give_up(holding, format!("input {e}")).await?;
                }
            }
        }
        Ok(tasks)
    }

    /// Fails a task whose input cannot be made: nobody could work on it.
    async fn give_up(&self, holding: Holding, why: String) -> Result<(), Refusal> {
        let ending = Ending::Failed { failure: Failure::Broken, why: Some(why.clone()) };
        let request = conclusion(None, holding, ending, why);
        self.record(request).await?.plain()?;
        Ok(())
    }

    /// Records how an attempt ended.
    async fn conclude(
        &self,
        key: Option<IdempotencyKey>,
        holding: Holding,
        outcome: Outcome,
    ) -> Result<Once<AttemptEnded>, Refusal> {
        let (ending, error, exit_code, outputs) = match outcome {
            Outcome::Completed { outputs } => (Ending::Succeeded, String::new(), None, outputs),
            Outcome::Released => (Ending::Released, String::new(), None, None),
            Outcome::Failed { error, exit_code } => {
                let failure = Failure::Exit(exit_code.unwrap_or(1));
                (Ending::Failed { failure, why: Some(error.clone()) }, error, exit_code, None)
            }
        };
        let log = self.log_of(&holding).await;
        let (execution, fence) = (holding.execution, holding.fence);
        let request = conclusion(key, holding, ending, error);
        let request =
            Conclude { exit_code, outputs, output: log.stdout_tail, log_bytes: log.bytes, ..request };
        let once = self.record(request).await?;
        // Only now: a result that is refused, such as another identity's, takes nothing from the holder's.
        if once.answer.is_ok() {
            self.logs.forget(execution, fence);
        }
        Ok(once.map(told_ended))
    }

    async fn record(&self, request: Conclude) -> Result<Once<Concluded>, Refusal> {
        self.write(
            "recording",
            move |store| async move { store.conclude(request).await },
            |told: &Concluded| News {
                ended: told.ended.clone(),
                due: told.next_due,
                // The end of a run makes nothing ready.
                ready: told.ended.is_empty(),
                ..News::default()
            },
        )
        .await
    }

    /// Lets claimers that wait for a task know of one, for as long as the coordinator lives.
    pub async fn attend_claimers(&self) -> Result<(), Refusal> {
        let app = self.clone();
        let reader = self.on_disk("attending claimers", move || app.reader()).await??;
        self.desk.clone().attend(self.changes(), reader).await;
        Ok(())
    }
}

fn conclusion(key: Option<IdempotencyKey>, holding: Holding, ending: Ending, error: String) -> Conclude {
    Conclude {
        key,
        holding,
        ending,
        exit_code: None,
        error,
        outputs: None,
        output: String::new(),
        log_bytes: 0,
        random: System.bits(),
    }
}

/// What a claim asks of the store.
fn claim_request(sender: &Sender, claim: ClaimBody) -> Result<ClaimWork, Refusal> {
    let identity = sender.by();
    let kinds = claim.kinds.unwrap_or_default();
    if !kinds.is_empty() && !kinds.iter().any(|kind| kind == "external") {
        return Err(invalid("`kinds`: only `external` tasks are claimed over HTTP"));
    }
    let limit = claim.limit.unwrap_or(1);
    if !(1..=CLAIM_MAX).contains(&limit) {
        return Err(invalid(format!("`limit` is 1 to {CLAIM_MAX}")));
    }
    if claim.capabilities.len() > CAPABILITIES_MAX {
        return Err(invalid(format!("`capabilities`: at most {CAPABILITIES_MAX}")));
    }
    if claim.scopes.as_ref().is_some_and(|scopes| scopes.len() > SCOPES_MAX) {
        return Err(invalid(format!("`scopes`: at most {SCOPES_MAX}")));
    }
    let names = [&claim.claim_id, &claim.worker].into_iter().flatten().chain(&claim.capabilities);
    for name in names {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(invalid(format!("names are 1 to {NAME_MAX} characters long")));
        }
    }
    let key = sender.key.as_ref().map(|key| key.key.clone());
    Ok(ClaimWork {
        // A claim's id is a key by another name.
        claim_id: claim.claim_id.or(key),
        worker: claim.worker.unwrap_or_else(|| identity.clone()),
        identity,
        limit,
        scopes: within(claim.scopes, sender.caller.scopes.as_deref()),
        capabilities: claim.capabilities,
        term: term(claim.lease_secs)?.unwrap_or(Millis(LEASE_SECS * 1_000)),
        now: System.now(),
        since_boot: System.since_boot(),
    })
}

/// The scopes a claim asks for, as far as its caller sees them.
fn within(asked: Option<Vec<Scope>>, seen: Option<&[Scope]>) -> Option<Vec<Scope>> {
    match (asked, seen) {
        (Some(asked), Some(seen)) => Some(asked.into_iter().filter(|scope| seen.contains(scope)).collect()),
        (asked, seen) => asked.or_else(|| seen.map(<[Scope]>::to_vec)),
    }
}

fn term(secs: Option<u64>) -> Result<Option<Millis>, Refusal> {
    match secs {
        Some(secs) if !(1..=LEASE_SECS_MAX).contains(&secs) => {
            Err(invalid(format!("`lease_secs` is 1 to {LEASE_SECS_MAX}")))
        }
        secs => Ok(secs.map(|secs| Millis(secs * 1_000))),
    }
}

/// A sender that says it holds an attempt, now.
fn holding(sender: &Sender, path: &ExecutionPath, fence: SentFence) -> Result<Holding, Refusal> {
    let Ok(execution) = path.execution.parse() else { return Err(not_found("task", &path.execution)) };
    let (identity, scopes) = (sender.by(), sender.caller.scopes.clone());
    let (now, since_boot) = (System.now(), System.since_boot());
    Ok(Holding { execution: ExecutionId(execution), fence: fence.0, identity, scopes, now, since_boot })
}

/// A claimed task, with all its holder needs to know.
fn claimed_task(held: Held, input: Value, lease_expires: Timestamp) -> ClaimedTask {
    let claim = &held.claim;
    let (dag, task) = (&claim.run.definition.dag, claim.task());
    ClaimedTask {
        execution_id: claim.execution,
        fence: claim.fence,
        lease_expires,
        lease_secs: held.term.0 / 1_000,
        run_id: claim.run.run_id,
        run: run_label(&dag.dag_id, claim.run.number),
        dag_id: dag.dag_id.clone(),
        scope: dag.scope.clone(),
        task_id: task.id.clone(),
        name: task.title().to_owned(),
        description: task.more().description.clone(),
        attempt: claim.attempt,
        params: claim.run.params.clone(),
        input,
        handoff: held.handoff,
    }
}

fn told_ended(concluded: Concluded) -> AttemptEnded {
    let Concluded { execution, task_id, status, .. } = concluded;
    AttemptEnded { execution_id: execution, task_id, status }
}
