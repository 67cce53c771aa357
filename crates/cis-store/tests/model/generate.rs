//! Random DAGs, and random commands that mean something where the model stands.

use cis_core::dag::{Approval, Dag, Kind, OnTimeout, Policy, RunIf, Task};
use cis_core::id::TaskIx;
use cis_core::retry::{Failure, Retry};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{Ending, Fate, RevisionStatus};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::command::{Command, Start, Told};
use crate::model::{At, Model, Revision};
use crate::run::{Node, Run};
use crate::support;

/// Two names with two contents each.
pub(crate) fn contents() -> impl Strategy<Value = Vec<Dag>> {
    proptest::collection::vec(dag(), 4).prop_map(|mut dags| {
        for (ix, dag) in dags.iter_mut().enumerate() {
            dag.dag_id = format!("d{}", ix / 2).parse().expect("a name");
            // No two of them are the same by chance.
            dag.description = Some(format!("content {ix}"));
        }
        dags
    })
}

/// The same for a store in tiny chunks. What happens between two chunks must not matter, so whatever would make the
/// order in which tasks are told matter is left out: windows, and stops that a sweep brings about.
pub(crate) fn plain_contents() -> impl Strategy<Value = Vec<Dag>> {
    contents().prop_map(|mut dags| {
        for dag in &mut dags {
            (dag.max_parallel, dag.timeout, dag.queue_timeout) = (None, None, None);
            for task in &mut dag.tasks {
                // A success that a sweep brings about may stop its run.
                if let Kind::Approval(approval) = &mut task.kind {
                    approval.on_timeout = OnTimeout::Skip;
                }
            }
        }
        dags
    })
}

/// The same command, where a large step has come to its end before the next thing happens.
pub(crate) fn one_thing_at_a_time(mut command: Command) -> Command {
    match &mut command {
        Command::Start(start) => start.max_parallel = None,
        Command::Advance { reports, claim, .. } => {
            reports.truncate(1);
            // All or nothing, so that it does not matter who comes first.
            *claim = reports.is_empty().then_some(100);
        }
        _ => {}
    }
    command
}

fn dag() -> impl Strategy<Value = Dag> {
    // Questions begin runs and hold them up, so half of the DAGs have none.
    let tasks = (1usize..=8, any::<bool>())
        .prop_flat_map(|(count, people)| proptest::collection::vec(task(people), count));
    // Debts take a failure and an end that is good for all that, so they are rare.
    let policy = prop_oneof![
        1 => Just(Policy::AllSuccess),
        1 => Just(Policy::FirstSuccess),
        2 => Just(Policy::AllowDebt),
    ];
    let time = || option::weighted(0.25, (5u64..80).prop_map(Millis));
    (tasks, policy, option::weighted(0.5, 1u32..=3), time(), time(), 0..=1, any::<bool>()).prop_map(
        |(tasks, policy, max_parallel, timeout, queue_timeout, priority, backwards)| {
            let tasks = wired(tasks, backwards);
            Dag { policy, max_parallel, timeout, queue_timeout, priority, ..support::dag("d", tasks) }
        },
    )
}

/// Each task depends on those before it that its bits name; or on those after it, since files may be in any order.
fn wired(tasks: Vec<(Task, u8)>, backwards: bool) -> Vec<Task> {
    let count = tasks.len();
    let mut wired: Vec<Task> = Vec::new();
    for (ix, (mut task, bits)) in tasks.into_iter().enumerate() {
        task.id = format!("t{ix}").parse().expect("a name");
        let before = (0..ix).filter(|before| bits & (1 << before) != 0);
        let place =
            |at: usize| TaskIx(u32::try_from(if backwards { count - 1 - at } else { at }).expect("small"));
        let mut depends_on: Vec<TaskIx> = before.map(place).collect();
        depends_on.sort();
        task.depends_on = depends_on.into();
        wired.push(task);
    }
    if backwards {
        wired.reverse();
    }
    wired
}

