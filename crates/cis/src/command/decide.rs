//! `cis confirm`, `cis approve` and `cis reject`: what a person says about a DAG or a task.
//!
//! A decision is bound to what was looked at: by its review id, or its whole content hash, or because a person was shown it
//! on a terminal and asked. The name of a DAG alone binds nothing: its publisher decides what it stands for next.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cis_api::calls::{ApproveReview, ApproveTask, ConfirmDag, RejectDag, RejectReview, RejectTask};
use cis_api::dag::{self, DagDecided, DagDecision, DagPath, DagSummary, InScope, RevisionSummary};
use cis_api::error::Success;
use cis_api::review::{Review, ReviewDecided, ReviewDecision, ReviewPath};
use cis_api::run::RunContext;
use cis_api::task::{TaskDecided, TaskDecision, TaskPath, Verdict};
use cis_api::{Call, Nothing, Request};
use cis_core::error::ErrorCode;
use cis_core::id::RunId;
use cis_core::review::check_content_hash;
use cis_core::revision::RevisionStatus;
use cis_core::task::TaskStatus;
use cis_engine::app::{Answer, App};
use cis_engine::select;
use serde_json::{Map, Value, json};

use super::find::Found;
use super::pending::{approve_command, confirm_command, input_types};
use super::{Failure, Outcome, Setup, find, node, review, run};
use crate::cli::{ApproveArgs, ConfirmArgs, DecisionArgs};
use crate::source::task_of;
use crate::term::reveal;

/// What is said, whatever it is about.
#[derive(Debug)]
struct Decision {
    verb: Verb,
    approve: bool,
    note: Option<String>,
    input: Vec<String>,
    skill_dirs: Vec<PathBuf>,
}

impl Decision {
    /// What the task is given: nothing, if it is refused.
    fn given(&self, input: Map<String, Value>) -> Map<String, Value> {
        if self.approve { input } else { Map::new() }
    }
}

/// What was typed. A DAG is confirmed and a task is approved: the word says which of the two the caller has in mind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Confirm,
    Approve,
    Reject,
}

/// `cis confirm`.
pub(super) fn confirm(setup: &Setup, args: ConfirmArgs) -> Outcome {
    let ConfirmArgs { approve: ApproveArgs { decision, input, skills }, reject } = args;
    let verb = if reject { Verb::Reject } else { Verb::Confirm };
    decide(setup, decision, verb, input, skills.dirs)
}

/// `cis approve`.
pub(super) fn approve(setup: &Setup, args: ApproveArgs) -> Outcome {
    let ApproveArgs { decision, input, skills } = args;
    decide(setup, decision, Verb::Approve, input, skills.dirs)
}

/// `cis reject`.
pub(super) fn reject(setup: &Setup, args: DecisionArgs) -> Outcome {
    decide(setup, args, Verb::Reject, Vec::new(), Vec::new())
}

fn decide(
    setup: &Setup,
    args: DecisionArgs,
    verb: Verb,
    input: Vec<String>,
    skill_dirs: Vec<PathBuf>,
) -> Outcome {
    let DecisionArgs { what, task, content_hash, note, scope } = args;
    let approve = verb != Verb::Reject;
    let note = note.filter(|note| !note.trim().is_empty());
    let (scope, decision) = (scope.scope.as_deref(), Decision { verb, approve, note, input, skill_dirs });
    if let Some(hash) = &content_hash {
        check_content_hash(hash)?;
    }
    if let Some(task) = task {
        if content_hash.is_some() {
            return Err(Failure::usage("a task has no `--content-hash`: its run is of one revision"));
        }
        if verb == Verb::Confirm {
            let command = format!("cis approve {what} {task}");
            return Err(Failure::usage("tasks are approved, not confirmed").hint(format!("`{command}`")));
        }
        return decide_task(setup, &what, task, scope, &decision);
    }
    if let Some(source) = setup.source()?
        && let Some(review) = find::find_review(&source, &what, scope)?
    {
        check_verb(verb, &review)?;
        check_same_content(&review, content_hash.as_deref())?;
        return decide_review(setup, &review, &decision);
    }
    decide_dag(setup, &what, scope, content_hash.as_deref(), &decision)
}

