//! Tasks that somebody outside holds.

use std::sync::Arc;

use cis_core::dag::{Kind, More, Task};
use cis_core::error::ErrorCode;
use cis_core::id::{Fence, Position, Scope, TaskIx};
use cis_core::retry::{FREE_RELEASES, Failure, TAKEOVERS};
use cis_core::run::StopReason;
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{
    Answer, Boot, ClaimWork, Conclude, Concluded, CoordinatorStore as _, Ending, Heartbeat, Held, Holding,
    IdempotencyKey, Progress, Prune,
};
use serde_json::{Value, json};

use crate::fixture::{World, code};
use crate::support::{dag, retry, task, with};

const TERM: Millis = Millis(10_000);

pub(crate) fn external(id: &str, after: &[u32], needs: &[&str]) -> Task {
    let needs = needs.iter().map(|need| (*need).to_owned()).collect();
    let more = Some(Box::new(More { needs, ..More::default() }));
    Task { kind: Kind::External { input: Box::new(json!({})) }, more, ..task(id, after) }
}

pub(crate) fn claiming(w: &World, who: &str) -> ClaimWork {
    ClaimWork {
        claim_id: None,
        identity: who.to_owned(),
        worker: who.to_owned(),
        limit: 10,
        scopes: None,
        capabilities: Vec::new(),
        term: TERM,
        now: w.now,
        since_boot: BootTime(w.now.0),
    }
}

pub(crate) fn claim(w: &World, who: &str) -> Vec<Held> {
    w.ask(|store| store.claim_work(claiming(w, who))).unwrap()
}

fn claim_one(w: &World, who: &str) -> Held {
    let mut held = claim(w, who);
    assert_eq!(held.len(), 1);
    held.remove(0)
}

fn holding(w: &World, held: &Held, who: &str) -> Holding {
    Holding {
        execution: held.claim.execution,
        fence: held.claim.fence,
        identity: who.to_owned(),
        scopes: None,
        now: w.now,
        since_boot: BootTime(w.now.0),
    }
}

fn beat(w: &World, held: &Held, who: &str) -> Answer<Heartbeat> {
    w.ask(|store| store.heartbeat(holding(w, held, who), None))
}

fn note(w: &World, held: &Held, who: &str, words: &str) -> Answer<()> {
    let said = Progress { percent: Some(50.0), note: Some(words.to_owned()) };
    w.ask(|store| store.note_progress(holding(w, held, who), said))
}

pub(crate) fn conclude(
    w: &World,
    held: &Held,
    who: &str,
    ending: Ending,
    outputs: Option<Value>,
) -> Answer<Concluded> {
    let request = Conclude { outputs, ..concluding(w, held, who, ending, None) };
    w.ask(|store| store.conclude(request))?.plain()
}

/// Tells that what is held came to `ending`.
pub(crate) fn concluding(
    w: &World,
    held: &Held,
    who: &str,
    ending: Ending,
    key: Option<IdempotencyKey>,
) -> Conclude {
    Conclude {
        key,
        holding: holding(w, held, who),
        ending,
        exit_code: None,
        error: String::new(),
        outputs: None,
        output: String::new(),
        log_bytes: 0,
        random: 0,
    }
}

pub(crate) fn failed(why: &str) -> Ending {
    Ending::Failed { failure: Failure::Exit(1), why: Some(why.to_owned()) }
}

fn later(w: &mut World, ms: i64) {
    w.now = Timestamp(w.now.0 + ms);
}

pub(crate) fn a_task_goes_to_one_who_can(w: &mut World) {
    let tasks = vec![external("any", &[], &[]), external("gpu", &[], &["gpu", "linux"]), task("own", &[])];
    let run = w.go(&dag("d", tasks));
    assert_eq!(w.take(10).len(), 1, "the node takes only what is its own");
    let held = claim(w, "ann");
    assert_eq!(held.iter().map(|held| held.claim.task().id.as_str()).collect::<Vec<_>>(), ["any"]);
    for unable in [vec!["gpu".into()], vec!["ssd".into(), "tape".into()]] {
        let unable = ClaimWork { capabilities: unable, ..claiming(w, "bob") };
        assert!(w.ask(|store| store.claim_work(unable)).unwrap().is_empty());
    }
    let able = vec!["ssd".into(), "linux".into(), "gpu".into()];
    let able = ClaimWork { capabilities: able, ..claiming(w, "bob") };
    assert_eq!(w.ask(|store| store.claim_work(able)).unwrap().len(), 1);
    assert!(claim(w, "carl").is_empty());
    assert_eq!(w.story(run), "running: running running running");
}

