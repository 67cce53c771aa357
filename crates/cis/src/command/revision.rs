//! One revision of a DAG as people see it: in full, or against another.

use std::path::{Path, PathBuf};

use cis_api::dag::RevisionSummary;
use cis_api::run::RunSummary;
use cis_core::dag::{Dag, Task, canonical};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::review::ReviewId;
use cis_core::revision::RevisionStatus;
use serde_json::{Value, json};

use super::find::Found;
use super::{Failure, Outcome, Setup, diff, fields, find, skill_files};
use crate::cli::DocumentFormat;
use crate::document;
use crate::source::Source;
use crate::term::Sheet;

/// Stands for the id of a run that does not exist yet.
const ANY_RUN: &str = "RUN_ID";

/// A revision in full. Its content has the hash it is known by.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) line: RevisionSummary,
    pub(super) dag: Dag,
}

impl Content {
    /// Reads it, and computes its hash: what is shown is what a decision on this hash is about.
    pub(super) fn load(found: &Found, line: &RevisionSummary) -> Result<Self, Failure> {
        let dag = found.definition(line)?;
        if canonical::content_hash(&dag).as_str() != line.content_hash {
            let why =
                format!("the content of `{}` revision {} does not have its hash", dag.dag_id, line.revision);
            return Err(Refusal::new(ErrorCode::Internal, why)
                .hint("its version and this one may be too far apart: `cis --version`")
                .into());
        }
        Ok(Self { line: line.clone(), dag })
    }
}

/// The revision with this number; without one, that of the review which `id` names, else the latest.
pub(super) fn pick(
    revisions: &[RevisionSummary],
    number: Option<i64>,
    id: &str,
) -> Result<RevisionSummary, Failure> {
    let review = id.parse::<ReviewId>().ok().filter(|_| number.is_none());
    let wanted = |line: &&RevisionSummary| match (number, review) {
        (Some(number), _) => line.revision.0 == number,
        // Not the latest, whatever that is by now.
        (None, Some(review)) => line.review_id == Some(review),
        (None, None) => true,
    };
    let picked = revisions.iter().find(wanted).cloned();
    picked.ok_or_else(|| {
        if let Some(review) = review {
            return Failure::new(
                ErrorCode::NotFound,
                format!("no revision waits under the review id `{review}`"),
            )
            .hint("say which revisions are meant, by their numbers");
        }
        let number = number.unwrap_or_default();
        let latest = revisions.first().map_or(0, |line| line.revision.0);
        Failure::new(ErrorCode::NotFound, format!("`{id}` has no revision {number}"))
            .hint(format!("its latest is {latest}: `cis dag show {id}` shows it"))
    })
}

/// The last revision that was confirmed before this one.
pub(super) fn confirmed_before<'r>(
    revisions: &'r [RevisionSummary],
    line: &RevisionSummary,
) -> Option<&'r RevisionSummary> {
    revisions.iter().find(|other| other.revision < line.revision && other.status == RevisionStatus::Confirmed)
}

/// `cis dag show`.
pub(super) fn show(
    setup: &Setup,
    id: &str,
    scope: Option<&str>,
    number: Option<i64>,
    format: Option<DocumentFormat>,
) -> Outcome {
    let found = find::find(setup, id, scope)?;
    let revisions = found.source.revisions(&found.dag)?;
    let number = match (found.revision.map(|named| named.0), number) {
        (Some(named), Some(number)) if named != number => {
            return Err(Failure::usage(format!("the review `{id}` is of revision {named}, not {number}")));
        }
        (named, number) => named.or(number).or(revisions.first().map(|latest| latest.revision.0)),
    };
    let line = pick(&revisions, number, id)?;
    let content = Content::load(&found, &line)?;
    if setup.json {
        say_json!(to_json(setup, &found, &content)?);
        return Ok(0);
    }
    let text = match format {
        None => {
            let mut sheet = Sheet::for_stdout();
            write(&mut sheet, setup, &found, &content);
            sheet.print();
            return Ok(0);
        }
        Some(DocumentFormat::Toml) => document::to_toml(&content.dag)?,
        Some(DocumentFormat::Json) => document::to_json(&content.dag)?,
    };
    crate::term::out::put(format_args!("{text}"));
    Ok(0)
}

