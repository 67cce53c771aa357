//! Which trace a request belongs to, as the W3C's Trace Context says it in `traceparent`.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderValue};
use cis_core::source::Random;

/// The header's name, in and out.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A request's place in a trace: its caller's, or one that begins with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    /// As the caller gave it, if that can be understood.
    pub(crate) given: Option<String>,
    trace_id: u128,
    /// The request's own part: what logs know it by.
    request_id: u64,
    flags: u8,
}

/// Where names of requests come from: no two are alike, and they are no secret.
#[derive(Debug)]
pub(crate) struct Names {
    start: u64,
    given: AtomicU64,
}

impl Names {
    pub(crate) fn new(random: &dyn Random) -> Self {
        Self { start: random.bits(), given: AtomicU64::new(0) }
    }

    fn next(&self) -> u64 {
        let count = self.given.fetch_add(1, Ordering::Relaxed);
        // Scatters what is counted over all of the numbers, each to one of its own (SplitMix64).
        let mut mixed = self.start.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Trace {
    /// Of a request with these headers. What cannot be understood counts as absent, as the W3C wants it.
    pub(crate) fn of(headers: &HeaderMap, names: &Names) -> Self {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let only = given.next().filter(|_| given.next().is_none()).and_then(|value| value.to_str().ok());
        // None of them may be nothing but zeros.
        let request_id = names.next() | 1;
        match only.and_then(parts) {
            Some((trace_id, flags)) => {
                Self { given: only.map(ToOwned::to_owned), trace_id, request_id, flags }
            }
            None => {
                let trace_id = u128::from(names.start) << 64 | u128::from(request_id);
                Self { given: None, trace_id, request_id, flags: 0 }
            }
        }
    }

    pub(crate) fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    pub(crate) fn request_id(&self) -> String {
        format!("{:016x}", self.request_id)
    }

    /// What the caller is told.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut text[3..35], self.trace_id);
        write_hex(&mut text[36..52], self.request_id.into());
        write_hex(&mut text[53..], self.flags.into());
        HeaderValue::from_bytes(&text).ok()
    }
}

/// Writes a number over all of `digits`: formatting it costs more than the rest of the answer's head.
fn write_hex(digits: &mut [u8], mut number: u128) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// The trace's id and flags, of `00-TRACE-PARENT-FLAGS`. Later versions may go on after that.
fn parts(text: &str) -> Option<(u128, u8)> {
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
    let read = u128::from_str_radix(trace_id, 16).ok().zip(u8::from_str_radix(flags, 16).ok());
    read.filter(|_| !wrong)
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
        Trace::of(&headers, &Names::new(&Same))
    }

    #[test]
    fn a_trace_goes_on() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = trace(given);
        assert_eq!(trace.given.as_deref(), Some(given));
        let told = trace.header().unwrap();
        assert_eq!(told, format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", trace.request_id()).as_str());
    }

    /// Whatever came in, what goes out is a trace, and the one that was given if that was one.
    #[test]
    fn fuzz_traceparents() {
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("trace"), |bytes| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return false };
            let headers = HeaderMap::from_iter([(TRACEPARENT.parse().unwrap(), value)]);
            let read = Trace::of(&headers, &Names::new(&Same));
            let told = read.header().unwrap();
            assert_eq!(trace(told.to_str().unwrap()).trace_id, read.trace_id);
            assert!(
                read.given.iter().all(|given| given.as_bytes() == bytes && given.contains(&read.trace_id()))
            );
            read.given.is_some()
        });
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
            assert_eq!(fresh.given, None, "{wrong}");
            assert_ne!(fresh.trace_id(), id, "{wrong}");
        }
        assert_eq!(trace(&format!("01-{id}-00f067aa0ba902b7-01-more")).trace_id(), id, "a later version");
    }

    #[test]
    fn no_two_requests_have_one_name() {
        let names = Names::new(&Same);
        let given: std::collections::HashSet<u64> = (0..10_000).map(|_| names.next()).collect();
        assert_eq!(given.len(), 10_000);
    }
}