pub(crate) fn a_claim_asked_again_is_the_same_claim(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[]), external("b", &[], &[])]));
    let named = |w: &World, id: &str, who: &str| {
        let request = ClaimWork { claim_id: Some(id.to_owned()), limit: 1, ..claiming(w, who) };
        let held = w.ask(|store| store.claim_work(request)).unwrap();
        held.iter().map(|held| (held.claim.execution, held.claim.fence)).collect::<Vec<_>>()
    };
    let first = named(w, "one", "ann");
    assert_eq!(first.len(), 1);
    assert_eq!(named(w, "one", "ann"), first);
    // The name is the caller's own.
    let other = named(w, "one", "bob");
    assert!(other.len() == 1 && other != first);
    // One that found nothing has claimed nothing: asked again, it may find something.
    assert!(named(w, "two", "ann").is_empty());
    w.go(&dag("e", vec![external("c", &[], &[])]));
    assert_eq!(named(w, "two", "ann").len(), 1);
}

pub(crate) fn a_claim_asked_again_is_only_what_is_still_held(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[])]));
    let named = |w: &World| {
        let request = ClaimWork { claim_id: Some("one".to_owned()), ..claiming(w, "ann") };
        w.ask(|store| store.claim_work(request)).unwrap()
    };
    let first = named(w).remove(0);
    note(w, &first, "ann", "half").unwrap();
    assert!(named(w).remove(0).handoff.is_empty(), "her own notes are no news to her");
    w.sweep_after(10_000);
    claim_one(w, "bob");
    assert!(named(w).is_empty(), "somebody else holds it now");
}

pub(crate) fn a_heartbeat_keeps_the_lease_and_never_revives_it(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[])]));
    let held = claim_one(w, "ann");
    for _ in 0..5 {
        later(w, 8_000);
        assert!(!beat(w, &held, "ann").unwrap().cancel);
        w.sweep_after(0);
    }
    assert_eq!(w.story(run), "running: running");
    // Run out, though nobody has swept yet.
    later(w, 10_000);
    assert_eq!(code(beat(w, &held, "ann")), ErrorCode::LeaseExpired);
    assert_eq!(code(conclude(w, &held, "ann", Ending::Succeeded, None)), ErrorCode::LeaseExpired);
    w.sweep_after(0);
    assert_eq!(w.story(run), "running: ready");
    assert_eq!(code(beat(w, &held, "ann")), ErrorCode::LeaseExpired);
}

pub(crate) fn a_heartbeat_keeps_nobody_elses_lease(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[]), external("b", &[], &[])]));
    let held = claim(w, "ann");
    later(w, 8_000);
    beat(w, &held[0], "ann").unwrap();
    w.sweep_after(2_000);
    assert_eq!(w.story(run), "running: running ready");
    assert_eq!(code(beat(w, &held[1], "ann")), ErrorCode::LeaseExpired);
}

pub(crate) fn what_a_stale_holder_says_changes_nothing(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[])]));
    let old = claim_one(w, "ann");
    w.sweep_after(10_000);
    let new = claim_one(w, "bob");
    assert!(new.claim.fence > old.claim.fence);
    assert_eq!(code(note(w, &old, "ann", "still here")), ErrorCode::LeaseExpired);
    for ending in [Ending::Succeeded, failed("no"), Ending::Released] {
        assert_eq!(code(conclude(w, &old, "ann", ending, None)), ErrorCode::LeaseExpired);
    }
    // Nor does somebody who knows the fence speak for the holder.
    assert_eq!(code(beat(w, &new, "ann")), ErrorCode::AlreadyClaimed);
    assert_eq!(code(conclude(w, &new, "ann", Ending::Succeeded, None)), ErrorCode::AlreadyClaimed);
    assert_eq!(w.story(run), "running: running");
    assert_eq!(conclude(w, &new, "bob", Ending::Succeeded, None).unwrap().ended.len(), 1);
    assert_eq!(w.story(run), "completed: completed");
}

