//! What followers are told: every change by its name, what it is about, and the identity that asked for it.

use cis_core::run::StopReason;
use cis_store::port::{ClaimWork, CoordinatorStore as _, Ending, Once, Publish, StopRun};

use crate::fixture::{World, code};
use crate::leases::{claim, claiming, conclude, external, failed};
use crate::support::{self, approve, confirmed, dag, question, task};

/// Everything since the last look, `run.created d#1 by ann` each.
struct Ear(usize);

impl Ear {
    fn lines(&mut self, w: &World) -> Vec<String> {
        let log = w.home.log();
        let new = log[self.0..].iter().map(|heard| heard.line()).collect();
        self.0 = log.len();
        new
    }
}

pub(crate) fn decisions_name_who_decided(w: &mut World) {
    let mut ear = Ear(0);
    let one = w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    w.settle(&one, true).unwrap();
    let two = w.publish(&dag("e", vec![task("a", &[])])).unwrap();
    w.settle(&two, false).unwrap();
    assert_eq!(
        ear.lines(w),
        [
            "dag.published d by ann",
            "dag.confirmed d by bea",
            "dag.published e by ann",
            "dag.rejected e by bea"
        ]
    );
    let now = w.now;
    let short = Publish { expires_at: Some(now), ..support::publish(&dag("f", vec![task("a", &[])]), now) };
    w.ask(|store| store.publish(short)).unwrap().plain().unwrap();
    w.sweep_after(1);
    assert_eq!(ear.lines(w), ["dag.published f by ann", "dag.expired f"]);
}

pub(crate) fn starts_pauses_and_stops_name_who_asked(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[]), task("b", &[0])]));
    let mut ear = Ear(w.home.log().len() - 1);
    w.take_one();
    for (paused, by) in [(true, Some("carl")), (false, None)] {
        w.ask(|store| store.pause_run(run, paused, by.map(ToOwned::to_owned), w.now)).unwrap();
    }
    let (key, reason, by) = (None, StopReason::Cancel, Some("dora".to_owned()));
    let stop = StopRun { key, run, reason, by, now: w.now };
    w.ask(|store| store.stop_run(stop)).and_then(Once::plain).unwrap();
    w.work_off();
    assert_eq!(
        ear.lines(w),
        [
            "run.created d#1 by ann",
            "task.claimed d#1/a",
            "run.started d#1",
            "run.paused d#1 by carl",
            "run.unpaused d#1",
            "run.cancelling d#1 by dora",
            "task.cancelling d#1/a",
            "task.cancelled d#1/b",
        ]
    );
}

pub(crate) fn changes_of_the_node_itself_name_nobody(w: &mut World) {
    w.go(&dag("d", vec![task("a", &[]), task("b", &[0])]));
    let from = w.home.log().len();
    w.play(|_| Ending::Succeeded);
    let log = w.home.log();
    assert_eq!(log.len() - from, 7, "{log:?}");
    assert!(log[from..].iter().all(|heard| heard.actor.is_none() && heard.claim.is_none()), "{log:?}");
}

pub(crate) fn approvals_name_who_approved_and_what_follows_names_nobody(w: &mut World) {
    let ask = question("ask", &[], Default::default());
    let run = w.go(&dag("d", vec![ask, confirmed(task("go", &[0])), confirmed(task("no", &[]))]));
    let mut ear = Ear(w.home.log().len());
    let tasks: Vec<_> = w.look(run).tasks.iter().map(|task| task.execution).collect();
    for (task, yes) in [(0, true), (1, true), (2, false)] {
        w.ask(|store| store.approve(approve(tasks[task], yes, w.now))).and_then(Once::plain).unwrap();
    }
    assert_eq!(
        ear.lines(w),
        [
            "task.approved d#1/ask by bea",
            "task.waiting d#1/go",
            "task.approved d#1/go by bea",
            "task.rejected d#1/no by bea",
        ]
    );
}

pub(crate) fn claims_from_outside_name_identity_holder_and_fence(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[])]));
    let from = w.home.log().len();
    let request = ClaimWork { worker: "ann's laptop".into(), ..claiming(w, "ann") };
    let held = w.ask(|store| store.claim_work(request)).unwrap().remove(0);
    let log = w.home.log();
    assert_eq!(log[from].line(), "task.claimed d#1/a by ann");
    assert_eq!(log[from].claim, Some(("ann's laptop".to_owned(), held.claim.fence)));
    assert_eq!((log[from + 1].line().as_str(), &log[from + 1].claim), ("run.started d#1", &None));
    // The next claim of it has a fence of its own; nobody gave the first one up.
    w.sweep_after(10_000);
    let next = claim(w, "bob").remove(0);
    let log = w.home.log();
    let told: Vec<_> = log[from + 2..].iter().map(|heard| (heard.line(), heard.claim.clone())).collect();
    let claimed = ("task.claimed d#1/a by bob".to_owned(), Some(("bob".to_owned(), next.claim.fence)));
    assert_eq!(told, [("task.retrying d#1/a".to_owned(), None), claimed]);
}

pub(crate) fn results_name_the_identity_that_told_them(w: &mut World) {
    let run = w.go(&dag("d", ["a", "b", "c", "d"].map(|id| external(id, &[], &[])).to_vec()));
    let held = claim(w, "ann");
    let mut ear = Ear(w.home.log().len());
    conclude(w, &held[0], "ann", Ending::Succeeded, None).unwrap();
    conclude(w, &held[1], "ann", failed("no disk"), None).unwrap();
    conclude(w, &held[2], "ann", Ending::Released, None).unwrap();
    assert_eq!(
        ear.lines(w),
        ["task.completed d#1/a by ann", "task.failed d#1/b by ann", "task.retrying d#1/c by ann"]
    );
    // A result that overtakes a stop: the node asks it to stop, its holder says that it has.
    w.stop(run, StopReason::Cancel);
    conclude(w, &held[3], "ann", Ending::Released, None).unwrap();
    assert_eq!(ear.lines(w), ["run.cancelling d#1", "task.cancelling d#1/d", "task.cancelled d#1/d by ann"]);
}

pub(crate) fn refused_words_are_told_to_no_follower(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[])]));
    let held = claim(w, "ann").remove(0);
    let before = w.home.log();
    code(conclude(w, &held, "bob", Ending::Succeeded, None));
    assert_eq!(w.home.log(), before);
}
