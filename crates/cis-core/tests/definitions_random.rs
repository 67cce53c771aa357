//! No input makes the parser panic: random bytes, and valid documents with a few bytes changed.

#![allow(clippy::unwrap_used, dead_code)]

mod definitions_support;

use cis_core::dag::{Defaults, Format, content_hash, from_stored, parse, to_stored};
use definitions_support::{FORMATS, WRAPPERS, base, render, wrap};
use proptest::prelude::*;

/// Reads `text` in every format; whatever is accepted must survive being stored, and whatever is refused must say
/// something about a place inside the file.
fn read(text: &[u8]) {
    for format in FORMATS.into_iter().chain([Format::guess(text)]) {
        let defaults = Defaults { dag_id: Some("x".to_owned()), scope: None };
        match parse(text, format, &defaults) {
            Ok(parsed) => {
                let back = from_stored(&to_stored(&parsed.dag)).unwrap();
                assert_eq!(back, parsed.dag);
                assert_eq!(content_hash(&back), content_hash(&parsed.dag));
            }
            Err(problems) => {
                assert!(!problems.is_empty());
                let lines = text.iter().filter(|b| **b == b'\n').count() + 1;
                assert!(
                    problems.iter().all(|p| p.line.is_none_or(|line| (1..=lines).contains(&(line as usize))))
                );
            }
        }
    }
}

fn documents() -> Vec<String> {
    let mut documents = vec![
        "a: &x {b: [1, *y]}\nc: *x\n? k\n: v\n--- !!map\n".to_owned(),
        "tasks:\n  - &t {id: a, command: \"x\", env: {A: 0x1F, B: 1.10, C: 007}}\n  - *t\n".to_owned(),
        "a.b.c = 1979-05-27T07:32:00Z\n[[tasks]]\nid = '''a'''\n[tasks.env]\n\"\\u00e9\" = +inf\n".to_owned(),
    ];
    for wrapper in WRAPPERS {
        for format in FORMATS {
            documents.push(render(&wrap(wrapper, &base()), format));
        }
    }
    documents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        read(&text);
    }

    #[test]
    fn random_marks(text in "[\\[\\]{}:,=\"'\\-#&*!|>?%@`~.<0-9a-d \n\t\\\\]{0,120}") {
        read(text.as_bytes());
    }

    #[test]
    fn random_words(words in proptest::collection::vec(prop::sample::select(vec![
        "tasks", "id", "command", "depends_on", "env", "retry", "level", "when", "dag", "skill", ":", "=", "\n", "  ", "- ",
        "[[", "]]", "[", "]", "{", "}", ",", "\"", "'", "a", "1", "1e9", "true", "null", "{{", "}}", "&a", "*a", "<<", "|", ">",
    ]), 0..60)) {
        read(words.concat().as_bytes());
    }

    #[test]
    fn changed_documents(
        pick in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6),
    ) {
        let documents = documents();
        let mut text = pick.get(&documents).clone().into_bytes();
        for (place, byte, how) in changes {
            let at = place.index(text.len().max(1));
            match how {
                0 => text.insert(at, byte),
                1 => drop(text.splice(at..(at + usize::from(byte % 16)).min(text.len()), [])),
                2 => text.truncate(at),
                _ => if let Some(old) = text.get_mut(at) { *old = byte },
            }
        }
        read(&text);
    }
}