pub(crate) fn whoever_takes_over_is_told_how_far_it_was(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[])]));
    let first = claim_one(w, "ann");
    assert!(first.handoff.is_empty());
    for n in 0..60 {
        note(w, &first, "ann", &format!("step {n}")).unwrap();
    }
    w.sweep_after(10_000);
    let second = claim_one(w, "bob");
    let told: Vec<_> = second.handoff.iter().filter_map(|note| note.note.as_deref()).collect();
    assert_eq!((told.len(), told[0], told[49]), (50, "step 10", "step 59"));
    assert!(second.handoff.iter().all(|note| note.holder == "ann" && note.percent == Some(50.0)));
}

pub(crate) fn takeovers_come_to_an_end(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[])]));
    for _ in 0..4 {
        claim_one(w, "ann");
        w.sweep_after(10_000);
    }
    assert_eq!(w.story(run), "failed: failed");
    assert_eq!(w.look(run).tasks[0].cause.as_deref(), Some("its holder's lease ran out"));
}

pub(crate) fn a_result_told_again_is_the_same_answer(w: &mut World) {
    let again = with(external("b", &[], &[]), |more| more.retry = Some(crate::support::retry(1, 0)));
    let run = w.go(&dag("d", vec![external("a", &[], &[]), again, external("c", &[], &[])]));
    let held = claim(w, "ann");
    let tell = |w: &World, n: usize, ending: &Ending, outputs: &Option<Value>| {
        conclude(w, &held[n], "ann", ending.clone(), outputs.clone()).map(|told| told.status)
    };
    let results = [
        (Ending::Succeeded, Some(json!({"k": 1})), TaskStatus::Completed),
        (failed("no disk"), None, TaskStatus::Ready),
        (Ending::Released, None, TaskStatus::Ready),
    ];
    for (n, (ending, outputs, status)) in results.iter().enumerate() {
        for _ in 0..2 {
            assert_eq!(tell(w, n, ending, outputs).unwrap(), *status);
        }
    }
    // Another result is not the same one.
    assert_eq!(code(tell(w, 0, &Ending::Succeeded, &Some(json!({"k": 2})))), ErrorCode::LeaseExpired);
    assert_eq!(code(tell(w, 0, &failed("after all"), &None)), ErrorCode::LeaseExpired);
    assert_eq!(code(tell(w, 1, &Ending::Succeeded, &None)), ErrorCode::LeaseExpired);
    assert_eq!(w.story(run), "running: completed ready ready");
}

pub(crate) fn first_releases_of_a_task_cost_no_try(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[])]));
    for _ in 0..FREE_RELEASES {
        let held = claim_one(w, "ann");
        assert_eq!(conclude(w, &held, "ann", Ending::Released, None).unwrap().status, TaskStatus::Ready);
    }
    let held = claim_one(w, "bob");
    assert_eq!(conclude(w, &held, "bob", failed("no"), None).unwrap().status, TaskStatus::Failed);
    assert_eq!(w.look(run).tasks[0].cause.as_deref(), Some("no"));
}

/// Else a claim and a release, again and again, would go on for ever.
pub(crate) fn releases_beyond_the_free_ones_end_the_task(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[])]));
    for _ in 0..FREE_RELEASES + TAKEOVERS.max {
        let held = claim_one(w, "ann");
        assert_eq!(conclude(w, &held, "ann", Ending::Released, None).unwrap().status, TaskStatus::Ready);
    }
    let held = claim_one(w, "bob");
    // Told again, it is the same answer.
    for _ in 0..2 {
        assert_eq!(conclude(w, &held, "bob", Ending::Released, None).unwrap().status, TaskStatus::Failed);
    }
    assert_eq!(w.look(run).tasks[0].cause.as_deref(), Some("given back"));
    assert_eq!(w.story(run), "failed: failed");
}

