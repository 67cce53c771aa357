//! Review ids: every opening has one of its own, and a decision by it is about that and nothing else.

use cis_core::error::ErrorCode;
use cis_core::id::{RunKey, Scope};
use cis_core::review::ReviewId;
use cis_core::source::Timestamp;
use cis_store::port::{Decide, Decided, Publish, Published, RevisionStatus};

use crate::fixture::{World, code};
use crate::support::{self, dag, task};

fn revision(w: &World, name: &str) -> Published {
    let publish = support::publish(&dag("d", vec![task(name, &[])]), w.now);
    w.ask(|store| store.publish(Publish { new_revision: true, ..publish })).unwrap().plain().unwrap()
}

fn review(published: &Published) -> ReviewId {
    published.review_id.expect("a review id")
}

fn by_review(published: &Published, review: ReviewId, confirm: bool, now: Timestamp) -> Decide {
    Decide {
        key: None,
        scope: published.scope.clone(),
        dag_id: published.dag_id.clone(),
        content_hash: Some(published.content_hash.clone()),
        review: Some(review),
        confirm,
        note: Some("because".into()),
        by: "bea".into(),
        self_confirm: false,
        run_id: support::run_id(900),
        traceparent: None,
        now,
    }
}

fn decide(w: &World, request: Decide) -> cis_store::port::Answer<Decided> {
    w.ask(|store| store.decide(request))?.plain()
}

pub(crate) fn every_opening_has_a_review_id_of_its_own(w: &mut World) {
    let (one, two) = (revision(w, "a"), revision(w, "b"));
    assert_ne!(review(&one), review(&two));
    assert_eq!(revision(w, "a").review_id, one.review_id, "what waits already is the same request");
    decide(w, by_review(&one, review(&one), false, w.now)).unwrap();
    let again = revision(w, "a");
    assert_ne!(again.review_id, one.review_id, "the same content, asked for again");
    decide(w, by_review(&again, review(&again), true, w.now)).unwrap();
    assert_eq!(revision(w, "a").review_id, None, "nothing waits");
}

pub(crate) fn a_decision_by_review_id_is_about_that_revision_alone(w: &mut World) {
    let (shown, other) = (revision(w, "a"), revision(w, "b"));
    let decided = decide(w, by_review(&shown, review(&shown), true, w.now)).unwrap();
    assert_eq!((decided.revision, decided.status), (shown.revision, RevisionStatus::Confirmed));
    let mixed = Decide {
        content_hash: Some(other.content_hash.clone()),
        ..by_review(&shown, review(&shown), true, w.now)
    };
    assert_eq!(code(decide(w, mixed)), ErrorCode::NotFound);
    let scope = "user-x".parse::<Scope>().unwrap();
    let elsewhere = Decide { scope, ..by_review(&shown, review(&shown), true, w.now) };
    assert_eq!(code(decide(w, elsewhere)), ErrorCode::NotFound);
    assert_eq!(revision(w, "b").status, RevisionStatus::Pending);
}

pub(crate) fn the_same_decision_by_review_id_again_answers_the_same(w: &mut World) {
    let published = revision(w, "a");
    let request = by_review(&published, review(&published), true, w.now);
    let first = decide(w, request.clone()).unwrap();
    assert!(first.changed && first.run.is_some());
    w.reopen();
    let later = Decide { by: "cleo".into(), note: None, run_id: support::run_id(901), ..request.clone() };
    let again = decide(w, later).unwrap();
    assert!(!again.changed);
    assert_eq!((&again.run, &again.decision), (&first.run, &first.decision), "who decided first, and why");
    let decision = again.decision.unwrap();
    assert_eq!((decision.decided_by.as_str(), decision.note.as_deref()), ("bea", Some("because")));
    assert_eq!(code(decide(w, Decide { confirm: false, ..request })), ErrorCode::InvalidTransition);
}

pub(crate) fn a_part_of_a_hash_decides_nothing(w: &mut World) {
    let published = revision(w, "a");
    for length in [0, 1, 12, 32, 63] {
        let hash = published.content_hash[..length].to_owned();
        let request = by_review(&published, review(&published), true, w.now);
        let request = Decide { content_hash: Some(hash), review: None, ..request };
        assert_eq!(code(decide(w, request)), ErrorCode::ValidationFailed, "{length}");
    }
    assert_eq!(revision(w, "a").status, RevisionStatus::Pending);
}

pub(crate) fn a_note_has_bounds(w: &mut World) {
    let published = revision(w, "a");
    let request = by_review(&published, review(&published), false, w.now);
    let long = Decide { note: Some("x".repeat(4097)), ..request.clone() };
    assert_eq!(code(decide(w, long)), ErrorCode::ValidationFailed);
    decide(w, Decide { note: Some("x".repeat(4096)), ..request }).unwrap();
}

pub(crate) fn every_waiting_task_has_a_review_id_until_it_is_pruned(w: &mut World) {
    let asks = dag("d", vec![support::confirmed(task("a", &[])), support::confirmed(task("b", &[]))]);
    let (one, two) = (w.go(&asks), w.go(&asks));
    let ids: Vec<ReviewId> = [one, two].into_iter().flat_map(|run: RunKey| w.home.reviews(run)).collect();
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((ids.len(), distinct.len()), (4, 4), "{ids:?}");
    assert!(ids.iter().all(|id| w.home.knows_review(*id)));
    w.stop(one, cis_core::run::StopReason::Cancel);
    w.work_off();
    assert!(ids.iter().all(|id| w.home.knows_review(*id)), "decided or not");
    let prune = cis_store::port::Prune {
        before: Timestamp(w.now.0 + 1),
        keep: 0,
        limit: 100,
        after: RunKey(0),
        cleared: Vec::new(),
        now: w.now,
    };
    while w.ask(|store| store.prune(prune.clone())).unwrap().more {}
    let known: Vec<bool> = ids.iter().map(|id| w.home.knows_review(*id)).collect();
    assert_eq!(known, [false, false, true, true]);
}
