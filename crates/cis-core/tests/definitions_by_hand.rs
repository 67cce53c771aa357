//! Definitions that are refused, written by hand: what no valid document with one fault can show. Broken syntax,
//! repeated keys, wrappers, and files that belong to other tools.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, dead_code)]

mod definitions_support;

use cis_core::dag::Format::{self, Json, Toml, Yaml};
use cis_core::dag::ProblemCode::{self, *};
use cis_core::dag::{Defaults, parse};
use definitions_support::refused;
use serde_json::json;

/// What stands in the way of `text`, as (code, path, line, column).
fn told(format: Format, text: &str) -> Vec<(ProblemCode, String, u32, u32)> {
    let problems = refused(text, format);
    assert!(!problems.is_empty(), "accepted: {text}");
    problems.into_iter().map(|p| (p.code, p.path, p.line.unwrap_or(0), p.column.unwrap_or(0))).collect()
}

fn one(format: Format, text: &str, code: ProblemCode, path: &str, line: u32, column: u32) {
    assert_eq!(
        told(format, text),
        [(code, path.to_owned(), line, column)],
        "{text}\n{:#?}",
        refused(text, format)
    );
}

fn hint(format: Format, text: &str) -> String {
    let problems = refused(text, format);
    problems.iter().filter_map(|problem| problem.hint.clone()).collect::<Vec<_>>().join("\n")
}

#[test]
fn broken_json_says_where() {
    for (text, line, column) in [
        ("{", 1, 2),
        ("{\"tasks\": [", 1, 12),
        ("{\"tasks\" []}", 1, 10),
        ("{tasks: []}", 1, 2),
        ("{'tasks': []}", 1, 2),
        ("{\"a\": 1,}", 1, 8),
        ("{\"a\": [1,\n2,\n]}", 2, 2),
        ("{\"a\": 01}", 1, 7),
        ("{\"a\": -}", 1, 7),
        ("{\"a\": 1.}", 1, 9),
        ("{\"a\": 1e}", 1, 9),
        ("{\"a\": tru}", 1, 7),
        ("{\"a\": truely}", 1, 7),
        ("{\"a\": NaN}", 1, 7),
        ("{\"a\": \"x}", 1, 7),
        ("{\"a\": \"\\x\"}", 1, 8),
        ("{\"a\": \"\\u12\"}", 1, 8),
        ("{\"a\": \"\\ud800\"}", 1, 8),
        ("{\"a\": \"\\ud800\\u0041\"}", 1, 8),
        ("{\"a\": \"x\ny\"}", 1, 9),
        ("{} {}", 1, 4),
        ("// note\n{}", 1, 1),
        ("{\"ä\": ?}", 1, 7),
    ] {
        one(Json, text, Syntax, "", line, column);
    }
}

