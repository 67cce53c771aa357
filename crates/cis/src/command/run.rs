//! `cis dag run`: publish, confirm and run a DAG from a file, or run a confirmed one again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_api::calls::{ConfirmDag, PublishDag, RunDefinition, StartRun};
use cis_api::dag::{DagDecided, DagDecision, DagPath, InScope, Published};
use cis_api::run::{OwnerOptions, RunContext, RunDefinitionBody, RunStarted, RunSummary, StartBody};
use cis_api::{Call, Nothing, Request};
use cis_client::Client;
use cis_core::dag::params::filled;
use cis_core::dag::plan::Plan;
use cis_core::dag::{Dag, Kind};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::revision::RevisionStatus;
use cis_core::source::new_run_id;
use cis_engine::again::confirmed;
use cis_engine::app::{Answer, App};
use cis_engine::context::Context;
use cis_engine::select::{self, Fate};
use cis_engine::skill::KeptLock;
use cis_engine::system::{Process, System};
use serde_json::{Map, Value, json};

use super::follow::{self, Interrupts};
use super::notes::tell_copy;
use super::pending::confirm_command;
use super::{Failure, Outcome, Setup, definition, find, node};
use crate::cli::RunArgs;
use crate::source::Source;
use crate::target::Target;
use crate::term::text::{self, columns};
use crate::term::visible::block;
use crate::term::{Size, reveal};

/// How a run is started, beyond what it runs.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) dag: Arc<Dag>,
    /// Where its skills are looked for.
    pub(super) skill_dirs: Vec<PathBuf>,
    pub(super) is_detached: bool,
    /// Its tasks start where the node says, instead of here.
    pub(super) at_node: bool,
    /// Keeps its skills until they are part of a revision.
    pub(super) kept: Option<KeptLock>,
}

/// `cis dag run`.
pub(super) fn run(setup: &Setup, args: &RunArgs) -> Outcome {
    let is_file = definition::is_file(&args.target);
    if is_file && args.scope.scope.is_some() {
        return Err(Failure::usage("`--scope` says which DAG of a name is meant, and a file has a scope of its own")
            .hint("write `scope = \"…\"` into the file; without it, it is the one of the project around it, or global"));
    }
    match (is_file, setup.named_node()?) {
        (true, Some(client)) if !args.dry_run => run_file_at(setup, client, args),
        (true, _) => run_file(setup, args),
        (false, _) => run_known(setup, args),
    }
}

/// Running a file is its caller's own act: it is published, confirmed and started in one go.
fn run_file(setup: &Setup, args: &RunArgs) -> Outcome {
    let loaded = definition::load(setup, Path::new(&args.target), &args.skills.dirs)?;
    definition::warn(setup, &loaded);
    let params = params(&loaded.dag, &args.params)?;
    // Before anything is published: a task that does not exist must not confirm anything.
    let fates = selection(args, &loaded.dag, &loaded.plan)?;
    if args.dry_run {
        return dry_run(setup, &loaded.dag, &loaded.plan, fates);
    }
    tell_copy(setup);
    let mut target = setup.target(true)?;
    warn_durability(&mut target, args)?;
    warn_external(&mut target, &loaded.dag)?;
    let launch = Launch {
        dag: loaded.dag.clone(),
        kept: loaded.keep_skills(&setup.options()?)?,
        skill_dirs: loaded.skill_dirs.clone(),
        is_detached: args.detach,
        at_node: false,
    };
    start(setup, target, launch, |owner| {
        let start = StartBody { owner: selected(owner, args), ..start_body(params, args) };
        let body = RunDefinitionBody { definition: loaded.body(true), start };
        Request::<RunDefinition>::new(Nothing {}, Nothing {}, body)
    })
}

/// Publishes a file at a node, confirms it if that is allowed, and follows what that starts.
fn run_file_at(setup: &Setup, client: Client, args: &RunArgs) -> Outcome {
    refuse_selection(args)?;
    if !args.params.is_empty() || args.max_parallel.is_some() {
        let why =
            "a node starts what is confirmed as it was published, without `--param` and `--max-parallel`";
        return Err(Failure::usage(why)
            .hint("publish and confirm it; then `cis run ID --param …` runs it again with others"));
    }
    let interrupts = catch_interrupts(args.detach)?;
    let checked = definition::check(setup, Path::new(&args.target))?;
    checked.warn();
    let publish = Request::<PublishDag>::new(Nothing {}, Nothing {}, checked.body(true)?);
    let published = client.call(&publish)?;
    let started = start_published(&client, &published)?;
    attend(setup, Target::Node(client), &started, Arc::new(checked.dag), &[], interrupts)
}

