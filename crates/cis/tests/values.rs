//! What tasks are given and what they hand on: parameters, environment, directories, outputs, conditions, skills.

mod support;

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use support::Node;

#[test]
fn outputs_reach_what_comes_after() {
    let node = Node::new();
    let text = r#"
        [[tasks]]
        id = "lines"
        command = 'echo "rows=3" >> $CIS_OUTPUT; echo "note=a = b" >> $CIS_OUTPUT'
        [[tasks]]
        id = "object"
        command = '''printf '{"size": 12, "list": ["x", "y"], "deep": {"er": 2}}' > $CIS_OUTPUT'''
        [[tasks]]
        id = "sink"
        depends_on = ["lines", "object"]
        command = 'echo "$ROWS|$NOTE|$SIZE|$SECOND|$DEEP"'
        env = { ROWS = "{{ tasks.lines.outputs.rows }}", NOTE = "{{ tasks.lines.outputs.note }}", SIZE = "{{ tasks.object.outputs.size + 1 }}", SECOND = "{{ tasks.object.outputs.list[1] }}", DEEP = "{{ tasks.object.outputs.deep.er }}" }
    "#;
    node.dag("d", text);
    node.ok(["run", "d.toml"]);
    assert_eq!(node.logs("d", "sink"), "3|a = b|13|y|2\n");
    assert_eq!(
        node.task("d", "object")["outputs"],
        json!({"size": 12, "list": ["x", "y"], "deep": {"er": 2}})
    );
    node.ok(["status", "d"]).says("note=a = b rows=3");
}

#[test]
fn outputs_that_cannot_be_read_fail_the_task_and_say_why() {
    let node = Node::new();
    let text = r#"
        tasks = [
          { id = "broken-json", command = "echo '{\"a\": ' > $CIS_OUTPUT" },
          { id = "no-equals", command = "echo 'just words' > $CIS_OUTPUT" },
          { id = "failed-anyway", command = "echo '{' > $CIS_OUTPUT; exit 3" },
          { id = "gone", command = "rm -f $CIS_OUTPUT" },
          { id = "missing-key", deps = ["gone"], command = "true", env = { X = "{{ tasks.gone.outputs.nothing }}" } },
        ]
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"]).code(1);
    assert_eq!(
        node.states("d"),
        "broken-json=failed no-equals=failed failed-anyway=failed gone=completed missing-key=failed"
    );
    let cause = |task: &str| node.task("d", task)["cause"].as_str().unwrap().to_owned();
    assert!(
        cause("broken-json").contains("`$CIS_OUTPUT` begins like JSON but is not"),
        "{}",
        cause("broken-json")
    );
    assert!(cause("no-equals").contains("line 1: expected `key=value`"), "{}", cause("no-equals"));
    assert_eq!(cause("failed-anyway"), "exit 3");
    assert!(cause("missing-key").contains("env `X`"), "{}", cause("missing-key"));
}

#[test]
fn parameters_are_typed_and_checked() {
    let node = Node::new();
    let text = r#"
        params = { day = "today", count = 3, deep = 1 }
        [[tasks]]
        id = "a"
        command = 'echo "$DAY $COUNT $DEEP"'
        env = { DAY = "{{ params.day }}", COUNT = "{{ params.count + 1 }}", DEEP = "{{ params.deep }}" }
    "#;
    node.dag("d", text);
    node.ok(["run", "d.toml"]);
    assert_eq!(node.logs("d", "a"), "today 4 1\n");
    node.ok(["run", "d.toml", "--param", "day=12", "-p", "count=41", "-p", "deep=[1, 2]"]);
    assert_eq!(node.logs("d", "a"), "12 42 [1,2]\n");
    node.ok(["run", "d", "-p", "day=a=b c"]);
    assert_eq!(node.logs("d", "a"), "a=b c 4 1\n");
    let unknown = node.cis(["run", "d.toml", "-p", "dayy=x"]).code(2).says_nothing();
    unknown.tells("error[ValidationFailed]: `d` has no parameter `dayy`").tells("hint: did you mean `day`?");
    node.cis(["run", "d.toml", "-p", "day"]).code(2).says_nothing().tells("expected `KEY=VALUE`");
}

