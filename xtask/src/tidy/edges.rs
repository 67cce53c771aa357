//! One way in: callers reach the store through the app of `cis-engine` and nothing else. The edges, which are the HTTP server and
//! the command line, may read; what they may name of the store stands in one table. What answers a call stands in one place.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::repo;

/// The crate whose names are counted, as code writes it. In two parts, so that this file does not name it.
const STORE: &str = concat!("cis_", "store");

/// Where calls are answered.
const APP: &str = "crates/cis-engine/src/app/";

/// Each edge, with every name of the store that it may use, and why. None of them writes.
const MAY_NAME: [(&str, &str, &str); 9] = [
    ("crates/cis-server/src/", "Reader", "what is followed is read as it grows"),
    ("crates/cis-server/src/", "Pulse", "what was read may be told again while nothing has changed"),
    ("crates/cis-server/src/", "Written", "how much was written, for meters"),
    ("crates/cis-server/src/", "census", "how much there is, for meters"),
    ("crates/cis-server/src/", "port::Once", "an answer, and whether it was given before"),
    ("crates/cis-server/src/", "port::IdempotencyKey", "it comes in a header"),
    ("crates/cis/src/", "Reader", "what is shown is read from the data directory, coordinator or not"),
    ("crates/cis/src/", "rows::Keyed", "what a `Reader` answers"),
    ("crates/cis/src/", "rows::RunRow", "what a `Reader` answers"),
];

/// Every place where an edge names more of the store than it may, or where a call is answered beside the app; and every name
/// of the table that no edge needs any more.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut unused = MAY_NAME.to_vec();
    for file in repo::files(&root.join("crates"))? {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        if name.ends_with(".rs") {
            let text = fs::read_to_string(&file)?;
            broken.extend(wrong(&name, &text));
            unused.retain(|(edge, allowed, _)| !(name.starts_with(edge) && uses(&text, allowed)));
        }
    }
    broken.extend(unused.iter().map(|(edge, allowed, _)| {
        format!(
            "xtask/src/tidy/edges.rs: `{edge}` names `{STORE}::{allowed}` no more: take it from the table"
        )
    }));
    Ok(broken)
}

fn wrong(name: &str, text: &str) -> Vec<String> {
    let code = without_comments(text);
    let mut broken = Vec::new();
    let may: Vec<&str> =
        MAY_NAME.iter().filter(|(edge, ..)| name.starts_with(edge)).map(|(_, named, _)| *named).collect();
    if !may.is_empty() {
        let is_allowed = |named: &String| may.iter().any(|allowed| is_within(named, allowed));
        for named in names_of_store(&code).into_iter().filter(|named| !is_allowed(named)) {
            broken.push(format!(
                "{name}: names `{STORE}::{named}`: an edge calls the app; what it may name is in `xtask/src/tidy/edges.rs`"
            ));
        }
    }
    if !name.starts_with(APP) && answers_a_call(&code) {
        broken.push(format!("{name}: answers a call: only `{APP}` does"));
    }
    broken
}

fn uses(text: &str, allowed: &str) -> bool {
    names_of_store(&without_comments(text)).iter().any(|named| is_within(named, allowed))
}

/// Is it this name, or one below it?
fn is_within(named: &str, allowed: &str) -> bool {
    named.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The same without what follows `//` in a line.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// What code names of the store, each in full; `*` for the crate as a whole, which could be called anything then.
fn names_of_store(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (_, rest) in words(code, STORE) {
        match rest.trim_start().strip_prefix("::") {
            Some(tree) => drop(expand(tree, "", &mut names)),
            None => names.push("*".to_owned()),
        }
    }
    names
}

/// Every place at which `word` stands alone: what comes before it, and after.
fn words<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    text.match_indices(word)
        .map(move |(at, _)| (&text[..at], &text[at + word.len()..]))
        .filter(|(before, after)| !before.ends_with(is_word) && !after.starts_with(is_word))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Adds every name of a path like `a::{b, c::D as E}`; answers what follows it.
fn expand<'t>(tree: &'t str, before: &str, names: &mut Vec<String>) -> &'t str {
    let tree = tree.trim_start();
    if let Some(mut rest) = tree.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.is_empty() {
                return rest;
            }
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = expand(rest, before, names);
            // A renaming, or what no path has: on to the next.
            rest = &rest[rest.find([',', '}']).unwrap_or(rest.len())..];
        }
    }
    let end = tree.find(|c| !is_word(c) && c != '*').unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    let path = match (before, name) {
        (_, "" | "self") => before.to_owned(),
        ("", name) => name.to_owned(),
        (before, name) => format!("{before}::{name}"),
    };
    match rest.trim_start().strip_prefix("::") {
        Some(deeper) => expand(deeper, &path, names),
        None => {
            names.push(path);
            rest
        }
    }
}

