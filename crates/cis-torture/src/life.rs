//! A store in use, by chance: DAGs are published and confirmed, runs started and stopped, tasks claimed and ended by the
//! node's own runner and by others. Whatever is acknowledged is kept as a [`Promise`], to be asked of what is left of the
//! store later: an independent record, in the caller's own words.

use std::sync::Arc;

use cis_core::access::{Caller, Preset};
use cis_core::dag::{self, Dag, Defaults, Format};
use cis_core::id::{Epoch, RunId, RunKey};
use cis_core::retry::Failure;
use cis_core::run::StopReason;
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::SqliteStore;
use cis_store::port::{
    Advance, Answer, Boot, Claim, ClaimWork, Claimed, Conclude, CoordinatorStore as _, Ending, Held, Holding,
    NewToken, Publish, Recorded, Report, Settle, StartRun, StopRun, StoreError,
};
use rusqlite::Connection;
use rusqlite::types::Value;
use serde_json::Map;

use crate::chance::Chance;

/// Runs that are not waited for at once; more are not started.
const RUNS_MAX: usize = 12;

/// Something that was acknowledged: a question that is answered with 1 ever after.
#[derive(Debug, Clone)]
pub struct Promise {
    asks: &'static str,
    of: Vec<Value>,
}

impl Promise {
    fn new<const N: usize>(asks: &'static str, of: [Value; N]) -> Self {
        Self { asks, of: of.into() }
    }

    /// Is it kept?
    pub fn is_kept(&self, conn: &Connection) -> rusqlite::Result<bool> {
        let mut statement = conn.prepare_cached(self.asks)?;
        let count: i64 = statement.query_row(rusqlite::params_from_iter(&self.of), |row| row.get(0))?;
        Ok(count == 1)
    }
}

