//! The judge of a world: what was promised, checked against what happened. It knows the definitions as their author does,
//! what processes ran, what workers and clients were answered, and in the end the rows; nothing of how CIS works.

use std::collections::{BTreeMap, BTreeSet};

use cis_core::error::{ErrorCode, Refusal};
use cis_core::task::TaskStatus;
use cis_runner::protocol::{AttemptKey, Ended, Outcome, Start};
use cis_store::port::{Ending, Held, StoreError};
use rusqlite::Connection;

use super::runner::name;
use super::sketch::{Kind, Sketch, Task};

/// Takeovers of a task whose holder went silent, where its definition does not say.
const TAKEOVERS: u32 = 3;

/// Releases that cost a task no try.
const FREE_RELEASES: u32 = 3;

/// How long something may be due, while everything works, before that counts as frozen.
const LATE_MS: i64 = 120_000;

/// Nothing in a definition takes longer than this.
const LIMIT_MS: i64 = 120_000;

/// Somebody may set the clock by as much before that is noticed: a second where a deadline is made, and one where it is
/// looked at.
const UNNOTICED_MS: i64 = 2_000;

/// What is known, and what is wrong.
#[derive(Debug, Default)]
pub(super) struct Judge {
    sketches: Vec<Sketch>,
    pub(super) wrong: Vec<String>,
    /// Processes that are there.
    alive: BTreeSet<AttemptKey>,
    /// Attempts that were cut short.
    cut: BTreeSet<AttemptKey>,
    tries: BTreeMap<i64, Tries>,
    /// Attempts that ended as the journal says; those that ended well.
    told: BTreeSet<AttemptKey>,
    done: BTreeSet<AttemptKey>,
    leases: BTreeMap<i64, Lease>,
    /// The highest fence a worker was given.
    highest: i64,
    fences: BTreeSet<i64>,
    concluded: BTreeMap<AttemptKey, (Ending, TaskStatus)>,
    /// The clock was set; and that could not be told from time for which the machine was off.
    set: bool,
    doubtful: bool,
    /// Questions that have been answered with 1 ever since somebody was told so.
    promises: Vec<(String, &'static str, Vec<rusqlite::types::Value>)>,
}

#[derive(Debug, Default)]
struct Tries {
    begun: u32,
    /// Those that use up none.
    free: u32,
    idempotent: bool,
    last_fence: i64,
}

/// What a worker was promised.
#[derive(Debug)]
struct Lease {
    fence: i64,
    worker: usize,
    term: i64,
    /// It lives up to here, at least and at most.
    at_least: i64,
    at_most: i64,
    /// From when on the task's own time may be over.
    deadline: Option<i64>,
    over: bool,
}

/// When something is said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) boot: i64,
    pub(super) wall: i64,
}

impl Judge {
    pub(super) fn knows(&mut self, sketch: Sketch) {
        self.sketches.push(sketch);
    }

    fn task(&self, dag_id: &str, task_id: &str) -> Option<&Task> {
        let sketch = self.sketches.iter().find(|sketch| sketch.dag_id == dag_id)?;
        sketch.tasks.get(task_id.strip_prefix('t')?.parse::<usize>().ok()?)
    }

    pub(super) fn finds(&mut self, wrong: String) {
        self.wrong.push(wrong);
    }

    /// A process is there.
    pub(super) fn started(&mut self, start: &Start) {
        let key = start.key;
        let of =
            |name: &str| start.env.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
        let (dag_id, task_id) = (of("CIS_DAG_ID").to_owned(), of("CIS_TASK_ID").to_owned());
        let Some(task) = self.task(&dag_id, &task_id) else {
            return self.finds(format!("{} started, which nobody defined: {dag_id} {task_id}", name(key)));
        };
        let (is_process, may, idempotent) = (task.kind == Kind::Shell, 1 + task.retries, task.idempotent);
        if !is_process {
            self.finds(format!("{dag_id} {task_id} started as a process"));
        }
        if self.alive.iter().any(|other| other.execution == key.execution) {
            self.finds(format!("{dag_id} {task_id}: {} started while another attempt runs", name(key)));
        }
        self.begin(key, may, idempotent, &format!("{dag_id} {task_id}"));
        self.alive.insert(key);
    }

