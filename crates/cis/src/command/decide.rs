//! `cis confirm`, `cis approve` and `cis reject`: what a person says about a DAG or a task.
//!
//! A decision is bound to what was looked at: by its review id, or its whole content hash, or because a person was shown it
//! on a terminal and asked. The name of a DAG alone binds nothing: its publisher decides what it stands for next.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cis_core::error::ErrorCode;
use cis_core::id::{ExecutionId, RunId, RunKey};
use cis_core::review::{ReviewId, check_content_hash};
use cis_core::run::RunStatus;
use cis_core::source::{Clock, new_run_id};
use cis_core::task::TaskStatus;
use cis_engine::command::Command;
use cis_engine::recovery::Recovery;
use cis_engine::select;
use cis_engine::session::Session;
use cis_engine::system::{System, user};
use cis_store::port::{Approve, Approved, Decide, Decided, RevisionStatus, RunRef};
use cis_store::sqlite::reader::{DagLine, RevisionLine, RunLine};
use cis_store::sqlite::{ReviewLine, TaskReview};
use serde_json::{Map, Value, json};

use super::find::Found;
use super::pending::{approve_command, confirm_command, input_types};
use super::view::View;
use super::{Failure, Outcome, Setup, find, node, review, run};
use crate::cli::{ApproveArgs, ConfirmArgs, DecisionArgs};
use crate::remote::Remote;
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

/// What was typed. A DAG is confirmed and a task is approved: the word says which of the two the caller has in mind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Confirm,
    Approve,
    Reject,
}

/// The revision that a decision is about.
struct Subject<'s> {
    dag: &'s DagLine,
    content_hash: &'s str,
    review: Option<ReviewId>,
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
    if let Some(view) = setup.view()?
        && let Some(review) = find::find_review(&view, &what, scope)?
    {
        check_verb(verb, &review)?;
        check_same_content(&review, content_hash.as_deref())?;
        return decide_review(setup, &view, &review, &decision);
    }
    decide_dag(setup, &what, scope, content_hash.as_deref(), &decision)
}

/// Refuses the word for a task about a DAG, and the other way round: what a caller takes for one task may be all of a DAG.
fn check_verb(verb: Verb, review: &ReviewLine) -> Result<(), Failure> {
    let (why, command) = match (verb, review) {
        (Verb::Approve, ReviewLine::Dag(review)) => {
            let line = &review.line;
            let why = format!("this review is of a DAG, `{}` revision {}", line.dag_id, line.revision);
            (why, confirm_command(line.review_id))
        }
        (Verb::Confirm, ReviewLine::Task(review)) => {
            let line = &review.line;
            let why = format!("this review is of a task, `{}` of {}", line.task_id, line.run);
            (why, approve_command(line.review_id, &line.input))
        }
        _ => return Ok(()),
    };
    Err(Failure::new(ErrorCode::ValidationFailed, why).hint(format!("`{command}`")))
}

fn check_same_content(review: &ReviewLine, content_hash: Option<&str>) -> Result<(), Failure> {
    let Some(wanted) = content_hash else { return Ok(()) };
    match review {
        ReviewLine::Dag(review) if review.line.content_hash == wanted => Ok(()),
        ReviewLine::Dag(_) => {
            Err(Failure::new(ErrorCode::ContentConflict, "the review id is of other content than the hash"))
        }
        ReviewLine::Task(_) => Err(Failure::usage("a task has no `--content-hash`")),
    }
}

/// Exactly what a review id is about.
fn decide_review(setup: &Setup, view: &View, review: &ReviewLine, decision: &Decision) -> Outcome {
    match review {
        ReviewLine::Dag(review) => {
            let line = &review.line;
            let dag = one_dag(view, line.dag_id.as_str(), line.scope.as_str())?;
            let subject =
                Subject { dag: &dag, content_hash: &line.content_hash, review: Some(line.review_id) };
            decide_revision(setup, view, &subject, decision)
        }
        ReviewLine::Task(review) => decide_waiting(setup, view, review, decision),
    }
}