fn task(people: bool) -> impl Strategy<Value = (Task, u8)> {
    let rule = prop_oneof![
        5 => Just(RunIf::AllSuccess),
        2 => Just(RunIf::AllDone),
        2 => Just(RunIf::OneFailed),
        1 => Just(RunIf::NoneFailed),
    ];
    let retry = option::weighted(
        0.4,
        (1u32..=2, select(vec![0u64, 20]), any::<bool>()).prop_map(|(max, wait, picky)| Retry {
            on_exit_codes: if picky { vec![75] } else { Vec::new() },
            ..support::retry(max, wait)
        }),
    );
    let when = option::weighted(0.15, select(vec!["true", "false", "params.nope.at.all"]));
    let waits = option::weighted(0.4, (5u64..60).prop_map(Millis));
    // Few dependencies are likelier than many.
    let bits = (any::<u8>(), any::<u8>()).prop_map(|(a, b)| a & b);
    (rule, retry, when, waits, -1..=2i32, any::<bool>(), proptest::bool::weighted(0.8), bits, person(people))
        .prop_map(
            |(run_if, retry, when, queue_timeout, priority, idempotent, debt_ignorable, bits, person)| {
                let task = support::with(support::task("t", &[]), |more| {
                    more.retry = retry;
                    more.when = when.map(str::to_owned);
                    more.queue_timeout = queue_timeout;
                });
                let task = asking(task, person);
                (Task { run_if, priority, idempotent, debt_ignorable, ..task }, bits)
            },
        )
}

/// Whom a task asks, if anybody: about itself, or a question of its own that may run out.
#[derive(Debug, Clone, Copy)]
enum Person {
    Nobody,
    Confirms,
    Answers(Option<Millis>, OnTimeout),
}

fn person(people: bool) -> BoxedStrategy<Person> {
    if !people {
        return Just(Person::Nobody).boxed();
    }
    let time = option::weighted(0.8, (1u64..20).prop_map(Millis));
    let action = select(OnTimeout::WORDS.map(|(_, action)| action).to_vec());
    prop_oneof![
        4 => Just(Person::Nobody),
        1 => Just(Person::Confirms),
        1 => (time, action).prop_map(|(time, action)| Person::Answers(time, action)),
    ]
    .boxed()
}

fn asking(task: Task, person: Person) -> Task {
    match person {
        Person::Nobody => task,
        Person::Confirms => support::confirmed(task),
        Person::Answers(timeout, on_timeout) => {
            let kind = Kind::Approval(Box::new(Approval { on_timeout, ..Approval::default() }));
            support::with(Task { kind, ..task }, |more| more.timeout = timeout)
        }
    }
}

fn ending() -> impl Strategy<Value = Ending> {
    let failure = select(vec![
        Failure::Exit(1),
        Failure::Exit(75),
        Failure::Broken,
        Failure::Timeout,
        Failure::LeaseLost,
        Failure::Interrupted,
    ]);
    prop_oneof![4 => Just(Ending::Succeeded), 3 => failure.prop_map(support::failed), 1 => Just(Ending::Stopped),
        1 => Just(Ending::Released)]
}

/// What somebody may ask next.
pub(crate) fn command(model: &Model) -> BoxedStrategy<Command> {
    let mut choices = vec![
        (if model.revisions.is_empty() { 30 } else { 2 }, publish(model)),
        (5, (1u64..60).prop_map(|ms| Command::Pass(Millis(ms))).boxed()),
        (5, Just(Command::Sweep).boxed()),
        (1, Just(Command::Reopen).boxed()),
        (2, (0u32..=2).prop_map(|keep| Command::Prune { keep }).boxed()),
        (if model.stops.is_empty() { 1 } else { 6 }, Just(Command::Work).boxed()),
    ];
    if !model.stops.is_empty() {
        choices.push((3, Just(Command::Reopen).boxed()));
    }
    if !model.revisions.is_empty() {
        let confirmed = |revision: &Revision| revision.status == RevisionStatus::Confirmed;
        choices.push((if model.revisions.iter().any(confirmed) { 2 } else { 20 }, settle(model)));
        choices.push((if model.runs.is_empty() { 12 } else { 3 }, start(model)));
    }
    if !model.runs.is_empty() {
        choices.push((2, stop((0..model.runs.len()).collect())));
    }
    // A cancel that comes when all that is left is under way may lose the race.
    let closing = |run: &Run| {
        !run.is_stopping() && run.tasks.iter().all(|node| node.status.is_terminal() || node.status.is_live())
    };
    let closing: Vec<usize> = (0..model.runs.len()).filter(|at| closing(&model.runs[*at])).collect();
    if !closing.is_empty() {
        choices.push((4, stop(closing)));
    }
    let waiting = tasks(model, |node| node.status == TaskStatus::Waiting);
    if !waiting.is_empty() {
        choices.push((5, approve(waiting)));
    }
    let overdue = |at: Option<Timestamp>| at.is_some_and(|at| at <= model.now);
    let unanswered = |node: &Node| node.status == TaskStatus::Waiting && overdue(node.answer_deadline);
    let unbegun = |run: &Run| run.status == RunStatus::Queued && overdue(run.deadline);
    if model.runs.iter().any(|run| unbegun(run) || run.tasks.iter().any(unanswered)) {
        choices.push((10, Just(Command::Sweep).boxed()));
    }
    let decided = tasks(model, |node| node.decision.is_some());
    if !decided.is_empty() {
        choices.push((1, approve(decided)));
    }
    if !model.runs.is_empty() {
        choices.push((1, approve(tasks(model, |_| true))));
    }
    if !model.claimable().is_empty() {
        choices.push((10, advance(Vec::new(), 1..=4).boxed()));
    }
    let live = model.live();
    if !live.is_empty() {
        choices.push((20, advance(live, 0..=3).boxed()));
    }
    let tried = tasks(model, |node| node.attempt > 0);
    if !tried.is_empty() {
        choices.push((2, advance(tried, 0..=1).boxed()));
    }
    proptest::strategy::Union::new_weighted(choices).boxed()
}

