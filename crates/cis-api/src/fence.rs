//! A fence as callers send it: the number they were given, or the same as decimal text, for callers whose numbers are
//! not integers.

use std::fmt;

use cis_core::id::Fence;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// The last number below which every integer is exact as a double: 2^53 - 1. No fence is above it.
const EXACT_MAX: f64 = 9_007_199_254_740_991.0;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentFence(pub Fence);

impl Serialize for SentFence {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SentFence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl Visitor<'_> for Reading {
    type Value = SentFence;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`fence`: the number that the claim was answered with, or the same in decimal digits")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<SentFence, E> {
        u64::try_from(number).map_err(|_| wrong(number)).and_then(|number| self.visit_u64(number))
    }

    /// Up to what a store can hold: earlier versions granted fences above 2^53, and such a claim is over, not malformed.
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<SentFence, E> {
        i64::try_from(number).map(|fence| SentFence(Fence(fence))).map_err(|_| wrong(number))
    }

    /// What writes every number with a point is understood as long as nothing was rounded.
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<SentFence, E> {
        let is_whole = number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number);
        if is_whole { Ok(SentFence(Fence(number as i64))) } else { Err(wrong(number)) }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<SentFence, E> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number.map(|fence| SentFence(Fence(fence))).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            wrong(format_args!("{shown:?}"))
        })
    }
}

fn wrong<E: de::Error>(sent: impl fmt::Display) -> E {
    E::custom(format_args!(
        "`fence` is {sent}, which no claim was answered with: send the number back as it came, or as decimal text"
    ))
}

impl PartialSchema for SentFence {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0));
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9]{1,16}$"));
        let sent = OneOfBuilder::new().item(number).item(text).description(Some(
            "The right to the attempt, as the claim was answered with it; or the same as decimal text.",
        ));
        RefOr::T(Schema::OneOf(sent.build()))
    }
}

impl ToSchema for SentFence {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<i64, String> {
        serde_json::from_str::<SentFence>(text).map(|sent| sent.0.0).map_err(|e| e.to_string())
    }

    #[test]
    fn numbers_and_decimal_text_are_the_same_fence() {
        for text in ["9007199254740991", "\"9007199254740991\"", "9007199254740991.0", "9.007199254740991e15"]
        {
            assert_eq!(read(text), Ok((1 << 53) - 1), "{text}");
        }
        assert_eq!(read("\"0\""), Ok(0));
        // Granted by an earlier version: a claim that is over.
        assert_eq!(read("9007203549708292"), Ok(9_007_203_549_708_292));
    }

    #[test]
    fn fractions_and_what_is_out_of_range_are_refused_by_name() {
        for text in [
            "1.5",
            "-1",
            "9007199254740992.0",
            "1e300",
            "18446744073709551615",
            "\"\"",
            "\"+5\"",
            "\"1.0\"",
            "\" 1\"",
            "\"99999999999999999999\"",
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains("`fence` is ") && told.contains("as it came"), "{text}: {told}");
        }
        for text in ["null", "true", "[1]", "{}"] {
            assert!(read(text).unwrap_err().contains("`fence`: the number"), "{text}");
        }
    }
}