#[test]
fn broken_toml_says_where() {
    for (text, line) in [
        ("a", 1),
        ("a =", 1),
        ("= 1", 1),
        ("a = 1 b = 2", 1),
        ("[a", 1),
        ("[[tasks]\nid = 1", 1),
        ("x = 1\n[[tasks]]\nid = \"a\ncommand = 1", 3),
        ("a = [1, 2", 1),
        ("a = {b = 1", 1),
        ("a = 'x", 1),
        ("a = \"\\q\"", 1),
        ("a = yes", 1),
        ("a = 1__0", 1),
        ("a = 01", 1),
        ("a = \"x\u{1}\"", 1),
        ("a = \"\"\"x", 1),
        ("]", 1),
        ("a.b.", 1),
        ("tasks: []", 1),
    ] {
        let told = told(Toml, text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert_eq!((told[0].0, told[0].2), (Syntax, line), "{text}: {told:?}");
    }
}

#[test]
fn broken_yaml_says_where() {
    for (text, line) in [
        ("tasks: [", 1),
        ("tasks: ]", 1),
        ("a: b: c", 1),
        ("a: \"x", 1),
        ("a: 'x", 1),
        ("a:\n\t- b", 2),
        ("a: *nothing", 1),
        ("a: 1\n b: 2\n", 2),
        ("- a\nb: 1", 2),
        ("a: !weird x", 1),
        ("a: &x [*x]", 1),
        ("? [a]\n: b", 1),
        ("a: 1\n---\nb: 2", 2),
        ("a: \"\\q\"", 1),
        ("a: @x", 1),
        ("{a: 1", 1),
    ] {
        let told = told(Yaml, text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert_eq!((told[0].0, told[0].2), (Syntax, line), "{text}: {told:?}");
    }
}

#[test]
fn the_wrong_format_is_guessed() {
    assert_eq!(hint(Json, "dag_id = \"a\"\n"), "this looks like TOML");
    assert_eq!(hint(Toml, "{\"tasks\": []}"), "this looks like JSON");
    assert_eq!(hint(Toml, "tasks:\n  - id: a\n"), "this looks like YAML");
}

#[test]
fn text_that_is_not_text() {
    let problems = parse(b"a = 1\nb = \"\xff\"", Toml, &Defaults::default()).unwrap_err();
    assert_eq!((problems[0].code, problems[0].line, problems[0].column), (Syntax, Some(2), Some(6)));
    assert_eq!(problems[0].problem, "not UTF-8 at byte 11");
}

#[test]
fn nothing_is_an_empty_dag() {
    for text in ["", "\n\n", "\u{feff}"] {
        one(Json, text, EmptyDag, "", 0, 0);
        one(Yaml, text, EmptyDag, "", 0, 0);
        one(Toml, text, EmptyDag, "", 0, 0);
    }
    one(Yaml, "# only a comment\n", EmptyDag, "", 0, 0);
    one(Yaml, "---\n~\n", EmptyDag, "", 0, 0);
    one(Json, "null", EmptyDag, "", 0, 0);
    one(Json, "{}", EmptyDag, "", 0, 0);
}

#[test]
fn what_is_no_table_is_no_dag() {
    for text in ["[]", "[{\"id\":\"a\",\"command\":\"x\"}]", "3", "\"x\"", "true"] {
        one(Json, text, WrongType, "", 1, 1);
        one(Yaml, text, WrongType, "", 1, 1);
    }
    assert_eq!(hint(Json, "[{\"id\":\"a\"}]"), "put the list under `tasks`");
}

#[test]
fn repeated_keys_are_found_in_all_formats() {
    one(Toml, "[[tasks]]\nid = \"a\"\ncommand = \"x\"\nid = \"b\"\n", DuplicateKey, "tasks[0].id", 4, 1);
    one(
        Json,
        "{\"tasks\":[{\"id\":\"a\",\n\"command\":\"x\",\"id\":\"b\"}]}",
        DuplicateKey,
        "tasks[0].id",
        2,
        15,
    );
    one(Yaml, "tasks:\n  - id: a\n    command: x\n    id: b\n", DuplicateKey, "tasks[0].id", 4, 5);
    one(
        Json,
        r#"{"tasks":[{"id":"a","command":"x"}],"params":{"p":{"q":1,"q":2}}}"#,
        DuplicateKey,
        "params.p.q",
        1,
        58,
    );
    one(Json, r#"{"tasks":[{"id":"a","command":"x"}],"tasks":[]}"#, DuplicateKey, "tasks", 1, 37);
    let many: String = (0..40).map(|ix| format!("    K{ix}: v\n")).collect();
    let text = format!("tasks:\n  - id: a\n    command: x\nenv:\n{many}    K7: again\n");
    one(Yaml, &text, DuplicateKey, "env.K7", 45, 5);
}

#[test]
fn toml_tables_are_opened_once() {
    let task = "[[tasks]]\nid = \"a\"\ncommand = \"x\"\n";
    let at = |extra: &str, path: &str, line: u32| {
        let text = format!("{task}{extra}");
        let told = told(Toml, &text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert_eq!((told[0].0, told[0].1.as_str(), told[0].2), (DuplicateKey, path, line), "{text}");
    };
    at("[env]\nA = 1\n[env]\nB = 2\n", "env", 6);
    at("[params.x]\na = 1\n[params]\ny = 1\n[params]\n", "params", 8);
    at("[params]\nx = 1\n[params.x]\n", "params.x", 6);
    at("[params]\nx = {a = 1}\n[params.x.b]\n", "params.x", 6);
    at("[params]\nx.a = 1\nx = 2\n", "params.x", 6);
    at("[params]\nx = 2\nx.a = 1\n", "params.x", 6);
    at("[tasks]\n", "tasks", 4);
    at("[params]\nx = [1]\n[[params.x]]\n", "params.x", 6);
    // A parent may come after its child.
    assert!(refused(&format!("{task}[params.x]\na = 1\n[params]\ny = 1\n"), Toml).is_empty());
    assert!(
        refused(&format!("{task}env.X = \"1\"\nenv.Y = \"2\"\n[tasks.retry]\nmax = 1\n"), Toml).is_empty()
    );
}

#[test]
fn wrappers_hold_nothing_else() {
    let task = "[[dag.tasks]]\nid = \"a\"\ncommand = \"x\"\n";
    one(Toml, &format!("policy = \"all_success\"\n{task}"), UnknownKey, "policy", 1, 1);
    assert_eq!(hint(Toml, &format!("policy = \"all_success\"\n{task}")), "move it under `dag`: `dag.policy`");
    one(Toml, &format!("[skill]\ntype = \"native\"\n{task}"), BadValue, "skill.type", 2, 8);
    one(Toml, &format!("[skill]\nname = \"a b\"\n{task}"), BadName, "skill.name", 2, 8);
    one(Toml, &format!("[skill]\nnme = \"a\"\n{task}"), UnknownKey, "skill.nme", 2, 1);
    one(
        Toml,
        &format!("[skill]\nname = \"x\"\n[dag]\ndag_id = \"y\"\n{task}"),
        DuplicateKey,
        "dag.dag_id",
        4,
        1,
    );
    one(Toml, "[skill]\nname = \"x\"\ntype = \"dag\"\n", MissingKey, "dag", 1, 1);
    one(Json, r#"{"dag": "backup"}"#, WrongType, "dag", 1, 9);
    one(Json, r#"{"skill": 1, "dag": {"tasks": [{"id":"a","command":"x"}]}}"#, WrongType, "skill", 1, 11);
    one(Yaml, "dag:\n  tasks:\n    - id: a\n", MissingKey, "dag.tasks[0].command", 3, 7);
}

#[test]
fn a_dag_needs_an_id_from_somewhere() {
    let task = br#"{"tasks":[{"id":"a","command":"x"}]}"#;
    let problems = parse(task, Json, &Defaults::default()).unwrap_err();
    assert_eq!((problems[0].code, problems[0].path.as_str()), (MissingKey, "dag_id"));
    let defaults = Defaults { dag_id: Some("my file".to_owned()), scope: None };
    let problems = parse(task, Json, &defaults).unwrap_err();
    assert_eq!(problems[0].code, BadName);
    assert_eq!(problems[0].problem, "the file's name `my file` cannot be its `dag_id`");
}

#[test]
fn dag_named_like_a_review_id_is_refused_wherever_the_name_comes_from() {
    let review = "r-7k3q-9xwm-t2bv";
    let task = r#""tasks":[{"id":"a","command":"x"}]"#;
    let read = |text: &str, stem: &str| {
        parse(text.as_bytes(), Json, &Defaults { dag_id: Some(stem.to_owned()), scope: None })
    };
    for (text, stem, path) in [
        (format!(r#"{{"dag_id":"{review}",{task}}}"#), "d", "dag_id"),
        (format!(r#"{{"name":"{review}",{task}}}"#), "d", "name"),
        (format!(r#"{{"skill":{{"name":"{review}"}},"dag":{{{task}}}}}"#), "d", "skill.name"),
        (format!("{{{task}}}"), review, "dag_id"),
    ] {
        let problems = read(&text, stem).unwrap_err();
        assert_eq!((problems[0].code, problems[0].path.as_str()), (BadName, path), "{text}");
        assert!(problems[0].hint.is_some());
    }
    for ordinary in ["release", "r-project", "r2d2", "r7k3q9xwmt2bv", "r-7k3q-9xwm-t2b", "r-7k3q-9xwm-t2bvv"]
    {
        assert!(read(&format!("{{{task}}}"), ordinary).is_ok(), "{ordinary}");
    }
}

#[test]
fn ids_are_taken_once() {
    let text = "tasks:\n  - {id: a, command: x}\n  - {id: b, command: x}\n  - {id: a, command: y}\n";
    one(Yaml, text, DuplicateId, "tasks[2].id", 4, 10);
    assert_eq!(refused(text, Yaml)[0].problem, "the id `a` is taken by tasks[0] (line 2)");
}

#[test]
fn every_knot_is_told_once() {
    let task = |id: &str, depends_on: &[&str]| json!({"id": id, "command": "x", "depends_on": depends_on});
    let tasks = json!({"tasks": [
        task("a", &["c"]), task("b", &["a"]), task("c", &["b", "a"]),
        task("free", &[]),
        task("x", &["free", "y"]), task("y", &["x"]),
        task("behind", &["a", "x"]),
    ]});
    let text = tasks.to_string();
    let problems = refused(&text, Json);
    let said: Vec<(&str, &str)> = problems.iter().map(|p| (p.path.as_str(), p.problem.as_str())).collect();
    assert_eq!(
        said,
        [
            ("tasks[0].depends_on[0]", "a cycle: a -> c -> a"),
            ("tasks[4].depends_on[1]", "a cycle: x -> y -> x"),
        ]
    );
}

#[test]
fn a_repeated_dependency_is_only_a_warning() {
    let text = br#"{"tasks":[{"id":"a","command":"x"},{"id":"b","command":"x","depends_on":["a","a"]}]}"#;
    let parsed = parse(text, Json, &Defaults { dag_id: Some("d".to_owned()), scope: None }).unwrap();
    assert_eq!(parsed.dag.tasks[1].depends_on.len(), 1);
    assert_eq!(parsed.warnings.len(), 1);
    assert_eq!(parsed.warnings[0].path, "tasks[1].depends_on");
}

#[test]
fn numbers_must_be_numbers() {
    let task = "[[tasks]]\nid = \"a\"\ncommand = \"x\"\n[params]\n";
    for value in ["inf", "-inf", "nan", "1e999"] {
        one(Toml, &format!("{task}x = {value}\n"), BadValue, "params.x", 5, 5);
    }
    for value in ["9007199254740993", "-9223372036854775808", "99999999999999999999", "0x7fffffffffffffff"] {
        one(Toml, &format!("{task}x = {value}\n"), IntegerOutOfRange, "params.x", 5, 5);
    }
    one(Toml, &format!("{task}x = 2020-01-01\n"), WrongType, "params.x", 5, 5);
    for value in [".inf", "-.INF", ".nan"] {
        let text = format!("tasks: [{{id: a, command: x}}]\ntimeout: {value}\n");
        one(Yaml, &text, BadValue, "timeout", 2, 10);
    }
    one(Json, r#"{"params":{"x":1e999},"tasks":[{"id":"a","command":"x"}]}"#, BadValue, "params.x", 1, 16);
    one(
        Json,
        r#"{"timeout":99999999999999999999,"tasks":[{"id":"a","command":"x"}]}"#,
        IntegerOutOfRange,
        "timeout",
        1,
        12,
    );
}

#[test]
fn files_of_other_tools_hear_what_to_change() {
    let dagu = "schedule: \"0 1 * * *\"\nsteps:\n  - name: a\n    command: echo\n  - name: b\n    command: echo\n    depends: a\n";
    assert!(
        hint(Yaml, dagu).contains("`steps` is Dagu's word: here it is `tasks`, with `id` and `depends_on`")
    );
    let dagu_tasks = "tasks:\n  - name: a\n    command: echo\n    depends: b\n";
    assert!(hint(Yaml, dagu_tasks).contains("give it an `id` others can depend on"));
    assert!(hint(Yaml, dagu_tasks).contains("Dagu's word: here it is `depends_on`"));

    let actions =
        "name: ci\non: [push]\njobs:\n  build:\n    runs-on: ubuntu-latest\n    steps:\n      - run: make\n";
    assert!(hint(Yaml, actions).contains("`jobs` is GitHub Actions' word: here it is `tasks`"));
    assert_eq!(told(Yaml, actions).len(), 2, "{:#?}", told(Yaml, actions));

    let compose = "services:\n  web:\n    image: nginx\n";
    assert!(hint(Yaml, compose).contains("Compose"));

    let airflow = "from airflow import DAG\n\nwith DAG('x') as dag:\n    a = BashOperator(task_id='a')\n";
    assert!(
        told(Yaml, airflow)
            .iter()
            .all(|(code, ..)| matches!(code, Syntax | WrongType | UnknownKey | MissingKey))
    );

    let makefile = "all: a b\n\techo done\n\na:\n\ttrue\n";
    assert!(!told(Yaml, makefile).is_empty());

    let needs = "tasks:\n  - id: a\n    command: x\n    needs: [b]\n";
    assert!(hint(Yaml, needs).contains("dependencies are `depends_on`"));
}

#[test]
fn hints_name_what_was_meant() {
    let task = |extra: &str| {
        format!("tasks:\n  - id: my-task\n    command: x\n  - id: other\n    command: x\n{extra}")
    };
    for (extra, wanted) in [
        ("    depends_on: [my-tsk]\n", "did you mean `my-task`?"),
        ("    depnds_on: [my-task]\n", "did you mean `depends_on`?"),
        ("    idempotent: yes\n", "write true, without quotes"),
        ("    when: \"{{ params.x }}\"\n", "`when` is an expression already: write it without {{ }}"),
        ("    level: recommended\n", "use `confirmed`, or a task of type `approval` before it"),
        ("    level: confirm\n", "use `mechanical` or `confirmed`"),
        (
            "    depends_on: [my-task]\n    when: tasks.my > 1\n",
            "an id with `-` or `.` in it is written tasks[\"my-task\"]",
        ),
        ("    command: y\n", "keep one of the two"),
        ("    <<: {a: b}\n", "merge keys are not supported; write the settings out"),
        ("    priority: \"1\"\n", "write it without quotes"),
    ] {
        let text = task(extra);
        assert!(hint(Yaml, &text).contains(wanted), "{text}\n{}", hint(Yaml, &text));
    }
}