/// Strings that would do harm if anything took them for code.
fn nasty() -> Vec<String> {
    let cores = [
        "$(touch pwned)",
        "`touch pwned`",
        "; touch pwned;",
        "&& touch pwned",
        "| touch pwned",
        "\n touch pwned \n",
        "\"; touch pwned; \"",
        "'; touch pwned; '",
        "${IFS}touch${IFS}pwned",
        "> pwned",
        "$((1+1))",
        "~",
        "*",
        "\\",
        "\\n",
        "%s%n",
        "{{ params }}",
        "{% include 'x' %}",
        "{# gone #}",
        "\u{202e}evil",
        "\u{1b}[31mred",
        "\r\n",
        "\t",
        "é日本🚀",
        "=x",
        "--help",
        "-rf /",
        "!!",
        "#comment",
        "",
    ];
    let wrap: [fn(&str) -> String; 7] = [
        str::to_owned,
        |core| format!("\"{core}\""),
        |core| format!("'{core}'"),
        |core| format!("a{core}b"),
        |core| format!("$({core})"),
        |core| format!("{core}\n{core}"),
        |core| core.repeat(50),
    ];
    wrap.iter().flat_map(|wrap| cores.iter().map(|core| wrap(core))).take(200).collect()
}

#[test]
fn no_value_ever_becomes_code() {
    let node = Node::new();
    let nasty = nasty();
    let (mut outputs, mut env, mut params) = (Map::new(), Map::new(), Map::new());
    let mut args = vec!["run".to_owned(), "d.json".to_owned()];
    for (n, text) in nasty.iter().enumerate() {
        outputs.insert(format!("s{n}"), json!(text));
        params.insert(format!("s{n}"), json!(""));
        env.insert(format!("OUT{n}"), json!(format!("{{{{ tasks.source.outputs.s{n} }}}}")));
        env.insert(format!("PARAM{n}"), json!(format!("{{{{ params.s{n} }}}}")));
        args.push(format!("--param=s{n}={text}"));
    }
    let input = json!({"all": "{{ tasks.source.outputs.s0 }}{{ params.s1 }}", "list": ["{{ params.s5 }}"]});
    let dag = json!({"params": params, "tasks": [
        {"id": "source", "command": "cat outputs.json > $CIS_OUTPUT"},
        {"id": "sink", "deps": ["source"], "command": "env -0 > environment", "env": env},
        {"id": "skill", "deps": ["source"], "name": nasty[3], "skill": "echo", "input": input},
    ]});
    node.write("outputs.json", Value::Object(outputs).to_string());
    node.write("d.json", dag.to_string());
    node.ok(args);
    let environment = node.read("environment");
    let seen: HashMap<&str, &str> = environment.split('\0').filter_map(|pair| pair.split_once('=')).collect();
    for (n, text) in nasty.iter().enumerate() {
        assert_eq!(seen[format!("OUT{n}").as_str()], text);
        assert_eq!(seen[format!("PARAM{n}").as_str()], text);
    }
    let said = node.ok(["logs", "d", "-t", "skill", "--json"]).ndjson();
    let texts: Vec<&str> = said.iter().filter_map(|line| line["text"].as_str()).collect();
    let filled = json!({"all": format!("{}{}", nasty[0], nasty[1]), "list": [nasty[5]]}).to_string();
    assert_eq!(texts, [nasty[3].as_str(), &filled]);
    // Shown to people, none of it moves the cursor or changes a colour.
    let shown = node.ok(["status", "d"]);
    assert!(!shown.out.contains('\u{1b}') && !shown.out.contains('\r'), "{shown}");
    assert!(!node.path("pwned").exists());
}

#[test]
fn a_nul_in_a_value_is_refused_not_cut() {
    let node = Node::new();
    let text = r#"
        tasks = [
          { id = "a", command = "printf '{\"k\": \"x\\\\u0000y\"}' > $CIS_OUTPUT" },
          { id = "b", deps = ["a"], command = "true", env = { K = "{{ tasks.a.outputs.k }}" } },
        ]
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"]).code(1);
    assert_eq!(node.states("d"), "a=completed b=failed");
    assert!(node.task("d", "b")["cause"].as_str().unwrap().contains("NUL"));
}

