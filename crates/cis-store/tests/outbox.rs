//! Notices are kept with the events they are about, for those who want them, until they are settled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use cis_core::notice::{Occasion, Wanted, Way};
use cis_core::retry::Failure;
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_store::port::{Advance, Claim, CoordinatorStore as _, Ending, RunRef, Settle, StopRun, Tried};
use cis_store::{Durability, Notice, Reader, SqliteStore};
use support::{dag, failed, publish, report, run_id, start, task};

const NOW: Timestamp = Timestamp(1_000_000);
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

struct Bed {
    store: SqliteStore,
    reader: Reader,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl Bed {
    fn new(on: &[Occasion], by: &[Way]) -> Self {
        let dir = support::dir();
        let file = dir.path().join("dag.db");
        let store = SqliteStore::open(&file, Durability::Process).unwrap();
        store.keep_notices(Wanted { on: on.to_vec(), by: by.to_vec() });
        Self { store, reader: Reader::open(&file).unwrap(), runtime: support::runtime(), _dir: dir }
    }

    /// Publishes, confirms and starts a DAG of one task.
    fn go(&self, id: &str, n: u64) -> RunRef {
        self.runtime.block_on(async {
            let published = self
                .store
                .publish(publish(&dag(id, vec![task("a", &[])]), NOW))
                .await
                .unwrap()
                .plain()
                .unwrap();
            let (definition, content_hash) = (published.definition, published.content_hash);
            let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
            self.store.settle(settle).await.unwrap();
            self.store.start_run(start(definition, run_id(n), NOW)).await.unwrap().plain().unwrap()
        })
    }

    /// Lets the one task there is to claim end so.
    fn end(&self, ending: Ending) {
        self.runtime.block_on(async {
            let epoch = self.store.open_epoch(NOW, support::boot(NOW)).await.unwrap().epoch;
            while self.store.work(NOW).await.unwrap().more {}
            let claim = Claim {
                epoch,
                holder: "local".into(),
                limit: 9,
                kinds: vec!["shell"],
                scopes: None,
                capabilities: Vec::new(),
            };
            let advance = |reports, claim| self.store.advance(Advance { reports, claim, now: NOW });
            let claimed = advance(vec![], Some(claim)).await.unwrap().claimed;
            advance(vec![report(&claimed[0], ending, NOW)], None).await.unwrap();
        });
    }

    fn settle(&self, notice: &Notice, tried: Tried, now: Timestamp) {
        let settled = self.store.settle_notice(notice.event.position, notice.way, tried, now);
        self.runtime.block_on(settled).unwrap();
    }

    /// `d waiting command`, oldest first.
    fn told(&self) -> Vec<String> {
        let mut notices = self.reader.notices(100).unwrap();
        notices.sort_by_key(|notice| notice.event.position);
        let line = |n: &Notice| format!("{} {} {}", n.event.subject, n.occasion.word(), n.way.word());
        notices.iter().map(line).collect()
    }
}

#[test]
fn notices_are_kept_of_what_is_wanted_by_each_way() {
    let bed = Bed::new(&Occasion::ALL, &Way::ALL);
    bed.go("good", 1);
    bed.end(Ending::Succeeded);
    bed.go("bad", 2);
    bed.end(failed(Failure::Exit(1)));
    let run = bed.go("stopped", 3);
    bed.runtime
        .block_on(bed.store.stop_run(StopRun {
            key: None,
            run: run.key,
            reason: StopReason::Cancel,
            by: None,
            now: NOW,
        }))
        .unwrap();
    let both = |what: &str| [format!("{what} command"), format!("{what} webhook")];
    let expected = ["good waiting", "good#1 completed", "bad waiting", "bad#1 failed", "stopped waiting"];
    assert_eq!(bed.told(), expected.map(both).concat());
}

#[test]
fn nobody_who_wants_them_no_notices() {
    for (on, by) in [(&Occasion::ALL[..], &[][..]), (&[], &Way::ALL[..]), (&[Occasion::Completed], &Way::ALL)]
    {
        let bed = Bed::new(on, by);
        bed.go("bad", 1);
        bed.end(failed(Failure::Exit(1)));
        assert_eq!(bed.told(), [""; 0]);
    }
}

#[test]
fn a_notice_is_due_until_it_is_given_or_given_up() {
    let bed = Bed::new(&[Occasion::Waiting], &[Way::Webhook]);
    bed.go("d", 1);
    let due = |now| bed.reader.due_notices(Way::Webhook, now, 9).unwrap();
    // A breath, in case it is decided at once.
    let then = Timestamp(NOW.0 + 1_000);
    assert!(due(NOW).is_empty());
    let [notice] = &due(then)[..] else { panic!("one is due") };
    assert_eq!((notice.tries, bed.reader.next_notice(Way::Webhook).unwrap()), (0, Some(then)));
    assert!(bed.reader.due_notices(Way::Command, then, 9).unwrap().is_empty());
    let later = Timestamp(then.0 + 5);
    bed.settle(notice, Tried::Again { at: later, problem: "busy".into() }, then);
    assert!(due(then).is_empty());
    assert_eq!((due(later)[0].tries, due(later)[0].problem.as_deref()), (1, Some("busy")));
    bed.settle(notice, Tried::GivenUp { problem: "gone".into() }, later);
    assert_eq!((due(Timestamp(i64::MAX)).len(), bed.reader.next_notice(Way::Webhook).unwrap()), (0, None));
    // A late answer to an earlier try does not bring it back.
    bed.settle(notice, Tried::Again { at: later, problem: "busy".into() }, later);
    let kept = &bed.reader.notices(9).unwrap()[0];
    assert_eq!((kept.tries, kept.given_up_at, kept.due_at), (2, Some(later), None));
    // Another that is given, and one that is given up a month later.
    bed.go("e", 2);
    bed.settle(&due(then)[0], Tried::Given, then);
    assert_eq!(bed.told(), ["d waiting webhook"]);
    bed.go("f", 3);
    let month = Timestamp(later.0 + 30 * DAY_MS);
    bed.settle(&due(then)[0], Tried::GivenUp { problem: "gone".into() }, month);
    assert_eq!(bed.told(), ["f waiting webhook"]);
}

#[test]
fn it_is_known_whether_what_a_notice_is_about_still_stands() {
    let bed = Bed::new(&Occasion::ALL, &[Way::Command]);
    let published = bed.runtime.block_on(bed.store.publish(publish(&dag("p", vec![task("a", &[])]), NOW)));
    assert!(published.is_ok());
    bed.go("d", 1);
    bed.end(Ending::Succeeded);
    let stands = |notice: &Notice| (notice.event.subject.to_string(), notice.stands);
    let told: Vec<_> = bed.reader.notices(9).unwrap().iter().rev().map(stands).collect();
    assert_eq!(told, [("p", true), ("d", false), ("d#1", true)].map(|(what, so)| (what.to_owned(), so)));
}
