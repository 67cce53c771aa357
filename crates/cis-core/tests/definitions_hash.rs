//! Every field of a definition is in its content hash: one that was not would escape what a person confirms.

#![allow(clippy::unwrap_used, dead_code)]

mod definitions_support;

use std::collections::BTreeMap;
use std::path::Path;

use cis_core::dag::{
    Approval, Dag, Defaults, Format, InputType, Kind, More, OnTimeout, Policy, RunIf, SkillCall, Task,
    content_hash, from_stored, parse, to_stored,
};
use cis_core::id::{DagId, Scope, TaskId, TaskIx};
use cis_core::retry::{Backoff, Retry};
use cis_core::source::Millis;
use definitions_support::random::dag;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Other values of the same type, each of which means something else.
trait Change: Sized {
    fn changes(&self) -> Vec<Self>;
}

/// Changes one field at a time. The fields are listed by name, and taken apart by that list without `..`: a field that
/// is not in it does not compile.
macro_rules! change_fields {
    ($of:ident { $($field:ident),+ $(,)? } $(but $($same:ident),+)?) => {
        impl Change for $of {
            fn changes(&self) -> Vec<Self> {
                let $of { $($field),+ $(, $($same: _),+)? } = self;
                let mut all = Vec::new();
                $(all.extend($field.changes().into_iter().map(|$field| $of { $field, ..self.clone() }));)+
                all
            }
        }
    };
}

change_fields!(Dag {
    description,
    target_node,
    priority,
    policy,
    max_parallel,
    timeout,
    queue_timeout,
    env,
    params,
    workdir,
    skills,
    tasks,
} but dag_id, scope);

change_fields!(Task { id, kind, depends_on, run_if, priority, idempotent, detach, debt_ignorable, more });

change_fields!(More {
    name,
    description,
    when,
    confirmed,
    retry,
    timeout,
    queue_timeout,
    grace,
    env,
    workdir,
    target_node,
    needs,
});

change_fields!(Retry { max, backoff, initial, cap, jitter, on_exit_codes });
change_fields!(SkillCall { skill, input });
change_fields!(Approval { prompt, input, on_timeout });

impl Change for Kind {
    fn changes(&self) -> Vec<Self> {
        let fields: Vec<Self> = match self {
            Self::Shell { command } => {
                command.changes().into_iter().map(|command| Self::Shell { command }).collect()
            }
            Self::Skill(call) => call.changes().into_iter().map(Self::Skill).collect(),
            Self::External { input } => {
                input.changes().into_iter().map(|input| Self::External { input }).collect()
            }
            Self::Approval(approval) => approval.changes().into_iter().map(Self::Approval).collect(),
        };
        let kinds = [
            Self::Shell { command: "x".into() },
            Self::Skill(Box::new(SkillCall { skill: "x".into(), input: Value::Null })),
            Self::External { input: Box::default() },
            Self::Approval(Box::default()),
        ];
        fields.into_iter().chain(kinds.into_iter().filter(|kind| kind.word() != self.word())).collect()
    }
}

impl Change for String {
    fn changes(&self) -> Vec<Self> {
        vec![format!("{self}x"), format!(" {self}"), String::new()]
            .into_iter()
            .filter(|c| c != self)
            .collect()
    }
}

impl Change for Box<str> {
    fn changes(&self) -> Vec<Self> {
        String::from(&**self).changes().into_iter().map(Into::into).collect()
    }
}

impl Change for bool {
    fn changes(&self) -> Vec<Self> {
        vec![!self]
    }
}

macro_rules! change_numbers {
    ($($number:ty),+) => {
        $(impl Change for $number {
            fn changes(&self) -> Vec<Self> {
                vec![self + 1, self + 1_000]
            }
        })+
    };
}

change_numbers!(i32, u32, u64);

impl Change for Millis {
    fn changes(&self) -> Vec<Self> {
        self.0.changes().into_iter().map(Millis).collect()
    }
}

macro_rules! change_words {
    ($($word:ty),+) => {
        $(impl Change for $word {
            fn changes(&self) -> Vec<Self> {
                <$word>::WORDS.into_iter().map(|(_, value)| value).filter(|value| value != self).collect()
            }
        })+
    };
}

change_words!(Policy, RunIf, OnTimeout, InputType);

impl Change for Backoff {
    fn changes(&self) -> Vec<Self> {
        vec![match self {
            Self::Fixed => Self::Exponential,
            Self::Exponential => Self::Fixed,
        }]
    }
}

impl Change for TaskId {
    fn changes(&self) -> Vec<Self> {
        vec![format!("{self}x").parse().unwrap()]
    }
}

/// Absent, and everything that another value can be.
impl<T: Change + Clone + Sample> Change for Option<T> {
    fn changes(&self) -> Vec<Self> {
        match self {
            Some(value) => value.changes().into_iter().map(Some).chain([None]).collect(),
            None => vec![Some(T::sample())],
        }
    }
}

impl<T: Change> Change for Box<T> {
    fn changes(&self) -> Vec<Self> {
        (**self).changes().into_iter().map(Box::new).collect()
    }
}

/// A value to put where there was none: not what its absence means.
trait Sample {
    fn sample() -> Self;
}

macro_rules! sample {
    ($($of:ty => $value:expr),+ $(,)?) => {
        $(impl Sample for $of {
            fn sample() -> Self {
                $value
            }
        })+
    };
}

sample! {
    String => String::new(),
    u32 => 0,
    Millis => Millis(0),
    Retry => Retry::default(),
    Value => json!({"a": [1]}),
    InputType => InputType::Number,
    // One without settings means the same as none.
    Box<More> => Box::new(More { confirmed: true, ..More::default() }),
}

