//! A minute of siege on the real program. It must have been built, as `cargo test --workspace --all-features` does.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

use cis_torture::{Dose, siege};

#[test]
fn good_callers_do_not_notice_a_siege() {
    let finding = siege::run(&Dose { seed: 1, rounds: 60, time: None }).unwrap();
    println!("{finding}");
    assert!(finding.is_clean(), "{finding}");
}
