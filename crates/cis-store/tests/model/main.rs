//! Random commands against an in-memory model: after each, the store must have answered what the model says, and
//! must look the same to an onlooker: every status, version and attempt, and who may be claimed in which order.
//!
//! ```text
//!   generate ──► Command ──► Model::apply ──► answer, picture ─┐
//!                   └──────► Real::apply  ──► answer, picture ─┴─► equal
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod answer;
mod command;
mod coverage;
mod generate;
mod model;
mod real;
#[path = "../support/mod.rs"]
mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use command::Command;
use model::Model;
use real::Real;

/// Sequences per test.
const SEQUENCES: u32 = 1_000;

/// A thing that is reached less often than this in all sequences of a test is not really tested.
const OFTEN: usize = 5;

struct Machine;

impl ReferenceStateMachine for Machine {
    type State = Model;
    type Transition = Command;

    fn init_state() -> BoxedStrategy<Model> {
        generate::contents().prop_map(Model::new).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Command> {
        generate::command(model)
    }

    fn apply(mut model: Model, command: &Command) -> Model {
        command.apply(&mut model);
        model
    }

    fn preconditions(model: &Model, command: &Command) -> bool {
        command.makes_sense(model)
    }
}

struct Compared;

impl StateMachineTest for Compared {
    type SystemUnderTest = Real;
    type Reference = Machine;

    fn init_test(model: &Model) -> Real {
        Real::new(model.now)
    }

    fn apply(mut real: Real, model: &Model, command: Command) -> Real {
        coverage::count(&model.reached);
        let answer = real.apply(&command, model);
        assert_eq!(answer, model.answer, "the answer to {command:?}");
        assert_eq!(real.picture(), model.picture(), "after {command:?}");
        real
    }

    fn teardown(real: Real, _model: Model) {
        assert_eq!(real.violations(), [""; 0]);
    }
}

fn compare(length: std::ops::Range<usize>) {
    let config =
        Config { cases: SEQUENCES, max_shrink_iters: 4_000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config.clone());
    let outcome = runner.run(&Machine::sequential_strategy(length), |(model, commands, seen)| {
        Compared::test_sequential(config.clone(), model, commands, seen);
        Ok(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
    coverage::assert_all(OFTEN);
}

// Two tests for two cores: many short lives, and fewer turns of longer ones.
#[test]
fn short_sequences() {
    compare(15..30);
}

#[test]
fn long_sequences() {
    compare(30..45);
}