/// The tasks of all runs that are `such`.
fn tasks(model: &Model, such: impl Fn(&Node) -> bool) -> Vec<At> {
    let mut found = Vec::new();
    for (at, run) in model.runs.iter().enumerate() {
        let tasks = run.tasks.iter().enumerate();
        found.extend(tasks.filter(|(_, node)| such(node)).map(|(ix, _)| (at, ix)));
    }
    found
}

fn approve(at: Vec<At>) -> BoxedStrategy<Command> {
    (select(at), prop::bool::weighted(0.7)).prop_map(|(at, approve)| Command::Approve { at, approve }).boxed()
}

fn publish(model: &Model) -> BoxedStrategy<Command> {
    let expires = option::weighted(0.3, (20u64..150).prop_map(Millis));
    (0..model.contents.len(), any::<bool>(), expires)
        .prop_map(|(content, new_revision, expires)| Command::Publish { content, new_revision, expires })
        .boxed()
}

fn settle(model: &Model) -> BoxedStrategy<Command> {
    (0..model.revisions.len(), prop::bool::weighted(0.8))
        .prop_map(|(revision, confirm)| Command::Settle { revision, confirm })
        .boxed()
}

fn stop(runs: Vec<usize>) -> BoxedStrategy<Command> {
    (select(runs), select(vec![StopReason::Cancel, StopReason::OwnerGone]))
        .prop_map(|(run, reason)| Command::Stop { run, reason })
        .boxed()
}

fn advance(at: Vec<At>, claims: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Command> {
    let reports = if at.is_empty() {
        Just(Vec::new()).boxed()
    } else {
        let told = (select(at), prop::bool::weighted(0.1), ending());
        // The same attempt may be told of twice.
        proptest::collection::vec(told.prop_map(|(at, stale, ending)| Told { at, stale, ending }), 1..=2)
            .boxed()
    };
    (reports, option::weighted(0.7, claims), prop::bool::weighted(0.03))
        .prop_map(|(reports, claim, old_life)| Command::Advance { reports, claim, old_life })
}

fn start(model: &Model) -> BoxedStrategy<Command> {
    let again = match model.runs.len() {
        0 => Just(None).boxed(),
        runs => option::weighted(0.1, 0..runs).boxed(),
    };
    let runs: Vec<Option<usize>> = std::iter::once(None).chain((0..model.runs.len()).map(Some)).collect();
    let revisions = model.revisions.len();
    let wish =
        (0..revisions, select(runs), prop::bool::weighted(0.2), option::weighted(0.2, 1u32..=2), again);
    let model = model.clone();
    wish.prop_flat_map(move |(revision, resumes, by_confirmation, max_parallel, again)| {
        // A run that is resumed decides what is run.
        let over = |run: &usize| model.runs[*run].status.is_terminal() && !model.runs[*run].pruned;
        let resumes = resumes.filter(over);
        let revision = resumes.map_or(revision, |run| model.runs[run].revision);
        let tasks = model.contents[model.revisions[revision].content].tasks.len();
        let completed =
            |ix: usize| resumes.is_some_and(|run| model.runs[run].tasks[ix].status == TaskStatus::Completed);
        let choices: Vec<_> = (0..tasks)
            .map(|ix| {
                let carry = if completed(ix) { Fate::Carry } else { Fate::Run };
                prop_oneof![5 => Just(carry), 2 => Just(Fate::Run), 1 => Just(Fate::Leave)]
            })
            .collect();
        let selects = if resumes.is_some() { 0.9 } else { 0.15 };
        option::weighted(selects, choices).prop_map(move |fates| {
            let resumes = resumes.filter(|_| fates.is_some());
            Command::Start(Start { revision, again, by_confirmation, max_parallel, resumes, fates })
        })
    })
    .boxed()
}
