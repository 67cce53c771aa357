//! Power loss in a bounded dose: no acknowledged write is lost, and where syncs are not done some are.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

use cis_torture::{Dose, power};

#[test]
fn an_acknowledged_write_survives_a_power_loss() {
    let finding = power::run(&Dose { seed: 1, rounds: 200, time: None }).unwrap();
    assert!(finding.is_clean(), "{finding}");
}

#[test]
fn without_syncs_some_do_not() {
    let finding = power::control(&Dose { seed: 1, rounds: 20, time: None }).unwrap();
    assert!(!finding.is_clean(), "a power loss that loses nothing shows nothing:\n{finding}");
}