    /// An attempt begins: with a fence of its own, and because the task's policy says so.
    fn begin(&mut self, key: AttemptKey, may: u32, idempotent: bool, what: &str) {
        let tries = self.tries.entry(key.execution).or_default();
        tries.idempotent = idempotent;
        tries.begun += 1;
        let (begun, free) = (tries.begun, tries.free);
        let risen = key.fence > std::mem::replace(&mut tries.last_fence, key.fence);
        if begun.saturating_sub(free) > may {
            self.finds(format!("{what}: try {begun} of {may} ({free} free): {}", name(key)));
        }
        if !risen || !self.fences.insert(key.fence) {
            self.finds(format!("{what}: the fence of {} is not a new one", name(key)));
        }
    }

    /// A process is gone.
    pub(super) fn ended(&mut self, key: AttemptKey) {
        self.alive.remove(&key);
    }

    /// An attempt was cut short by what happened to the runner or to the machine.
    pub(super) fn interrupted(&mut self, key: AttemptKey) {
        self.alive.remove(&key);
        let tries = self.tries.entry(key.execution).or_default();
        // One of which no process ever was there is none.
        if tries.idempotent && tries.last_fence == key.fence && self.cut.insert(key) {
            tries.free += 1;
        }
    }

    /// An outcome is in the journal: it is never lost from now on.
    pub(super) fn journalled(&mut self, ended: &Ended) {
        self.told.insert(ended.key);
        if ended.outcome == (Outcome::Exited { code: 0 }) {
            self.done.insert(ended.key);
        }
    }

    /// The journal lost it, with the power.
    pub(super) fn lost_from_journal(&mut self, key: AttemptKey) {
        self.told.remove(&key);
        self.done.remove(&key);
    }

    /// The machine was off: nobody could keep a claim, so each that was alive lives for another term. One that was not may,
    /// if nobody had seen to it. A task's own time went on; how much of it, only the clock on the wall can tell, and if
    /// somebody had set that before, it may be over.
    pub(super) fn machine_restarted(&mut self, before: i64, off_ms: i64, boot: i64) {
        self.doubtful |= self.set;
        let doubtful = self.doubtful;
        for lease in self.leases.values_mut() {
            let left = |deadline: i64| boot.saturating_add(deadline.saturating_sub(before + off_ms));
            lease.deadline = lease.deadline.map(|deadline| if doubtful { i64::MIN } else { left(deadline) });
            let lived = before < lease.at_least;
            (lease.at_least, lease.at_most) = (if lived { boot + lease.term } else { i64::MIN }, i64::MAX);
        }
        let begun = self.tries.iter().map(|(execution, tries)| (*execution, tries.last_fence));
        let untold: Vec<AttemptKey> = begun
            .map(|(execution, fence)| AttemptKey { execution, fence })
            .filter(|key| !self.told.contains(key))
            .collect();
        untold.into_iter().for_each(|key| self.interrupted(key));
    }

    /// Time went by.
    pub(super) fn time_passed(&mut self, boot: i64) {
        for lease in self.leases.values_mut() {
            // Its time may have been called over by now; whether it was is not for this judge.
            if lease.deadline.is_some_and(|deadline| deadline <= boot) {
                lease.at_least = i64::MIN;
            }
        }
    }

    /// A worker was given a task, whether it heard of it or not.
    pub(super) fn claimed(&mut self, worker: usize, held: &Held, now: Moment) {
        let (execution, fence) = (held.claim.execution.0, held.claim.fence.0);
        let key = AttemptKey { execution, fence };
        let known = self.leases.get(&execution);
        if known.is_some_and(|lease| lease.fence == fence && lease.worker == worker) {
            return;
        }
        if known.is_some_and(|lease| !lease.over && now.boot < lease.at_least) {
            self.finds(format!("{} given to worker {worker} while another holds it", name(key)));
        }
        let (dag_id, task_id) = (&held.claim.run.definition.dag.dag_id, &held.claim.task().id);
        let what = format!("{dag_id} {task_id}");
        let Some(task) = self.task(dag_id.as_str(), task_id.as_str()) else {
            return self.finds(format!("{what} claimed, which nobody defined"));
        };
        let (external, may) = (task.kind == Kind::External, 1 + task.retries.max(TAKEOVERS));
        let deadline = task.timeout_ms.map(|limit| now.boot + limit - UNNOTICED_MS);
        if !external {
            self.finds(format!("{what} given to a worker"));
        }
        self.begin(key, may, false, &what);
        if fence <= std::mem::replace(&mut self.highest, fence) {
            self.finds(format!("{what}: fences do not rise: {}", name(key)));
        }
        let (term, expires) = (held.term.0.cast_signed(), held.expires.0);
        let lease = Lease { fence, worker, term, at_least: expires, at_most: expires, deadline, over: false };
        self.leases.insert(execution, lease);
    }

