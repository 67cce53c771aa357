//! Review ids: what a person types to decide about one pending revision or one waiting task, and nothing else.
//!
//! An id is a keyed hash over the row and its opening. Without the store's secret a caller can neither choose nor predict
//! it, so what was published later never answers to the id of what was read before.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use utoipa::ToSchema;

use crate::error::{ErrorCode, Refusal};
use crate::id::{ExecutionId, Revision, RunId};
use crate::source::Timestamp;

/// Crockford's base 32: no letter in it looks like another, or like a digit.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Digits of an id, five bits each.
const LENGTH: usize = 12;

/// Digits between two dashes.
const GROUP: usize = 4;

/// What an id begins with.
const MARK: &str = "r-";

/// The lowest bit: set for tasks, so that the ids of both kinds never meet.
const TASK_BIT: u64 = 1;

/// The secret of a store, from which its review ids are derived.
#[derive(Clone)]
pub struct ReviewSecret(pub [u8; 32]);

impl fmt::Debug for ReviewSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReviewSecret")
    }
}

/// What is opened for review, as far as its id depends on it.
#[derive(Debug, Clone, Copy)]
pub enum Opening<'o> {
    Revision { dag: i64, revision: Revision, content_hash: &'o str, opened_at: Timestamp },
    Task { definition: i64, run: RunId, execution: ExecutionId, opened_at: Timestamp },
}

/// What an id is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewKind {
    Revision,
    Task,
}

/// `r-7k3q-9xwm-t2bv`: one pending revision or one waiting task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, pattern = "^r-[0-9a-hjkmnp-tv-z]{4}-[0-9a-hjkmnp-tv-z]{4}-[0-9a-hjkmnp-tv-z]{4}$",
    example = "r-7k3q-9xwm-t2bv")]
#[serde(try_from = "String", into = "String")]
pub struct ReviewId(u64);

impl ReviewId {
    /// The id of `opening`. With another `turn` it is another one: for when the first is taken.
    pub fn derive(secret: &ReviewSecret, opening: &Opening<'_>, turn: u32) -> Self {
        // HMAC fills a key that is shorter than a block up with zeros.
        let mut key = [0; 64];
        key[..secret.0.len()].copy_from_slice(&secret.0);
        let mut mac = Hmac::<Sha256>::new(&key.into());
        mac.update(&turn.to_le_bytes());
        // Everything but what comes last has a fixed length, so no two openings are one message.
        let kind = match *opening {
            Opening::Revision { dag, revision, content_hash, opened_at } => {
                mac.update(b"revision");
                [dag, revision.0, opened_at.0].iter().for_each(|number| mac.update(&number.to_le_bytes()));
                mac.update(content_hash.as_bytes());
                0
            }
            Opening::Task { definition, run, execution, opened_at } => {
                mac.update(b"task");
                [definition, execution.0, opened_at.0]
                    .iter()
                    .for_each(|number| mac.update(&number.to_le_bytes()));
                mac.update(run.0.as_bytes());
                TASK_BIT
            }
        };
        let digest = mac.finalize().into_bytes();
        let bits = digest.iter().take(8).fold(0, |bits, byte| (bits << 8) | u64::from(*byte));
        Self(((bits >> (64 - 5 * LENGTH)) & !TASK_BIT) | kind)
    }

    pub fn kind(self) -> ReviewKind {
        if self.0 & TASK_BIT == 0 { ReviewKind::Revision } else { ReviewKind::Task }
    }
}

impl fmt::Display for ReviewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digit = |place: usize| DIGITS[(self.0 >> (5 * (LENGTH - 1 - place)) & 31) as usize] as char;
        let text: String = (0..LENGTH)
            .flat_map(|place| {
                (place % GROUP == 0 && place > 0).then_some('-').into_iter().chain([digit(place)])
            })
            .collect();
        f.pad(&format!("{MARK}{text}"))
    }
}

impl fmt::Debug for ReviewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no review id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a review id, such as `r-7k3q-9xwm-t2bv`")]
pub struct BadReviewId(pub String);

impl FromStr for ReviewId {
    type Err = BadReviewId;

    /// As people type it: upper case, `o` for 0, `i` and `l` for 1, with dashes or without.
    fn from_str(text: &str) -> Result<Self, BadReviewId> {
        let bad = || BadReviewId(text.chars().take(64).collect());
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.strip_prefix(MARK).ok_or_else(bad)?;
        let (mut bits, mut count) = (0, 0);
        for byte in digits.bytes().filter(|byte| *byte != b'-') {
            let byte = match byte {
                b'o' => b'0',
                b'i' | b'l' => b'1',
                other => other,
            };
            let value = DIGITS.iter().position(|digit| *digit == byte).ok_or_else(bad)?;
            (bits, count) = ((bits << 5) | value as u64, count + 1);
            if count > LENGTH {
                return Err(bad());
            }
        }
        if count == LENGTH { Ok(Self(bits)) } else { Err(bad()) }
    }
}