pub(crate) fn a_holder_is_told_to_stop(w: &mut World) {
    let tasks = ["a", "b", "c", "d"].map(|id| external(id, &[], &[])).to_vec();
    let run = w.go(&dag("d", tasks));
    let held = claim(w, "ann");
    w.stop(run, StopReason::Cancel);
    // Before the stop has got to it, and after.
    assert!(beat(w, &held[0], "ann").unwrap().cancel);
    w.work_off();
    later(w, 5_000);
    assert!(beat(w, &held[0], "ann").unwrap().cancel);
    assert_eq!(conclude(w, &held[0], "ann", Ending::Succeeded, None).unwrap().status, TaskStatus::Completed);
    assert_eq!(conclude(w, &held[1], "ann", Ending::Released, None).unwrap().status, TaskStatus::Cancelled);
    assert_eq!(conclude(w, &held[2], "ann", failed("no"), None).unwrap().status, TaskStatus::Failed);
    // The last one says nothing: its lease was not extended.
    w.sweep_after(5_000);
    assert_eq!(w.look(run).tasks[3].status, TaskStatus::Cancelled);
    assert!(w.look(run).status.is_terminal());
}

pub(crate) fn a_holder_has_the_tasks_own_time(w: &mut World) {
    let short = with(external("a", &[], &[]), |more| more.timeout = Some(Millis(15_000)));
    let run = w.go(&dag("d", vec![short]));
    let held = claim_one(w, "ann");
    later(w, 8_000);
    beat(w, &held, "ann").unwrap();
    assert_eq!(w.sweep_after(0).next_due, Some(Timestamp(w.now.0 + 7_000)));
    w.sweep_after(7_000);
    assert_eq!(w.story(run), "failed: timed_out");
    assert_eq!(code(conclude(w, &held, "ann", Ending::Succeeded, None)), ErrorCode::LeaseExpired);
}

pub(crate) fn leases_outlive_a_restart_and_begin_anew_after_a_boot(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[])]));
    let held = claim_one(w, "ann");
    later(w, 6_000);
    // What others hold is no business of this machine's runner.
    assert!(w.reopen().live.is_empty());
    assert!(!beat(w, &held, "ann").unwrap().cancel);
    w.reopen_quietly();
    later(w, 100_000);
    let boot = Boot { id: Arc::from("the next boot"), now: BootTime(7) };
    w.epoch = w.ask(|store| store.open_epoch(w.now, boot.clone())).unwrap().epoch;
    let sweep = |w: &World, since_boot| {
        w.ask(|store| store.sweep(w.epoch, w.now, BootTime(since_boot))).unwrap();
        w.story(run)
    };
    assert_eq!(sweep(w, 10_006), "running: running");
    // Once per boot: coordinators that come and go keep nobody's lease alive.
    let later_on = Boot { now: BootTime(9_000), ..boot };
    w.epoch = w.ask(|store| store.open_epoch(w.now, later_on)).unwrap().epoch;
    assert_eq!(sweep(w, 10_007), "running: ready");
}

pub(crate) fn another_scope_is_not_there(w: &mut World) {
    let (a, b): (Scope, Scope) = ("project-a".parse().unwrap(), "project-b".parse().unwrap());
    let mut theirs = dag("d", vec![external("a", &[], &[])]);
    theirs.scope = a.clone();
    w.go(&theirs);
    let outside = ClaimWork { scopes: Some(vec![b.clone()]), ..claiming(w, "bob") };
    assert!(w.ask(|store| store.claim_work(outside)).unwrap().is_empty());
    let inside = ClaimWork { scopes: Some(vec![a]), ..claiming(w, "ann") };
    let held = w.ask(|store| store.claim_work(inside)).unwrap().remove(0);
    let blind = Holding { scopes: Some(vec![b]), ..holding(w, &held, "ann") };
    assert_eq!(code(w.ask(|store| store.heartbeat(blind, None))), ErrorCode::NotFound);
}

