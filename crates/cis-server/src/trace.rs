//! Which trace a request belongs to, as the W3C's Trace Context says it in `traceparent`.

use axum::http::{HeaderMap, HeaderValue};
use cis_core::source::Random;

/// The header's name, in and out.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A request's place in a trace: its caller's, or one that begins with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    /// As the caller gave it, if that can be understood.
    pub(crate) given: Option<String>,
    pub(crate) trace_id: String,
    /// The request's own part: what logs know it by.
    pub(crate) request_id: String,
    flags: String,
}

impl Trace {
    /// Of a request with these headers. What cannot be understood counts as absent, as the W3C wants it.
    pub(crate) fn of(headers: &HeaderMap, random: &dyn Random) -> Self {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let only = given.next().filter(|_| given.next().is_none()).and_then(|value| value.to_str().ok());
        let request_id = format!("{:016x}", random.bits() | 1);
        match only.and_then(parts) {
            Some((trace_id, flags)) => Self {
                given: only.map(ToOwned::to_owned),
                trace_id: trace_id.to_owned(),
                request_id,
                flags: flags.to_owned(),
            },
            None => Self {
                given: None,
                trace_id: format!("{:016x}{:016x}", random.bits(), random.bits() | 1),
                request_id,
                flags: "00".to_owned(),
            },
        }
    }

    /// What the caller is told.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let Self { trace_id, request_id, flags, .. } = self;
        HeaderValue::from_str(&format!("00-{trace_id}-{request_id}-{flags}")).ok()
    }
}

/// The trace's id and flags, of `00-TRACE-PARENT-FLAGS`. Later versions may go on after that.
fn parts(text: &str) -> Option<(&str, &str)> {
    let mut fields = text.split('-');
    let mut hex = |digits: usize| {
        let is_hex = |field: &&str| {
            field.len() == digits && field.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        fields.next().filter(is_hex)
    };
    let (version, trace_id, parent, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let nothing = |id: &str| id.bytes().all(|b| b == b'0');
    let more = fields.next().is_some();
    let wrong = version == "ff" || (version == "00" && more) || nothing(trace_id) || nothing(parent);
    (!wrong).then_some((trace_id, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Same;

    impl Random for Same {
        fn bits(&self) -> u64 {
            0xab
        }
    }

    fn trace(value: &str) -> Trace {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, value.parse().unwrap());
        Trace::of(&headers, &Same)
    }

    #[test]
    fn a_trace_goes_on() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = trace(given);
        assert_eq!(trace.given.as_deref(), Some(given));
        let told = trace.header().unwrap();
        assert_eq!(told, "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-01");
    }

    #[test]
    fn what_is_none_is_not_taken_for_one() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for wrong in [
            String::new(),
            format!("00-{id}-00f067aa0ba902b7"),
            format!("00-{id}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            format!("ff-{id}-00f067aa0ba902b7-01"),
            format!("00-{id}-00f067aa0ba902b7-01-more"),
        ] {
            let fresh = trace(&wrong);
            assert_eq!((fresh.given.as_deref(), fresh.trace_id.len()), (None, 32), "{wrong}");
        }
        assert_eq!(trace(&format!("01-{id}-00f067aa0ba902b7-01-more")).trace_id, id, "a later version");
    }
}
