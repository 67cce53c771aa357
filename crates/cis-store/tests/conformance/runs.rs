//! Creating runs.

use cis_core::dag::params::PARAMS_BYTES_MAX;
use cis_core::error::ErrorCode;
use cis_core::id::RunKey;
use cis_store::port::{Fate, StartRun, StoreError};
use serde_json::{Map, json};

use crate::fixture::{World, code};
use crate::support::{dag, task};

pub(crate) fn asked_again_it_is_the_same_run(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[])]));
    let request = w.request(definition);
    let first = w.start(&request).unwrap();
    assert_eq!(w.start(&request).unwrap(), first);
    w.play(|_| cis_store::port::Ending::Succeeded);
    // Over or not, it is the same run, as it now stands.
    let again = w.start(&request).unwrap();
    assert_eq!((again.key, again.number), (first.key, 1));
    assert_eq!(w.story(first.key), "completed: completed");
}

pub(crate) fn a_confirmation_makes_one_run(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[])]));
    let by_confirmation = |request: StartRun| StartRun { by_confirmation: true, ..request };
    let (one, two) = (by_confirmation(w.request(definition)), by_confirmation(w.request(definition)));
    let first = w.start(&one).unwrap();
    assert_eq!(w.start(&two).unwrap().key, first.key);
    // An ordinary request is not bound by that.
    let three = w.request(definition);
    assert_ne!(w.start(&three).unwrap().key, first.key);
}

pub(crate) fn nothing_runs_unconfirmed(w: &mut World) {
    let pending = w.publish(&dag("pending", vec![task("a", &[])])).unwrap();
    let rejected = w.publish(&dag("rejected", vec![task("a", &[])])).unwrap();
    w.settle(&rejected, false).unwrap();
    for (definition, expected) in [
        (pending.definition, ErrorCode::AwaitingConfirmation),
        (rejected.definition, ErrorCode::InvalidTransition),
        (77, ErrorCode::NotFound),
    ] {
        let request = w.request(definition);
        assert_eq!(code(w.start(&request)), expected);
        let request = StartRun { by_confirmation: true, ..request };
        assert_eq!(code(w.start(&request)), expected);
    }
    assert!(w.take(10).is_empty());
}

pub(crate) fn requests_that_do_not_fit_are_refused(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[]), task("b", &[0])]));
    let other = w.go(&dag("other", vec![task("a", &[]), task("b", &[0])]));
    let request = w.request(definition);
    let carry = Some(vec![Fate::Carry, Fate::Run]);
    for wrong in [
        StartRun { fates: Some(vec![Fate::Run]), ..request.clone() },
        StartRun { fates: Some(vec![Fate::Run; 3]), ..request.clone() },
        StartRun { max_parallel: Some(0), ..request.clone() },
        StartRun { params: [("x".to_owned(), 1.into())].into_iter().collect(), ..request.clone() },
        // Nothing to carry from, a run that is not there, a run of something else.
        StartRun { fates: carry.clone(), ..request.clone() },
        StartRun { fates: carry.clone(), resumed_from: Some(RunKey(77)), ..request.clone() },
        StartRun { fates: carry, resumed_from: Some(other), ..request.clone() },
    ] {
        assert_eq!(code(w.start(&wrong)), ErrorCode::ValidationFailed, "{wrong:?}");
    }
    assert_eq!(w.start(&request).unwrap().number, 1);
}

pub(crate) fn runs_are_numbered_within_their_dag(w: &mut World) {
    let one = w.confirmed(&dag("one", vec![task("a", &[])]));
    let two = w.confirmed(&dag("two", vec![task("a", &[])]));
    let numbers = [one, two, one].map(|definition| {
        let request = w.request(definition);
        w.start(&request).unwrap().number
    });
    assert_eq!(numbers, [1, 1, 2]);
}

pub(crate) fn parameters_have_a_bound(w: &mut World) {
    let mut with_default = dag("d", vec![task("a", &[])]);
    with_default.params.insert("p".into(), json!("small"));
    with_default.params.insert("q".into(), json!("small"));
    let definition = w.confirmed(&with_default);
    let given = |p: usize| Map::from_iter([("p".to_owned(), json!("x".repeat(p)))]);
    let within = StartRun { params: given(PARAMS_BYTES_MAX - 100), ..w.request(definition) };
    w.start(&within).unwrap();
    let beyond = StartRun { params: given(PARAMS_BYTES_MAX), ..w.request(definition) };
    let refused = match w.start(&beyond) {
        Err(StoreError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (refused.code, &refused.details[0]["path"]),
        (ErrorCode::ValidationFailed, &json!("params.p"))
    );
    // Defaults that no run could be started with are not published.
    let mut large = dag("e", vec![task("a", &[])]);
    large.params.insert("p".into(), json!("x".repeat(PARAMS_BYTES_MAX)));
    assert_eq!(code(w.publish(&large)), ErrorCode::ValidationFailed);
}