/// Refuses the word for a task about a DAG, and the other way round: what a caller takes for one task may be all of a DAG.
fn check_verb(verb: Verb, review: &Review) -> Result<(), Failure> {
    let (why, command) = match (verb, review) {
        (Verb::Approve, Review::Dag(review)) => {
            let line = &review.line;
            let why = format!("this review is of a DAG, `{}` revision {}", line.dag_id, line.revision);
            (why, confirm_command(line.review_id))
        }
        (Verb::Confirm, Review::Task(review)) => {
            let line = &review.line;
            let why = format!("this review is of a task, `{}` of {}", line.task_id, line.run);
            (why, approve_command(line.review_id, &line.input))
        }
        _ => return Ok(()),
    };
    Err(Failure::new(ErrorCode::ValidationFailed, why).hint(format!("`{command}`")))
}

fn check_same_content(review: &Review, content_hash: Option<&str>) -> Result<(), Failure> {
    let Some(wanted) = content_hash else { return Ok(()) };
    match review {
        Review::Dag(review) if review.line.content_hash == wanted => Ok(()),
        Review::Dag(_) => {
            Err(Failure::new(ErrorCode::ContentConflict, "the review id is of other content than the hash"))
        }
        Review::Task(_) => Err(Failure::usage("a task has no `--content-hash`")),
    }
}

/// Exactly what a review id is about.
fn decide_review(setup: &Setup, review: &Review, decision: &Decision) -> Outcome {
    let (id, input, was_waiting) = match review {
        Review::Dag(review) => {
            refuse_input(decision)?;
            (review.line.review_id, Map::new(), review.status == RevisionStatus::Pending)
        }
        Review::Task(review) => {
            let input = typed(&review.line.input, &decision.input)?;
            (review.line.review_id, input, review.status == TaskStatus::Waiting)
        }
    };
    let is_dag = matches!(review, Review::Dag(_));
    let body =
        |context| ReviewDecision { input: decision.given(input), note: decision.note.clone(), context };
    let decided = match decision.approve {
        true => send(setup, decision, is_dag, |context| {
            Request::<ApproveReview>::new(ReviewPath::from(id), Nothing {}, body(context))
        })?,
        false => send(setup, decision, is_dag, |context| {
            Request::<RejectReview>::new(ReviewPath::from(id), Nothing {}, body(context))
        })?,
    };
    match decided {
        ReviewDecided::Dag(decided) => tell_dag(setup, decided),
        ReviewDecided::Task(decided) => tell_task(setup, &decided, was_waiting),
    }
    Ok(0)
}

/// Makes the call that decides. Where a DAG is confirmed here, it is given what its tasks start with.
fn send<C: Call>(
    setup: &Setup,
    decision: &Decision,
    is_dag: bool,
    request: impl FnOnce(Option<RunContext>) -> Request<C>,
) -> Result<C::Response, Failure>
where
    App: Answer<C>,
{
    let mut target = setup.target(false)?;
    let starts_here = is_dag && decision.approve && !target.is_node();
    if starts_here {
        run::tell_recovery(&target);
    }
    let context = starts_here.then(|| run::run_context(&node::context(setup, &decision.skill_dirs)));
    let decided = target.call(&request(context));
    target.close()?;
    Ok(decided?)
}

fn refuse_input(decision: &Decision) -> Result<(), Failure> {
    match decision.input.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage("a DAG is confirmed or rejected without `--input`")),
    }
}

/// A DAG by its name: with a whole hash, that content; without one, what a person is shown and says yes to.
fn decide_dag(
    setup: &Setup,
    name: &str,
    scope: Option<&str>,
    content_hash: Option<&str>,
    decision: &Decision,
) -> Outcome {
    let found = find::find_named(setup, name, scope)?;
    let revisions = found.source.revisions(&found.dag)?;
    if let Some(hash) = content_hash {
        if decision.verb == Verb::Approve {
            let command = format!("cis confirm {name} --content-hash {hash}");
            return Err(Failure::usage("DAGs are confirmed, not approved").hint(format!("`{command}`")));
        }
        let known = revisions.iter().find(|revision| revision.content_hash == hash);
        let known = known.ok_or_else(|| {
            Failure::new(ErrorCode::NotFound, format!("no revision of `{name}` has that content"))
        })?;
        return decide_content(setup, &found.dag, &known.content_hash, decision);
    }
    let mut waiting = revisions.iter().filter(|revision| revision.status == RevisionStatus::Pending);
    let (pending, others) = (waiting.next(), waiting.count());
    check_is_dag(&found, pending.is_some(), decision.approve)?;
    let review = match pending.and_then(|revision| revision.review_id) {
        Some(id) => found.source.review(id)?,
        None => None,
    };
    let Some((review, revision)) = review.zip(pending) else {
        return match revisions.first() {
            // The same again is the same.
            Some(latest) if latest.status == RevisionStatus::Rejected && !decision.approve => {
                decide_content(setup, &found.dag, &latest.content_hash, decision)
            }
            latest => Err(not_pending(&found.dag, latest)),
        };
    };
    check_verb(decision.verb, &review)?;
    // By name, what is decided about must be in front of the person who decides.
    match decision.approve {
        true if review::is_interactive(setup) => review::ask_confirm(setup, &found, &revisions, revision)?,
        true => return Err(refuse_by_name(name, &review)),
        // One of several: the name does not say which.
        false if others > 0 => return Err(refuse_by_name(name, &review)),
        false => {}
    }
    decide_review(setup, &review, decision)
}