impl TryFrom<String> for ReviewId {
    type Error = BadReviewId;

    fn try_from(text: String) -> Result<Self, BadReviewId> {
        text.parse()
    }
}

impl From<ReviewId> for String {
    fn from(id: ReviewId) -> Self {
        id.to_string()
    }
}

/// Digits of a content hash.
const HASH_DIGITS: usize = 64;

/// Refuses anything but a whole content hash: a part of one can be made to fit other content.
pub fn check_content_hash(text: &str) -> Result<(), Refusal> {
    if text.len() == HASH_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    let why = format!("a content hash is {HASH_DIGITS} digits of 0-9 a-f: a part of one decides nothing");
    Err(Refusal::new(ErrorCode::ValidationFailed, why)
        .hint("`cis pending` shows the review id to type instead, `cis pending --json` also the whole hash"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECRET: ReviewSecret = ReviewSecret([7; 32]);

    fn revision(revision: i64, content_hash: &str, at: i64) -> Opening<'_> {
        Opening::Revision { dag: 1, revision: Revision(revision), content_hash, opened_at: Timestamp(at) }
    }

    fn task(execution: i64, at: i64) -> Opening<'static> {
        let run = RunId(uuid::Uuid::from_u128(1));
        Opening::Task { definition: 1, run, execution: ExecutionId(execution), opened_at: Timestamp(at) }
    }

    #[test]
    fn every_part_of_an_opening_changes_the_id() {
        let openings = [
            (SECRET, revision(1, "a", 1), 0),
            (SECRET, revision(2, "a", 1), 0),
            (SECRET, revision(1, "b", 1), 0),
            (SECRET, revision(1, "a", 2), 0),
            (SECRET, revision(1, "a", 1), 1),
            (ReviewSecret([8; 32]), revision(1, "a", 1), 0),
            (SECRET, task(1, 1), 0),
            (SECRET, task(2, 1), 0),
            (SECRET, task(1, 2), 0),
        ];
        let ids: BTreeSet<ReviewId> =
            openings.iter().map(|(secret, opening, turn)| ReviewId::derive(secret, opening, *turn)).collect();
        assert_eq!(ids.len(), openings.len());
    }

    #[test]
    fn an_id_says_what_it_is_for() {
        for at in 0..100 {
            assert_eq!(ReviewId::derive(&SECRET, &revision(1, "a", at), 0).kind(), ReviewKind::Revision);
            assert_eq!(ReviewId::derive(&SECRET, &task(1, at), 0).kind(), ReviewKind::Task);
        }
    }

    #[test]
    fn an_id_is_read_as_people_type_it() {
        for at in 0..100 {
            let id = ReviewId::derive(&SECRET, &revision(1, "a", at), 0);
            let text = id.to_string();
            assert_eq!(text.len(), 16, "{text}");
            assert_eq!(text.parse(), Ok(id));
            assert_eq!(text.to_uppercase().parse(), Ok(id));
            assert_eq!(format!("r-{}", text[2..].replace('-', "")).parse(), Ok(id));
            assert_eq!(text.replace('0', "o").replace('1', "L").parse(), Ok(id));
            assert_eq!(serde_json::from_value::<ReviewId>(serde_json::json!(id)).ok(), Some(id));
        }
        let same = ["r-0101-0000-0000", "R-OiOl-oooo-OOOO", "r-010100000000"].map(str::parse::<ReviewId>);
        assert!(same.iter().all(|id| *id == same[0] && id.is_ok()), "{same:?}");
    }

    #[test]
    fn a_part_of_a_hash_is_refused() {
        let hash = "0123456789abcdef".repeat(4);
        assert_eq!(check_content_hash(&hash), Ok(()));
        for length in 0..64 {
            assert_eq!(check_content_hash(&hash[..length]).unwrap_err().code, ErrorCode::ValidationFailed);
        }
        assert!(
            check_content_hash(&hash.to_uppercase()).is_err() && check_content_hash(&(hash + "0")).is_err()
        );
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "r-",
            "nightly",
            "7k3q-9xwm-t2bv",
            "r-7k3q-9xwm-t2b",
            "r-7k3q-9xwm-t2bvv",
            "r-7k3q-9xwm-t2bu",
        ] {
            assert_eq!(text.parse::<ReviewId>(), Err(BadReviewId(text.to_owned())));
        }
        assert!("r-\u{e9}k3q-9xwm-t2bv".parse::<ReviewId>().is_err());
    }
}
