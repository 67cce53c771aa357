//! What callers and nodes tell each other: the bodies of every call in the table, and their answers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says so by failing")]

use cis_api::call::Body;
use cis_api::error::{ErrorBody, Success};
use cis_api::{Call, calls};
use cis_fuzz::{Corpus, fuzz};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[test]
fn fuzz_api_bodies() {
    macro_rules! read_all {
        ($($call:ident)*) => {
            &[$(read_body::<<calls::$call as Call>::Body> as fn(&[u8]) -> bool),*]
        };
    }
    let readers: &[fn(&[u8]) -> bool] = cis_api::each_call!(read_all);
    fuzz(&Corpus::of("api"), |bytes| {
        // A body may fit several calls, and every one of them sees it.
        let takers = readers.iter().filter(|read| read(bytes)).count();
        takers > 0
    });
}

/// Does the call take it? Then it is sent on as it was read. What a call takes whatever it is counts as not taken.
fn read_body<B: Body>(bytes: &[u8]) -> bool {
    let body = match B::read(bytes) {
        Ok(body) => body,
        Err(refusal) => {
            assert!(!refusal.message.is_empty());
            return false;
        }
    };
    let written = body.write();
    let again = B::read(&written).unwrap_or_else(|e| panic!("{}: {e}", written.escape_ascii()));
    assert_eq!(again.write().escape_ascii().to_string(), written.escape_ascii().to_string());
    B::read(b"\xff").is_err()
}

#[test]
fn fuzz_api_answers() {
    macro_rules! read_all {
        ($($call:ident)*) => {
            &[
                read_answer::<ErrorBody> as fn(&[u8]) -> bool,
                $(
                    read_answer::<<calls::$call as Call>::Response>,
                    read_answer::<Success<<calls::$call as Call>::Response>>,
                )*
            ]
        };
    }
    let readers: &[fn(&[u8]) -> bool] = cis_api::each_call!(read_all);
    fuzz(&Corpus::of("answer"), |bytes| {
        let takers = readers.iter().filter(|read| read(bytes)).count();
        takers > 0
    });
}

/// Is it such an answer? Then it is told as it was read.
fn read_answer<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    let Ok(answer) = serde_json::from_slice::<T>(bytes) else { return false };
    let written = serde_json::to_string(&answer).unwrap();
    let again: T = serde_json::from_str(&written).unwrap_or_else(|e| panic!("{written}: {e}"));
    assert_eq!(serde_json::to_string(&again).unwrap(), written);
    true
}
