//! `cis dag run`: publish, confirm and run a DAG from a file, or run a confirmed one again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_core::dag::params::filled;
use cis_core::dag::plan::Plan;
use cis_core::dag::{Dag, Kind};
use cis_core::id::RunKey;
use cis_core::source::{Clock, new_run_id};
use cis_core::task::TaskStatus;
use cis_engine::command::{Command, SharedDag};
use cis_engine::context::Context;
use cis_engine::coordinator::Options;
use cis_engine::recovery::Recovery;
use cis_engine::session::Session;
use cis_engine::system::{Process, System, user};
use cis_engine::{again, select};
use cis_store::port::{Fate, RevisionStatus, RunRef, StartRun};
use cis_store::sqlite::Reader;
use serde_json::{Map, Value, json};

use super::definition::{self, Loaded};
use super::follow::{self, Hand, Interrupts};
use super::notes::tell_copy;
use super::view::View;
use super::{Failure, Outcome, Setup, elsewhere, find, node};
use crate::cli::RunArgs;
use crate::term::text::{self, columns};
use crate::term::visible::block;
use crate::term::{Size, reveal};

/// A confirmed definition, ready to run.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) definition: i64,
    pub(super) dag: Arc<Dag>,
    pub(super) plan: Plan,
    pub(super) skill_dirs: Vec<PathBuf>,
}

/// How a run is started, beyond what it runs.
#[derive(Debug, Default)]
pub(super) struct Wish {
    pub(super) params: Map<String, Value>,
    pub(super) max_parallel: Option<u32>,
    pub(super) detach: bool,
    pub(super) fates: Option<Vec<Fate>>,
    pub(super) resumed_from: Option<RunKey>,
    /// Where the node says, instead of here.
    pub(super) at_node: bool,
}

/// `cis dag run`.
pub(super) fn run(setup: &Setup, args: &RunArgs) -> Outcome {
    let is_file = definition::is_file(&args.target);
    if is_file && args.scope.scope.is_some() {
        return Err(Failure::usage("`--scope` says which DAG of a name is meant, and a file has a scope of its own")
            .hint("write `scope = \"…\"` into the file; without it, it is the one of the project around it, or global"));
    }
    match (is_file, setup.elsewhere()?) {
        (true, Some(node)) if !args.dry_run => elsewhere::run_file(setup, node, args),
        (true, _) => run_file(setup, args),
        (false, _) => run_known(setup, args),
    }
}

fn run_file(setup: &Setup, args: &RunArgs) -> Outcome {
    let loaded = definition::load(setup, Path::new(&args.target), &args.skills.dirs)?;
    definition::warn(setup, &loaded);
    let params = params(&loaded.dag, &args.params)?;
    if args.dry_run {
        return dry_run(setup, &loaded.dag, &loaded.plan, selection(args, &loaded.dag, &loaded.plan, None)?);
    }
    // Before anything is published: a task that does not exist must not confirm anything.
    selection(args, &loaded.dag, &loaded.plan, None)?;
    tell_copy(setup);
    let options = Options { runs_at_once: true, ..setup.options()? };
    let mut session = Session::open(options.clone())?;
    warn_durability(&mut session, args)?;
    warn_external(&mut session, &loaded.dag)?;
    let kept = loaded.keep_skills(&options)?;
    let ready = confirm_own(&mut session, loaded)?;
    drop(kept);
    let (resumed_from, before) = match setup.reader()? {
        Some(reader) if !args.only.is_empty() || !args.from.is_empty() => latest_run(&reader, &ready)?,
        _ => (None, None),
    };
    let fates = selection(args, &ready.dag, &ready.plan, before.as_deref())?;
    let wish = Wish {
        params,
        max_parallel: args.max_parallel,
        detach: args.detach,
        fates,
        resumed_from,
        ..Wish::default()
    };
    launch(setup, session, ready, wish)
}

fn run_known(setup: &Setup, args: &RunArgs) -> Outcome {
    let found = find::find_named(setup, &args.target, args.scope.scope.as_deref())?;
    let revisions = found.view.revisions(&found.dag)?;
    let revision = again::confirmed(&found.dag, &revisions, None)?;
    if revisions.first().is_some_and(|latest| latest.status == RevisionStatus::Pending) {
        crate::term::report::warn(&format!(
            "a newer revision of `{}` waits for confirmation; revision {} runs",
            args.target, revision.revision
        ));
    }
    let dag = Arc::new(found.view.definition(&found.dag, revision)?);
    let plan = Plan::new(&dag);
    let here = std::env::current_dir().unwrap_or_default();
    let skill_dirs = setup.skill_dirs(&args.skills.dirs, &here);
    let ready = Ready { definition: revision.key, dag, plan, skill_dirs };
    let params = params(&ready.dag, &args.params)?;
    let reader = match found.view {
        View::Here(reader) => reader,
        View::Node(_) if args.dry_run && args.only.is_empty() && args.from.is_empty() => {
            return dry_run(setup, &ready.dag, &ready.plan, None);
        }
        View::Node(node) => {
            return elsewhere::run_known(setup, node, &ready.dag, &revision.content_hash, &params, args);
        }
    };
    let (resumed_from, before) = if args.only.is_empty() && args.from.is_empty() {
        (None, None)
    } else {
        latest_run(&reader, &ready)?
    };
    let fates = selection(args, &ready.dag, &ready.plan, before.as_deref())?;
    if args.dry_run {
        return dry_run(setup, &ready.dag, &ready.plan, fates);
    }
    tell_copy(setup);
    let mut session = Session::open(Options { runs_at_once: true, ..setup.options()? })?;
    warn_durability(&mut session, args)?;
    warn_external(&mut session, &ready.dag)?;
    let wish = Wish {
        params,
        max_parallel: args.max_parallel,
        detach: args.detach,
        fates,
        resumed_from,
        ..Wish::default()
    };
    launch(setup, session, ready, wish)
}