#[test]
fn tasks_get_the_callers_surroundings_and_nothing_to_read() {
    let node = Node::new().with("FROM_CALLER", "kept").with("OVERRIDDEN", "by the caller");
    node.write("sub/deeper/here", "");
    let text = r#"
        workdir = "sub"
        env = { OVERRIDDEN = "by the DAG", OWN = "dag" }
        [[tasks]]
        id = "a"
        command = 'pwd; echo "$FROM_CALLER|$OVERRIDDEN|$OWN|$CIS_DAG_ID|$CIS_TASK_ID|$CIS_ATTEMPT|$CIS_RUN_NUMBER"; echo "read: $(cat | wc -c)"'
        [[tasks]]
        id = "b"
        workdir = "deeper"
        env = { OWN = "task" }
        command = 'ls; echo "$OVERRIDDEN|$OWN"; [ -t 0 ] && echo terminal; true'
    "#;
    node.dag("d", text);
    let mut command = node.command(["run", "d.toml"]);
    // What the caller has on its stdin is the caller's.
    command.stdin(std::fs::File::open(node.path("d.toml")).unwrap());
    support::Running::start(command).wait().code(0);
    let sub = node.path("sub").canonicalize().unwrap();
    let expected = format!("{}\nkept|by the DAG|dag|d|a|1|1\nread: 0\n", sub.display());
    assert_eq!(node.logs("d", "a"), expected);
    assert_eq!(node.logs("d", "b"), "here\nby the DAG|task\n");
}

#[test]
fn a_background_run_keeps_its_callers_surroundings() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let text = "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'echo $SECRET; pwd' }]";
    node.dag("d", text);
    let mut command = node.command(["run", "--detach", "d.toml"]);
    support::Running::start({
        command.env("SECRET", "of the caller");
        command
    })
    .wait()
    .code(0);
    up.line();
    // Another coordinator, with other surroundings, starts the rest.
    support::process::kill(node.coordinator());
    gate.let_through(1);
    let mut next = node.command(["coordinator"]);
    next.env("SECRET", "of somebody else").current_dir("/");
    support::Running::start(next).wait().code(0);
    let here = node.dir().canonicalize().unwrap();
    assert_eq!(node.logs("d", "b"), format!("of the caller\n{}\n", here.display()));
}

#[test]
fn conditions_skip_what_is_not_wanted() {
    let node = Node::new();
    let text = r#"
        params = { deploy = false, stage = "test" }
        tasks = [
          { id = "count", command = "echo n=3 > $CIS_OUTPUT" },
          { id = "no", when = "params.deploy", command = "touch no" },
          { id = "yes", when = "params.stage == 'test'", command = "true" },
          { id = "many", deps = ["count"], when = "tasks.count.outputs.n | int > 2", command = "true" },
          { id = "few", deps = ["count"], when = "tasks.count.outputs.n | int < 2", command = "true" },
          { id = "after-no", deps = ["no"], command = "true" },
          { id = "confused", deps = ["count"], when = "tasks.count.outputs.absent > 1", command = "touch confused" },
        ]
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"]).code(1);
    assert_eq!(
        node.states("d"),
        "count=completed no=skipped yes=completed many=completed few=skipped after-no=completed confused=skipped"
    );
    // What cannot be answered is a fault of the definition: it is skipped, and the run fails.
    assert!(node.task("d", "confused")["cause"].as_str().unwrap().starts_with("`when` failed: "));
    assert!(!node.path("no").exists() && !node.path("confused").exists());
    node.cis(["run", "d.toml", "-p", "deploy=true"]).code(1);
    assert!(node.path("no").exists());
}

#[test]
fn a_parameter_keeps_the_type_of_its_default() {
    let node = Node::new();
    node.dag(
        "d",
        "params = { n = 1 }\ntasks = [{ id = 'a', command = 'echo $N', env = { N = '{{ params.n }}' } }]",
    );
    node.cis(["run", "d.toml", "-p", "n=abc"]).code(2).says_nothing().tells("expected JSON");
    node.cis(["run", "d.toml", "-p", "n=9007199254740994"]).code(2).tells("2^53");
    node.ok(["run", "d.toml", "-p", "n=7"]);
    assert_eq!(node.logs("d", "a"), "7\n");
}