fn start_published(client: &Client, published: &Published) -> Result<RunStarted, Failure> {
    if let Some(run_id) = published.run_id {
        // It is a node that confirms by itself.
        let run = Source::Node(client.clone()).run_by_id(run_id)?;
        return run.map(started).ok_or_else(|| Failure::new(ErrorCode::NotFound, "the run is gone"));
    }
    let (path, query) = dag_in_scope(published);
    let content_hash = Some(published.content_hash.clone());
    if published.revision_status != RevisionStatus::Pending {
        let body = StartBody { content_hash, ..StartBody::default() };
        return Ok(client.call(&Request::<StartRun>::new(path, query, body))?);
    }
    let body = DagDecision { content_hash, ..DagDecision::default() };
    match client.call(&Request::<ConfirmDag>::new(path, query, body)) {
        Ok(decided) => started_by(decided)
            .ok_or_else(|| Failure::new(ErrorCode::Unavailable, "the node confirmed it and started nothing")),
        Err(refusal) if refusal.code == ErrorCode::Forbidden => Err(awaits_confirmation(published, &refusal)),
        Err(refusal) => Err(refusal.into()),
    }
}

fn dag_in_scope(published: &Published) -> (DagPath, InScope) {
    let Published { dag_id, scope, .. } = published;
    (DagPath { id: dag_id.to_string() }, InScope { scope: Some(scope.clone()) })
}

fn awaits_confirmation(published: &Published, refusal: &Refusal) -> Failure {
    let Published { dag_id, revision, review_id, .. } = published;
    let why = format!("`{dag_id}` revision {revision} is published and waits for confirmation: {refusal}");
    let command = review_id.map_or("cis pending".to_owned(), confirm_command);
    Failure::new(ErrorCode::AwaitingConfirmation, why).hint(format!("an approver types `{command}`"))
}

/// A run that was started before.
fn started(run: RunSummary) -> RunStarted {
    let (label, message) = (run.label(), String::new());
    let RunSummary { run_id, dag_id, scope, number, status, .. } = run;
    RunStarted { run_id, run: label, dag_id, scope, number, status, message }
}

/// What a confirmation started.
pub(super) fn started_by(decided: DagDecided) -> Option<RunStarted> {
    let DagDecided { run_id, run, number, run_status, dag_id, scope, message, .. } = decided;
    let (run, message) = (run.unwrap_or_default(), message.unwrap_or_default());
    Some(RunStarted { run_id: run_id?, run, dag_id, scope, number: number?, status: run_status?, message })
}

/// Runs confirmed content again.
fn run_known(setup: &Setup, args: &RunArgs) -> Outcome {
    let found = find::find_named(setup, &args.target, args.scope.scope.as_deref())?;
    let revisions = found.source.revisions(&found.dag)?;
    let revisions: Vec<_> = revisions.iter().collect();
    let revision = *confirmed(&found.dag.dag_id, &revisions, None)?;
    if revisions.first().is_some_and(|latest| latest.status == RevisionStatus::Pending) {
        crate::term::report::warn(&format!(
            "a newer revision of `{}` waits for confirmation; revision {} runs",
            args.target, revision.revision
        ));
    }
    let (dag_id, scope) = (&found.dag.dag_id, &found.dag.scope);
    let dag = Arc::new(found.source.definition(dag_id, scope, &revision.content_hash)?);
    let params = params(&dag, &args.params)?;
    let shows_all = args.dry_run && args.only.is_empty() && args.from.is_empty();
    if !found.source.is_here() && !shows_all {
        refuse_selection(args)?;
    }
    let plan = Plan::new(&dag);
    let fates = selection(args, &dag, &plan)?;
    if args.dry_run {
        return dry_run(setup, &dag, &plan, fates);
    }
    tell_copy(setup);
    let mut target = setup.target(true)?;
    warn_durability(&mut target, args)?;
    warn_external(&mut target, &dag)?;
    let here = std::env::current_dir().unwrap_or_default();
    let skill_dirs = setup.skill_dirs(&args.skills.dirs, &here);
    let launch = Launch { dag, skill_dirs, is_detached: args.detach, at_node: false, kept: None };
    start(setup, target, launch, |owner| {
        let content_hash = Some(revision.content_hash.clone());
        let owner = selected(owner, args);
        let body = StartBody { content_hash, owner, ..start_body(params, args) };
        let (path, query) = (DagPath { id: dag_id.to_string() }, InScope { scope: Some(scope.clone()) });
        Request::<StartRun>::new(path, query, body)
    })
}

