//! The simulation in a bounded dose: no world goes wrong, a world is the same whenever it is lived, and a guard that is left
//! out is missed.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

use cis_torture::{Dose, sim};

fn dose(rounds: u64) -> Dose {
    Dose { seed: 1, rounds, time: None }
}

#[test]
fn no_world_goes_wrong() {
    let finding = sim::run(&dose(300)).unwrap();
    println!("{finding}");
    assert!(finding.is_clean(), "{finding}");
}

#[test]
fn a_seed_is_a_world() {
    for seed in 0..12 {
        assert_eq!(sim::fingerprint(seed).unwrap(), sim::fingerprint(seed).unwrap(), "seed {seed}");
    }
    assert_ne!(sim::fingerprint(1).unwrap(), sim::fingerprint(2).unwrap());
}

#[test]
fn a_guard_that_is_left_out_is_missed() {
    for guard in cis_fail::GUARDS {
        let found = sim::control(&dose(200), guard).unwrap();
        println!("without `{guard}`: found by seed {found:?}");
        assert!(found.is_some(), "without `{guard}`, 200 worlds went well");
    }
}
