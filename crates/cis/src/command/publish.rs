//! `cis dag publish`.

use std::path::{Path, PathBuf};

use cis_engine::command::{Command, SharedDag};
use cis_engine::session::Session;
use cis_engine::system::user;
use cis_store::port::Published;
use serde_json::json;

use super::pending::confirm_command;
use super::{Failure, Outcome, Setup, definition, elsewhere};

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
                          "revision_status": published.status, "review_id": published.review_id});
        say_json!(told);
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
    if let Some(review) = published.review_id {
        tell!("hint: `{}` confirms and starts it", confirm_command(review));
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
    let options = setup.options()?;
    let mut session = Session::open(options.clone())?;
    let kept = loaded.keep_skills(&options)?;
    let publish = Command::Publish {
        dag: SharedDag(loaded.dag),
        content_hash: loaded.content_hash,
        new_revision,
        by: user(),
    };
    let published = session.ask(publish).and_then(|reply| reply.published());
    drop(kept);
    session.close()?;
    Ok(published?)
}