fn start_body(params: Map<String, Value>, args: &RunArgs) -> StartBody {
    StartBody { params, max_parallel: args.max_parallel, content_hash: None, owner: None }
}

/// With the tasks that were named, which only the owner's coordinator takes.
fn selected(owner: Option<OwnerOptions>, args: &RunArgs) -> Option<OwnerOptions> {
    owner.map(|owner| OwnerOptions { only: args.only.clone(), from: args.from.clone(), ..owner })
}

/// What only a coordinator of this machine can do.
fn refuse_selection(args: &RunArgs) -> Result<(), Failure> {
    let given = [
        ("--only", !args.only.is_empty()),
        ("--from", !args.from.is_empty()),
        ("--durability", args.durability.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::usage(format!("a node does not take `{flag}`"))
            .hint("`cis dag retry ID TASK` runs a task and everything that depends on it again")),
    }
}

/// Says so where tasks wait for workers to claim them, and no node serves any.
fn warn_external(target: &mut Target, dag: &Dag) -> Result<(), Failure> {
    let external = dag.tasks.iter().filter(|task| matches!(task.kind, Kind::External { .. })).count();
    if external == 0 {
        return Ok(());
    }
    if target.coordinator()?.is_some_and(|coordinator| coordinator.address.is_none()) {
        let wait =
            if external == 1 { "waits for others to claim it" } else { "wait for others to claim them" };
        let tasks = text::count(external, "task");
        let told = format!("{tasks} {wait}, and no node serves this data directory");
        crate::term::report::warn(&told);
        tell!("hint: `cis node start` serves it; `cis work` claims them");
    }
    Ok(())
}

/// Says so where the caller's wish for durability goes to a coordinator that has another.
fn warn_durability(target: &mut Target, args: &RunArgs) -> Result<(), Failure> {
    let Some(wanted) = args.durability.as_deref() else { return Ok(()) };
    if let Some(has) = target.coordinator()?.map(|coordinator| coordinator.durability)
        && has != wanted
    {
        let told = format!("another `cis` coordinates this data directory, with durability `{has}`");
        crate::term::report::warn(&told);
    }
    Ok(())
}

/// Starts a run and follows it to its end, unless it is detached. `request` is given what only the owner of a data directory
/// says of a run.
pub(super) fn start<C>(
    setup: &Setup,
    mut target: Target,
    launch: Launch,
    request: impl FnOnce(Option<OwnerOptions>) -> Request<C>,
) -> Outcome
where
    C: Call<Response = RunStarted>,
    App: Answer<C>,
{
    let cwd = std::env::current_dir().map_err(|e| Failure::usage(format!("no current directory: {e}")))?;
    tell_recovery(&target);
    let Launch { dag, skill_dirs, is_detached, at_node, kept } = launch;
    // Those it would not be looked for in otherwise.
    let usual = setup.skill_dirs(&[], &cwd);
    let named: Vec<PathBuf> = skill_dirs.iter().filter(|dir| !usual.contains(dir)).cloned().collect();
    // Caught before the run exists: from then on a Ctrl-C means the run.
    let interrupts = catch_interrupts(is_detached)?;
    let owner = match target.is_node() {
        true => None,
        false => {
            let context = match at_node {
                true => Context { owner: Process::own(), ..node::context(setup, &skill_dirs) },
                false => Context::of_caller(cwd, skill_dirs),
            };
            Some(OwnerOptions {
                run_id: Some(new_run_id(&System, &System)),
                attached: !is_detached,
                context: Some(run_context(&context)),
                ..OwnerOptions::default()
            })
        }
    };
    let started = target.start(&request(owner), !is_detached)?;
    drop(kept);
    attend(setup, target, &started, dag, &named, interrupts)
}

/// The environment and directory of tasks, as the coordinator is told.
pub(super) fn run_context(context: &Context) -> RunContext {
    RunContext(json!(context))
}

/// Says what the coordinator took up, if it is the one that began in this process.
pub(super) fn tell_recovery(target: &Target) {
    if let Target::Here(session) = target
        && let Some(recovery) = session.recovery()
    {
        tell!("{recovery}");
    }
}

fn catch_interrupts(is_detached: bool) -> Result<Option<Interrupts>, Failure> {
    (!is_detached).then(Interrupts::catch).transpose()
}

