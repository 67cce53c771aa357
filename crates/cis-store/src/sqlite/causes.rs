//! Why tasks did not succeed, where that is told beside other things: in lists, statuses and events. A worker may give 16 KiB
//! of it, which only the task alone tells whole.

/// How much of a cause is told among others.
const CAUSE_BYTES_MAX: usize = 1 << 10;

/// What stands for the rest.
const REST: &str = "…";

/// A cause as it is told among others: what is longer is cut, between two characters.
pub(super) fn cut_cause(mut cause: String) -> String {
    if cause.len() > CAUSE_BYTES_MAX {
        cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX - REST.len()));
        cause.push_str(REST);
        cause.shrink_to_fit();
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_causes_are_cut_between_characters() {
        let fits = "x".repeat(CAUSE_BYTES_MAX);
        assert_eq!(cut_cause(fits.clone()), fits);
        assert_eq!(cut_cause(format!("{fits}x")), format!("{}…", "x".repeat(CAUSE_BYTES_MAX - 3)));
        for character in ["é", "語", "🦀"] {
            let cut = cut_cause(character.repeat(CAUSE_BYTES_MAX));
            assert!((CAUSE_BYTES_MAX - 3..=CAUSE_BYTES_MAX).contains(&cut.len()), "{}", cut.len());
            assert_eq!(cut.trim_end_matches('…').trim_matches(|c: char| character.contains(c)), "");
        }
    }
}