/// Everything that happened, in order, in words that can be compared.
pub fn story(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = conn.prepare(
        "SELECT concat_ws(' ', position, at, run_key, task_ix, definition_key, version, step, status, data)
         FROM events ORDER BY position",
    )?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// Somebody who uses a store.
#[derive(Debug)]
pub struct Life {
    store: SqliteStore,
    chance: Chance,
    now: Timestamp,
    epoch: Epoch,
    named: u64,
    definitions: Vec<i64>,
    runs: Vec<RunKey>,
    claimed: Vec<Arc<Claimed>>,
    held: Vec<Held>,
    promises: Vec<Promise>,
    ended: u64,
}

impl Life {
    /// Begins as a coordinator does.
    pub async fn begin(store: SqliteStore, chance: Chance) -> Answer<Self> {
        let now = Timestamp(1_000_000);
        let boot = Boot { id: "this boot".into(), now: BootTime(now.0) };
        let epoch = store.open_epoch(now, boot).await?.epoch;
        let (definitions, runs, claimed, held, promises) = Default::default();
        Ok(Self { store, chance, now, epoch, named: 0, definitions, runs, claimed, held, promises, ended: 0 })
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What was acknowledged so far.
    pub fn promises(&self) -> &[Promise] {
        &self.promises
    }

    /// Lets time go by.
    pub fn pass(&mut self, time: Millis) {
        self.now = self.now.after(time);
    }

    /// Does something. What fails may be asked again: nothing is forgotten before it was acknowledged.
    pub async fn act(&mut self) -> Answer<()> {
        self.pass(Millis(7));
        match self.chance.below(16) {
            0 => self.publish().await,
            1 | 2 => self.start().await,
            3 => self.make_tokens().await,
            4 => self.stop().await,
            5 => self.keep_up().await,
            6 | 7 => self.claim_outside().await,
            8 | 9 => self.conclude().await,
            10 => self.beat().await,
            _ => self.advance().await,
        }
    }

    /// Ends everything it holds: what must be possible on a disk that is full.
    pub async fn complete(&mut self) -> Answer<()> {
        while !self.claimed.is_empty() {
            self.end_and_claim(0).await?;
        }
        while !self.held.is_empty() {
            self.conclude().await?;
        }
        Ok(())
    }

    /// How many attempts were recorded as ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// New work: publishes a DAG of its own.
    pub async fn publish(&mut self) -> Answer<()> {
        self.named += 1;
        let dag = some_dag(self.named, self.chance.below(6))?;
        let hash = dag::content_hash(&dag).to_string();
        let publish = Publish {
            key: None,
            content_hash: hash.clone(),
            dag: Arc::new(dag),
            new_revision: false,
            by: "ann".into(),
            by_proven: true,
            now: self.now,
            expires_at: None,
        };
        let definition = self.store.publish(publish).await?.plain()?.definition;
        self.promise(
            "SELECT count(*) FROM dag_definitions WHERE definition_key = ?1 AND content_hash = ?2",
            [definition.into(), hash.clone().into()],
        );
        let settle =
            Settle { definition, content_hash: hash, confirm: true, by: "bea".into(), now: self.now };
        self.store.settle(settle).await?;
        self.promise(
            "SELECT count(*) FROM dag_confirmations WHERE definition_key = ?1 AND decision = 'confirmed'",
            [definition.into()],
        );
        self.definitions.push(definition);
        Ok(())
    }

    async fn start(&mut self) -> Answer<()> {
        let Some(definition) = self.chance.pick(&self.definitions).copied() else {
            return self.publish().await;
        };
        if self.runs.len() >= RUNS_MAX {
            return self.advance().await;
        }
        self.named += 1;
        let run_id: RunId =
            format!("{:032x}", self.named).parse().map_err(|e| StoreError::Database(format!("{e:?}")))?;
        let start = StartRun {
            key: None,
            run_id,
            definition,
            params: Map::new(),
            max_parallel: self.chance.one_in(2).then_some(2),
            attached: false,
            at_node: false,
            traceparent: None,
            fates: None,
            resumed_from: None,
            by_confirmation: false,
            by: "ann".into(),
            by_proven: true,
            now: self.now,
        };
        let run = self.store.start_run(start).await?.plain()?;
        self.promise("SELECT count(*) FROM dag_runs WHERE run_id = ?1", [run_id.to_string().into()]);
        self.runs.push(run.key);
        Ok(())
    }

    /// Several at once, so that they share a commit.
    async fn make_tokens(&mut self) -> Answer<()> {
        let tokens: Vec<NewToken> = (0..3)
            .map(|_| {
                self.named += 1;
                NewToken {
                    token_id: format!("token-{}", self.named),
                    secret_hash: format!("{:064x}", self.named),
                    caller: Caller::preset("cid", Preset::Agent, None),
                    by: "ann".into(),
                    now: self.now,
                    expires_at: None,
                }
            })
            .collect();
        let ids: Vec<String> = tokens.iter().map(|token| token.token_id.clone()).collect();
        let making: Vec<_> = tokens
            .into_iter()
            .map(|token| {
                let store = self.store.clone();
                tokio::spawn(async move { store.create_token(token).await })
            })
            .collect();
        for (id, made) in ids.into_iter().zip(making) {
            made.await.map_err(|e| StoreError::Database(e.to_string()))??;
            self.promise("SELECT count(*) FROM tokens WHERE token_id = ?1", [id.into()]);
        }
        Ok(())
    }

    async fn stop(&mut self) -> Answer<()> {
        let Some(run) = self.chance.pick(&self.runs).copied() else { return self.start().await };
        let stop = StopRun { key: None, run, reason: StopReason::Cancel, by: None, now: self.now };
        self.store.stop_run(stop).await?.plain()?;
        self.promise(
            "SELECT count(*) FROM dag_runs WHERE run_key = ?1 AND coalesce(stop_reason, completed_at) IS NOT NULL",
            [run.0.into()],
        );
        self.keep_up().await
    }

    /// Works off large steps, and what is due.
    async fn keep_up(&mut self) -> Answer<()> {
        while self.store.work(self.now).await?.more {}
        self.store.sweep(self.epoch, self.now, BootTime(self.now.0)).await?;
        Ok(())
    }

    async fn advance(&mut self) -> Answer<()> {
        self.end_and_claim(4).await
    }

    /// Ends some of what the runner holds, and claims up to `limit`.
    async fn end_and_claim(&mut self, limit: u32) -> Answer<()> {
        let count = self.claimed.len().min(1 + self.chance.below(4) as usize);
        let ending: Vec<Arc<Claimed>> = self.claimed[..count].to_vec();
        let reports = ending.iter().map(|claim| self.report(claim)).collect();
        let claim = Claim {
            epoch: self.epoch,
            holder: "local".into(),
            limit,
            kinds: vec!["shell"],
            scopes: None,
            capabilities: Vec::new(),
        };
        let advance = Advance { reports, claim: Some(claim), now: self.now };
        let advanced = self.store.advance(advance).await?;
        self.claimed.drain(..count);
        for (claim, recorded) in ending.iter().zip(advanced.recorded) {
            if let Recorded::Now(status) = recorded {
                self.promise_end(claim, status);
            }
        }
        for claim in &advanced.claimed {
            self.promise_claim(claim);
        }
        self.claimed.extend(advanced.claimed);
        self.runs.retain(|run| !advanced.ended.iter().any(|ended| ended.key == *run));
        Ok(())
    }

    fn report(&mut self, claim: &Claimed) -> Report {
        let failed = self.chance.one_in(6);
        let failure = Ending::Failed { failure: Failure::Exit(3), why: None };
        Report {
            execution: claim.execution,
            fence: claim.fence,
            ending: if failed { failure } else { Ending::Succeeded },
            started_at: Some(self.now),
            ended_at: self.now,
            exit_code: Some(if failed { 3 } else { 0 }),
            output: "x".repeat(self.chance.below(4_000) as usize),
            error: String::new(),
            log_bytes: 4_000,
            log_cut_bytes: 0,
            outputs: None,
            random: 0,
        }
    }

    async fn claim_outside(&mut self) -> Answer<()> {
        self.named += 1;
        let request = ClaimWork {
            claim_id: Some(format!("claim-{}", self.named)),
            identity: "dee".into(),
            worker: "dee".into(),
            limit: 2,
            scopes: None,
            capabilities: Vec::new(),
            term: Millis(1_000_000_000),
            now: self.now,
            since_boot: BootTime(self.now.0),
        };
        let held = self.store.claim_work(request).await?;
        for held in &held {
            self.promise_claim(&held.claim);
        }
        self.held.extend(held);
        Ok(())
    }

    fn holding(&self, claim: &Claimed) -> Holding {
        let (execution, fence, identity) = (claim.execution, claim.fence, "dee".into());
        Holding { execution, fence, identity, scopes: None, now: self.now, since_boot: BootTime(self.now.0) }
    }

    async fn conclude(&mut self) -> Answer<()> {
        let Some(held) = self.held.first().cloned() else { return self.claim_outside().await };
        let request = Conclude {
            key: None,
            holding: self.holding(&held.claim),
            ending: Ending::Succeeded,
            exit_code: Some(0),
            error: String::new(),
            outputs: None,
            output: "y".repeat(self.chance.below(4_000) as usize),
            log_bytes: 0,
            random: 0,
        };
        let concluded = self.store.conclude(request).await?.plain()?;
        self.held.remove(0);
        self.promise_end(&held.claim, concluded.status);
        self.runs.retain(|run| !concluded.ended.iter().any(|ended| ended.key == *run));
        Ok(())
    }

    async fn beat(&mut self) -> Answer<()> {
        let Some(held) = self.held.first() else { return self.claim_outside().await };
        self.store.heartbeat(self.holding(&held.claim), None).await.map(drop)
    }

    fn promise<const N: usize>(&mut self, asks: &'static str, of: [Value; N]) {
        self.promises.push(Promise::new(asks, of));
    }

    fn promise_claim(&mut self, claim: &Claimed) {
        self.promise(
            "SELECT count(*) FROM task_executions WHERE execution_id = ?1 AND fence >= ?2",
            [claim.execution.0.into(), claim.fence.0.into()],
        );
    }

    fn promise_end(&mut self, claim: &Claimed, status: TaskStatus) {
        self.ended += 1;
        if status.is_terminal() {
            self.promise(
                "SELECT count(*) FROM task_executions WHERE execution_id = ?1 AND status = ?2",
                [claim.execution.0.into(), status.word().to_owned().into()],
            );
        }
    }
}

/// A fan of tasks for the runner, `width` wide, with one for others beside it.
fn some_dag(n: u64, width: u64) -> Answer<Dag> {
    let leaves: String = (0..width)
        .map(|n| format!("{{ id = 'leaf-{n}', command = 'true', depends_on = ['first'] }},"))
        .collect();
    let text = format!(
        "dag_id = 'dag-{n}'
         tasks = [{{ id = 'first', command = 'true' }}, {{ id = 'outside', type = 'external' }}, {leaves}]"
    );
    let parsed = dag::parse(text.as_bytes(), Format::Toml, &Defaults::default());
    Ok(parsed.map_err(|problems| StoreError::Database(format!("{problems:?}")))?.dag)
}