fn not_pending(dag: &DagSummary, latest: Option<&RevisionSummary>) -> Failure {
    let status = latest.map_or("gone", |revision| revision.status.word());
    Failure::new(
        ErrorCode::InvalidTransition,
        format!("`{}` does not wait for a decision: it is {status}", dag.dag_id),
    )
    .hint(match latest.map(|revision| revision.status) {
        Some(RevisionStatus::Confirmed) => format!("`cis run {}` runs it again", dag.dag_id),
        _ => "publish it again to open a new request".to_owned(),
    })
}

/// Without a task, a DAG that waits to be confirmed is meant. What its runs wait for is named instead.
fn check_is_dag(found: &Found, pending: bool, approve: bool) -> Result<(), Failure> {
    let Some(run) = found.run.as_ref().filter(|_| found.named || !pending) else { return Ok(()) };
    let waiting = found.source.tasks(run, &[TaskStatus::Waiting], 1)?;
    if waiting.is_empty() && !found.named {
        return Ok(());
    }
    let word = if approve { "approve" } else { "reject" };
    let failure = Failure::usage(format!("say which task of {} to {word}", run.label()));
    let Some(task) = waiting.first() else {
        return Err(failure.hint("none of its tasks waits for a decision; `cis pending` shows what does"));
    };
    Err(failure.hint(match task.review_id {
        Some(review) if approve => {
            let dag = found.source.definition_of(run)?;
            let input = task_of(&dag, run, task).map(input_types).unwrap_or_default();
            format!("`{}`", approve_command(review, &input))
        }
        Some(review) => format!("`cis {word} {review}`"),
        None => format!("`cis {word} {} {}`", run.label(), task.task_id),
    }))
}

fn refuse_by_name(name: &str, review: &Review) -> Failure {
    let (id, command) = match review {
        Review::Dag(review) => (review.line.review_id, confirm_command(review.line.review_id)),
        Review::Task(review) => {
            (review.line.review_id, approve_command(review.line.review_id, &review.line.input))
        }
    };
    let why =
        format!("`{name}` alone does not say what was looked at: it may stand for something else by now");
    Failure::new(ErrorCode::ValidationFailed, why)
        .hint(format!(
            "`cis dag show {id}` shows what waits; `{command}` lets exactly that go on, `cis reject {id}` refuses it"
        ))
}

/// A task by its run. A run id is of one revision for ever; the number of a run is given again after a backup was restored,
/// and the latest run of a DAG is another one tomorrow.
fn decide_task(setup: &Setup, name: &str, task: String, scope: Option<&str>, decision: &Decision) -> Outcome {
    let bound = name.parse::<RunId>().is_ok();
    let (source, run) = find::find_run(setup, name, scope)?;
    let dag = source.definition_of(&run)?;
    let ix = select::named(&dag, &[task])?[0];
    let task = &dag.tasks[ix.index()];
    let input = typed(&input_types(task), &decision.input)?;
    let line = source.task(&run, task.id.as_str())?;
    let waits = line.as_ref().is_some_and(|line| line.status == TaskStatus::Waiting);
    let is_terminal = decision.approve && review::is_interactive(setup);
    // What no longer waits is not asked about: the answer says how it stands.
    let asks = is_terminal && waits;
    if decision.approve && !bound {
        let review = line.as_ref().and_then(|line| line.review_id);
        let Some(review) = review.map(|id| source.review(id)).transpose()?.flatten() else {
            let status = line.map_or(TaskStatus::Pending, |line| line.status);
            let why = format!("`{}` of {} waits for no decision: it is {status}", task.id, run.label());
            return Err(
                Failure::new(ErrorCode::InvalidTransition, why).hint("`cis pending` shows what waits")
            );
        };
        if !is_terminal {
            return Err(refuse_by_name(&format!("{name} {}", task.id), &review));
        }
        if asks {
            review::ask_approve(setup, &source, &run, &dag, task, &input)?;
        }
        return decide_review(setup, &review, decision);
    }
    if asks {
        review::ask_approve(setup, &source, &run, &dag, task, &input)?;
    }
    let path = TaskPath { run: run.run_id.to_string(), task: task.id.to_string() };
    let body = TaskDecision { input: decision.given(input), note: decision.note.clone() };
    let decided = match decision.approve {
        true => send(setup, decision, false, |_| Request::<ApproveTask>::new(path, Nothing {}, body))?,
        false => send(setup, decision, false, |_| Request::<RejectTask>::new(path, Nothing {}, body))?,
    };
    tell_task(setup, &decided, waits);
    Ok(0)
}

