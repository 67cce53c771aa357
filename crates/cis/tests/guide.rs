//! The guide, followed word by word: every shell block of `docs/guide-five-agents.md` is run, in order, in one shell, and
//! answers what stands below it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{EXE, Node, Running};

const GUIDE: &str = include_str!("../../../docs/guide-five-agents.md");

/// What stands between the answers of two blocks.
const MARK: &str = "\u{1e}";

/// A shell block, and what the guide says it answers, if it says so.
struct Step {
    script: &'static str,
    answer: Option<&'static str>,
}

/// The fenced blocks of a page: language and text.
fn blocks(page: &'static str) -> Vec<(&'static str, &'static str)> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').unwrap_or((block, ""))).collect()
}

fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (language, text) in blocks(GUIDE) {
        match language {
            "sh" => steps.push(Step { script: text, answer: None }),
            "text" => steps.last_mut().expect("an answer without a question").answer = Some(text),
            other => panic!("a block of `{other}`: the guide has `sh` and `text`"),
        }
    }
    steps
}

/// Whether a text is as the guide shows it, where `…` stands for anything.
fn is_as_shown(text: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        // The end of what is shown is the end of the text, however often it occurs before.
        last = Some((rest, part));
        rest = after;
    }
    last.map_or(rest.is_empty(), |(rest, part)| rest.ends_with(part))
}

/// A loopback address that no other process has a reason to use: the guide's port stays as it is.
fn address() -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{c}:6767", 128 | (a & 127))
}

#[test]
fn the_guide_does_what_it_says() {
    let node = Node::new();
    let home = node.path("home");
    std::fs::create_dir(&home).unwrap();
    let address = address();
    let steps = steps();
    let told: String = steps.iter().map(|step| format!("{}\nprintf '{MARK}'\n", step.script)).collect();
    let script = told
        .replace("cis node start", &format!("cis node start -b {address}"))
        .replace("127.0.0.1:6767", &address);
    let path = std::env::var("PATH").unwrap();
    let programs = Path::new(EXE).parent().unwrap().display();
    // A shell in the surroundings that the commands of other tests have.
    let mut shell = Command::new("sh");
    shell.args(["-ec", &format!("exec 2>&1\n{script}")]).current_dir(&home);
    shell.env_clear().envs(node.bare().get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env("PATH", format!("{programs}:{path}"));
    let ran = Running::start(shell).wait();
    let answers: Vec<&str> = ran.out.split(MARK).collect();
    for (step, answer) in steps.iter().zip(&answers) {
        let Some(shown) = step.answer else { continue };
        assert!(
            is_as_shown(answer.trim_end(), shown),
            "{}\n--- answers\n{answer}\n--- not\n{shown}",
            step.script
        );
    }
    ran.code(0);
}

#[test]
fn what_is_shown_is_compared() {
    assert!(is_as_shown("took 3ms, took 4ms", "took …, took …ms"));
    assert!(is_as_shown("a b a", "a…a"));
    assert!(!is_as_shown("a b a c", "a…a"));
    assert!(!is_as_shown("a", "a…a"));
    assert!(!is_as_shown("a", "b"));
}
