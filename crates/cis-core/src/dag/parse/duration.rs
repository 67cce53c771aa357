//! Spans of time as people write them: `"90s"`, `"1h30m"`, `"250ms"`, or a number of seconds.

use crate::source::Millis;

/// Longest span anyone may ask for.
const LONGEST_MS: f64 = 365.0 * 86_400_000.0;

const UNITS: [(&str, f64); 5] =
    [("d", 86_400_000.0), ("h", 3_600_000.0), ("m", 60_000.0), ("s", 1_000.0), ("ms", 1.0)];

/// Reads `"1h30m"`. The error says what is wrong.
pub fn from_text(text: &str) -> Result<Millis, String> {
    let not = || format!("`{}` is not a duration", text.chars().take(40).collect::<String>());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(not());
    }
    let mut total = 0.0;
    // Units must shrink, so that `30m1h` and `1m2m` are seen as the slips they are.
    let mut units = UNITS.as_slice();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(not)?;
        let number = &rest[..digits];
        let ok = !number.starts_with('.') && !number.ends_with('.') && number.len() <= 18;
        let number: f64 = number.parse().ok().filter(|_| ok).ok_or_else(not)?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let place = units.iter().position(|(unit, _)| *unit == &rest[..letters]).ok_or_else(not)?;
        total += number * units[place].1;
        units = &units[place + 1..];
        rest = rest[letters..].trim_start();
    }
    from_millis(total)
}

/// Takes a number of seconds.
pub(super) fn from_seconds(seconds: f64) -> Result<Millis, String> {
    from_millis(seconds * 1_000.0)
}

fn from_millis(ms: f64) -> Result<Millis, String> {
    let ms = ms.round();
    if ms < 0.0 {
        return Err("a duration cannot be negative".to_owned());
    }
    if ms.is_nan() || ms > LONGEST_MS {
        return Err("a duration is at most 365d".to_owned());
    }
    // In range by the checks above.
    Ok(Millis(ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_people_write() {
        for (text, ms) in [
            ("90s", 90_000),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("250ms", 250),
            ("2d", 172_800_000),
            ("1.5s", 1_500),
            ("0s", 0),
            ("365d", 31_536_000_000),
        ] {
            assert_eq!(from_text(text), Ok(Millis(ms)), "{text}");
        }
        assert_eq!(from_seconds(0.25), Ok(Millis(250)));
    }

    #[test]
    fn spans_nobody_means() {
        for text in [
            "", "90", "s", "-1s", "1x", "30m1h", "1m2m", "1..5s", ".5s", "5.s", "1h30", "366d", "1e3s", "∞",
            "1 s x",
        ] {
            assert!(from_text(text).is_err(), "{text}");
        }
        assert!(
            from_seconds(-1.0).is_err() && from_seconds(f64::NAN).is_err() && from_seconds(1e12).is_err()
        );
    }
}