/// Follows a run that has started, unless it is left alone.
fn attend(
    setup: &Setup,
    target: Target,
    run: &RunStarted,
    dag: Arc<Dag>,
    skill_dirs: &[PathBuf],
    interrupts: Option<Interrupts>,
) -> Outcome {
    let Some(interrupts) = interrupts else {
        let closed = target.close();
        tell_detached(setup, run, dag.tasks.len());
        closed?;
        return Ok(0);
    };
    follow::follow(setup, target, run, dag, skill_dirs, interrupts)
}

pub(super) fn tell_detached(setup: &Setup, started: &RunStarted, tasks: usize) {
    let RunStarted { run_id, run, dag_id, number, status, .. } = started;
    if setup.json {
        let told = json!({"success": true, "run_id": run_id, "run": run, "dag_id": dag_id, "number": number,
                          "status": status, "tasks_count": tasks});
        say_json!(told);
    } else {
        if status.is_terminal() {
            say!("{run} is over already: {status}");
            return;
        }
        say!("Started {run} in the background ({})", text::count(tasks, "task"));
        tell!("hint: `cis status {run} --watch` shows it, `cis dag cancel {run}` stops it");
    }
}

/// What the caller gave, checked against what the definition declares.
fn params(dag: &Dag, given: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut params = Map::new();
    for text in given {
        let Some((key, value)) = text.split_once('=') else {
            return Err(Failure::usage(format!("`--param {text}`: expected `KEY=VALUE`")));
        };
        params.insert(key.to_owned(), typed(key, value, dag.params.get(key))?);
    }
    filled(dag, &params)?;
    Ok(params)
}

/// A string where the default is one, or where there is none; JSON otherwise.
fn typed(key: &str, text: &str, default: Option<&Value>) -> Result<Value, Failure> {
    let Some(default) = default.filter(|default| !default.is_string()) else {
        return Ok(Value::String(text.to_owned()));
    };
    serde_json::from_str(text).map_err(|_| {
        Failure::usage(format!(
            "`--param {key}={text}`: its default is `{default}`, so expected JSON like it"
        ))
    })
}

/// What would run of a DAG; what is carried over from an earlier run is not known here.
fn selection(args: &RunArgs, dag: &Dag, plan: &Plan) -> Result<Option<Vec<Fate>>, Failure> {
    Ok(if !args.only.is_empty() {
        Some(select::only(plan, &select::named(dag, &args.only)?, None))
    } else if !args.from.is_empty() {
        Some(select::from(plan, &select::named(dag, &args.from)?, None))
    } else {
        None
    })
}

/// What would run, in an order it could run in.
fn dry_run(setup: &Setup, dag: &Dag, plan: &Plan, fates: Option<Vec<Fate>>) -> Outcome {
    let layers = plan.layers();
    let mut order: Vec<_> = plan.order().to_vec();
    order.retain(|ix| fates.as_ref().is_none_or(|fates| fates[ix.index()] == Fate::Run));
    order.sort_by_key(|ix| (layers[ix.index()], ix.0));
    if setup.json {
        let tasks: Vec<Value> = order
            .iter()
            .map(|ix| json!({"task_id": dag.tasks[ix.index()].id, "layer": layers[ix.index()]}))
            .collect();
        let told = json!({"success": true, "dry_run": true, "dag_id": dag.dag_id, "tasks": tasks});
        say_json!(told);
        return Ok(0);
    }
    let width = Size::of(std::io::stdout()).map(|size| size.cols.into());
    let mut out = String::new();
    for ix in &order {
        let task = &dag.tasks[ix.index()];
        let what = match &task.kind {
            Kind::Shell { command } => command.to_string(),
            Kind::Skill(call) => format!("skill {}", call.skill),
            Kind::External { .. } => "others claim it".to_owned(),
            Kind::Approval(_) => "a person approves".to_owned(),
        };
        let head = format!("{:>3}  {}  ", layers[ix.index()] + 1, task.id);
        let beside = !what.contains('\n')
            && width.is_none_or(|width| columns(&head) + columns(&reveal(&what)) <= width);
        if beside {
            out += &format!("{head}{}\n", reveal(&what));
        } else {
            out += &format!("{}\n", head.trim_end());
            block(&what, "     ", width).iter().for_each(|line| out += &format!("{line}\n"));
        }
    }
    crate::term::out::put(format_args!("{out}"));
    tell!("{} would run; nothing was started", text::count(order.len(), "task"));
    Ok(0)
}
