//! What pruning leaves of the log, of notices and of runs: nothing is missing above the floor, and every lie about it is
//! found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::PathBuf;

use cis_core::error::ErrorCode;
use cis_core::id::{Epoch, Position, RunKey};
use cis_core::notice::{Occasion, Wanted, Way};
use cis_core::source::Timestamp;
use cis_store::check::{self, Check};
use cis_store::port::{Advance, Claim, CoordinatorStore as _, Ending, Prune, Pruned, RunRef, Settle, Tried};
use cis_store::{Chunks, Durability, Reader, SqliteStore};
use rusqlite::Connection;
use serde_json::json;
use support::{dag, publish, report, run_id, start, task};

const NOW: Timestamp = Timestamp(1_000_000);
const LATER: Timestamp = Timestamp(2_000_000);

struct Bed {
    store: SqliteStore,
    epoch: Epoch,
    runtime: tokio::runtime::Runtime,
    dir: tempfile::TempDir,
}

impl Bed {
    /// A store that prunes two rows at a time.
    fn new() -> Self {
        let (dir, runtime) = (support::dir(), support::runtime());
        let chunks = Chunks { rows: 4, ..Chunks::default() };
        let store =
            SqliteStore::open_in_chunks(&dir.path().join("dag.db"), Durability::Process, chunks).unwrap();
        let epoch = runtime.block_on(store.open_epoch(NOW, support::boot(NOW))).unwrap().epoch;
        Self { store, epoch, runtime, dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("dag.db")
    }

    fn reader(&self) -> Reader {
        Reader::open(&self.file()).unwrap()
    }

    /// Publishes, confirms and starts a DAG of this many tasks.
    fn go(&self, id: &str, tasks: u32, n: u64) -> RunRef {
        let tasks = (0..tasks).map(|n| task(&format!("t{n}"), &[])).collect();
        self.runtime.block_on(async {
            let published = self.store.publish(publish(&dag(id, tasks), NOW)).await.unwrap().plain().unwrap();
            let (definition, content_hash) = (published.definition, published.content_hash);
            let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
            self.store.settle(settle).await.unwrap();
            self.store.start_run(start(definition, run_id(n), NOW)).await.unwrap().plain().unwrap()
        })
    }

    /// Lets everything end that can be claimed, the tasks of all runs in turn.
    fn play(&self) {
        let (epoch, holder, scopes) = (self.epoch, "local".to_owned(), None);
        let claim = Claim { epoch, holder, limit: 1, kinds: vec!["shell"], scopes, capabilities: Vec::new() };
        self.runtime.block_on(async {
            while self.store.work(NOW).await.unwrap().more {}
            loop {
                let claim = Some(claim.clone());
                let claimed =
                    self.store.advance(Advance { reports: vec![], claim, now: NOW }).await.unwrap().claimed;
                let Some(claimed) = claimed.first() else { return };
                let reports = vec![report(claimed, Ending::Succeeded, NOW)];
                self.store.advance(Advance { reports, claim: None, now: NOW }).await.unwrap();
            }
        });
    }

    /// Prunes to the end, but for files, and calls `between` after every chunk.
    fn prune(&self, mut between: impl FnMut()) -> Vec<RunKey> {
        let (mut gone, mut request) = (Vec::new(), Prune::new(LATER, 0, LATER));
        loop {
            let told = self.runtime.block_on(self.store.prune(request.clone())).unwrap();
            let Pruned { runs, after, more, .. } = told;
            gone.extend(runs.into_iter().map(|run| run.key));
            between();
            if !more {
                return gone;
            }
            request = Prune { after, ..request };
        }
    }
}

#[test]
fn above_its_floor_the_log_tells_everything_at_every_moment() {
    let bed = Bed::new();
    let runs: Vec<RunRef> =
        [3, 2, 4].iter().zip(1..).map(|(tasks, n)| bed.go(&format!("d{n}"), *tasks, n)).collect();
    bed.play();
    let kept = bed.go("kept", 2, 9);
    let reader = bed.reader();
    let all = reader.log(Position(0), 1_000).unwrap();
    let (mut floor, mut chunks) = (Position(0), 0);
    let gone = bed.prune(|| {
        let now = reader.log_floor().unwrap();
        assert!(now >= floor, "it never sinks");
        (floor, chunks) = (now, chunks + 1);
        let told = reader.log(floor, 1_000).unwrap();
        let shown = |line: &cis_api::event::Event| (line.position, line.name, line.subject.clone());
        let before: Vec<_> = all.iter().filter(|line| line.position > floor).map(shown).collect();
        let same: Vec<_> = told.iter().filter(|line| line.step != "prune").map(shown).collect();
        assert_eq!(same, before);
        assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
    });
    assert_eq!(gone, runs.iter().map(|run| run.key).collect::<Vec<_>>());
    assert!(chunks > 10, "{chunks}");
    // What is left: events of revisions and of what is not over, and one of each run that went.
    let left = reader.log(Position(0), 1_000).unwrap();
    let of_runs: Vec<String> = left
        .iter()
        .filter(|line| line.run_id.is_some())
        .map(|l| format!("{} {}", l.subject, l.name))
        .collect();
    assert_eq!(of_runs, ["kept#1 run.created", "d1#1 run.pruned", "d2#1 run.pruned", "d3#1 run.pruned"]);
    assert_eq!(left.last().unwrap().data["ended_at"], json!(NOW), "as text, whatever is stored");
    assert!(floor < left.iter().find(|line| line.run_id == Some(kept.run_id)).unwrap().position);
    assert_eq!(reader.half_pruned().unwrap().len(), 3, "files are somebody else's");
    // What stays of a run says how it ended, by every name it had.
    let stone = reader.pruned_by_id(runs[1].run_id).unwrap().unwrap();
    assert_eq!((stone.run.key, stone.ended_at, stone.pruned_at), (runs[1].key, NOW, LATER));
    let refusal = stone.refusal();
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (ErrorCode::Gone, "`d2#1` was pruned on 1970-01-01; it completed on 1970-01-01")
    );
    let dag = reader.dag("d2", None).unwrap().remove(0);
    assert_eq!((dag.status.as_str(), dag.runs, dag.latest_run), ("confirmed", 1, None));
    assert_eq!(reader.pruned_by_number(dag.key, 1).unwrap().unwrap().run.key, runs[1].key);
    // What ends later has events before and after those that tell of the others.
    bed.play();
    assert_eq!(bed.prune(|| assert_eq!(check::violations(&reader).unwrap(), [""; 0])), [kept.key]);
}

