//! Thousands of orders in which things may happen, from a seed each; and mistakes made on purpose, which must be found.

use cis_schedule::outbox::{self, Settled};
use cis_schedule::store::{self, Done, Leaving};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

const SEED: u64 = 4;
const ORDERS: usize = 1_500;

/// A mistake is found within as many.
const ORDERS_TO_FIND: usize = 500;

/// How often, at most, whoever is most urgent changes in one order.
const CHANGES: usize = 3;

fn run(scheduler: impl Scheduler + 'static, failure_persistence: FailurePersistence, scenario: fn()) {
    let mut config = Config::new();
    // SQLite wants more than the scheduler's threads have by default.
    config.stack_size = 1 << 20;
    config.failure_persistence = failure_persistence;
    Runner::new(scheduler, config).run(scenario);
}

/// At random, and with few changes of who is most urgent, which finds what takes patience.
fn hold(scenario: fn()) {
    run(RandomScheduler::new_from_seed(SEED, ORDERS), FailurePersistence::Print, scenario);
    run(PctScheduler::new_from_seed(SEED, CHANGES, ORDERS), FailurePersistence::Print, scenario);
}

fn find(scenario: fn()) {
    run(RandomScheduler::new_from_seed(SEED, ORDERS_TO_FIND), FailurePersistence::None, scenario);
}

#[test]
fn callers_are_answered_after_their_commit_and_nothing_is_written_after_the_last_has_closed() {
    hold(|| store::callers(Done::Answered, Leaving::Close));
}

#[test]
#[should_panic(expected = "which is not there")]
fn an_answer_before_the_commit_is_found() {
    find(|| store::callers(Done::Run, Leaving::Close));
}

#[test]
#[should_panic(expected = "written after everybody had left")]
fn leaving_without_waiting_is_found() {
    find(|| store::callers(Done::Answered, Leaving::Drop));
}

#[test]
fn whoever_tells_may_be_stopped_anywhere() {
    hold(|| outbox::stopped(Settled::After));
}

#[test]
#[should_panic(expected = "given")]
fn a_notice_that_is_settled_before_it_is_given_is_found() {
    find(|| outbox::stopped(Settled::Before));
}
