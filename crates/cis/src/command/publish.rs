//! `cis dag publish`.

use std::path::{Path, PathBuf};

use cis_api::calls::PublishDag;
use cis_api::dag::{Novelty, Published};
use cis_api::error::Success;
use cis_api::{Nothing, Request};
use serde_json::json;

use super::pending::confirm_command;
use super::{Failure, Outcome, Setup, definition};

/// `cis dag publish`.
pub(super) fn publish(setup: &Setup, file: &Path, new_revision: bool, skill_dirs: &[PathBuf]) -> Outcome {
    let published = match setup.named_node()? {
        Some(client) => {
            let checked = definition::check(setup, file)?;
            checked.warn();
            client.call(&Request::<PublishDag>::new(Nothing {}, Nothing {}, checked.body(new_revision)?))?
        }
        None => publish_here(setup, file, new_revision, skill_dirs)?,
    };
    if setup.json {
        say_json!(json!(Success::new(published)));
        return Ok(0);
    }
    let Published { dag_id, revision, content_hash, scope, .. } = &published;
    let hash = &content_hash[..content_hash.len().min(12)];
    match published.status {
        Novelty::Created => say!("Published `{dag_id}` revision {revision} ({hash}) in {scope}"),
        Novelty::AlreadyExists => {
            let status = published.revision_status.word();
            say!("`{dag_id}` revision {revision} ({hash}) is already there, {status}");
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
    let mut target = setup.target(false)?;
    // Until it is published, nothing else keeps its skills.
    let kept = loaded.keep_skills(&setup.options()?)?;
    let publish = Request::<PublishDag>::new(Nothing {}, Nothing {}, loaded.body(new_revision));
    let published = target.call(&publish);
    drop(kept);
    target.close()?;
    Ok(published?)
}
