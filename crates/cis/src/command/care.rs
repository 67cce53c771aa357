//! `cis doctor`, `cis backup` and `cis restore`: looking after a data directory.

use std::path::Path;

use cis_core::error::ErrorCode;
use cis_core::source::Clock;
use cis_engine::backup;
use cis_engine::data_dir::DataDir;
use cis_engine::doctor::{self, Examined, State};
use cis_engine::restore;
use cis_engine::system::System;
use serde_json::{Value, json};

use super::{Failure, Outcome, Setup, list};
use crate::config::ConfigError;
use crate::session::{coordinator_of, why_silent};
use crate::term::report::warn;
use crate::term::table::Cell;
use crate::term::{Face, Table, Tone, reveal, text, time};

/// `cis doctor`.
pub(super) fn doctor(setup: &Setup, repair: bool) -> Outcome {
    let data_dir = here(setup)?;
    let about = coordinator_of(&data_dir);
    let examined = doctor::examine(&data_dir, about.as_ref(), || why_silent(&data_dir), repair)?;
    let sound = !examined.iter().any(|examined| examined.state.is_bad());
    if setup.json {
        say_json!(json!({"success": true, "sound": sound, "checks": examined}));
    } else {
        show(&examined);
    }
    Ok(u8::from(!sound))
}

fn show(examined: &[Examined]) {
    let mut table = Table::new(&["CHECK", "STATE", "DETAIL"]);
    for Examined { check, state, detail, .. } in examined {
        table.row([(*check).into(), Cell::styled(face(*state).label()), detail.into()]);
    }
    list::print(&table);
    for Examined { check, found, repaired, hint, .. } in examined {
        for line in found.iter().chain(repaired) {
            tell!("{check}: {}", reveal(line));
        }
        if let Some(hint) = hint {
            tell!("hint: {hint}");
        }
    }
}

fn face(state: State) -> Face {
    let (glyph, tone) = match state {
        State::Sound => ('✓', Tone::Good),
        State::Note => ('·', Tone::Quiet),
        State::Repaired => ('↺', Tone::Waiting),
        State::Problem => ('✗', Tone::Bad),
        State::Unknown => ('?', Tone::Bad),
    };
    Face { word: state.word(), glyph, tone }
}

/// `cis backup`.
pub(super) fn backup(setup: &Setup, file: &Path, logs: bool) -> Outcome {
    let taken = backup::take(&here(setup)?, file, logs, System.now())?;
    let shown = file.display();
    if setup.json {
        let missing: Vec<Value> = taken
            .skills_missing
            .iter()
            .map(|skill| json!({"skill": skill.name, "dag_id": skill.dag_id, "revision": skill.revision}))
            .collect();
        let told = json!({"success": true, "file": file.to_string_lossy(), "bytes": taken.bytes,
                          "runs": taken.runs, "files": taken.files, "position": taken.label.position,
                          "taken_at": taken.label.taken_at, "skills_missing": missing});
        say_json!(told);
    } else {
        let (runs, bytes) =
            (text::count(taken.runs as usize, "run"), text::count(taken.bytes as usize, "byte"));
        say!("Backed up {runs} to {shown} ({bytes}), and checked it");
        for skill in &taken.skills_missing {
            let (name, dag_id, revision) = (&skill.name, &skill.dag_id, skill.revision);
            warn(&format!(
                "skill `{name}` of `{dag_id}` revision {revision} is not in it: `cis doctor` says more"
            ));
        }
        tell!("hint: it holds the node's key and environments of unfinished runs; keep it as safe as these");
    }
    Ok(0)
}

/// `cis restore`.
pub(super) fn restore(setup: &Setup, file: &Path, force: bool) -> Outcome {
    setup.only_owner()?;
    if !file.exists() {
        let why = format!("there is no file `{}`", file.display());
        return Err(Failure::new(ErrorCode::NotFound, why));
    }
    let root = &setup.config.data_dir.value;
    let data_dir =
        DataDir::create(root).map_err(|error| ConfigError::NoDataDir { path: root.clone(), error })?;
    let restored = restore::restore(&data_dir, file, force)?;
    let aside = restored.aside.as_ref().map(|path| path.to_string_lossy());
    if setup.json {
        let told = json!({"success": true, "runs": restored.runs, "unfinished": restored.unfinished,
                          "taken_at": restored.label.as_ref().map(|label| label.taken_at), "aside": aside});
        say_json!(told);
        return Ok(0);
    }
    let taken = restored.label.map_or_else(String::new, |label| {
        format!(" of {}", time::clock(label.taken_at, &jiff::tz::TimeZone::system()))
    });
    say!("Restored {}{taken}, and checked it", text::count(restored.runs as usize, "run"));
    if let Some(aside) = aside {
        tell!("what was there before is in {aside}");
    }
    if restored.unfinished > 0 {
        let runs = text::count(restored.unfinished, "run");
        tell!("hint: {runs} had not ended; `cis coordinator`, or a node, takes them up");
    }
    Ok(0)
}

/// The data directory as it is. Whoever was given a token is not its owner.
fn here(setup: &Setup) -> Result<DataDir, Failure> {
    setup.only_owner()?;
    let root = &setup.config.data_dir.value;
    let root =
        std::path::absolute(root).map_err(|error| ConfigError::NoDataDir { path: root.clone(), error })?;
    Ok(DataDir::at(&root))
}