#[test]
fn whoever_is_still_to_be_told_of_a_run_finds_it() {
    let bed = Bed::new();
    bed.store.keep_notices(Wanted { on: vec![Occasion::Completed], by: vec![Way::Webhook] });
    let run = bed.go("d", 1, 1);
    bed.play();
    assert_eq!(bed.prune(|| {}), []);
    let due = bed.reader().due_notices(Way::Webhook, LATER, 9).unwrap();
    assert_eq!(due.len(), 1);
    let given_up = Tried::GivenUp { problem: "nobody there".into() };
    bed.runtime
        .block_on(bed.store.settle_notice(due[0].event.position, Way::Webhook, given_up, NOW))
        .unwrap();
    assert_eq!(bed.prune(|| {}), [run.key]);
    assert_eq!(bed.reader().notices(9).unwrap().len(), 0, "and no notice of a prune");
    let rows: i64 = Connection::open(bed.file())
        .unwrap()
        .query_row("SELECT count(*) FROM outbox", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 0);
}

#[test]
fn every_lie_about_what_was_pruned_is_found() {
    let bed = Bed::new();
    bed.go("d", 2, 1);
    bed.go("e", 1, 2);
    bed.play();
    bed.prune(|| {});
    bed.go("f", 1, 3);
    let file = bed.file();
    for (check, lie, told) in [
        (
            Check::Events,
            "DELETE FROM events WHERE step = 'prune' AND run_key = 1",
            "no event tells that run 1 was pruned",
        ),
        (
            Check::Events,
            "UPDATE events SET run_key = 1 WHERE step = 'prune' AND run_key = 2",
            "run 1 was pruned",
        ),
        (Check::Events, "UPDATE events SET run_key = 1 WHERE run_key = 3", "run 1 was pruned"),
        (
            Check::Events,
            "UPDATE events SET run_key = 77 WHERE step = 'prune' AND run_key = 2",
            "run 77 was not pruned",
        ),
        (Check::Events, "UPDATE dag_runs SET run_key = 1", "run 1 was pruned and is there"),
        (Check::Invariants, "UPDATE task_executions SET run_key = 77", "tasks of runs that are not there"),
        (Check::Invariants, "UPDATE dags SET latest_run = 1", "DAGs whose latest run is another"),
        (Check::Invariants, "UPDATE dag_confirmations SET run_key = 77", "neither there nor pruned"),
    ] {
        let copy = bed.dir.path().join("lying.db");
        Connection::open(&file).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        let lying = Connection::open(&copy).unwrap();
        lying.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let changed = lying.execute(lie, []).unwrap();
        let found = check.violations(&Reader::open(&copy).unwrap()).unwrap();
        assert!(changed > 0 && found.iter().any(|line| line.contains(told)), "{lie}: {found:#?}");
        std::fs::remove_file(&copy).unwrap();
    }
}