/// A revision by its content.
fn decide_content(setup: &Setup, dag: &DagSummary, content_hash: &str, decision: &Decision) -> Outcome {
    refuse_input(decision)?;
    let (path, query) = (DagPath { id: dag.dag_id.to_string() }, InScope { scope: Some(dag.scope.clone()) });
    let content_hash = Some(content_hash.to_owned());
    let body = |context| DagDecision { content_hash, note: decision.note.clone(), context };
    let decided = match decision.approve {
        true => {
            send(setup, decision, true, |context| Request::<ConfirmDag>::new(path, query, body(context)))?
        }
        false => {
            send(setup, decision, true, |context| Request::<RejectDag>::new(path, query, body(context)))?
        }
    };
    tell_dag(setup, decided);
    Ok(0)
}

fn tell_dag(setup: &Setup, decided: DagDecided) {
    let tasks = decided.tasks_count as usize;
    match run::started_by(decided.clone()) {
        Some(started) => run::tell_detached(setup, &started, tasks),
        None => tell_rejected(setup, &decided),
    }
}

fn tell_rejected(setup: &Setup, decided: &DagDecided) {
    let DagDecided { dag_id, revision, content_hash, decided_by, decided_at, note, .. } = decided;
    if setup.json {
        let decision = decided_by.clone().zip(*decided_at);
        let decision = decision.map(|(decided_by, decided_at)| dag::Decision {
            decided_by,
            decided_at,
            note: note.clone(),
        });
        let told = json!({"success": true, "status": "rejected", "dag_id": dag_id, "revision": revision,
                          "content_hash": content_hash, "decision": decision});
        say_json!(told);
    } else {
        say!("Rejected `{dag_id}` revision {revision}");
    }
}

/// `--input key=value` as what the task asks for; whether it fits is decided where the decision is made.
fn typed(types: &BTreeMap<String, String>, given: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut input = Map::new();
    for text in given {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Failure::usage(format!("`--input {text}`: expected `NAME=VALUE`")));
        };
        let value = match types.get(name).map(String::as_str) {
            None | Some("string") => Value::String(value.to_owned()),
            Some(_) => serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())),
        };
        if input.insert(name.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("`--input {name}=…` is there twice")));
        }
    }
    Ok(input)
}

/// `changed`: it waited for this decision, and was not decided about before.
fn tell_task(setup: &Setup, decided: &TaskDecided, changed: bool) {
    let TaskDecided { status, run, task_id, decided_by, .. } = decided;
    let word = match status {
        Verdict::Approved => "approved",
        Verdict::Rejected => "rejected",
    };
    if setup.json {
        say_json!(json!(Success::new(decided)));
    } else if changed {
        say!("{run} {task_id} is {word}");
    } else {
        say!("{run} {task_id} was {word} already, by {}", reveal(decided_by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_read_as_what_is_asked_for() {
        let types = [("s", "string"), ("n", "integer"), ("b", "boolean")];
        let types = types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).into();
        let given = ["s=1", "n=2", "b=true", "x=y=z"].map(str::to_owned);
        let input = typed(&types, &given).unwrap();
        assert_eq!(Value::Object(input), json!({"s": "1", "n": 2, "b": true, "x": "y=z"}));
        assert!(typed(&types, &["s".to_owned()]).is_err());
        assert!(typed(&types, &["n=1".to_owned(), "n=2".to_owned()]).is_err());
    }
}
