//! The small things people write: durations, names, templates, addresses.

#![allow(clippy::unwrap_used)]

use std::fmt::Display;
use std::str::FromStr;

use cis_core::access::Preset;
use cis_core::dag::parse::duration;
use cis_core::did::Did;
use cis_core::id::{DagId, RunId, Scope, TaskId, is_name};
use cis_core::template::{Scene, fill, holds};
use cis_fuzz::{Corpus, fuzz};
use cis_notify::webhook::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Longest span anyone may ask for.
const YEAR_MS: u64 = 365 * 86_400_000;

/// What a template may make of what it sees.
const FILLED_BYTES_MAX: usize = 1 << 20;

#[test]
fn fuzz_durations() {
    fuzz(&Corpus::of("duration"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        match duration::from_text(text) {
            Ok(span) => {
                assert!(span.0 <= YEAR_MS);
                assert_eq!(duration::from_text(&format!("{}ms", span.0)), Ok(span));
                // As people are told it, it is a duration again, less what was left out for them.
                let told = duration::from_text(&span.to_string()).unwrap();
                assert!(
                    told <= span && span.0 - told.0 < 60_000.min(1_000.max(span.0)),
                    "{span} of {}",
                    span.0
                );
                true
            }
            Err(why) => {
                assert!(why.len() < 250, "{why}");
                false
            }
        }
    });
}

#[test]
fn fuzz_names() {
    fuzz(&Corpus::of("name"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        let _ = Preset::from_word(text);
        if Scope::is_well_formed(text) {
            assert!(text.parse::<Scope>().is_ok());
        }
        // Whatever somebody is called, their DID is one.
        let made = Did::new(text, "0f1e2d3c").unwrap();
        assert!(is_name(made.name()));
        assert_eq!(made.as_str().parse::<Did>().unwrap(), made);
        // Names become parts of paths.
        assert!(!is_name(text) || (text != "." && text != ".." && !text.contains('/')));
        let name = same::<DagId>(text) & same::<TaskId>(text) & same::<Scope>(text);
        assert_eq!(name, is_name(text));
        // A run's id is told in one spelling, whichever it was read from.
        if let Ok(run) = text.parse::<RunId>() {
            assert!(same::<RunId>(&run.to_string()));
            return true;
        }
        same::<Did>(text) || name
    });
}

/// Is it a `T`? Then it is told as it was read, as text and as JSON.
fn same<T: FromStr + Display + Serialize + DeserializeOwned>(text: &str) -> bool {
    let read: Option<T> = text.parse().ok();
    let json = json!(text);
    assert_eq!(serde_json::from_value::<T>(json.clone()).is_ok(), read.is_some(), "{text}");
    let Some(read) = read else { return false };
    assert_eq!(read.to_string(), text);
    assert_eq!(serde_json::to_value(&read).unwrap(), json);
    true
}

fn scene() -> Scene {
    Scene {
        params: json!({"day": "monday", "count": 4}),
        tasks: json!({"dump": {"outputs": {"rows": 3, "list": ["a", "b", {"c": null}]}}}),
        dag_id: "backup".into(),
        run_id: "r1".into(),
    }
}

#[test]
fn fuzz_templates() {
    let scene = scene();
    fuzz(&Corpus::of("template"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        match fill(text, &scene) {
            Ok(filled) => {
                assert!(filled.len() <= FILLED_BYTES_MAX, "{} bytes of {}", filled.len(), text.len());
                true
            }
            Err(error) => {
                assert_eq!(error.template, text);
                assert!(!error.why.is_empty());
                false
            }
        }
    });
}

#[test]
fn fuzz_expressions() {
    let scene = scene();
    fuzz(&Corpus::of("expression"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        holds(text, &scene).is_ok()
    });
}

#[test]
fn fuzz_webhook_addresses() {
    fuzz(&Corpus::of("address"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        match Url::parse(text) {
            Ok(url) => {
                // What is shown leads to the same place and holds nothing that may be a secret.
                let shown = url.to_string();
                assert!(!shown.contains(['@', '?', '#']) && shown.matches('/').count() == 2, "{shown}");
                assert_eq!(Url::parse(&shown).unwrap().to_string(), shown);
                true
            }
            Err(why) => {
                assert!(!why.is_empty());
                false
            }
        }
    });
}
