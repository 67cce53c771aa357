//! Randomness that a seed gives again: `SplitMix64`, which is small, and more than good enough to choose a blow.

/// A sequence of numbers.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice of their own for the `n`th of several who throw at once.
    pub(super) fn of(seed: u64, n: usize) -> Self {
        let mut dice = Self(seed ^ (n as u64 + 1).wrapping_mul(0xd129_42f8_2b8c_9f6d));
        Self(dice.bits())
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`, which is not zero.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// True that often in a hundred.
    pub(super) fn percent(&mut self, of_hundred: u64) -> bool {
        self.below(100) < of_hundred
    }

    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}
