//! What each build tool's files say there is to do.
//!
//! Only steps that check, build or test are taken: nothing that installs into the system, publishes, deploys or
//! cleans up should run because someone tried CIS.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Found, Step};

/// The usual steps and when they come: formatting first, since it may change files; then checks and building
/// side by side; then what needs a build.
const USUAL: [(&str, Stage); 25] = [
    ("fmt", Stage::Format),
    ("format", Stage::Format),
    ("fmt-check", Stage::Check),
    ("fmt:check", Stage::Check),
    ("format-check", Stage::Check),
    ("format:check", Stage::Check),
    ("lint", Stage::Check),
    ("vet", Stage::Check),
    ("clippy", Stage::Check),
    ("typecheck", Stage::Check),
    ("type-check", Stage::Check),
    ("tsc", Stage::Check),
    ("build", Stage::Build),
    ("compile", Stage::Build),
    ("test", Stage::Test),
    ("tests", Stage::Test),
    ("check", Stage::Test),
    ("test-unit", Stage::Test),
    ("test:unit", Stage::Test),
    ("unit-test", Stage::Test),
    ("test-integration", Stage::Test),
    ("test:integration", Stage::Test),
    ("integration-test", Stage::Test),
    ("e2e", Stage::Test),
    ("test:e2e", Stage::Test),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Format,
    Check,
    Build,
    Test,
}

/// Everything found in `dir`, with ids that are unique and dependencies that hold.
pub(super) fn detect(dir: &Path, has: &dyn Fn(&str) -> bool) -> Vec<Found> {
    if let Some(found) = makefile(dir, has) {
        return vec![found];
    }
    let tools = [node(dir), cargo(dir, has), go(dir, has), python(dir, has)];
    let mut found: Vec<Found> = tools.into_iter().flatten().filter(|found| !found.steps.is_empty()).collect();
    if found.len() > 1 {
        found.iter_mut().for_each(prefix);
    }
    found
}

/// Tells the steps of several tools apart.
fn prefix(found: &mut Found) {
    let tool = match found.file {
        "package.json" => "node",
        "Cargo.toml" => "cargo",
        "go.mod" => "go",
        _ => "python",
    };
    for step in &mut found.steps {
        step.id = format!("{tool}-{}", step.id);
        for after in &mut step.after {
            *after = format!("{tool}-{after}");
        }
    }
}

fn makefile(dir: &Path, has: &dyn Fn(&str) -> bool) -> Option<Found> {
    // The order in which make itself looks.
    let file = ["GNUmakefile", "makefile", "Makefile"].into_iter().find(|file| dir.join(file).is_file())?;
    if !has("make") {
        return None;
    }
    let text = fs::read_to_string(dir.join(file)).ok()?;
    let targets: Vec<&str> = text.lines().flat_map(targets).collect();
    let steps = staged(&targets, |target| format!("make {target}"));
    (!steps.is_empty()).then_some(Found { file, steps })
}

/// The targets a line defines; none for assignments, recipes, patterns and variables.
fn targets(line: &str) -> Vec<&str> {
    if line.starts_with(['\t', '#', ' ', '.']) {
        return Vec::new();
    }
    match line.split_once(':') {
        Some((names, rest))
            if !rest.starts_with('=') && !rest.starts_with(":=") && !names.contains(['=', '$', '%']) =>
        {
            names.split_whitespace().collect()
        }
        _ => Vec::new(),
    }
}

fn node(dir: &Path) -> Option<Found> {
    let package: Value = serde_json::from_str(&fs::read_to_string(dir.join("package.json")).ok()?).ok()?;
    let manager =
        [("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun")]
            .into_iter()
            .find_map(|(lock, manager)| dir.join(lock).is_file().then_some(manager))
            .unwrap_or("npm");
    let scripts = package.get("scripts").and_then(Value::as_object)?;
    // What `npm init` writes as its test fails on purpose.
    let real =
        |name: &str| !scripts.get(name).and_then(Value::as_str).unwrap_or("").contains("no test specified");
    let names: Vec<&str> = scripts.keys().map(String::as_str).filter(|name| real(name)).collect();
    let mut steps = staged(&names, |script| format!("{manager} run {script}"));
    let needs = ["dependencies", "devDependencies"]
        .iter()
        .any(|key| package.get(key).and_then(Value::as_object).is_some_and(|needs| !needs.is_empty()));
    if needs && !steps.is_empty() {
        for step in steps.iter_mut().filter(|step| step.after.is_empty()) {
            step.after.push("install".to_owned());
        }
        let install = match manager {
            "npm" if dir.join("package-lock.json").is_file() => "npm ci".to_owned(),
            manager => format!("{manager} install"),
        };
        let command = format!("test -d node_modules || {install}");
        steps.insert(0, Step { id: "install".to_owned(), command, after: Vec::new() });
    }
    Some(Found { file: "package.json", steps })
}