impl<T: Change + Clone + Sample> Change for BTreeMap<String, T> {
    fn changes(&self) -> Vec<Self> {
        let with = |name: &str, value: T| {
            let mut map = self.clone();
            map.insert(name.to_owned(), value);
            map
        };
        let mut all = vec![with("another", T::sample())];
        for (name, value) in self {
            all.extend(value.changes().into_iter().map(|value| with(name, value)));
            let mut without = self.clone();
            without.remove(name);
            all.extend([without.clone()]);
            without.insert(format!("{name}x"), value.clone());
            all.push(without);
        }
        all
    }
}

impl Change for Value {
    fn changes(&self) -> Vec<Self> {
        let others = [json!({}), json!([]), json!("x"), json!(0), json!(true), json!([self])];
        let inside: Vec<Self> = match self {
            Self::String(text) => text.changes().into_iter().map(Self::String).collect(),
            Self::Number(number) => number.as_i64().map(|n| json!(n - n.signum())).into_iter().collect(),
            Self::Array(items) => vec![items.iter().cloned().chain([json!(1)]).collect()],
            _ => Vec::new(),
        };
        others.into_iter().chain(inside).filter(|value| value != self).collect()
    }
}

impl Change for Box<[TaskIx]> {
    fn changes(&self) -> Vec<Self> {
        let without = self.iter().filter(|ix| ix.0 > 0).copied();
        vec![if self.contains(&TaskIx(0)) {
            without.collect()
        } else {
            [TaskIx(0)].into_iter().chain(without).collect()
        }]
    }
}

macro_rules! change_lists {
    ($($of:ty => $another:expr),+ $(,)?) => {
        $(impl Change for Vec<$of> {
            fn changes(&self) -> Vec<Self> {
                let mut all: Vec<Self> = vec![self.iter().cloned().chain([$another]).collect()];
                for (at, item) in self.iter().enumerate() {
                    let with = |item| {
                        let mut list = self.clone();
                        list[at] = item;
                        list
                    };
                    all.extend(item.changes().into_iter().map(with));
                }
                if let Some((_, fewer)) = self.split_last() {
                    all.push(fewer.to_vec());
                }
                all
            }
        })+
    };
}

change_lists! {
    String => "another".to_owned(),
    i32 => 77,
    Task => Task {
        id: "another".parse().unwrap(),
        kind: Kind::Shell { command: "true".into() },
        depends_on: Box::default(),
        run_if: RunIf::default(),
        priority: 0,
        idempotent: false,
        detach: false,
        debt_ignorable: false,
        more: None,
    },
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changing_any_field_changes_the_hash(dag in dag()) {
        let (hash, stored) = (content_hash(&dag), to_stored(&dag));
        for changed in dag.changes() {
            let new = to_stored(&changed);
            prop_assert_ne!(content_hash(&changed), hash.clone(), "\n{}\n{}", stored, new);
            prop_assert_ne!(&new, &stored);
            // A store gives back what it was given, the changed field included.
            prop_assert_eq!(from_stored(&new).unwrap(), changed);
        }
        prop_assert_eq!(content_hash(&from_stored(&stored).unwrap()), hash, "and back");
    }

    #[test]
    fn changing_the_address_leaves_the_hash(dag in dag()) {
        let (dag_id, scope): (DagId, Scope) = ("other".parse().unwrap(), "project-x".parse().unwrap());
        let hash = content_hash(&dag);
        prop_assert_eq!(content_hash(&Dag { dag_id, ..dag.clone() }), hash.clone());
        prop_assert_eq!(content_hash(&Dag { scope, ..dag.clone() }), hash);
    }
}

/// Hashes are stored and confirmed: what one was, it stays. From an earlier version of this program.
const GOLDEN: [(&str, &str); 9] = [
    ("definition-json/mirrors.json", "99f226e7c973218410fa57287272230118e636c2b2faa396282c5dcdf72a99ff"),
    ("definition-json/simple.json", "ced800b1f881c3c9ad1a4400e9e00d9ade74f4c12755661c091f97c93291b337"),
    ("definition-toml/everything.toml", "9515408a0b08729bd33bcbb42422aed86530252336634e839ae48a65cef33a25"),
    ("definition-toml/wrapped.toml", "c7f22deaee692f11ab7995fc05cc61df72fe190a71741d01c2438f445f21ef64"),
    ("definition-toml/cleanup.toml", "b9c47796300065dee33a738e617976fd4ac29429e6fa3315248795c0e863670b"),
    ("definition-toml/ci.toml", "9feeec2c0406a8ed54c2620089b8db945bc1da84f127be842ec8b6c52c8138c4"),
    ("definition-toml/first.toml", "f78c16650f71a531558e574d2cd1ac7fb8b22e24105a8a4b99f3981d4eb494f7"),
    ("definition-yaml/bare.yml", "63ea3ff7c3ad2e13f9b68fb6a633f01700c80b1e1be48d5f419ee36d254c026e"),
    ("definition-yaml/shards.yaml", "eafb42ed3ff54cf5c9d7a94553c89a26267345374d6ad30bbc6562411a4f226a"),
];

#[test]
fn hashes_of_earlier_versions_still_hold() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cis-fuzz/corpus");
    for (file, hash) in GOLDEN {
        let (text, format) = (std::fs::read(corpus.join(file)).unwrap(), format(file));
        let defaults = Defaults { dag_id: Some("stem".to_owned()), scope: None };
        let parsed = parse(&text, format, &defaults).unwrap();
        assert_eq!(content_hash(&parsed.dag).as_str(), hash, "{file}");
    }
}

fn format(file: &str) -> Format {
    match file.rsplit_once('.') {
        Some((_, "toml")) => Format::Toml,
        Some((_, "json")) => Format::Json,
        _ => Format::Yaml,
    }
}
