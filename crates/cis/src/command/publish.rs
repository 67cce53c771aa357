//! `cis dag publish` and `cis dag confirm`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_core::dag::plan::Plan;
use cis_core::error::ErrorCode;
use cis_engine::command::{Command, SharedDag};
use cis_engine::session::Session;
use cis_engine::system::user;
use cis_store::port::{Published, RevisionStatus};
use cis_store::sqlite::reader::{DagLine, RevisionLine};
use serde_json::json;

use super::run::{self, Ready, Wish};
use super::view::View;
use super::{Failure, Outcome, Setup, definition, elsewhere, find};

/// What to do with a request.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) content_hash: Option<String>,
    pub(super) confirm: bool,
    pub(super) skill_dirs: Vec<PathBuf>,
}

/// `cis dag publish`.
pub(super) fn publish(setup: &Setup, file: &Path, new_revision: bool, skill_dirs: &[PathBuf]) -> Outcome {
    let published = match setup.elsewhere()? {
        Some(node) => elsewhere::publish(setup, &node, file, new_revision)?.0,
        None => publish_here(setup, file, new_revision, skill_dirs)?,
    };
    let status = if published.created { "created" } else { "already_exists" };
    if setup.json {
        let told = json!({"success": true, "status": status, "dag_id": published.dag_id, "scope": published.scope,
                          "revision": published.revision, "content_hash": published.content_hash,
                          "revision_status": published.status});
        say!("{told}");
        return Ok(0);
    }
    let (id, revision, hash) = (&published.dag_id, published.revision, &published.content_hash[..12]);
    match (published.created, published.status) {
        (true, _) => {
            say!("Published `{id}` revision {revision} ({hash}) in {}", published.scope)
        }
        (false, state) => {
            say!("`{id}` revision {revision} ({hash}) is already there, {}", state.word())
        }
    }
    if published.status == RevisionStatus::Pending {
        tell!("hint: `cis dag confirm {id}` confirms and starts it");
    }
    Ok(0)
}

fn publish_here(
    setup: &Setup,
    file: &Path,
    new_revision: bool,
    skill_dirs: &[PathBuf],
) -> Result<Published, Failure> {
    let loaded = definition::load(setup, file, skill_dirs)?;
    definition::warn(setup, &loaded);
    let mut session = Session::open(setup.options()?)?;
    let publish = Command::Publish {
        dag: SharedDag(loaded.dag),
        content_hash: loaded.content_hash,
        new_revision,
        by: user(),
    };
    let published = session.ask(publish).and_then(|reply| reply.published());
    session.close()?;
    Ok(published?)
}

/// `cis dag confirm`: the latest revision, unless a hash says which.
pub(super) fn settle(setup: &Setup, id: &str, scope: Option<&str>, decision: Decision) -> Outcome {
    let found = find::find(setup, id, scope)?;
    let revisions = found.view.revisions(&found.dag)?;
    let wanted = |hash: &str| decision.content_hash.as_deref().is_none_or(|prefix| hash.starts_with(prefix));
    let Some(revision) = revisions.iter().find(|revision| wanted(&revision.content_hash)) else {
        return Err(Failure::new(ErrorCode::NotFound, format!("no revision of `{id}` has that content")));
    };
    match &found.view {
        View::Node(node) if decision.confirm => {
            let hash = &revision.content_hash;
            let (run, tasks) = node.confirm(&found.dag.dag_id, &found.dag.scope, hash)?;
            run::tell_detached(setup, &run, tasks);
            return Ok(0);
        }
        View::Node(node) => {
            node.reject(&found.dag, &revision.content_hash)?;
            tell_rejected(setup, &found.dag, revision);
            return Ok(0);
        }
        View::Here(_) => {}
    }
    let mut session = Session::open(setup.options()?)?;
    let settle = Command::Settle {
        definition: revision.key,
        content_hash: revision.content_hash.clone(),
        confirm: decision.confirm,
        by: user(),
    };
    let settled = session.ask(settle).and_then(|reply| reply.settled());
    if !decision.confirm || settled.is_err() {
        session.close()?;
        settled?;
        tell_rejected(setup, &found.dag, revision);
        return Ok(0);
    }
    let dag = Arc::new(found.view.definition(&found.dag, revision)?);
    let plan = Plan::new(&dag);
    let here = std::env::current_dir().unwrap_or_default();
    let skill_dirs = setup.skill_dirs(&decision.skill_dirs, &here);
    let ready = Ready { definition: revision.key, dag, plan, skill_dirs };
    let wish = Wish { detach: true, by_confirmation: true, ..Wish::default() };
    run::launch(setup, session, ready, wish)
}

fn tell_rejected(setup: &Setup, dag: &DagLine, revision: &RevisionLine) {
    if setup.json {
        say!("{}", json!({"success": true, "status": "rejected", "dag_id": dag.dag_id}));
    } else {
        say!("Rejected `{}` revision {}", dag.dag_id, revision.revision);
    }
}