fn one_dag(view: &View, dag_id: &str, scope: &str) -> Result<DagLine, Failure> {
    let found = view.dag(dag_id, Some(scope))?.into_iter().next();
    found.ok_or_else(|| Failure::new(ErrorCode::NotFound, format!("there is no DAG `{dag_id}`")))
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
    let revisions = found.view.revisions(&found.dag)?;
    if let Some(hash) = content_hash {
        if decision.verb == Verb::Approve {
            let command = format!("cis confirm {name} --content-hash {hash}");
            return Err(Failure::usage("DAGs are confirmed, not approved").hint(format!("`{command}`")));
        }
        let known = revisions.iter().find(|revision| revision.content_hash == hash);
        let known = known.ok_or_else(|| {
            Failure::new(ErrorCode::NotFound, format!("no revision of `{name}` has that content"))
        })?;
        let subject = Subject { dag: &found.dag, content_hash: &known.content_hash, review: None };
        return decide_revision(setup, &found.view, &subject, decision);
    }
    let mut waiting = revisions.iter().filter(|revision| revision.status == RevisionStatus::Pending);
    let (pending, others) = (waiting.next(), waiting.count());
    check_is_dag(&found, pending.is_some(), decision.approve)?;
    let review = match pending.and_then(|revision| revision.review_id) {
        Some(id) => found.view.review(id)?,
        None => None,
    };
    let Some((review, revision)) = review.zip(pending) else {
        return match revisions.first() {
            // The same again is the same.
            Some(latest) if latest.status == RevisionStatus::Rejected && !decision.approve => {
                let (dag, content_hash) = (&found.dag, latest.content_hash.as_str());
                decide_revision(setup, &found.view, &Subject { dag, content_hash, review: None }, decision)
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
    decide_review(setup, &found.view, &review, decision)
}

fn not_pending(dag: &DagLine, latest: Option<&RevisionLine>) -> Failure {
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
    let waiting = found.view.tasks(run, &[TaskStatus::Waiting], 1)?;
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
            let dag = found.view.definition_of(run)?;
            format!("`{}`", approve_command(review, &input_types(&dag.tasks[task.ix.index()])))
        }
        Some(review) => format!("`cis {word} {review}`"),
        None => format!("`cis {word} {} {}`", run.label(), task.task_id),
    }))
}