/// Says so where tasks wait for others to claim them, and there is nobody to ask for them.
fn warn_external(session: &mut Session, dag: &Dag) -> Result<(), Failure> {
    let external = dag.tasks.iter().filter(|task| matches!(task.kind, Kind::External { .. })).count();
    if external > 0 && session.ask(Command::Hello)?.hello()?.address.is_none() {
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
fn warn_durability(session: &mut Session, args: &RunArgs) -> Result<(), Failure> {
    if let Some(wanted) = args.durability.as_deref().filter(|_| !session.is_here()) {
        let has = session.ask(Command::Hello)?.hello()?.durability.word();
        if has != wanted {
            let told = format!("another `cis` coordinates this data directory, with durability `{has}`");
            crate::term::report::warn(&told);
        }
    }
    Ok(())
}

/// Publishes and confirms in one go: running a file is its caller's own act.
fn confirm_own(session: &mut Session, loaded: Loaded) -> Result<Ready, Failure> {
    let by = user();
    let publish = Command::Publish {
        dag: SharedDag(loaded.dag.clone()),
        content_hash: loaded.content_hash.clone(),
        new_revision: true,
        by: by.clone(),
    };
    let published = session.ask(publish)?.published()?;
    if published.status == RevisionStatus::Pending {
        let (definition, content_hash) = (published.definition, loaded.content_hash);
        session.ask(Command::Settle { definition, content_hash, confirm: true, by })?.settled()?;
    }
    Ok(Ready {
        definition: published.definition,
        dag: loaded.dag,
        plan: loaded.plan,
        skill_dirs: loaded.skill_dirs,
    })
}

/// Starts the run and follows it to its end, unless it is detached.
pub(super) fn launch(setup: &Setup, mut session: Session, ready: Ready, wish: Wish) -> Outcome {
    let cwd = std::env::current_dir().map_err(|e| Failure::usage(format!("no current directory: {e}")))?;
    if let Some(recovery) = session.recovery()?.filter(Recovery::took_up) {
        tell!("{recovery}");
    }
    let request = StartRun {
        key: None,
        run_id: new_run_id(&System, &System),
        definition: ready.definition,
        params: wish.params,
        max_parallel: wish.max_parallel,
        attached: !wish.detach,
        at_node: wish.at_node,
        traceparent: None,
        fates: wish.fates,
        resumed_from: wish.resumed_from,
        by_confirmation: false,
        by: user(),
        by_proven: true,
        now: System.now(),
    };
    // Those it would not be looked for in otherwise.
    let usual = setup.skill_dirs(&[], &cwd);
    let named: Vec<PathBuf> = ready.skill_dirs.iter().filter(|dir| !usual.contains(dir)).cloned().collect();
    // Caught before the run exists: from then on a Ctrl-C means the run.
    let interrupts = (!wish.detach).then(Interrupts::catch).transpose()?;
    let context = match wish.at_node {
        true => Context { owner: Process::own(), ..node::context(setup, &ready.skill_dirs) },
        false => Context::of_caller(cwd, ready.skill_dirs),
    };
    let run = session.start(request, context)?;
    let Some(interrupts) = interrupts else {
        let closed = session.close();
        tell_detached(setup, &run, ready.dag.tasks.len());
        closed?;
        return Ok(0);
    };
    follow::follow(setup, Hand::Here(Box::new(session)), &run, ready.dag, &named, interrupts)
}

pub(super) fn tell_detached(setup: &Setup, run: &RunRef, tasks: usize) {
    let label = format!("{}#{}", run.dag_id, run.number);
    if setup.json {
        let status = run.status.word();
        let told = json!({"success": true, "run_id": run.run_id, "run": label, "dag_id": run.dag_id,
                          "number": run.number, "status": status, "tasks_count": tasks});
        say_json!(told);
    } else {
        if run.status.is_terminal() {
            say!("{label} is over already: {}", run.status);
            return;
        }
        say!("Started {label} in the background ({})", text::count(tasks, "task"));
        tell!("hint: `cis status {label} --watch` shows it, `cis dag cancel {label}` stops it");
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

/// The latest run of this very revision and how its tasks stand, to carry over from.
fn latest_run(reader: &Reader, ready: &Ready) -> Result<(Option<RunKey>, Option<Vec<TaskStatus>>), Failure> {
    let scope = Some(ready.dag.scope.as_str());
    let Some(dag) = reader.dag(ready.dag.dag_id.as_str(), scope)?.into_iter().next() else {
        return Ok((None, None));
    };
    let runs = reader.runs(Some(dag.key), 50)?;
    let Some(run) =
        runs.into_iter().find(|run| run.definition == ready.definition && run.status.is_terminal())
    else {
        return Ok((None, None));
    };
    let statuses = reader.statuses(&run)?;
    Ok((Some(run.key), Some(statuses)))
}

fn selection(
    args: &RunArgs,
    dag: &Dag,
    plan: &Plan,
    before: Option<&[TaskStatus]>,
) -> Result<Option<Vec<Fate>>, Failure> {
    Ok(if !args.only.is_empty() {
        Some(select::only(plan, &select::named(dag, &args.only)?, before))
    } else if !args.from.is_empty() {
        Some(select::from(plan, &select::named(dag, &args.from)?, before))
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
