//! What is kept of revisions: public texts, and rows of those that were turned down.

use cis_core::dag::canonical;
use cis_core::error::ErrorCode;
use cis_core::id::Revision;
use cis_core::source::Timestamp;
use cis_store::StoreError;
use cis_store::port::{Publish, RevisionStatus};

use crate::fixture::{World, code};
use crate::support::{self, dag, task};

fn remove(w: &World) -> u32 {
    w.ask(|store| store.remove_definitions(w.now, w.now)).unwrap()
}

pub(crate) fn definitions_of_rejected_and_expired_revisions_are_removed(w: &mut World) {
    let [kept, rejected, expired, waiting] =
        ["kept", "rejected", "expired", "waiting"].map(|id| dag(id, vec![task("a", &[])]));
    w.confirmed(&kept);
    w.publish(&waiting).unwrap();
    let turned_down = w.publish(&rejected).unwrap();
    w.settle(&turned_down, false).unwrap();
    let request = Publish { expires_at: Some(Timestamp(w.now.0 + 10)), ..support::publish(&expired, w.now) };
    let ran_out = w.ask(|store| store.publish(request)).unwrap().plain().unwrap();
    w.sweep_after(10);
    assert_eq!(remove(w), 1, "only what was turned down before that moment");
    w.now = Timestamp(w.now.0 + 1);
    assert_eq!((remove(w), remove(w)), (1, 0));
    let reader = w.home.reader();
    for gone in [&turned_down, &ran_out] {
        match reader.definition(gone.definition) {
            Err(StoreError::Refused(refused)) => assert_eq!(refused.code, ErrorCode::Gone),
            other => panic!("{other:?}"),
        }
        let review = reader.review(gone.review_id.unwrap()).unwrap();
        assert!(review.is_some(), "its review id is still known");
    }
    // The same again is a new request, as if it had not been removed; other content is a conflict.
    let again = w.publish(&rejected).unwrap();
    assert!(again.created);
    assert_eq!((again.revision, again.status), (Revision(2), RevisionStatus::Pending));
    assert_eq!(code(w.publish(&dag("expired", vec![task("b", &[])]))), ErrorCode::ContentConflict);
    let start = w.request(ran_out.definition);
    assert_eq!(code(w.start(&start)), ErrorCode::InvalidTransition);
}

pub(crate) fn many_definitions_are_removed_in_chunks(w: &mut World) {
    for n in 0..45 {
        let published = w.publish(&dag(&format!("d{n}"), vec![task("a", &[])])).unwrap();
        w.settle(&published, false).unwrap();
    }
    w.now = Timestamp(w.now.0 + 1);
    assert_eq!([remove(w), remove(w), remove(w), remove(w)], [20, 20, 5, 0]);
}

pub(crate) fn a_kept_public_text_is_what_would_be_made(w: &mut World) {
    let (small, large) =
        (dag("small", vec![task("a", &[])]), dag("large", vec![task("b", &[]), task("c", &[0])]));
    let (one, two) = (w.publish(&small).unwrap().definition, w.publish(&large).unwrap());
    let text = canonical::canonical_json(&large);
    w.ask(|store| store.keep_public_text(two.definition, text.clone(), w.now)).unwrap();
    // Twice is once.
    w.ask(|store| store.keep_public_text(two.definition, text.clone(), w.now)).unwrap();
    let reader = w.home.reader();
    assert_eq!(reader.kept_public_text(two.definition).unwrap(), Some(text.clone()));
    assert_eq!(reader.public_text(two.definition).unwrap(), text);
    assert_eq!(reader.kept_public_text(one).unwrap(), None);
    assert_eq!(reader.public_text(one).unwrap(), canonical::canonical_json(&small));
    // With its definition it goes.
    w.settle(&two, false).unwrap();
    w.now = Timestamp(w.now.0 + 1);
    assert_eq!(remove(w), 1);
    assert_eq!(w.home.reader().kept_public_text(two.definition).unwrap(), None);
    w.ask(|store| store.keep_public_text(two.definition, text.clone(), w.now)).unwrap();
    assert_eq!(w.home.reader().kept_public_text(two.definition).unwrap(), None, "too late");
}