fn refuse_by_name(name: &str, review: &ReviewLine) -> Failure {
    let (id, command) = match review {
        ReviewLine::Dag(review) => (review.line.review_id, confirm_command(review.line.review_id)),
        ReviewLine::Task(review) => {
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
    let (view, run) = find::find_run(setup, name, scope)?;
    let dag = view.definition_of(&run)?;
    let ix = select::named(&dag, &[task])?[0];
    let task = &dag.tasks[ix.index()];
    let input = typed(&input_types(task), &decision.input)?;
    let line = view.task(&run, &dag, ix)?;
    let waits = line.as_ref().is_some_and(|line| line.status == TaskStatus::Waiting);
    let is_terminal = decision.approve && review::is_interactive(setup);
    // What no longer waits is not asked about: the answer says how it stands.
    let asks = is_terminal && waits;
    if decision.approve && !bound {
        let review = line.as_ref().and_then(|line| line.review_id);
        let Some(review) = review.map(|id| view.review(id)).transpose()?.flatten() else {
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
            review::ask_approve(setup, &view, &run, &dag, task, &input)?;
        }
        return decide_review(setup, &view, &review, decision);
    }
    if asks {
        review::ask_approve(setup, &view, &run, &dag, task, &input)?;
    }
    let approved = match &view {
        View::Node(node) => {
            let id = task.id.as_str();
            let asks = node.task(&run, id)?.is_some_and(|task| task.status == TaskStatus::Waiting);
            node.approve(&reference(&run), id, decision.approve, &said(decision, input), asks)?
        }
        View::Here(_) => {
            let execution = ExecutionId(run.first_execution.0 + i64::from(ix.0));
            approve_here(setup, execution, decision, input)?
        }
    };
    tell_task(setup, &approved);
    Ok(0)
}

fn reference(run: &RunLine) -> RunRef {
    RunRef {
        key: run.key,
        run_id: run.run_id,
        dag_id: run.dag_id.clone(),
        scope: run.scope.clone(),
        number: run.number,
        status: run.status,
    }
}

/// What is sent to a node.
fn said(decision: &Decision, input: Map<String, Value>) -> Value {
    match decision.approve {
        true => json!({"input": input, "note": decision.note}),
        false => json!({"note": decision.note}),
    }
}

/// The task that a review id is about.
fn decide_waiting(setup: &Setup, view: &View, review: &TaskReview, decision: &Decision) -> Outcome {
    let line = &review.line;
    let input = typed(&line.input, &decision.input)?;
    let approved = match view {
        View::Node(node) => {
            let number = line.run.rsplit_once('#').and_then(|(_, number)| number.parse().ok());
            let run = RunRef {
                key: RunKey(0),
                run_id: line.run_id,
                dag_id: line.dag_id.clone(),
                scope: line.scope.clone(),
                number: number.unwrap_or_default(),
                status: RunStatus::Running,
            };
            let asks = review.status == TaskStatus::Waiting;
            node.approve_review(line.review_id, run, decision.approve, &said(decision, input), asks)?
        }
        View::Here(_) => approve_here(setup, line.execution, decision, input)?,
    };
    tell_task(setup, &approved);
    Ok(0)
}

fn approve_here(
    setup: &Setup,
    execution: ExecutionId,
    decision: &Decision,
    input: Map<String, Value>,
) -> Result<Approved, Failure> {
    let request = Approve {
        key: None,
        execution,
        approve: decision.approve,
        input,
        note: decision.note.clone(),
        by: user(),
        // The caller here owns the data directory.
        self_confirm: true,
        now: System.now(),
    };
    let mut session = Session::open(setup.options()?)?;
    let approved = session.ask(Command::Approve(Box::new(request))).and_then(|reply| reply.approved());
    session.close()?;
    Ok(approved?.answer?)
}

/// A revision, in one operation with the start of what a confirmation starts.
fn decide_revision(setup: &Setup, view: &View, subject: &Subject<'_>, decision: &Decision) -> Outcome {
    if !decision.input.is_empty() {
        return Err(Failure::usage("a DAG is confirmed or rejected without `--input`"));
    }
    let decided = match view {
        View::Node(node) => decide_there(node, subject, decision)?,
        View::Here(_) => decide_here(setup, subject, decision)?,
    };
    match &decided.run {
        Some(run) => run::tell_detached(setup, run, decided.tasks as usize),
        None => tell_rejected(setup, &decided),
    }
    Ok(0)
}

fn decide_there(node: &Remote, subject: &Subject<'_>, decision: &Decision) -> Result<Decided, Failure> {
    let note = decision.note.as_deref();
    Ok(match subject.review {
        Some(review) => node.decide_review(review, decision.approve, note)?,
        None => {
            let DagLine { dag_id, scope, .. } = subject.dag;
            node.decide(dag_id, scope, subject.content_hash, decision.approve, note)?
        }
    })
}

fn decide_here(setup: &Setup, subject: &Subject<'_>, decision: &Decision) -> Result<Decided, Failure> {
    let request = Decide {
        key: None,
        scope: subject.dag.scope.clone(),
        dag_id: subject.dag.dag_id.clone(),
        content_hash: Some(subject.content_hash.to_owned()),
        review: subject.review,
        confirm: decision.approve,
        note: decision.note.clone(),
        by: user(),
        // The caller here owns the data directory.
        self_confirm: true,
        run_id: new_run_id(&System, &System),
        traceparent: None,
        now: System.now(),
    };
    let context = Box::new(node::context(setup, &decision.skill_dirs));
    let mut session = Session::open(setup.options()?)?;
    if let Some(recovery) = session.recovery()?.filter(Recovery::took_up) {
        tell!("{recovery}");
    }
    let decide = Command::Decide { request: Box::new(request), context };
    let decided = session.ask(decide).and_then(|reply| reply.decided());
    session.close()?;
    Ok(decided?.answer?)
}

fn tell_rejected(setup: &Setup, decided: &Decided) {
    let Decided { dag_id, revision, content_hash, decision, .. } = decided;
    if setup.json {
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

fn tell_task(setup: &Setup, approved: &Approved) {
    let Approved { approved: yes, changed, run, task_id, status, by, at, note, outputs } = approved;
    let (word, label) =
        (if *yes { "approved" } else { "rejected" }, format!("{}#{}", run.dag_id, run.number));
    if setup.json {
        let told = json!({"success": true, "status": word, "run": label, "run_id": run.run_id, "task_id": task_id,
                          "task_status": status, "decided_by": by, "decided_at": at, "note": note,
                          "outputs": outputs});
        say_json!(told);
    } else if *changed {
        say!("{label} {task_id} is {word}");
    } else {
        say!("{label} {task_id} was {word} already, by {}", reveal(by));
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