fn cargo(dir: &Path, has: &dyn Fn(&str) -> bool) -> Option<Found> {
    let manifest: toml::Table = fs::read_to_string(dir.join("Cargo.toml")).ok()?.parse().ok()?;
    let workspace = if manifest.contains_key("workspace") { " --workspace" } else { "" };
    if !has("cargo") {
        return None;
    }
    let mut steps = Vec::new();
    if has("rustfmt") || has("cargo-fmt") {
        steps.push(step("fmt", "cargo fmt --all --check".to_owned(), &[]));
    }
    // One after the other: they would wait for each other's lock on the build directory anyway.
    let clippy = has("cargo-clippy");
    if clippy {
        steps.push(step("clippy", format!("cargo clippy{workspace} --all-targets"), &[]));
    }
    steps.push(step("build", format!("cargo build{workspace}"), if clippy { &["clippy"] } else { &[] }));
    steps.push(step("test", format!("cargo test{workspace}"), &["build"]));
    Some(Found { file: "Cargo.toml", steps })
}

fn go(dir: &Path, has: &dyn Fn(&str) -> bool) -> Option<Found> {
    if !dir.join("go.mod").is_file() || !has("go") {
        return None;
    }
    let steps = vec![
        step("vet", "go vet ./...".to_owned(), &[]),
        step("build", "go build ./...".to_owned(), &[]),
        step("test", "go test ./...".to_owned(), &["build"]),
    ];
    Some(Found { file: "go.mod", steps })
}

fn python(dir: &Path, has: &dyn Fn(&str) -> bool) -> Option<Found> {
    let project: toml::Table = fs::read_to_string(dir.join("pyproject.toml")).ok()?.parse().ok()?;
    let tool = |name: &str| project.get("tool").and_then(|tool| tool.get(name)).is_some();
    let uv = dir.join("uv.lock").is_file() && has("uv");
    let run = |command: &str| {
        if uv { format!("uv run {command}") } else { command.to_owned() }
    };
    let can = |program: &str| uv || has(program);
    let mut steps = Vec::new();
    if (tool("ruff") || dir.join("ruff.toml").is_file()) && can("ruff") {
        steps.push(step("lint", run("ruff check ."), &[]));
    }
    if (tool("mypy") || dir.join("mypy.ini").is_file()) && can("mypy") {
        steps.push(step("typecheck", run("mypy ."), &[]));
    }
    if (tool("pytest") || dir.join("tests").is_dir()) && can("pytest") {
        steps.push(step("test", run("pytest"), &[]));
    }
    Some(Found { file: "pyproject.toml", steps })
}

fn step(id: &str, command: String, after: &[&str]) -> Step {
    Step { id: id.to_owned(), command, after: after.iter().map(|id| (*id).to_owned()).collect() }
}

/// The usual steps among `names`, each after those of the stages before that it needs.
fn staged(names: &[&str], command: impl Fn(&str) -> String) -> Vec<Step> {
    // By id, so that `test:unit` and `test-unit` are one.
    let mut known: BTreeMap<String, (Stage, &str)> = BTreeMap::new();
    for (usual, stage) in USUAL {
        if names.contains(&usual) {
            known.entry(usual.replace(':', "-")).or_insert((stage, usual));
        }
    }
    let of = |wanted: Stage| {
        known.iter().filter(move |(_, (stage, _))| *stage == wanted).map(|(id, _)| id.clone())
    };
    let mut steps: Vec<(Stage, Step)> = known
        .iter()
        .map(|(id, (stage, name))| {
            let formats: Vec<String> = of(Stage::Format).collect();
            let builds: Vec<String> = of(Stage::Build).collect();
            let after = match stage {
                Stage::Format => Vec::new(),
                Stage::Test if !builds.is_empty() => builds,
                Stage::Check | Stage::Build | Stage::Test => formats,
            };
            (*stage, Step { id: id.clone(), command: command(name), after })
        })
        .collect();
    steps.sort_by_key(|(stage, _)| *stage);
    steps.into_iter().map(|(_, step)| step).collect()
}
