//! What goes wrong in a world. Each has a weather of its own: some faults often, some never, so that each is met alone and
//! in every company.

use super::runner::Until;
use crate::chance::Chance;

const HOUR_MS: i64 = 3_600_000;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    CoordinatorDies,
    /// Another one begins, and it goes on for a while.
    CoordinatorReplaced,
    /// It is asked to leave what runs to the next one.
    CoordinatorHandsOver,
    RunnerDies(Until),
    BothDie(Until),
    Disconnect,
    /// Somebody sets the clock on the wall.
    ClockSet(i64),
    /// The machine is suspended.
    Sleep(i64),
    /// The machine is started anew, and what was not forced to disk may be gone.
    Restart {
        off_ms: i64,
        journal_loses: usize,
    },
}

/// Kinds of faults.
const KINDS: u64 = 9;

/// What goes wrong here, and how often.
#[derive(Debug)]
pub(super) struct Weather {
    kinds: Vec<u64>,
    one_in: u64,
}

impl Weather {
    pub(super) fn by_chance(chance: &mut Chance) -> Self {
        let kinds = (0..KINDS).filter(|_| chance.one_in(2)).collect();
        Self { kinds, one_in: 8 + chance.below(40) }
    }

    /// What goes wrong now, if anything does.
    pub(super) fn next(&self, chance: &mut Chance) -> Option<Fault> {
        if !chance.one_in(self.one_in) {
            return None;
        }
        let kind = chance.pick(&self.kinds).copied()?;
        Some(match kind {
            0 => Fault::CoordinatorDies,
            1 => Fault::CoordinatorReplaced,
            2 => Fault::RunnerDies(until(chance)),
            3 => Fault::BothDie(until(chance)),
            4 => Fault::Disconnect,
            5 => {
                let ms = chance.below(6 * HOUR_MS.cast_unsigned()).cast_signed();
                Fault::ClockSet(if chance.one_in(2) { ms } else { -ms })
            }
            6 => Fault::CoordinatorHandsOver,
            7 => Fault::Sleep(chance.below(2 * HOUR_MS.cast_unsigned()).cast_signed()),
            _ => Fault::Restart {
                off_ms: chance.below(HOUR_MS.cast_unsigned()).cast_signed(),
                journal_loses: if chance.one_in(2) { chance.below(12) as usize } else { 0 },
            },
        })
    }
}

fn until(chance: &mut Chance) -> Until {
    let all = [Until::Journal, Until::Telling, Until::Starting, Until::End];
    chance.pick(&all).copied().unwrap_or(Until::End)
}
