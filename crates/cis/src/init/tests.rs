use cis_core::dag::{Dag, Defaults, Format, parse};
use tempfile::TempDir;

use super::*;

/// A directory with these files.
fn holding(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::with_prefix("my app").unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// What `init` wrote, as CIS reads it.
fn written(dir: &TempDir) -> Dag {
    init(dir.path(), false, |_| true).unwrap();
    let text = fs::read(dir.path().join(FILE)).unwrap();
    let parsed = parse(&text, Format::Toml, &Defaults::default());
    let parsed = parsed.unwrap_or_else(|problems| panic!("{problems:?}\n{}", String::from_utf8_lossy(&text)));
    assert_eq!(parsed.warnings, []);
    parsed.dag
}

/// `id: command <- dependencies` for each task.
fn tasks(files: &[(&str, &str)]) -> Vec<String> {
    let dag = written(&holding(files));
    let line = |task: &cis_core::dag::Task| {
        let command = match &task.kind {
            cis_core::dag::Kind::Shell { command } => command.to_string(),
            other => panic!("{other:?}"),
        };
        let after: Vec<&str> = task.depends_on.iter().map(|ix| dag.tasks[ix.index()].id.as_str()).collect();
        let after = if after.is_empty() { String::new() } else { format!(" <- {}", after.join(" ")) };
        format!("{}: {command}{after}", task.id)
    };
    dag.tasks.iter().map(line).collect()
}

#[test]
fn an_empty_directory_gets_an_example_that_is_valid() {
    let dir = holding(&[]);
    let dag = written(&dir);
    assert_eq!(dag.tasks.len(), 4);
    assert!(dag.dag_id.as_str().starts_with("my-app"), "{}", dag.dag_id);
    assert!(dir.path().join(".cis/skills").is_dir() && dir.path().join(".cis/README.md").is_file());
}

#[test]
fn a_makefile_speaks_for_the_project() {
    let makefile = "CC := gcc\n.PHONY: build test\nVERSION ?= 1\nbuild: main.o | dir\n\tgcc -o x: main.o\n\
                    test lint: build\n\techo\nfmt:\n\techo\ndeploy:\n\techo\n%.o: %.c\n\techo\nclean::\n\techo\n";
    assert_eq!(
        tasks(&[("Makefile", makefile), ("Cargo.toml", "[package]\nname = \"x\"\n")]),
        ["fmt: make fmt", "lint: make lint <- fmt", "build: make build <- fmt", "test: make test <- build",]
    );
}

#[test]
fn cargo_steps_come_one_after_the_other() {
    assert_eq!(
        tasks(&[("Cargo.toml", "[workspace]\nmembers = []\n"), ("Makefile", "install:\n\techo\n")]),
        [
            "fmt: cargo fmt --all --check",
            "clippy: cargo clippy --workspace --all-targets",
            "build: cargo build --workspace <- clippy",
            "test: cargo test --workspace <- build",
        ]
    );
}

#[test]
fn what_is_not_installed_is_left_out() {
    let dir = holding(&[("Cargo.toml", "[package]\nname = \"x\"\n"), ("go.mod", "module x\n")]);
    let outcome = init(dir.path(), false, |program| program == "cargo").unwrap();
    let ids: Vec<&str> = outcome.found[0].steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!((outcome.found.len(), ids), (1, vec!["build", "test"]));
}

#[test]
fn package_scripts_are_run_by_the_right_manager_after_an_install() {
    let package = r#"{"scripts": {"test": "vitest", "test:unit": "x", "build": "vite build", "lint": "eslint .",
        "start": "vite", "deploy": "x"}, "devDependencies": {"vite": "5"}}"#;
    assert_eq!(
        tasks(&[("package.json", package), ("pnpm-lock.yaml", "")]),
        [
            "install: test -d node_modules || pnpm install",
            "lint: pnpm run lint <- install",
            "build: pnpm run build <- install",
            "test: pnpm run test <- build",
            "test-unit: pnpm run test:unit <- build",
        ]
    );
    let fresh = r#"{"scripts": {"test": "echo \"Error: no test specified\" && exit 1"}}"#;
    assert_eq!(tasks(&[("package.json", fresh)]).len(), 4, "nothing to run, so the example");
}

#[test]
fn several_tools_are_told_apart() {
    let project = "[project]\nname = \"x\"\n[tool.ruff]\n[tool.pytest.ini_options]\n";
    assert_eq!(
        tasks(&[("go.mod", "module x\n"), ("pyproject.toml", project), ("uv.lock", "")]),
        [
            "go-vet: go vet ./...",
            "go-build: go build ./...",
            "go-test: go test ./... <- go-build",
            "python-lint: uv run ruff check .",
            "python-test: uv run pytest",
        ]
    );
}

#[test]
fn broken_files_are_no_reason_to_stop() {
    let dag = written(&holding(&[
        ("package.json", "{"),
        ("Cargo.toml", "["),
        ("pyproject.toml", "x = "),
        ("Makefile", "\u{1}"),
    ]));
    assert_eq!(dag.tasks.len(), 4);
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let dir = holding(&[(FILE, "mine"), (".cis/README.md", "mine")]);
    let error = init(dir.path(), false, |_| true).unwrap_err();
    assert!(matches!(error, InitError::Exists(_)));
    assert_eq!(error.report().code, "AlreadyExists");
    assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), "mine");
    init(dir.path(), true, |_| true).unwrap();
    assert_ne!(fs::read_to_string(dir.path().join(FILE)).unwrap(), "mine");
    assert_eq!(fs::read_to_string(dir.path().join(".cis/README.md")).unwrap(), "mine");
}

#[test]
fn what_was_done_is_told() {
    let dir = holding(&[("go.mod", "module x\n")]);
    let outcome = init(dir.path(), false, |_| true).unwrap();
    let told = anstream::adapter::strip_str(&outcome.render()).to_string();
    assert_eq!(
        told,
        "Found go.mod: vet, build, test\n\
         ✓ Wrote `dag.toml` with 3 tasks, and `.cis/` which makes this a project\n\n\
         Next: cis run dag.toml\n"
    );
    assert_eq!(outcome.to_json()["found"][0]["tasks"][1], "build");
}
