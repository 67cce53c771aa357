//! The DAG file, with comments for whoever edits it next.

use std::fmt::Write as _;

use super::Found;

/// A DAG of the steps that were found.
pub(super) fn steps(dag_id: &str, found: &[Found]) -> String {
    let files: Vec<&str> = found.iter().map(|found| found.file).collect();
    // Writing to a string cannot fail.
    let mut text = String::new();
    let _ =
        writeln!(text, "# Written by `cis init` from {}. Run it with `cis run dag.toml`.", files.join(", "));
    text.push_str("# Tasks run as soon as what they depend on is done, side by side where they can.\n\n");
    let _ = writeln!(text, "dag_id = {}", quote(dag_id));
    for step in found.iter().flat_map(|found| &found.steps) {
        let _ = write!(text, "\n[[tasks]]\nid = {}\ncommand = {}\n", quote(&step.id), quote(&step.command));
        if !step.after.is_empty() {
            let after: Vec<String> = step.after.iter().map(|id| quote(id)).collect();
            let _ = writeln!(text, "depends_on = [{}]", after.join(", "));
        }
    }
    text
}

/// A DAG to edit, for a directory that tells nothing.
pub(super) fn example(dag_id: &str) -> String {
    EXAMPLE.replace("\"DAG_ID\"", &quote(dag_id))
}

/// A string as TOML writes it.
fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

const EXAMPLE: &str = r#"# Written by `cis init`. Run it with `cis run dag.toml`, look at it with `cis dag graph dag.toml`.

dag_id = "DAG_ID"
description = "A first DAG to edit"

# Defaults; `cis run dag.toml --param who=you` overrides them.
params = { who = "world" }

[[tasks]]
id = "greet"
command = 'echo "Hello, $WHO"; echo "greeted=$WHO" >> "$CIS_OUTPUT"'
# Values reach a command through its environment only, so none of them can become code.
env = { WHO = "{{ params.who }}" }

# These two run side by side, as soon as `greet` is done.
[[tasks]]
id = "left"
depends_on = ["greet"]
command = "sleep 0.2; echo left"

[[tasks]]
id = "right"
depends_on = ["greet"]
command = "sleep 0.1; echo right"
# Tried again when it fails: twice, after 1s and 2s.
retry = { max = 2, initial = "1s" }
timeout = "1m"

[[tasks]]
id = "together"
depends_on = ["left", "right"]
command = 'echo "$GREETED has been greeted"'
# What an earlier task wrote to `$CIS_OUTPUT`.
env = { GREETED = "{{ tasks.greet.outputs.greeted }}" }
"#;
