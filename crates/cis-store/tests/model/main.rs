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
mod run;
#[path = "../support/mod.rs"]
mod support;

use std::marker::PhantomData;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use command::Command;
use coverage::Reached;
use model::Model;
use real::Real;

/// A thing that is reached less often than this in all sequences of a test is not really tested.
const OFTEN: usize = 5;

/// Commands for a store with chunks of the usual size, in which what is small is done at once.
struct Whole;

impl ReferenceStateMachine for Whole {
    type State = Model;
    type Transition = Command;

    fn init_state() -> BoxedStrategy<Model> {
        generate::contents().prop_map(|contents| Model::new(contents, false)).boxed()
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

/// Commands for a store in tiny chunks, in which next to nothing is done at once.
struct Chopped;

impl ReferenceStateMachine for Chopped {
    type State = Model;
    type Transition = Command;

    fn init_state() -> BoxedStrategy<Model> {
        generate::plain_contents().prop_map(|contents| Model::new(contents, true)).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Command> {
        generate::command(model).prop_map(generate::one_thing_at_a_time).boxed()
    }

    fn apply(model: Model, command: &Command) -> Model {
        Whole::apply(model, command)
    }

    fn preconditions(model: &Model, command: &Command) -> bool {
        command.makes_sense(model)
    }
}

/// The store and one of these models, step by step.
struct Compared<M>(PhantomData<M>);

impl<M: ReferenceStateMachine<State = Model, Transition = Command>> StateMachineTest for Compared<M> {
    type SystemUnderTest = Real;
    type Reference = M;

    fn init_test(model: &Model) -> Real {
        Real::new(model.now, model.chopped)
    }

    fn apply(mut real: Real, model: &Model, command: Command) -> Real {
        coverage::count(&model.reached);
        let mut answer = real.apply(&command, model);
        let (mut seen, mut expected) = (real.picture(), model.picture());
        if model.chopped {
            real.work_off(model.now);
            answer = answer.loosened();
            (seen, expected) = (real.picture().loosened(), expected.loosened());
        }
        assert_eq!(answer, model.answer, "the answer to {command:?}");
        assert_eq!(seen, expected, "after {command:?}");
        real.feel_pulse();
        real
    }

    fn teardown(real: Real, _model: Model) {
        assert_eq!(real.violations(), [""; 0]);
    }
}

fn compare<M>(cases: u32, length: std::ops::Range<usize>, must_reach: &[Reached])
where
    M: ReferenceStateMachine<State = Model, Transition = Command>,
{
    let config = Config { cases, max_shrink_iters: 4_000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config.clone());
    let outcome = runner.run(&M::sequential_strategy(length), |(model, commands, seen)| {
        Compared::<M>::test_sequential(config.clone(), model, commands, seen);
        Ok(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
    coverage::assert_all(must_reach, OFTEN);
}

// Tests of about the same length, for as many cores as there are.
#[test]
fn short_sequences() {
    compare::<Whole>(1_400, 12..24, &Reached::WHOLE);
}

#[test]
fn long_sequences() {
    compare::<Whole>(600, 30..45, &[&Reached::WHOLE[..], &Reached::LONG].concat());
}

#[test]
fn in_tiny_chunks() {
    compare::<Chopped>(400, 12..30, &Reached::CHOPPED);
}
