//! Making room: which runs may go, and what stays of them.

use cis_core::error::ErrorCode;
use cis_core::id::RunKey;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_store::port::{CoordinatorStore as _, Ending, Fate, Once, Prune, Pruned, RunRef, StartRun, StopRun};

use crate::fixture::{World, code};
use crate::support::{dag, report, task};

/// More than one chunk of tasks, and several of events.
const WIDE: u32 = 1_200;

fn chunk(w: &World, request: Prune) -> Pruned {
    w.ask(|store| store.prune(request)).expect("a chunk")
}

/// Prunes to the end what is over by now; answers what went.
fn prune(w: &mut World, keep: u32) -> Vec<RunKey> {
    w.now = Timestamp(w.now.0 + 1);
    let mut request = Prune::new(w.now, keep, w.now);
    let mut gone = Vec::new();
    loop {
        let Pruned { runs, bare, after, more } = chunk(w, request.clone());
        gone.extend(runs.iter().map(|run| run.key));
        let cleared: Vec<RunKey> = bare.iter().map(|bare| bare.run).collect();
        if !more && cleared.is_empty() {
            return gone;
        }
        request = Prune { after, cleared, ..request };
    }
}

fn one(id: &str) -> cis_core::dag::Dag {
    dag(id, vec![task("a", &[])])
}

pub(crate) fn what_is_over_goes_and_is_still_known(w: &mut World) {
    let definition = w.confirmed(&one("d"));
    let first = StartRun { by_confirmation: true, ..w.request(definition) };
    let run = w.start(&first).unwrap();
    assert_eq!(prune(w, 0), []);
    w.play(|_| Ending::Succeeded);
    // What ended just now did not end before now.
    assert_eq!(chunk(w, Prune::new(w.now, 0, w.now)).runs, []);
    assert_eq!(prune(w, 0), [run.key]);
    assert!(!w.home.knows(run.key));
    // Whoever asks again for what made it hears of the same run, and makes no second one.
    let stands = RunRef { status: RunStatus::Completed, ..run.clone() };
    let again = StartRun { by_confirmation: true, ..w.request(definition) };
    assert_eq!((w.start(&first).unwrap(), w.start(&again).unwrap()), (stands.clone(), stands));
    assert!(w.take(9).is_empty());
    assert!(!w.publish(&one("d")).unwrap().created);
    let stop = StopRun { key: None, run: run.key, reason: StopReason::Cancel, by: None, now: w.now };
    assert_eq!(code(w.ask(|store| store.stop_run(stop)).and_then(Once::plain)), ErrorCode::Gone);
    // Neither its key nor its number is ever another's, across restarts neither.
    w.reopen();
    let request = w.request(definition);
    let next = w.start(&request).unwrap();
    assert_eq!((next.number, next.key > run.key), (2, true));
    assert_eq!(prune(w, 0), []);
}

pub(crate) fn a_late_word_about_what_is_gone_changes_nothing(w: &mut World) {
    w.go(&one("d"));
    let claim = w.take_one();
    w.end(&claim, Ending::Succeeded);
    prune(w, 0);
    let late = w.advance(vec![report(&claim, Ending::Succeeded, w.now)], None).unwrap();
    assert_eq!(late.recorded, [cis_store::port::Recorded::Stale]);
}

pub(crate) fn what_is_needed_stays_until_it_is_not(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[]), task("b", &[])]));
    let request = w.request(definition);
    let failed = w.start(&request).unwrap().key;
    w.play(|name| {
        if name == "a" {
            Ending::Succeeded
        } else {
            crate::support::failed(cis_core::retry::Failure::Exit(1))
        }
    });
    let fates = Some(vec![Fate::Carry, Fate::Run]);
    let resumed = StartRun { fates: fates.clone(), resumed_from: Some(failed), ..w.request(definition) };
    let resumed = w.start(&resumed).unwrap().key;
    // Cancelled before it began: over, but its tasks are still to be told.
    let cancelled = w.go(&one("c"));
    assert_eq!(w.stop(cancelled, StopReason::Cancel), RunStatus::Cancelled);
    assert_eq!(prune(w, 0), []);
    w.work_off();
    assert_eq!(prune(w, 0), [cancelled]);
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(resumed), "completed: completed completed");
    assert_eq!(prune(w, 0), [failed, resumed]);
    let too_late = StartRun { fates, resumed_from: Some(failed), ..w.request(definition) };
    assert_eq!(code(w.start(&too_late)), ErrorCode::Gone);
}

pub(crate) fn what_is_still_to_be_done_keeps_a_run(w: &mut World) {
    let run = w.go(&one("d"));
    let claim = w.take_one();
    w.ask(|store| store.pause_run(run, true, None, w.now)).unwrap();
    assert_eq!(w.end(&claim, Ending::Succeeded).ended.len(), 1);
    // It is over, and a step of its pause is left.
    assert_eq!(prune(w, 0), []);
    w.work_off();
    assert_eq!(prune(w, 0), [run]);
}

pub(crate) fn the_latest_of_each_dag_can_be_kept(w: &mut World) {
    let mut runs = Vec::new();
    for id in ["d", "e"] {
        let definition = w.confirmed(&one(id));
        for _ in 0..3 {
            let request = w.request(definition);
            runs.push(w.start(&request).unwrap().key);
        }
    }
    w.play(|_| Ending::Succeeded);
    assert_eq!(prune(w, 2), [runs[0], runs[3]]);
    assert_eq!(prune(w, 1), [runs[1], runs[4]]);
    assert_eq!(prune(w, 1), []);
    assert_eq!(prune(w, 0), [runs[2], runs[5]]);
}

/// However large it is, it goes in small chunks; in between everything holds, also across restarts, and others work on.
pub(crate) fn a_large_run_goes_in_chunks(w: &mut World) {
    let tasks = (0..WIDE).map(|n| task(&format!("t{n}"), &[])).collect();
    let large = w.go(&dag("large", tasks));
    w.play(|_| Ending::Succeeded);
    let other = w.go(&dag("other", (0..40).map(|n| task(&format!("t{n}"), &[])).collect()));
    w.now = Timestamp(w.now.0 + 1);
    let mut request = Prune::new(w.now, 0, w.now);
    let mut chunks = 0;
    loop {
        let Pruned { runs, bare, after, more } = chunk(w, request.clone());
        assert!(chunks > 0 || runs.iter().map(|run| run.key).eq([large]), "{runs:?}");
        assert!(!w.home.knows(large), "gone at once");
        assert_eq!(w.home.violations(), [""; 0]);
        w.end(&w.take(1)[0], Ending::Succeeded);
        chunks += 1;
        if chunks % 4 == 0 {
            w.reopen();
        }
        if !more {
            assert!(bare.is_empty());
            break;
        }
        request = Prune { after, cleared: bare.iter().map(|bare| bare.run).collect(), ..request };
    }
    // Two events a task, and the tasks themselves, 500 rows at a time.
    assert!((8..20).contains(&chunks), "{chunks}");
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.look(other).status, RunStatus::Completed);
}
