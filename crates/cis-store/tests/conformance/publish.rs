//! Revisions and decisions about them.

use cis_core::error::ErrorCode;
use cis_core::id::{Revision, Scope};
use cis_core::source::{Millis, Timestamp};
use cis_store::port::{Publish, RevisionStatus, Settle};

use crate::fixture::{World, code};
use crate::support::{self, dag, task};

pub(crate) fn the_same_content_is_one_revision(w: &mut World) {
    let dag = dag("d", vec![task("a", &[])]);
    let first = w.publish(&dag).unwrap();
    assert!(first.created);
    assert_eq!((first.revision, first.status), (Revision(1), RevisionStatus::Pending));
    let again = w.publish(&dag).unwrap();
    assert!(!again.created);
    assert_eq!((again.definition, again.status), (first.definition, RevisionStatus::Pending));
    w.settle(&first, true).unwrap();
    assert_eq!(w.publish(&dag).unwrap().status, RevisionStatus::Confirmed);
}

pub(crate) fn other_content_is_a_conflict(w: &mut World) {
    let first = w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let other = dag("d", vec![task("b", &[])]);
    assert_eq!(code(w.publish(&other)), ErrorCode::ContentConflict);
    // Decided or not, the id is taken.
    w.settle(&first, false).unwrap();
    assert_eq!(code(w.publish(&other)), ErrorCode::ContentConflict);
}

pub(crate) fn a_new_revision_needs_its_own_confirmation(w: &mut World) {
    let (one, two) = (dag("d", vec![task("a", &[])]), dag("d", vec![task("b", &[])]));
    w.confirmed(&one);
    let request = Publish { new_revision: true, ..support::publish(&two, w.now) };
    let second = w.ask(|store| store.publish(request.clone())).unwrap().plain().unwrap();
    assert_eq!((second.revision, second.status), (Revision(2), RevisionStatus::Pending));
    let start = w.request(second.definition);
    assert_eq!(code(w.start(&start)), ErrorCode::AwaitingConfirmation);
    // Asking for a revision of what is there makes none.
    assert!(!w.ask(|store| store.publish(request)).unwrap().plain().unwrap().created);
    assert_eq!(w.publish(&one).unwrap().revision, Revision(1));
}

pub(crate) fn rejected_content_may_be_asked_for_again(w: &mut World) {
    let dag = dag("d", vec![task("a", &[])]);
    let first = w.publish(&dag).unwrap();
    w.settle(&first, false).unwrap();
    let second = w.publish(&dag).unwrap();
    assert!(second.created);
    assert_eq!((second.revision, second.status), (Revision(2), RevisionStatus::Pending));
    w.settle(&second, true).unwrap();
    assert!(!w.publish(&dag).unwrap().created);
}

pub(crate) fn expired_content_may_be_asked_for_again(w: &mut World) {
    let dag = dag("d", vec![task("a", &[])]);
    let expires_at = Some(Timestamp(w.now.0 + 10));
    let request = Publish { expires_at, ..support::publish(&dag, w.now) };
    let first = w.ask(|store| store.publish(request)).unwrap().plain().unwrap();
    assert_eq!(w.sweep_after(9).next_due, expires_at);
    assert!(!w.publish(&dag).unwrap().created);
    assert_eq!(w.sweep_after(1).next_due, None);
    assert_eq!(code(w.settle(&first, true)), ErrorCode::InvalidTransition);
    assert_eq!(w.publish(&dag).unwrap().revision, Revision(2));
}

/// Nobody depends on how soon a sweep comes by.
pub(crate) fn what_is_overdue_is_over(w: &mut World) {
    let dag = dag("d", vec![task("a", &[])]);
    let ask =
        |now: Timestamp| Publish { expires_at: Some(Timestamp(now.0 + 10)), ..support::publish(&dag, now) };
    let first = w.ask(|store| store.publish(ask(w.now))).unwrap().plain().unwrap();
    assert_eq!(first.waits, Some(Millis(10)));
    w.now = w.now.after(Millis(4));
    let again = w.ask(|store| store.publish(ask(w.now))).unwrap().plain().unwrap();
    assert_eq!((again.created, again.waits), (false, Some(Millis(6))));
    w.now = w.now.after(Millis(6));
    assert_eq!(code(w.settle(&first, true)), ErrorCode::InvalidTransition);
    assert_eq!(code(w.settle(&first, false)), ErrorCode::InvalidTransition);
    let second = w.ask(|store| store.publish(ask(w.now))).unwrap().plain().unwrap();
    assert_eq!((second.created, second.revision, second.waits), (true, Revision(2), Some(Millis(10))));
    w.settle(&second, true).unwrap();
    assert_eq!(w.publish(&dag).unwrap().waits, None);
}

pub(crate) fn scopes_do_not_meet(w: &mut World) {
    let ours = dag("build", vec![task("a", &[])]);
    let mut theirs = dag("build", vec![task("b", &[])]);
    theirs.scope = "project-x".parse::<Scope>().unwrap();
    let (ours, theirs) = (w.publish(&ours).unwrap(), w.publish(&theirs).unwrap());
    assert!(ours.created && theirs.created);
    assert_eq!((ours.revision, theirs.revision), (Revision(1), Revision(1)));
}

pub(crate) fn settling_again_changes_nothing(w: &mut World) {
    let published = w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    assert!(w.settle(&published, true).unwrap().changed);
    let again = w.settle(&published, true).unwrap();
    assert_eq!((again.status, again.changed), (RevisionStatus::Confirmed, false));
}

pub(crate) fn a_confirmation_is_bound_to_the_content(w: &mut World) {
    let published = w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let shown = support::publish(&dag("d", vec![task("other", &[])]), w.now).content_hash;
    let request = Settle {
        definition: published.definition,
        content_hash: shown,
        confirm: true,
        by: "bea".into(),
        now: w.now,
    };
    assert_eq!(code(w.ask(|store| store.settle(request))), ErrorCode::ContentConflict);
    let start = w.request(published.definition);
    assert_eq!(code(w.start(&start)), ErrorCode::AwaitingConfirmation);
}

pub(crate) fn a_decision_is_final(w: &mut World) {
    let yes = w.publish(&dag("yes", vec![task("a", &[])])).unwrap();
    let no = w.publish(&dag("no", vec![task("a", &[])])).unwrap();
    w.settle(&yes, true).unwrap();
    w.settle(&no, false).unwrap();
    assert_eq!(code(w.settle(&yes, false)), ErrorCode::InvalidTransition);
    assert_eq!(code(w.settle(&no, true)), ErrorCode::InvalidTransition);
    let missing = cis_store::port::Published { definition: 77, ..no };
    assert_eq!(code(w.settle(&missing, true)), ErrorCode::NotFound);
}
