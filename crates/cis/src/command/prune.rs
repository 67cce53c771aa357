//! `cis prune`: making room. The coordinator removes rows a chunk at a time, this process removes files.

use std::io::{IsTerminal, stderr};

use cis_api::calls::PruneRuns;
use cis_api::run::{PruneBody, PrunedRun};
use cis_api::{Nothing, Request};
use cis_core::error::Refusal;
use cis_core::source::{Clock, Timestamp};
use cis_engine::data_dir::DataDir;
use cis_engine::doctor::bytes;
use cis_engine::prune::{self, Pruning, everything_before};
use cis_engine::system::System;
use cis_store::Reader;
use serde_json::json;

use super::{Failure, Outcome, Setup, list};
use crate::cli::PruneArgs;
use crate::config::age;
use crate::session::Session;
use crate::term::table::Cell;
use crate::term::{Table, face, reveal, text};

/// `cis prune`.
pub(super) fn prune(setup: &Setup, args: &PruneArgs) -> Outcome {
    setup.only_owner()?;
    let older_than = age(&args.older_than)
        .map_err(|why| Failure::usage(why).hint("write it as `30d`, `12h` or `1d12h`"))?;
    let data_dir = setup.data_dir();
    data_dir.check_used()?;
    let now = System.now();
    let request = everything_before(now.before(older_than), args.keep);
    if args.dry_run {
        return foretell(setup, request, now);
    }
    // What free pages there are: by now, and when it is done.
    let free = |data_dir: &DataDir| {
        let room = Reader::open(&data_dir.database()).and_then(|reader| reader.room());
        room.map(|(_, free)| free).map_err(Refusal::from)
    };
    let mut session = Session::open(setup.options()?, setup.settings())?;
    let before = free(&data_dir)?;
    let pruned = work_off(setup, &mut session, &data_dir, request);
    session.close()?;
    let pruned = pruned?;
    tell(setup, &pruned, free(&data_dir)?.saturating_sub(before))
}

fn work_off(
    setup: &Setup,
    session: &mut Session,
    data_dir: &DataDir,
    request: PruneBody,
) -> Result<Pruning, Failure> {
    let shows = !setup.json && stderr().is_terminal();
    let mut pruning = Pruning::new(request);
    loop {
        let pruned = session.call(&Request::<PruneRuns>::new(Nothing {}, Nothing {}, pruning.request()))?;
        let more = pruning.take(data_dir, pruned);
        if shows {
            anstream::eprint!("\r{} pruned ", text::count(pruning.runs.len(), "run"));
        }
        if !more {
            break;
        }
    }
    if shows {
        anstream::eprint!("\r\x1b[K");
    }
    pruning.clear_skills(data_dir)?;
    Ok(pruning)
}

fn tell(setup: &Setup, pruned: &Pruning, freed: u64) -> Outcome {
    let stuck: Vec<&String> = pruned.stuck.values().chain(&pruned.skills_stuck).collect();
    if setup.json {
        let told = json!({"success": true, "dry_run": false, "runs": pruned.runs, "skills": pruned.skills,
                          "file_bytes": pruned.bytes, "database_bytes": freed, "stuck": stuck});
        say_json!(told);
    } else {
        let (runs, files) = (text::count(pruned.runs.len(), "run"), bytes(pruned.bytes));
        say!(
            "Pruned {runs}: {files} of files are gone, {} of the database are free for what comes",
            bytes(freed)
        );
        if pruned.skills > 0 {
            tell!("{} that no revision needs went as well", text::count(pruned.skills, "kept skill"));
        }
        for why in &stuck {
            tell!("not removed: {}", reveal(why));
        }
        if !stuck.is_empty() {
            tell!("hint: see to it that they can be, and `cis prune` again");
        }
    }
    Ok(u8::from(!stuck.is_empty()))
}

/// Says what would go.
fn foretell(setup: &Setup, request: PruneBody, now: Timestamp) -> Outcome {
    let runs: Vec<PrunedRun> = match setup.reader()? {
        Some(reader) => prune::foretell(&reader, request, now)?,
        None => Vec::new(),
    };
    if setup.json {
        say_json!(json!({"success": true, "dry_run": true, "runs": runs}));
        return Ok(0);
    }
    let mut table = Table::new(&["RUN", "STATUS"]);
    for PrunedRun { run, status, .. } in &runs {
        table.row([run.into(), Cell::styled(face::run(status.word()).label())]);
    }
    if !runs.is_empty() {
        list::print(&table);
    }
    tell!("{} would go", text::count(runs.len(), "run"));
    Ok(0)
}