    /// The lease of a holder who says so.
    fn lease(&self, key: AttemptKey, worker: usize) -> Option<&Lease> {
        let lease = self.leases.get(&key.execution)?;
        (lease.fence == key.fence && lease.worker == worker && !lease.over).then_some(lease)
    }

    /// Has this holder nothing to say any more, for certain?
    fn is_dead(&self, key: AttemptKey, worker: usize, now: Moment) -> bool {
        self.lease(key, worker).is_none_or(|lease| now.boot >= lease.at_most)
    }

    /// What is refused is refused rightly.
    fn refused(&mut self, what: &str, key: AttemptKey, worker: usize, why: &Refusal, now: Moment) {
        let rightly = match why.code {
            ErrorCode::LeaseExpired => self.lease(key, worker).is_none_or(|lease| now.boot >= lease.at_least),
            ErrorCode::AlreadyClaimed => self.lease(key, worker).is_none(),
            _ => false,
        };
        if !rightly {
            self.finds(format!("worker {worker}'s {what} of {} was refused: {why}", name(key)));
        }
    }

    /// A heartbeat was answered: with when the lease ends from now on, or why not.
    pub(super) fn beat(
        &mut self,
        worker: usize,
        key: AttemptKey,
        answer: Result<Option<i64>, StoreError>,
        now: Moment,
    ) {
        match answer {
            Ok(extended) => {
                if self.is_dead(key, worker, now) {
                    self.finds(format!("a heartbeat of worker {worker} for {} was taken", name(key)));
                }
                if let (Some(expires), Some(lease)) = (extended, self.leases.get_mut(&key.execution)) {
                    (lease.at_least, lease.at_most) = (expires, expires);
                    self.time_passed(now.boot);
                }
            }
            Err(StoreError::Refused(why)) => self.refused("heartbeat", key, worker, &why, now),
            Err(e) => self.finds(format!("a heartbeat of worker {worker}: {e}")),
        }
    }

    /// A result was taken, or not.
    pub(super) fn result(
        &mut self,
        worker: usize,
        key: AttemptKey,
        ending: &Ending,
        answer: Result<TaskStatus, StoreError>,
        now: Moment,
    ) {
        match answer {
            Ok(status) => {
                let repeated = self.concluded.get(&key).is_some_and(|(before, _)| before == ending);
                if !repeated && self.is_dead(key, worker, now) {
                    self.finds(format!("the result of worker {worker} for {} was taken", name(key)));
                }
                if let Some(lease) = self.leases.get_mut(&key.execution).filter(|l| l.fence == key.fence) {
                    lease.over = true;
                }
                if !repeated && *ending == Ending::Released {
                    let tries = self.tries.entry(key.execution).or_default();
                    tries.free = FREE_RELEASES.min(tries.free + 1);
                }
                self.concluded.entry(key).or_insert((ending.clone(), status));
            }
            Err(StoreError::Refused(why)) => self.refused("result", key, worker, &why, now),
            Err(e) => self.finds(format!("a result of worker {worker}: {e}")),
        }
    }

    /// Somebody was told something that stays so.
    pub(super) fn promised<const N: usize>(
        &mut self,
        what: String,
        asks: &'static str,
        of: [rusqlite::types::Value; N],
    ) {
        self.promises.push((what, asks, of.into()));
    }

    /// Somebody set the clock: no time goes by, and nothing is over for it. If that was after a restart and before a
    /// coordinator began, it counts as time for which the machine was off.
    pub(super) fn clock_set(&mut self, before_any_coordinator: bool) {
        self.set = true;
        if before_any_coordinator {
            self.doubtful = true;
            for lease in self.leases.values_mut().filter(|lease| lease.deadline.is_some()) {
                (lease.deadline, lease.at_least) = (Some(i64::MIN), i64::MIN);
            }
        }
    }

