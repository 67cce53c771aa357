//! Where time and randomness come from. The rules take them as arguments; only the binary and tests choose
//! an implementation, so a simulation can drive both.

use std::fmt;
use std::str::FromStr;

use jiff::fmt::temporal::DateTimePrinter;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::id::RunId;

/// Milliseconds since the Unix epoch, by the store's clock. In JSON it is RFC 3339 text; a number, as earlier versions
/// wrote it, is read as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-02-04T10:00:00.000Z")]
pub struct Timestamp(pub i64);

/// A span of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// How a moment is written: UTC, with milliseconds.
const RFC_3339: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Text that names no moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no moment: write it as RFC 3339, such as `2026-02-04T10:00:00.000Z`")]
pub struct NoTimestamp(String);

impl Timestamp {
    /// The last second whose year has four digits in every zone: RFC 3339 has no longer ones.
    pub const LAST: Self = Self(253_402_207_200_000);

    /// This moment and `span` later, at most the end of time.
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// This moment and `span` earlier.
    pub fn before(self, span: Millis) -> Self {
        Self(self.0.saturating_sub_unsigned(span.0))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The day it is in UTC, such as `2026-11-16`; empty for a moment no calendar has.
    pub fn day(self) -> String {
        let moment = jiff::Timestamp::from_millisecond(self.0);
        moment.map(|moment| moment.strftime("%Y-%m-%d").to_string()).unwrap_or_default()
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 with milliseconds. What lies before 1970 or after [`Timestamp::LAST`] is told as the nearest moment in
    /// between: no clock that is set says so, and a time that cannot be written must not fail an answer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.clamp(0, Self::LAST.0);
        let moment = jiff::Timestamp::from_millisecond(ms).map_err(|_| fmt::Error)?;
        RFC_3339.print_timestamp(&moment, jiff::fmt::StdFmtWrite(f)).map_err(|_| fmt::Error)
    }
}

impl FromStr for Timestamp {
    type Err = NoTimestamp;

    /// RFC 3339 in any zone; what is finer than a millisecond is left out.
    fn from_str(text: &str) -> Result<Self, NoTimestamp> {
        let moment: jiff::Timestamp = text.parse().map_err(|_| NoTimestamp(text.to_owned()))?;
        Ok(Self(moment.as_millisecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrMillis)
    }
}

/// Reads both ways in which a [`Timestamp`] has been written.
struct TextOrMillis;

impl Visitor<'_> for TextOrMillis {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a moment as RFC 3339 text, or in milliseconds since 1970")
    }

    fn visit_i64<E: de::Error>(self, ms: i64) -> Result<Timestamp, E> {
        Ok(Timestamp(ms))
    }

    fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Timestamp, E> {
        i64::try_from(ms).map(Timestamp).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
        text.parse().map_err(E::custom)
    }
}

/// Milliseconds since this machine started, time asleep included. Leases are measured by it: no clock that people set
/// moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(pub i64);

impl BootTime {
    /// This moment and `span` later.
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Millis {
    /// `350ms`, `4.2s`, `3m 05s`, `2h 10m`: what a person wants to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, s) = (self.0, self.0 / 1000);
        match s {
            _ if ms < 1000 => write!(f, "{ms}ms"),
            0..60 => write!(f, "{}.{}s", s, ms % 1000 / 100),
            60..3600 => write!(f, "{}m {:02}s", s / 60, s % 60),
            _ => write!(f, "{}h {:02}m", s / 3600, s % 3600 / 60),
        }
    }
}

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Timestamp;
    /// The present moment, by the clock nobody sets.
    fn since_boot(&self) -> BootTime;
}

/// Makes unpredictable numbers.
pub trait Random: Send + Sync {
    /// Sixty-four random bits.
    fn bits(&self) -> u64;
}

/// A new run id: version 7, so that ids sort by time.
pub fn new_run_id(clock: &dyn Clock, random: &dyn Random) -> RunId {
    let unix_ms = u64::try_from(clock.now().0).unwrap_or(0);
    let mut tail = [0u8; 10];
    tail[..8].copy_from_slice(&random.bits().to_be_bytes());
    tail[8..].copy_from_slice(&random.bits().to_be_bytes()[..2]);
    RunId(uuid::Builder::from_unix_timestamp_millis(unix_ms, &tail).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_well() {
        let shown: Vec<String> =
            [0, 999, 4_230, 185_000, 7_800_000].iter().map(|ms| Millis(*ms).to_string()).collect();
        assert_eq!(shown, ["0ms", "999ms", "4.2s", "3m 05s", "2h 10m"]);
    }

    #[test]
    fn moments_are_written_as_rfc_3339_and_read_back() {
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (Timestamp::LAST.0, "9999-12-30T22:00:00.000Z"),
        ];
        for (ms, text) in known {
            assert_eq!(Timestamp(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ms)));
            assert_eq!(serde_json::to_value(Timestamp(ms)).unwrap(), text);
            assert_eq!(serde_json::from_value::<Timestamp>(text.into()).unwrap(), Timestamp(ms));
        }
    }

    #[test]
    fn schema_of_a_moment_is_a_date_time() {
        let schema = serde_json::to_value(<Timestamp as utoipa::PartialSchema>::schema()).unwrap();
        assert_eq!((&schema["type"], &schema["format"]), (&"string".into(), &"date-time".into()));
    }

    #[test]
    fn moments_no_calendar_has_are_written_as_the_nearest_one() {
        let told = [-1, i64::MIN, Timestamp::LAST.0 + 1, i64::MAX].map(|ms| Timestamp(ms).to_string());
        let (first, last) = ("1970-01-01T00:00:00.000Z", "9999-12-30T22:00:00.000Z");
        assert_eq!(told, [first, first, last, last]);
    }

    #[test]
    fn moments_of_earlier_versions_and_of_other_zones_are_read() {
        let read = |text: &str| serde_json::from_str::<Timestamp>(text);
        assert_eq!(read("1700000000123").unwrap(), Timestamp(1_700_000_000_123));
        assert_eq!(read("-5").unwrap(), Timestamp(-5));
        assert_eq!(read("\"2023-11-15T00:13:20.123987+02:00\"").unwrap(), Timestamp(1_700_000_000_123));
        for wrong in ["\"yesterday\"", "\"2023-11-14\"", "1.5", "18446744073709551615", "null", "[1]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(read("\"soon\"").unwrap_err().to_string().split(':').next(), Some("`soon` is no moment"));
    }
}
