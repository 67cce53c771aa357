//! `cis pending`, `cis approve` and `cis reject`: what waits for a person, and what that person says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cis_core::dag::{InputType, Kind, Task};
use cis_core::id::{DagId, ExecutionId, Scope};
use cis_core::source::{Clock, Timestamp};
use cis_core::task::TaskStatus;
use cis_engine::command::Command;
use cis_engine::select;
use cis_engine::session::Session;
use cis_engine::system::{System, user};
use cis_store::port::{Approve, Approved, RevisionStatus};
use cis_store::sqlite::WaitingLine;
use cis_store::sqlite::reader::{PendingLine, RunLine};
use serde_json::{Map, Value, json};

use super::view::View;
use super::{Failure, Outcome, Setup, find, list, publish};
use crate::cli::{ApproveArgs, DecisionArgs};
use crate::term::table::Cell;
use crate::term::{Table, time};

/// Something that waits, and what to type to let it go on.
struct Waiting {
    what: String,
    question: String,
    by: String,
    since: Timestamp,
    command: String,
    told: Value,
}

/// `cis pending`.
pub(super) fn pending(setup: &Setup) -> Outcome {
    let mut waiting = Vec::new();
    if let Some(view) = setup.view()? {
        let (dags, tasks) = view.pending()?;
        let mut names = Names { view: &view, alone: BTreeMap::new() };
        for dag in dags {
            waiting.push(Waiting::dag(&dag, &names.scope_flag(&dag.dag_id, &dag.scope)?));
        }
        for task in tasks {
            waiting.push(Waiting::task(&task, &names.scope_flag(&task.dag_id, &task.scope)?));
        }
    }
    if setup.json {
        let told: Vec<Value> = waiting.into_iter().map(|one| one.told).collect();
        say!("{}", json!({"success": true, "pending": told}));
        return Ok(0);
    }
    if waiting.is_empty() {
        tell!("nothing waits for anybody");
        return Ok(0);
    }
    let now = System.now();
    let mut table = Table::new(&["WHAT", "BY", "SINCE", "TO APPROVE, TYPE", "QUESTION"]);
    for one in waiting {
        table.row([
            one.what.into(),
            one.by.into(),
            time::ago(now, one.since).into(),
            Cell::styled(one.command),
            one.question.into(),
        ]);
    }
    list::print(&table);
    tell!("hint: with `cis reject` in its place (`--reject` for a DAG) it is refused");
    Ok(0)
}

impl Waiting {
    fn dag(dag: &PendingLine, scope: &str) -> Self {
        // The content that was looked at, whatever is published meanwhile.
        let hash = &dag.content_hash[..12];
        let command = format!("cis dag confirm {} --content-hash {hash}{scope}", dag.dag_id);
        let mut told = json!(dag);
        (told["kind"], told["command"]) = (json!("dag"), json!(command));
        Self {
            what: format!("{} revision {}", dag.dag_id, dag.revision),
            question: format!("run its tasks ({})?", dag.tasks),
            by: dag.published_by.clone(),
            since: dag.published_at,
            command,
            told,
        }
    }

    fn task(task: &WaitingLine, scope: &str) -> Self {
        let input = task.input.iter().map(|(name, kind)| (name.as_str(), kind.as_str()));
        let command = format!("{}{scope}", command(&task.run, task.task_id.as_str(), input));
        let mut told = json!(task);
        (told["kind"], told["command"]) = (json!("task"), json!(command));
        Self {
            what: format!("{} {}", task.run, task.title),
            question: task.prompt.clone().unwrap_or_else(|| format!("run this {} task?", task.kind)),
            by: task.published_by.clone(),
            since: task.waiting_since,
            command,
            told,
        }
    }
}

/// Names of DAGs, and whether each says which is meant.
struct Names<'v> {
    view: &'v View,
    alone: BTreeMap<DagId, bool>,
}

impl Names<'_> {
    /// ` --scope …` where the name alone would not do.
    fn scope_flag(&mut self, dag_id: &DagId, scope: &Scope) -> Result<String, Failure> {
        let alone = match self.alone.get(dag_id) {
            Some(alone) => *alone,
            None => self.view.dag(dag_id.as_str(), None)?.len() == 1,
        };
        self.alone.insert(dag_id.clone(), alone);
        Ok(if alone { String::new() } else { format!(" --scope {scope}") })
    }
}

/// What to type to approve a task.
fn command<'a>(run: &str, task: &str, input: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let input: String =
        input.map(|(name, kind)| format!(" --input {name}={}", kind.to_uppercase())).collect();
    format!("cis approve {run} {task}{input}")
}

/// What a task that waits asks, and what to type: for whoever looks at its run.
pub(super) fn question(run: &RunLine, task: &Task) -> String {
    let types = input_types(task);
    let input = types.iter().map(|(name, kind)| (name.as_str(), kind.word()));
    let command = command(&run.label(), task.id.as_str(), input);
    match &task.kind {
        Kind::Approval(approval) => match &approval.prompt {
            Some(prompt) => format!("{prompt}  `{command}`"),
            None => format!("`{command}`"),
        },
        _ => format!("`{command}`"),
    }
}

fn input_types(task: &Task) -> Vec<(String, InputType)> {
    match &task.kind {
        Kind::Approval(approval) => approval.input.iter().map(|(name, kind)| (name.clone(), *kind)).collect(),
        _ => Vec::new(),
    }
}

/// `cis approve`.
pub(super) fn approve(setup: &Setup, args: ApproveArgs) -> Outcome {
    let ApproveArgs { decision, input, skills } = args;
    decide(setup, decision, true, &input, skills.dirs)
}

