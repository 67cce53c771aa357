//! Interleaved pairs: each side once per pair, the order turning from pair to pair so that nobody always comes
//! after the same one. What the machine does meanwhile hits all sides of a pair alike.

use anyhow::Result;

/// One side of a comparison: measures itself once, and says what came out (seconds, say).
pub(crate) type Side<'a> = Box<dyn FnMut(u32) -> Result<f64> + 'a>;

/// What each side measured, by pair.
pub(crate) fn compete(pairs: u32, sides: &mut [Side<'_>]) -> Result<Vec<Vec<f64>>> {
    let places: Vec<usize> = (0..sides.len()).collect();
    turn_by_turn(pairs, &places, |place, pair| sides[place](pair))
}

/// What `measure` says of each side, by pair.
pub(crate) fn turn_by_turn<S: Copy, T>(
    pairs: u32,
    sides: &[S],
    mut measure: impl FnMut(S, u32) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut measured: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    for pair in 0..pairs {
        for turn in 0..sides.len() {
            let side = (turn + pair as usize) % sides.len();
            measured[side].push(measure(sides[side], pair)?);
        }
    }
    Ok(measured)
}

/// A median with what it is the median of, from least to most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        Self { median: percentile(values, 0.5), min: percentile(values, 0.0), max: percentile(values, 1.0) }
    }

    /// The ratios of each pair.
    pub(crate) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        Self::of(&ratios)
    }
}

/// The value below which this share of the values lies; between two of them, in proportion.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    #[allow(clippy::cast_precision_loss, reason = "there are far fewer values than a float can count")]
    let place = share * last as f64;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the last index"
    )]
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_the_median_of_paired_ratios() {
        // The second pair was slow for both, which is why ratios of medians would mislead.
        let ratio = Spread::of_ratios(&[1.1, 5.0, 1.3], &[1.0, 4.0, 1.0]);
        assert_eq!(ratio, Spread { median: 1.25, min: 1.1, max: 1.3 });
    }

    #[test]
    fn percentiles_lie_between_values() {
        assert!((percentile(&[4.0, 1.0, 3.0, 2.0], 0.5) - 2.5).abs() < 1e-9);
        assert!((percentile(&[1.0, 2.0], 0.99) - 1.99).abs() < 1e-9);
    }

    #[test]
    fn everyone_comes_first_in_turn() {
        let order = std::cell::RefCell::new(Vec::new());
        let order_of = &order;
        let side = |name: &'static str| -> Side<'_> {
            Box::new(move |_| {
                order_of.borrow_mut().push(name);
                Ok(1.0)
            })
        };
        compete(2, &mut [side("a"), side("b")]).unwrap();
        assert_eq!(*order.borrow(), ["a", "b", "b", "a"]);
    }
}
