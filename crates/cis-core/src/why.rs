//! Why a run has not ended: for each unfinished task, the chain that holds it.
//!
//! ```text
//!   deploy ── waits for ──► test ── waits for ──► build: running
//!   └ held                                        └ the root: it waits for no other task of the run
//! ```
//!
//! Roots come first, those that hold the most before the others; however large the run, an answer is bounded.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dag::{Dag, Plan};
use crate::id::{TaskId, TaskIx};
use crate::source::Timestamp;
use crate::task::TaskStatus;

/// Links of a chain that are told; of a longer one the last stands for what lies between.
const CHAIN_MAX: usize = 8;

/// Tasks named beside a limit at most.
const NAMED_MAX: usize = 8;

/// Whoever holds what the coordinator's own runner does.
const HERE: &str = "local";

/// How an unfinished task stands.
#[derive(Debug, Clone)]
pub struct Standing {
    pub task: TaskIx,
    pub status: TaskStatus,
    /// Ready, but its run's `max_parallel` holds it back.
    pub over_limit: bool,
    /// Ready, but not before this.
    pub not_before: Option<Timestamp>,
    pub attempt: u32,
    pub holder: Option<String>,
    pub started_at: Option<Timestamp>,
    /// Why its last attempt did not succeed.
    pub cause: Option<String>,
}

impl Standing {
    /// A task that the store has not got to yet.
    pub fn unwritten(task: TaskIx) -> Self {
        Self {
            task,
            status: TaskStatus::Pending,
            over_limit: false,
            not_before: None,
            attempt: 0,
            holder: None,
            started_at: None,
            cause: None,
        }
    }
}

/// A run, as far as it holds its tasks.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'f> {
    pub dag: &'f Dag,
    pub plan: &'f Plan,
    pub max_parallel: Option<u32>,
    /// Kinds of task that the coordinator's own runner does, on so many slots.
    pub kinds: &'f [&'f str],
    pub slots: Option<u32>,
    pub now: Timestamp,
}

/// What holds one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Hold {
    /// Tasks before it have not ended; this is one of so many.
    Dependency { on: TaskId, unfinished: usize },
    /// The coordinator gets to it with its next step.
    Turn,
    /// Somebody has to approve it.
    Person,
    /// An attempt failed; the next begins then.
    Backoff {
        until: Timestamp,
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// As many tasks of its run as may go at once do, these among them.
    Limit { max_parallel: Option<u32>, running: Vec<TaskId> },
    /// It waits for a slot of the runner.
    Slot {
        #[serde(skip_serializing_if = "Option::is_none")]
        slots: Option<u32>,
    },
    /// It waits for a worker that does such tasks.
    Worker { kind: String },
    /// Somebody works on it.
    Running { holder: String, since: Timestamp, attempt: u32 },
    /// It was asked to stop and is not gone yet.
    Stopping,
}

/// What holds the tasks of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Why {
    pub unfinished: usize,
    pub tasks: Vec<Held>,
    /// Unfinished tasks that are not told.
    pub more: usize,
}

/// One unfinished task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Held {
    #[serde(flatten)]
    pub link: Link,
    /// The same in words.
    pub text: String,
    /// How many tasks wait behind it; each is counted at one root.
    pub holds: usize,
    /// From the task it waits for to the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<Link>,
    /// Links left out before the last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub between: usize,
}

/// One task of a chain and what holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Link {
    pub task_id: TaskId,
    pub status: TaskStatus,
    #[serde(flatten)]
    pub hold: Hold,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// What holds the tasks of a run, `limit` of them at most.
pub fn why(facts: &Facts<'_>, standings: &[Standing], limit: usize) -> Why {
    let unfinished = Unfinished::new(facts, standings);
    let mut order: Vec<&Standing> = standings.iter().collect();
    // Among equals file order stands.
    order.sort_by_key(|standing| {
        let place = &unfinished.places[standing.task.index()];
        (place.depth, std::cmp::Reverse(place.holds))
    });
    let tasks: Vec<Held> = order.into_iter().take(limit).map(|standing| unfinished.held(standing)).collect();
    Why { unfinished: standings.len(), more: standings.len() - tasks.len(), tasks }
}