pub(crate) fn a_claim_asked_again_from_other_scopes_is_empty(w: &mut World) {
    let scope = |name: &str| Some(vec![name.parse::<Scope>().unwrap()]);
    let mut secret = dag("d", vec![external("a", &[], &[])]);
    secret.scope = "project-b".parse().unwrap();
    w.go(&secret);
    // Two tokens of one identity.
    let asks = |scopes| ClaimWork { claim_id: Some("c1".into()), scopes, ..claiming(w, "bot") };
    assert_eq!(w.ask(|store| store.claim_work(asks(None))).unwrap().len(), 1);
    assert!(w.ask(|store| store.claim_work(asks(scope("project-a")))).unwrap().is_empty());
    assert_eq!(w.ask(|store| store.claim_work(asks(scope("project-b")))).unwrap().len(), 1);
}

pub(crate) fn a_result_told_again_by_another_identity_is_refused(w: &mut World) {
    let ids = ["a", "b", "c"];
    let run = w.go(&dag("d", ids.map(|id| external(id, &[], &[])).to_vec()));
    let held = claim(w, "ann");
    let endings = [Ending::Succeeded, failed("no disk"), Ending::Released];
    for (held, ending) in held.iter().zip(&endings) {
        let told = conclude(w, held, "ann", ending.clone(), None).unwrap().status;
        assert_eq!(code(conclude(w, held, "bob", ending.clone(), None)), ErrorCode::LeaseExpired);
        assert_eq!(conclude(w, held, "ann", ending.clone(), None).unwrap().status, told);
    }
    // Nor is the one that held an earlier attempt the holder of a later one.
    let again = claim_one(w, "bob");
    conclude(w, &again, "bob", Ending::Released, None).unwrap();
    assert_eq!(code(conclude(w, &again, "ann", Ending::Released, None)), ErrorCode::LeaseExpired);
    assert_eq!(w.story(run), "running: completed failed ready");
}

pub(crate) fn outputs_of_outside_work_are_handed_on(w: &mut World) {
    let mut after = external("b", &[0], &[]);
    after.kind = Kind::External { input: Box::new(json!({"from": "{{ tasks.a.outputs.k }}"})) };
    let run = w.go(&dag("d", vec![external("a", &[], &[]), after]));
    let held = claim_one(w, "ann");
    conclude(w, &held, "ann", Ending::Succeeded, Some(json!({"k": "v"}))).unwrap();
    let next = claim_one(w, "ann");
    assert_eq!(next.claim.upstream["a"], json!({"k": "v"}));
    assert_eq!(w.story(run), "running: completed running");
}

pub(crate) fn lease_is_of_the_task_for_as_long_as_it_is_held(w: &mut World) {
    w.go(&dag("d", ["a", "b", "c"].map(|id| external(id, &[], &[])).to_vec()));
    let held = claim(w, "ann");
    let of = |held: &Held| {
        let Held { claim, .. } = held;
        ("task".to_owned(), claim.execution.0, claim.fence, "ann".to_owned())
    };
    assert_eq!(w.home.leases(), held.iter().map(of).collect::<Vec<_>>());
    conclude(w, &held[0], "ann", Ending::Succeeded, None).unwrap();
    conclude(w, &held[1], "ann", Ending::Released, None).unwrap();
    assert_eq!(w.home.leases(), [of(&held[2])]);
    w.sweep_after(10_000);
    assert_eq!(w.home.leases(), []);
}