/// `cis reject`.
pub(super) fn reject(setup: &Setup, args: DecisionArgs) -> Outcome {
    decide(setup, args, false, &[], Vec::new())
}

fn decide(
    setup: &Setup,
    args: DecisionArgs,
    approve: bool,
    input: &[String],
    skill_dirs: Vec<PathBuf>,
) -> Outcome {
    let scope = args.scope.scope.as_deref();
    let Some(task) = args.task else {
        check_is_dag(setup, &args.id, scope, approve)?;
        if !input.is_empty() || args.note.is_some() {
            return Err(Failure::usage("a DAG is confirmed or rejected without `--input` and `--note`"));
        }
        let decision = publish::Decision { content_hash: None, confirm: approve, skill_dirs };
        return publish::settle(setup, &args.id, scope, decision);
    };
    let (view, run) = find::find_run(setup, &args.id, scope)?;
    let dag = view.definition_of(&run)?;
    let ix = select::named(&dag, &[task])?[0];
    let (task, note) = (&dag.tasks[ix.index()], args.note);
    let input = typed(task, input)?;
    let approved = match &view {
        View::Node(node) => {
            let task = task.id.as_str();
            let asks = node.task(&run, task)?.is_some_and(|task| task.status == TaskStatus::Waiting);
            let body = if approve { json!({"input": input, "note": note}) } else { json!({"note": note}) };
            node.approve(&run, task, approve, &body, asks)?
        }
        View::Here(_) => {
            let execution = ExecutionId(run.first_execution.0 + i64::from(ix.0));
            approve_here(setup, execution, approve, input, note)?
        }
    };
    tell(setup, &run, &approved);
    Ok(0)
}

fn approve_here(
    setup: &Setup,
    execution: ExecutionId,
    approve: bool,
    input: Map<String, Value>,
    note: Option<String>,
) -> Result<Approved, Failure> {
    let request = Approve {
        key: None,
        execution,
        approve,
        input,
        note,
        by: user(),
        // Whoever types here owns the data directory.
        self_confirm: true,
        now: System.now(),
    };
    let mut session = Session::open(setup.options()?)?;
    let approved = session.ask(Command::Approve(Box::new(request))).and_then(|reply| reply.approved());
    session.close()?;
    Ok(approved?.answer?)
}

/// Without a task, a DAG that waits to be confirmed is meant. What its runs wait for is named instead.
fn check_is_dag(setup: &Setup, id: &str, scope: Option<&str>, approve: bool) -> Result<(), Failure> {
    let found = find::find(setup, id, scope)?;
    let latest = found.view.revisions(&found.dag)?.into_iter().next();
    let pending = latest.is_some_and(|revision| revision.status == RevisionStatus::Pending);
    let Some(run) = found.run.filter(|_| found.named || !pending) else { return Ok(()) };
    let waiting = found.view.tasks(&run, &[TaskStatus::Waiting], 1)?;
    let word = if approve { "approve" } else { "reject" };
    let failure = Failure::usage(format!("say which task of {} to {word}", run.label()));
    Err(match waiting.first() {
        Some(task) => failure.hint(format!("`cis {word} {} {}`", run.label(), task.task_id)),
        None => failure.hint("none of its tasks waits for anybody; `cis pending` shows what does"),
    })
}

/// `--input key=value` as what the task asks for; whether it fits is decided where the decision is made.
fn typed(task: &Task, given: &[String]) -> Result<Map<String, Value>, Failure> {
    let types = input_types(task);
    let mut input = Map::new();
    for text in given {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Failure::usage(format!("`--input {text}`: expected `NAME=VALUE`")));
        };
        let kind = types.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
        let value = match kind {
            None | Some(InputType::String) => Value::String(value.to_owned()),
            Some(_) => serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())),
        };
        if input.insert(name.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("`--input {name}=…` is there twice")));
        }
    }
    Ok(input)
}

fn tell(setup: &Setup, run: &RunLine, approved: &Approved) {
    let Approved { approved: yes, changed, task_id, status, by, note, outputs, .. } = approved;
    let word = if *yes { "approved" } else { "rejected" };
    if setup.json {
        let told = json!({"success": true, "status": word, "run": run.label(), "run_id": run.run_id, "task_id": task_id,
                          "task_status": status, "decided_by": by, "note": note, "outputs": outputs});
        say!("{told}");
    } else if *changed {
        say!("{} {task_id} is {word}", run.label());
    } else {
        say!("{} {task_id} was {word} already, by {by}", run.label());
    }
}

#[cfg(test)]
mod tests {
    use cis_core::dag::{Dag, Defaults, Format, parse};

    use super::*;

    fn dag(text: &str) -> Dag {
        let defaults = Defaults { dag_id: Some("d".to_owned()), scope: None };
        parse(text.as_bytes(), Format::Toml, &defaults).unwrap().dag
    }

    #[test]
    fn input_is_read_as_what_is_asked_for() {
        let dag = dag(
            "tasks = [{ id = 'a', type = 'approval', input = { s = 'string', n = 'integer', b = 'boolean' } }]",
        );
        let given = ["s=1", "n=2", "b=true", "x=y=z"].map(str::to_owned);
        let input = typed(&dag.tasks[0], &given).unwrap();
        assert_eq!(Value::Object(input), json!({"s": "1", "n": 2, "b": true, "x": "y=z"}));
        assert!(typed(&dag.tasks[0], &["s".to_owned()]).is_err());
        assert!(typed(&dag.tasks[0], &["n=1".to_owned(), "n=2".to_owned()]).is_err());
    }
}