/// Where a task stands among the unfinished ones.
#[derive(Clone)]
struct Place<'s> {
    /// `None`: it has ended.
    standing: Option<&'s Standing>,
    /// The first unfinished task it waits for.
    next: Option<TaskIx>,
    root: TaskIx,
    /// How far the root is.
    depth: usize,
    holds: usize,
}

impl Place<'_> {
    fn of_ended(ix: TaskIx) -> Self {
        Self { standing: None, next: None, root: ix, depth: 0, holds: 0 }
    }
}

struct Unfinished<'s> {
    facts: &'s Facts<'s>,
    places: Vec<Place<'s>>,
    /// Some of those that somebody works on.
    running: Vec<TaskId>,
}

impl<'s> Unfinished<'s> {
    fn new(facts: &'s Facts<'s>, standings: &'s [Standing]) -> Self {
        let mut places: Vec<Place<'s>> = facts.plan.tasks().map(Place::of_ended).collect();
        for standing in standings {
            places[standing.task.index()].standing = Some(standing);
        }
        // Whatever a task waits for comes before it, so its root is known by then.
        for ix in facts.plan.order() {
            let Some(Standing { status: TaskStatus::Pending, .. }) = places[ix.index()].standing else {
                continue;
            };
            let before = facts.plan.depends_on(*ix);
            let Some(next) = before.iter().find(|ix| places[ix.index()].standing.is_some()) else { continue };
            let Place { root, depth, .. } = places[next.index()];
            let place = &mut places[ix.index()];
            (place.next, place.root, place.depth) = (Some(*next), root, depth + 1);
            places[root.index()].holds += 1;
        }
        let live = standings.iter().filter(|standing| standing.status.is_live());
        let running = live.take(NAMED_MAX).map(|standing| facts.dag.tasks[standing.task.index()].id.clone());
        Self { facts, places, running: running.collect() }
    }

    fn held(&self, standing: &Standing) -> Held {
        let place = &self.places[standing.task.index()];
        let link = self.link(standing);
        let told = place.depth.min(CHAIN_MAX);
        let mut chain: Vec<Link> = self.chain(place).take(told).map(|standing| self.link(standing)).collect();
        if let (true, Some(last), Some(root)) =
            (place.depth > told, chain.last_mut(), self.places[place.root.index()].standing)
        {
            *last = self.link(root);
        }
        let between = place.depth - told;
        let text = text(&link, &chain, between, self.facts.now);
        Held { link, text, holds: place.holds, chain, between }
    }