pub(crate) fn holders_are_answered_without_reading_the_definition(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[]), task("b", &[])]));
    let held = claim_one(w, "ann");
    // A new writer has parsed nothing yet, and could not parse this.
    w.reopen_quietly();
    w.home.execute(
        "CREATE TABLE aside AS SELECT definition_key, tasks_json FROM dag_definitions;
         UPDATE dag_definitions SET tasks_json = 'nothing that can be read'",
    );
    let stale = Holding { fence: Fence(held.claim.fence.0 + 1), ..holding(w, &held, "ann") };
    assert_eq!(code(w.ask(|store| store.heartbeat(stale, None))), ErrorCode::LeaseExpired);
    assert_eq!(code(beat(w, &held, "bob")), ErrorCode::AlreadyClaimed);
    let elsewhere = Holding { scopes: Some(vec!["elsewhere".parse().unwrap()]), ..holding(w, &held, "ann") };
    assert_eq!(code(w.ask(|store| store.heartbeat(elsewhere, None))), ErrorCode::NotFound);
    assert_eq!(code(conclude(w, &held, "bob", Ending::Succeeded, None)), ErrorCode::AlreadyClaimed);
    assert!(!beat(w, &held, "ann").unwrap().cancel);
    w.home.execute(
        "UPDATE dag_definitions SET tasks_json =
             (SELECT tasks_json FROM aside WHERE aside.definition_key = dag_definitions.definition_key);
         DROP TABLE aside",
    );
}

pub(crate) fn a_late_word_about_a_pruned_task_tells_other_scopes_nothing(w: &mut World) {
    w.go(&dag("d", vec![external("a", &[], &[])]));
    let held = claim_one(w, "ann");
    conclude(w, &held, "ann", Ending::Succeeded, None).unwrap();
    later(w, 10);
    // Its row goes at once, those of its tasks with the next chunks.
    assert_eq!(w.ask(|store| store.prune(Prune::new(w.now, 0, w.now))).unwrap().runs.len(), 1);
    assert_eq!(code(beat(w, &held, "ann")), ErrorCode::Gone);
    let elsewhere = Holding { scopes: Some(vec!["elsewhere".parse().unwrap()]), ..holding(w, &held, "ann") };
    assert_eq!(code(w.ask(|store| store.heartbeat(elsewhere, None))), ErrorCode::NotFound);
}

pub(crate) fn long_cause_is_whole_with_its_task_and_cut_among_others(w: &mut World) {
    let run =
        w.go(&dag("d", vec![external("a", &[], &[]), external("b", &[], &[]), external("c", &[], &[])]));
    let why = "語".repeat(5_000);
    let held = claim(w, "ann");
    let told = |held: &Held| Conclude {
        output: "what it printed".into(),
        ..concluding(w, held, "ann", failed(&why), None)
    };
    for held in &held[..2] {
        // Told again it is compared whole.
        for _ in 0..2 {
            w.ask(|store| store.conclude(told(held))).unwrap().plain().unwrap();
        }
    }
    let cut = format!("{}…", "語".repeat(340));
    assert_eq!(w.look(run).tasks[0].cause.as_ref(), Some(&cut));
    let reader = w.home.reader();
    let line = reader.run(run).unwrap().unwrap();
    assert_eq!(reader.task(&line, TaskIx(0)).unwrap().unwrap().cause.as_ref(), Some(&why));
    let (page, _) = reader.task_page(&line, None, None, 10).unwrap();
    assert_eq!(page[1].cause.as_ref(), Some(&cut));
    // It counts: with the second there is no room for values any more.
    let first = reader.first_tasks(&line, 10, 5_000).unwrap();
    let shown: Vec<_> = first.iter().map(|task| (task.cause.as_ref(), task.output.is_some())).collect();
    assert_eq!(shown, [(Some(&cut), true), (Some(&cut), false), (None, false)]);
    let events = reader.log(Position(0), u32::MAX).unwrap();
    let causes: Vec<_> = events.iter().filter_map(|event| event.data.get("cause")).collect();
    assert_eq!(causes, [&json!(cut), &json!(cut)]);
}

pub(crate) fn long_cause_of_a_try_is_cut_where_the_wait_is_explained(w: &mut World) {
    let again = with(external("a", &[], &[]), |more| more.retry = Some(retry(3, 1_000)));
    let run = w.go(&dag("d", vec![again]));
    conclude(w, &claim_one(w, "ann"), "ann", failed(&"x".repeat(2_000)), None).unwrap();
    let reader = w.home.reader();
    let standings = reader.standings(&reader.run(run).unwrap().unwrap()).unwrap();
    assert_eq!(standings[0].cause.as_deref(), Some(format!("{}…", "x".repeat(1_021)).as_str()));
}
