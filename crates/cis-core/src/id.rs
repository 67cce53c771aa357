//! Newtypes for everything that is counted or named, so that bare strings and integers stop at the edge.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Longest name of a DAG, a task or a scope.
pub const NAME_MAX: usize = 128;

/// Is `text` a name: `[A-Za-z0-9._-]{1,128}`, not `.` or `..` (names become parts of file paths)?
pub fn is_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && text != "."
        && text != ".."
}

/// A name outside the alphabet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name: use 1 to {NAME_MAX} of A-Z a-z 0-9 . _ -")]
pub struct BadName(pub String);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[schema(value_type = String, pattern = "^[A-Za-z0-9._-]+$", min_length = 1, max_length = 128)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// The text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                if is_name(text) { Ok(Self(text.into())) } else { Err(BadName(text.to_owned())) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.into()
            }
        }
    };
}

name! {
    /// What people call a DAG; unique within its scope.
    DagId
}
name! {
    /// What people call a task; unique within its DAG.
    TaskId
}
name! {
    /// Where a DAG belongs: `global`, `project-{x}` or `user-{y}`.
    Scope
}

impl Scope {
    /// The scope of everything that names none.
    pub fn global() -> Self {
        Self("global".into())
    }

    /// Is this one of the three shapes a definition may ask for?
    pub fn is_well_formed(text: &str) -> bool {
        let tail = |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
        is_name(text) && (text == "global" || tail("project-") || tail("user-"))
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// One row of `dag_runs`: a run, inside one store.
    RunKey(i64)
}
number! {
    /// One row of `task_executions`: a task of a run.
    ExecutionId(i64)
}
number! {
    /// A task's place in its DAG's file, from 0.
    TaskIx(u32)
}
number! {
    /// Counts the contents a DAG has had, from 1.
    Revision(i64)
}
number! {
    /// Counts the state changes of one row.
    Version(i64)
}
number! {
    /// An event's place in the log of its store.
    Position(i64)
}
number! {
    /// One life of a coordinator; made durable before it does anything, never reused. A life that has granted all the
    /// fences of its epoch takes the next epoch for more, so lives need not be numbered without gaps.
    Epoch(i64)
}
number! {
    /// The exclusive right to one attempt. Grows with every claim, is never reused: its high part is the [`Epoch`] it was
    /// granted in, its low part counts from there. Below 2^53, so that it is exact as a double, which is what a JSON
    /// number is to JavaScript and others.
    Fence(i64)
}

impl TaskIx {
    /// As an index into a slice.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Epoch {
    /// The last one that has fences: 33 bits of epoch and 20 of count make 53.
    pub const MAX: Self = Self((1 << 33) - 1);
}

impl Fence {
    const COUNT_BITS: u32 = 20;

    /// How many fences an epoch has.
    pub const COUNT_MAX: u32 = (1 << Self::COUNT_BITS) - 1;

    /// The `count`th fence of an epoch, from 1; nothing, if it has no such fence.
    pub fn new(epoch: Epoch, count: u32) -> Option<Self> {
        let is_one = (0..=Epoch::MAX.0).contains(&epoch.0) && (1..=Self::COUNT_MAX).contains(&count);
        is_one.then(|| Self((epoch.0 << Self::COUNT_BITS) | i64::from(count)))
    }

    /// The epoch it was granted in.
    pub fn epoch(self) -> Epoch {
        Epoch(self.0 >> Self::COUNT_BITS)
    }
}

/// One execution of one confirmed revision. Chosen by whoever asks for the run, so that asking again is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, format = "uuid")]
#[serde(transparent)]
pub struct RunId(pub uuid::Uuid);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RunId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_keep_to_the_alphabet() {
        for good in ["a", "backup_daily", "v1.2-rc", &"x".repeat(128)] {
            assert!(good.parse::<DagId>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a b", "ä", "a/b", &"x".repeat(129)] {
            assert!(bad.parse::<DagId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn scopes_have_three_shapes() {
        for good in ["global", "project-a", "user-ann"] {
            assert!(Scope::is_well_formed(good), "{good}");
        }
        for bad in ["", "project-", "team-x", "Global"] {
            assert!(!Scope::is_well_formed(bad), "{bad}");
        }
    }

    #[test]
    fn the_last_fence_is_below_2_to_the_53() {
        let last = Fence::new(Epoch::MAX, Fence::COUNT_MAX).unwrap();
        assert_eq!(last.0, (1 << 53) - 1);
        assert_eq!(Fence::new(Epoch(Epoch::MAX.0 + 1), 1), None);
        assert_eq!(Fence::new(Epoch(1), Fence::COUNT_MAX + 1), None);
    }

    proptest! {
        #[test]
        fn fences_are_exact_as_doubles_and_ordered_by_epoch_and_count(
            one in (0..=Epoch::MAX.0, 1..=Fence::COUNT_MAX),
            other in (0..=Epoch::MAX.0, 1..=Fence::COUNT_MAX),
        ) {
            let fence = |(epoch, count)| Fence::new(Epoch(epoch), count).unwrap();
            prop_assert_eq!(fence(one).cmp(&fence(other)), one.cmp(&other));
            prop_assert_eq!(fence(one).epoch(), Epoch(one.0));
            prop_assert_eq!(fence(one).0 as f64 as i64, fence(one).0);
        }
    }
}