/// Does code implement the trait by which the app answers?
fn answers_a_call(code: &str) -> bool {
    words(code, "impl").any(|(_, rest)| {
        let rest = without_generics(rest.trim_start()).trim_start();
        let end = rest.find(|c| !is_word(c) && c != ':').unwrap_or(rest.len());
        let (path, rest) = rest.split_at(end);
        path.rsplit("::").next() == Some("Answer") && rest.starts_with('<')
    })
}

fn without_generics(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => return &code[at..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn using(what: &str) -> String {
        format!("//! Of `{STORE}::SqliteStore`.\nuse {STORE}{what}\n")
    }

    #[test]
    fn an_edge_may_read() {
        for (edge, named, why) in MAY_NAME {
            assert!(!why.is_empty());
            assert!(wrong(&format!("{edge}a.rs"), &using(&format!("::{named};"))).is_empty(), "{named}");
        }
        let several =
            using("::{\n    Pulse, Reader,\n    census::Census,\n    port::{IdempotencyKey, Once},\n};");
        assert!(wrong("crates/cis-server/src/hub.rs", &several).is_empty());
        let inline = format!("let look = |reader: &{STORE}::Reader| {STORE}::Reader::open(file);");
        assert!(wrong("crates/cis/src/command/run.rs", &inline).is_empty());
    }

    #[test]
    fn an_edge_that_names_what_writes_is_told() {
        for (what, named) in [
            ("::SqliteStore;", "SqliteStore"),
            ("::{Reader, SqliteStore as Store};", "SqliteStore"),
            ("::port::{Once, Publish};", "port::Publish"),
            ("::{\n    Reader,\n    port::{self, Once},\n};", "port"),
            ("::port::CoordinatorStore as _;", "port::CoordinatorStore"),
            ("::*;", "*"),
            (" as store;", "*"),
            ("::ReaderOfEverything;", "ReaderOfEverything"),
        ] {
            let told = wrong("crates/cis-server/src/route/own.rs", &using(what));
            assert_eq!(told.len(), 1, "{what}: {told:?}");
            assert!(told[0].contains(&format!("`{STORE}::{named}`")), "{what}: {told:?}");
        }
        assert_eq!(wrong("crates/cis/src/command/run.rs", &using("::Pulse;")).len(), 1, "another edge's");
        assert!(wrong("crates/cis-engine/src/host.rs", &using("::SqliteStore;")).is_empty(), "no edge");
        assert!(wrong("crates/cis/tests/prune.rs", &using("::SqliteStore;")).is_empty(), "a test");
    }

    #[test]
    fn a_call_that_is_answered_beside_the_app_is_told() {
        for code in [
            "impl Answer<ShowRun> for App {",
            "impl<C: Read<Of = Vec<u8>>> Answer<C> for App {",
            "impl cis_engine::app::Answer<Mine> for App {",
        ] {
            assert_eq!(wrong("crates/cis-server/src/route/own.rs", code).len(), 1, "{code}");
            assert_eq!(wrong("crates/cis-engine/src/app/work.rs", code), Vec::<String>::new());
        }
        for code in
            ["impl Answer {", "fn f() -> impl Future<Output = Answer<u8>> {", "fn f() -> Answer<u8> {"]
        {
            assert_eq!(wrong("crates/cis-client/src/stream.rs", code), Vec::<String>::new(), "{code}");
        }
    }
}