    /// From the task that this one waits for to the root.
    fn chain(&self, place: &Place<'s>) -> impl Iterator<Item = &'s Standing> {
        let mut next = place.next;
        std::iter::from_fn(move || {
            let place = &self.places[next?.index()];
            next = place.next;
            place.standing
        })
    }

    fn link(&self, standing: &Standing) -> Link {
        let task_id = self.facts.dag.tasks[standing.task.index()].id.clone();
        Link { task_id, status: standing.status, hold: self.hold(standing) }
    }

    fn hold(&self, standing: &Standing) -> Hold {
        let task = &self.facts.dag.tasks[standing.task.index()];
        let slot = Hold::Slot { slots: self.facts.slots };
        match standing.status {
            TaskStatus::Pending => self.dependency(standing.task),
            TaskStatus::Waiting => Hold::Person,
            TaskStatus::Ready if standing.over_limit => {
                Hold::Limit { max_parallel: self.facts.max_parallel, running: self.running.clone() }
            }
            TaskStatus::Ready => match standing.not_before.filter(|at| *at > self.facts.now) {
                Some(until) => Hold::Backoff { until, cause: standing.cause.clone() },
                None if self.facts.kinds.contains(&task.kind.word()) => slot,
                None => Hold::Worker { kind: task.kind.word().to_owned() },
            },
            TaskStatus::Running => match (&standing.holder, standing.started_at) {
                // The runner has it and has not begun: to a person that is still waiting.
                (_, None) => slot,
                (holder, Some(since)) => {
                    let holder = holder.clone().unwrap_or_default();
                    Hold::Running { holder, since, attempt: standing.attempt }
                }
            },
            TaskStatus::Cancelling => Hold::Stopping,
            // Nothing holds what has ended.
            _ => Hold::Turn,
        }
    }

    fn dependency(&self, ix: TaskIx) -> Hold {
        let Some(next) = self.places[ix.index()].next else { return Hold::Turn };
        let before = self.facts.plan.depends_on(ix).iter();
        let unfinished = before.filter(|ix| self.places[ix.index()].standing.is_some()).count();
        Hold::Dependency { on: self.facts.dag.tasks[next.index()].id.clone(), unfinished }
    }
}

/// ``waits for `test` ← `build`: running for 3m 05s``
fn text(link: &Link, chain: &[Link], between: usize, now: Timestamp) -> String {
    let (Hold::Dependency { unfinished, .. }, Some(root)) = (&link.hold, chain.last()) else {
        return link.hold.text(now);
    };
    let mut names: Vec<String> = chain.iter().map(|link| format!("`{}`", link.task_id)).collect();
    if between > 0 {
        names.insert(names.len() - 1, format!("… {between} more …"));
    }
    if *unfinished > 1 {
        names[0] += &format!(" and {} more", unfinished - 1);
    }
    format!("waits for {}: {}", names.join(" ← "), root.hold.text(now))
}

impl Hold {
    fn text(&self, now: Timestamp) -> String {
        match self {
            Self::Dependency { on, .. } => format!("waits for `{on}`"),
            Self::Turn => "goes on with the coordinator's next step".to_owned(),
            Self::Person => "waits for a person".to_owned(),
            Self::Backoff { until, cause } => {
                let cause = cause.as_deref().unwrap_or("failed");
                format!("{cause}, next try in {}", until.since(now))
            }
            Self::Limit { max_parallel, running } => {
                let limit = max_parallel.map_or(String::new(), |limit| format!(" is {limit}"));
                let names: Vec<String> = running.iter().map(|id| format!("`{id}`")).collect();
                let run =
                    if names.is_empty() { String::new() } else { format!(", running: {}", names.join(", ")) };
                format!("held back: `max_parallel`{limit}{run}")
            }
            Self::Slot { slots: Some(slots) } => format!("ready, waits for one of {slots} slots"),
            Self::Slot { slots: None } => "ready, waits for a slot".to_owned(),
            Self::Worker { kind } => format!("ready, waits for a worker that claims `{kind}` tasks"),
            Self::Running { holder, since, attempt } => {
                let by = if holder == HERE { String::new() } else { format!(" by `{holder}`") };
                let attempt = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
                format!("running for {}{by}{attempt}", now.since(*since))
            }
            Self::Stopping => "was asked to stop and is not gone yet".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::{Defaults, Format, parse};
    use TaskStatus::{Cancelling, Pending, Ready, Running, Waiting};

    const NOW: Timestamp = Timestamp(100_000);

    fn stands(task: u32, status: TaskStatus) -> Standing {
        Standing { status, attempt: 1, holder: Some(HERE.to_owned()), ..Standing::unwritten(TaskIx(task)) }
    }

    fn runs(task: u32) -> Standing {
        Standing { started_at: Some(Timestamp(95_800)), ..stands(task, Running) }
    }

    /// What is said of each task of a DAG of these (id, dependencies).
    fn told(tasks: &[(&str, &[&str])], standings: &[Standing], limit: usize) -> (Vec<String>, Why) {
        let tasks: Vec<serde_json::Value> = tasks
            .iter()
            .map(|(id, deps)| serde_json::json!({"id": id, "command": "true", "depends_on": deps}))
            .collect();
        let text = serde_json::json!({"dag_id": "d", "tasks": tasks}).to_string();
        let dag = parse(text.as_bytes(), Format::Json, &Defaults::default()).unwrap().dag;
        let plan = Plan::new(&dag);
        let facts = Facts {
            dag: &dag,
            plan: &plan,
            max_parallel: Some(1),
            kinds: &["shell"],
            slots: Some(2),
            now: NOW,
        };
        let why = why(&facts, standings, limit);
        let lines =
            why.tasks.iter().map(|held| format!("{} ({}) {}", held.link.task_id, held.holds, held.text));
        (lines.collect(), why)
    }

    #[test]
    fn chains_end_at_what_holds_them() {
        let tasks: &[(&str, &[&str])] = &[
            ("done", &[]),
            ("deploy", &["test", "sign"]),
            ("test", &["build", "done"]),
            ("build", &[]),
            ("sign", &[]),
        ];
        let standings = [stands(1, Pending), stands(2, Pending), runs(3), stands(4, Waiting)];
        let (lines, why) = told(tasks, &standings, 9);
        assert_eq!(
            lines,
            [
                "build (2) running for 4.2s",
                "sign (0) waits for a person",
                "test (0) waits for `build`: running for 4.2s",
                "deploy (0) waits for `test` and 1 more ← `build`: running for 4.2s",
            ]
        );
        assert_eq!((why.unfinished, why.more), (4, 0));
    }

    #[test]
    fn every_reason_has_its_words() {
        let tasks: &[(&str, &[&str])] =
            &[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[]), ("e", &[]), ("f", &[])];
        let standings = [
            Standing { attempt: 2, holder: Some("did:x".to_owned()), ..runs(0) },
            Standing { over_limit: true, ..stands(1, Ready) },
            Standing {
                not_before: Some(Timestamp(102_000)),
                cause: Some("exit 1".into()),
                ..stands(2, Ready)
            },
            Standing { not_before: Some(Timestamp(99_000)), ..stands(3, Ready) },
            stands(4, Running),
            stands(5, Cancelling),
        ];
        let (lines, _) = told(tasks, &standings, 9);
        assert_eq!(
            lines,
            [
                "a (0) running for 4.2s by `did:x`, attempt 2",
                "b (0) held back: `max_parallel` is 1, running: `a`, `e`, `f`",
                "c (0) exit 1, next try in 2.0s",
                "d (0) ready, waits for one of 2 slots",
                "e (0) ready, waits for one of 2 slots",
                "f (0) was asked to stop and is not gone yet",
            ]
        );
    }

    #[test]
    fn large_runs_have_bounded_answers() {
        let ids: Vec<String> = (0..20_000).map(|n| format!("t{n}")).collect();
        let before: Vec<Vec<&str>> =
            (0..ids.len()).map(|n| n.checked_sub(1).map(|n| ids[n].as_str()).into_iter().collect()).collect();
        let tasks: Vec<(&str, &[&str])> =
            ids.iter().zip(&before).map(|(id, before)| (id.as_str(), before.as_slice())).collect();
        let mut standings: Vec<Standing> = (0..20_000).map(|ix| stands(ix, Pending)).collect();
        standings[0] = runs(0);
        let (lines, why) = told(&tasks, &standings, 3);
        assert_eq!((lines.len(), why.unfinished, why.more), (3, 20_000, 19_997));
        assert_eq!(lines[0], "t0 (19999) running for 4.2s");
        let (lines, why) = told(&tasks, &standings, 20_000);
        assert_eq!(why.tasks[19_999].chain.len(), CHAIN_MAX);
        assert!(
            lines[19_999].ends_with("`t19992` ← … 19991 more … ← `t0`: running for 4.2s"),
            "{}",
            lines[19_999]
        );
    }
}
