//! Kept skills: is each what its name says, and is it needed?

use std::collections::BTreeSet;
use std::fs;

use cis_core::error::Refusal;
use cis_store::Reader;

use super::{Examined, Hand, State};
use crate::data_dir::DataDir;
use crate::skill::KeptSkills;
use crate::skill::kept::{Kept, name_of};

/// Compares kept skills that revisions need with their hashes; removes those that none needs, if repairs are wanted.
pub(super) fn skills(data_dir: &DataDir, reader: &Reader, repair: bool) -> Result<Examined, Refusal> {
    let kept = KeptSkills::of(data_dir);
    let (mut unneeded, mut repaired) = (Vec::new(), Vec::new());
    kept.for_each_unneeded(reader, |path| {
        let shown = path.display();
        match repair.then(|| fs::remove_dir_all(path)) {
            Some(Ok(())) => repaired.push(format!("removed `{shown}`")),
            Some(Err(e)) => {
                unneeded.push(format!("`{shown}` is needed by no revision, and cannot be removed: {e}"))
            }
            None => unneeded.push(format!("`{shown}` is needed by no revision")),
        }
    })?;
    let (mut altered, mut missing, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for pinned in reader.pinned_skills()? {
        let Some(name) = name_of(&pinned.tree_hash) else { continue };
        if !seen.insert(name.to_owned()) {
            continue;
        }
        let of = format!("skill `{}` of `{}` revision {}", pinned.name, pinned.dag_id, pinned.revision);
        match kept.verify(&pinned.tree_hash) {
            Kept::Sound => {}
            Kept::Altered(why) => altered.push(format!("{of} was altered in `skills/{name}` ({why})")),
            Kept::Missing => missing
                .push(format!("{of} is not kept: it runs if the skill directories still have it as it was")),
        }
    }
    if !altered.is_empty() {
        let hint = "publish the DAG again where its skills are as they were confirmed, or restore a backup";
        altered.extend(unneeded);
        return Ok(Examined { repaired, ..Examined::of("skills", "", altered).hint(hint) });
    }
    // Skills that are removed by this lock disturb nothing that works.
    let hand = Hand { repair, free: true, works: false };
    let told = Examined::repairable("skills", "what is kept is what was published", unneeded, repaired, hand);
    if told.state == State::Sound && !missing.is_empty() {
        return Ok(Examined { state: State::Note, ..Examined::of("skills", "", missing) });
    }
    Ok(told)
}