fn to_json(setup: &Setup, found: &Found, content: &Content) -> Result<Value, Failure> {
    let Content { line, dag } = content;
    let definition = document::to_value(dag)?;
    Ok(json!({"success": true, "dag_id": dag.dag_id, "scope": dag.scope, "revision": line.revision,
              "status": line.status, "content_hash": line.content_hash, "published_by": line.created_by,
              "published_at": line.created_at, "expires_at": line.expires_at,
              "directory": run_directory(setup, found), "skills": dag.skills, "definition": definition}))
}

/// Writes all of a revision.
pub(super) fn write(sheet: &mut Sheet, setup: &Setup, found: &Found, content: &Content) {
    let Content { line, dag } = content;
    sheet.heading(&format!("{} revision {}", dag.dag_id, line.revision));
    write_origin(sheet, setup, found, content);
    let all = fields::of_dag(dag);
    // Skills come last, each with its files below it.
    let (own, skills) = all.split_at(all.len().saturating_sub(dag.skills.len()));
    fields::write(sheet, own);
    for (field, (name, tree_hash)) in skills.iter().zip(&dag.skills) {
        fields::write(sheet, std::slice::from_ref(field));
        skill_files::write(sheet, setup, &found.source, dag, name, tree_hash);
    }
    for (number, task) in dag.tasks.iter().enumerate() {
        sheet.heading(&format!("task {} of {}: {}", number + 1, dag.tasks.len(), task.id));
        fields::write(sheet, &fields::of_task(dag, task));
    }
}

/// Writes what changed from `before`.
pub(super) fn write_changes(
    sheet: &mut Sheet,
    setup: &Setup,
    found: &Found,
    before: &Content,
    content: &Content,
) {
    let Content { line, dag } = content;
    sheet.heading(&format!(
        "{} revision {}, compared to revision {}",
        dag.dag_id, line.revision, before.line.revision
    ));
    write_origin(sheet, setup, found, content);
    diff::write(sheet, &diff::between(&before.dag, dag));
    skill_files::write_changes(sheet, setup, &found.source, &before.dag, dag);
}

/// Writes where a revision comes from and where its tasks will run.
fn write_origin(sheet: &mut Sheet, setup: &Setup, found: &Found, content: &Content) {
    let Content { line, dag } = content;
    sheet.field("scope", dag.scope.as_str());
    sheet.field("status", line.status.word());
    sheet.field("content hash", &line.content_hash);
    sheet.field("published by", &line.created_by);
    sheet.field("published at", &line.created_at.to_string());
    if let Some(expires) = line.expires_at.filter(|_| line.status == RevisionStatus::Pending) {
        sheet.field("expires at", &expires.to_string());
    }
    let base = Path::new(&run_directory(setup, found)).to_owned();
    let base = dag.workdir.as_deref().map_or(base.clone(), |part| base.join(part));
    sheet.field("directory", &base.to_string_lossy());
}

/// Where tasks of a confirmed run start: a directory of the run's own, at the node.
pub(super) fn run_directory(setup: &Setup, found: &Found) -> String {
    node_directory(setup, &found.source, None).to_string_lossy().into_owned()
}

/// Where a task of a run starts.
pub(super) fn task_directory(
    setup: &Setup,
    source: &Source,
    run: &RunSummary,
    dag: &Dag,
    task: &Task,
) -> Result<PathBuf, Failure> {
    let base = if run.at_node {
        node_directory(setup, source, Some(&run.run_id.to_string()))
    } else {
        // The caller's. It is known while the run goes on.
        let local = source.local_run(run.run_id)?;
        local.and_then(|local| local.directory()).unwrap_or_else(|| PathBuf::from("CALLERS_DIR"))
    };
    Ok(fields::directory(&base, dag, task))
}

/// The directory of a run at the node that has it; without a run, of any.
pub(super) fn node_directory(setup: &Setup, source: &Source, run: Option<&str>) -> PathBuf {
    let run = run.unwrap_or(ANY_RUN);
    match source {
        Source::Here(_) => setup.config.data_dir.value.join("work").join(run),
        // Where a node keeps its data, it does not tell.
        Source::Node(_) => PathBuf::from("NODE_DATA_DIR/work").join(run),
    }
}
