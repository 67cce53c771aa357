use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use cis_core::dag::{Policy, RunIf, SkillCall, Task};
use cis_core::id::Scope;

use super::*;

/// A skill directory being built.
struct Shelf(TempDir);

impl Shelf {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn put(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn path(&self) -> SkillPath {
        SkillPath::new([self.0.path().to_owned()])
    }

    fn why(&self, name: &str) -> String {
        let error = self.path().find(name).unwrap_err();
        format!("{error} | {}", error.hint().unwrap_or_default())
            .replace(self.0.path().to_str().unwrap(), "DIR")
    }
}

fn front(command: &str) -> String {
    format!("---\nname: lint\ndescription: Checks style\ncommand: {command}\n---\n# Lint\n")
}

fn dag(skills: &[&str]) -> Dag {
    let task = |(i, skill): (usize, &&str)| Task {
        id: format!("t{i}").parse().unwrap(),
        kind: Kind::Skill(Box::new(SkillCall { skill: (*skill).to_owned(), input: Value::Null })),
        depends_on: Box::default(),
        run_if: RunIf::default(),
        priority: 0,
        idempotent: false,
        detach: false,
        debt_ignorable: false,
        more: None,
    };
    Dag {
        dag_id: "d".parse().unwrap(),
        scope: Scope::global(),
        description: None,
        target_node: None,
        priority: 0,
        policy: Policy::default(),
        max_parallel: None,
        timeout: None,
        queue_timeout: None,
        env: BTreeMap::new(),
        params: BTreeMap::new(),
        workdir: None,
        skills: BTreeMap::new(),
        tasks: skills.iter().enumerate().map(task).collect(),
    }
}

#[test]
fn finds_a_skill_by_its_directory() {
    let shelf = Shelf::new();
    shelf.put(
        "lint/SKILL.md",
        "---\r\nname: lint\r\ndescription: Checks style\r\nlicense: MIT\r\nallowed-tools: [Bash]\r\nmetadata:\r\n  version: 1.5\r\ncommand: sh \"$CIS_SKILL_DIR/run.sh\"\r\n---\r\nBody\r\n",
    );
    let skill = shelf.path().find("lint").unwrap();
    assert_eq!(skill.description.as_deref(), Some("Checks style"));
    assert_eq!(skill.version.as_deref(), Some("1.5"));
    assert_eq!(skill.argv().unwrap(), ["/bin/sh", "-c", "sh \"$CIS_SKILL_DIR/run.sh\""]);
    let dir = shelf.0.path().canonicalize().unwrap().join("lint");
    assert_eq!(skill.env()[0], ("CIS_SKILL_DIR".to_owned(), dir.to_str().unwrap().to_owned()));
    assert!(skill.tree_hash.starts_with("sha256:") && skill.tree_hash.len() == 71);
}

#[test]
fn the_older_file_still_works() {
    let shelf = Shelf::new();
    shelf.put(
        "old/skill.toml",
        "[skill]\nname = \"old\"\nversion = \"1.0.0\"\ntype = \"native\"\n[execution]\nbinary = \"bin/old\"\nargs = [\"-v\"]\n[permissions]\nx = 1\n",
    );
    assert!(shelf.why("old").contains("there is no file `DIR/old/bin/old`"));
    let binary = shelf.put("old/bin/old", "");
    let skill = shelf.path().find("old").unwrap();
    assert_eq!(skill.argv().unwrap(), [binary.canonicalize().unwrap().to_str().unwrap(), "-v"]);
    assert_eq!(skill.version.as_deref(), Some("1.0.0"));

    shelf
        .put("py/skill.toml", "[skill]\nname = \"py\"\n[execution]\nbinary = \"python3\"\nargs = [\"-V\"]\n");
    assert_eq!(shelf.path().find("py").unwrap().argv().unwrap(), ["python3", "-V"]);
}

#[test]
fn the_first_directory_wins() {
    let (near, far) = (Shelf::new(), Shelf::new());
    near.put("lint/SKILL.md", &front("near"));
    far.put("lint/SKILL.md", &front("far"));
    let path = SkillPath::new([near.0.path().to_owned(), far.0.path().to_owned(), near.0.path().to_owned()]);
    assert_eq!(path.dirs().len(), 2);
    assert_eq!(path.find("lint").unwrap().argv().unwrap()[2], "near");
    assert_eq!(path.list().len(), 2);
}

#[test]
fn what_is_wrong_is_said_with_a_remedy() {
    let shelf = Shelf::new();
    shelf.put("lint/SKILL.md", &front("x"));
    shelf.put("empty/README", "");
    shelf.put("nofront/SKILL.md", "# Hello\n");
    shelf.put("open/SKILL.md", "---\nname: open\n");
    shelf.put("bad/SKILL.md", "---\nname: [\n---\n");
    shelf.put("other/SKILL.md", &front("x"));
    shelf.put("flow/skill.toml", "[skill]\ntype = \"dag\"\n[dag]\n");
    shelf.put("up/skill.toml", "[execution]\nbinary = \"../up\"\n");
    shelf.put("slash/skill.toml", "[execution]\nbinary = \"slash/\"\n");
    shelf.put("talk/SKILL.md", "---\nname: talk\ndescription: How to talk\n---\n");
    for (name, why, hint) in [
        ("lnit", "there is no skill `lnit` in `DIR`", "did you mean `lint`?"),
        ("deploy", "there is no skill `deploy`", "create `DIR/deploy/SKILL.md`"),
        ("../lint", "is not a name", ""),
        ("empty", "neither `SKILL.md` nor `skill.toml`", "write a `SKILL.md`"),
        ("nofront", "has no front matter", "`---`"),
        ("open", "has no front matter", ""),
        ("bad", "the front matter of `DIR/bad/SKILL.md`", ""),
        ("other", "called `other`, but `DIR/other/SKILL.md` says `lint`", "rename"),
        ("flow", "is a DAG", "cis dag run DIR/flow/skill.toml"),
        ("up", "leaves its directory", ""),
        ("slash", "there is no file", ""),
    ] {
        let told = shelf.why(name);
        assert!(told.contains(why) && told.contains(hint), "{name}: {told}");
    }
    let talk = shelf.path().find("talk").unwrap();
    assert!(talk.argv().unwrap_err().hint().unwrap().starts_with("add `command:` to its front matter"));
}

#[test]
fn the_list_has_the_broken_ones_too() {
    let shelf = Shelf::new();
    shelf.put("lint/SKILL.md", &front("x"));
    shelf.put("my skill/SKILL.md", &front("x"));
    shelf.put(".hidden/SKILL.md", &front("x"));
    shelf.put("a-file", "");
    let listed: Vec<(String, bool)> =
        shelf.path().list().into_iter().map(|entry| (entry.name, entry.skill.is_ok())).collect();
    assert_eq!(listed, [("echo".into(), true), ("lint".into(), true), ("my skill".into(), false)]);
}

#[test]
fn the_hash_sees_every_change_that_matters() {
    let shelf = Shelf::new();
    let manifest = shelf.put("lint/SKILL.md", &front("x"));
    let hash = || shelf.path().find("lint").unwrap().tree_hash;
    let mut seen = BTreeSet::from([hash()]);
    let script = shelf.put("lint/bin/run", "one");
    assert!(seen.insert(hash()), "a new file");
    fs::write(&script, "two").unwrap();
    assert!(seen.insert(hash()), "other content");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(seen.insert(hash()), "the executable bit");
    fs::rename(&script, script.with_file_name("go")).unwrap();
    assert!(seen.insert(hash()), "another name");
    symlink("go", &script).unwrap();
    assert!(seen.insert(hash()), "a link");
    fs::remove_file(&script).unwrap();
    symlink("../SKILL.md", &script).unwrap();
    assert!(seen.insert(hash()), "another target");

    let before = hash();
    shelf.put("lint/.git/FETCH_HEAD", "x");
    fs::set_permissions(manifest, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(hash(), before, "nothing that runs has changed");
}

#[test]
fn oversized_and_strange_trees_are_refused() {
    let shelf = Shelf::new();
    let manifest = shelf.put("lint/SKILL.md", &front("x"));
    let big = fs::File::create(manifest.with_file_name("big")).unwrap();
    big.set_len((64 << 20) + 1).unwrap();
    assert!(shelf.why("lint").contains("more than 64 MiB"));
    fs::remove_file(manifest.with_file_name("big")).unwrap();
    let pipe = manifest.with_file_name("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(shelf.why("lint").contains("neither a file"));
    fs::remove_file(pipe).unwrap();
    for i in 0..10_001 {
        fs::File::create(manifest.with_file_name(i.to_string())).unwrap();
    }
    assert!(shelf.why("lint").contains("more than 10000 files"));
}

#[test]
fn echo_prints_any_bytes_as_they_are() {
    let echo = SkillPath::default().find("echo").unwrap();
    assert_eq!(echo.tree_hash, "builtin:echo:1");
    let say = |name: &str, input: &str| {
        let argv = echo.argv().unwrap();
        let output = Command::new(&argv[0])
            .args(&argv[1..])
            .env("CIS_TASK_NAME", name)
            .env("CIS_INPUT", input)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(say("step1", "null"), "step1\n");
    assert_eq!(say("step1", "{}"), "step1\n");
    let nasty = r#"{"x":"%s \n $(id) `id` ' \" -n"}"#;
    assert_eq!(say("-n %d $(id)", nasty), format!("-n %d $(id)\n{nasty}\n"));
}

#[test]
fn pins_what_a_dag_names() {
    let shelf = Shelf::new();
    shelf.put("lint/SKILL.md", &front("x"));
    shelf.put("talk/SKILL.md", "---\nname: talk\ndescription: How to talk\n---\n");
    let mut good = dag(&["echo", "lint", "echo"]);
    assert_eq!(pin(&mut good, &shelf.path()), []);
    assert_eq!(good.skills.keys().collect::<Vec<_>>(), ["echo", "lint"]);
    assert_eq!(good.skills["echo"], "builtin:echo:1");

    let mut bad = dag(&["zzz", "lint", "linz", "linz", "talk"]);
    let problems = pin(&mut bad, &shelf.path());
    let told: Vec<(&str, ProblemCode)> = problems.iter().map(|p| (p.path.as_str(), p.code)).collect();
    assert_eq!(
        told,
        [
            ("tasks[0].skill", ProblemCode::SkillNotFound),
            ("tasks[2].skill", ProblemCode::SkillNotFound),
            ("tasks[4].skill", ProblemCode::BadValue),
        ]
    );
    assert_eq!(problems[1].hint.as_deref(), Some("did you mean `lint`?"));
    assert!(problems[1].problem.ends_with("(2 tasks name it)"));
}
