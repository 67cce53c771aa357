//! Moments, as people say them.

use cis_core::source::Timestamp;

/// How long ago `then` was, in its largest unit: `just now`, `42s ago`, `3h ago`, `in 5m`.
pub fn ago(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.0.saturating_sub(then.0) / 1000;
    if seconds == 0 {
        return "just now".to_owned();
    }
    let span = largest_unit(seconds.unsigned_abs());
    if seconds < 0 { format!("in {span}") } else { format!("{span} ago") }
}

fn largest_unit(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m", seconds / MINUTE),
        HOUR..DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 365 * DAY => format!("{}d", seconds / DAY),
        _ => format!("{}y", seconds / (365 * DAY)),
    }
}

/// `2026-11-03 14:05:12` in `zone`; empty for a moment no calendar has.
pub fn clock(moment: Timestamp, zone: &jiff::tz::TimeZone) -> String {
    let Ok(moment) = jiff::Timestamp::from_millisecond(moment.0) else {
        return String::new();
    };
    moment.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_and_the_future_read_well() {
        let now = Timestamp(10_000_000_000_000);
        let at = |seconds: i64| ago(now, Timestamp(now.0 - seconds * 1000));
        let shown = [0, 1, 59, 60, 3599, 7200, 86_400, 40 * 86_400, 800 * 86_400, -300].map(at);
        assert_eq!(
            shown,
            [
                "just now", "1s ago", "59s ago", "1m ago", "59m ago", "2h ago", "1d ago", "40d ago",
                "2y ago", "in 5m"
            ]
        );
        assert_eq!(ago(Timestamp(i64::MAX), Timestamp(i64::MIN)), ago(Timestamp(i64::MAX), Timestamp(0)));
    }

    #[test]
    fn moments_have_a_date() {
        let moment = Timestamp(1_700_000_000_123);
        assert_eq!(clock(moment, &jiff::tz::TimeZone::UTC), "2023-11-14 22:13:20");
        assert_eq!(clock(Timestamp(i64::MAX), &jiff::tz::TimeZone::UTC), "");
    }
}