    /// While everything works: is anything due that nobody sees to, or later than it can be?
    pub(super) fn look_for_frozen(&mut self, conn: &Connection, now: Moment) -> rusqlite::Result<()> {
        // A clock that was set just before a restart cannot be told from time gone by.
        let latest = if self.doubtful { i64::MAX } else { now.wall + LIMIT_MS + UNNOTICED_MS };
        for (of, from, to, what) in [
            ("SELECT subject_key, expires FROM leases", now.boot, i64::MAX, "a lease"),
            (
                "SELECT execution_id, not_before FROM task_executions WHERE status = 'ready' AND hold = 2",
                now.wall,
                latest,
                "a backoff",
            ),
            (
                "SELECT run_key, deadline FROM dag_runs WHERE completed_at IS NULL AND deadline IS NOT NULL",
                now.wall,
                latest,
                "a run's time",
            ),
            (
                "SELECT execution_id, answer_deadline FROM task_executions
                 WHERE status = 'waiting' AND answer_deadline IS NOT NULL",
                now.wall,
                latest,
                "a question",
            ),
        ] {
            let mut statement = conn.prepare_cached(of)?;
            let open = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let frozen: Vec<(i64, i64)> = open
                .filter(|found| !found.as_ref().is_ok_and(|(_, at)| (from - LATE_MS..=to).contains(at)))
                .collect::<Result<_, _>>()?;
            if !frozen.is_empty() {
                self.finds(format!("frozen: {what}, due long ago or put off: {frozen:?} at {now:?}"));
            }
        }
        Ok(())
    }

    /// What is left in the end, when everything has had the time to.
    pub(super) fn judge(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        self.judge_rows(conn)?;
        self.judge_events(conn)?;
        let alive: Vec<String> = self.alive.iter().map(|key| name(*key)).collect();
        if !alive.is_empty() {
            self.finds(format!("processes are left: {}", alive.join(" ")));
        }
        for (what, asks, of) in std::mem::take(&mut self.promises) {
            let mut statement = conn.prepare_cached(asks)?;
            let count: i64 = statement.query_row(rusqlite::params_from_iter(&of), |row| row.get(0))?;
            if count != 1 {
                self.finds(format!("lost: {what}"));
            }
        }
        Ok(())
    }

    fn judge_rows(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let stuck: Vec<String> = conn
            .prepare("SELECT concat(dag_id, '#', r.number, ' ', r.status) FROM dag_runs r JOIN dags USING (dag_key)
                      WHERE completed_at IS NULL")?
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        if !stuck.is_empty() {
            self.finds(format!("stuck: {stuck:?}"));
        }
        let mut row = conn.prepare("SELECT status, fence FROM task_executions WHERE execution_id = ?1")?;
        let mut at = |key: &AttemptKey| {
            row.query_row([key.execution], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, Option<i64>>(1)?))
            })
        };
        let well = self.done.iter().map(|key| (*key, TaskStatus::Completed));
        let told = self.concluded.iter().map(|(key, (_, status))| (*key, *status));
        let ends: Vec<(AttemptKey, TaskStatus)> =
            well.chain(told).filter(|(_, status)| status.is_terminal()).collect();
        for (key, status) in ends {
            let found = at(&key)?;
            if found != (status.word().to_owned(), Some(key.fence)) {
                self.finds(format!("{} ended as {status}, and is {} now", name(key), found.0));
            }
        }
        Ok(())
    }

    /// What is over stays over, and nothing begins before its time.
    fn judge_events(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let mut statement = conn.prepare(
            "SELECT e.run_key, coalesce(e.task_ix, -1), e.version, e.step, e.status, d.dag_id
             FROM events e JOIN dag_runs r USING (run_key) JOIN dags d USING (dag_key) ORDER BY e.position",
        )?;
        let mut rows = statement.query([])?;
        let mut last: BTreeMap<(i64, i64), (i64, bool)> = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let (run, ix, version): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (step, status, dag_id): (String, String, String) = (row.get(3)?, row.get(4)?, row.get(5)?);
            let over = matches!(&*status, "completed" | "failed" | "cancelled" | "timed_out" | "skipped");
            if let Some((before, was_over)) = last.insert((run, ix), (version, over))
                && (was_over || version <= before)
            {
                self.wrong
                    .push(format!("{dag_id}, run {run}, task {ix}: {step} after its end, or out of order"));
            }
            if step == "claim" && ix >= 0 {
                let sketch = self.sketches.iter().find(|sketch| sketch.dag_id == dag_id);
                let after =
                    sketch.and_then(|s| s.tasks.get(usize::try_from(ix).unwrap_or(0))).map(|t| &t.after);
                let early = after.into_iter().flatten().any(|before| {
                    !last.get(&(run, i64::try_from(*before).unwrap_or(-1))).is_some_and(|(_, over)| *over)
                });
                if early {
                    self.wrong.push(format!(
                        "{dag_id}, run {run}, task {ix} began before what it depends on ended"
                    ));
                }
            }
        }
        Ok(())
    }
}
