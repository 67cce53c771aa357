use std::os::unix::fs::PermissionsExt;

use cis_core::dag::ProblemCode;
use tempfile::TempDir;

use super::*;

/// A home directory with a config file in it, and an environment.
struct House {
    dir: TempDir,
    around: Surroundings,
}

impl House {
    fn new(file: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join(".cis")).unwrap();
        fs::write(dir.path().join(".cis/config.toml"), file).unwrap();
        let env = BTreeMap::from([("HOME".into(), dir.path().into())]);
        Self { dir, around: Surroundings { env, cores: 4 } }
    }

    fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.around.env.insert(name.into(), value.into());
        self
    }

    fn load(&self) -> Config {
        Config::load(&Flags::default(), &self.around).unwrap()
    }

    fn problems(&self) -> Vec<String> {
        match Config::load(&Flags::default(), &self.around).unwrap_err() {
            ConfigError::Invalid { problems, .. } => problems
                .iter()
                .map(|problem| format!("{problem} | {}", problem.hint.as_deref().unwrap_or("-")))
                .collect(),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn an_empty_house_has_defaults() {
    let house = House::new("");
    let config = house.load();
    assert_eq!(config.home.value, house.dir.path().join(".cis"));
    assert_eq!(config.data_dir.value, house.dir.path().join(".local/share/cis"));
    assert_eq!(config.durability, Setting { value: Durability::Power, source: Source::Default });
    assert_eq!(config.slots.value, 4);
    assert_eq!(config.grace.value, Millis(10_000));
    assert_eq!(config.log_cap_bytes.value, 10 << 20);
    fs::remove_file(house.dir.path().join(".cis/config.toml")).unwrap();
    assert_eq!(house.load(), config);
}

#[test]
fn the_file_is_read_with_the_lines_of_its_values() {
    let house = House::new(
        "[dag]\nmode = \"standalone\"\ndurability = \"process\"\nslots = 1_6\ngrace = \"1m30s\"\n\
         log_cap = \"512KiB\"\n[skills]\ndirs = [\"~/more\", \"here\"]\n[node]\nid = \"n1\"\nname = \"Büro\"\n\
         env_pass = [\"GITHUB_TOKEN\"]\nauth = \"trusted-local\"\npending_for = \"2h\"\nauto_execute = true\n\
         hosts = [\"cis.example.org\"]\nrate = 50\nmetrics = \"open\"\n",
    );
    let config = house.load();
    let path = house.dir.path().join(".cis/config.toml");
    assert_eq!(config.durability.source, Source::File { path: path.clone(), line: 3 });
    assert_eq!(config.durability.source.to_string(), format!("{}:3", path.display()));
    assert_eq!((config.durability.value, config.slots.value), (Durability::Process, 16));
    assert_eq!((config.grace.value, config.log_cap_bytes.value), (Millis(90_000), 512 << 10));
    assert_eq!(config.skill_dirs.value, [house.dir.path().join("more"), house.dir.path().join(".cis/here")]);
    assert_eq!(config.node_id.value.as_deref(), Some("n1"));
    assert_eq!(config.node_name.value.as_deref(), Some("Büro"));
    assert_eq!(config.env_pass.value, ["GITHUB_TOKEN"]);
    assert_eq!((config.auth.value, config.auto_execute.value), (Auth::TrustedLocal, true));
    assert_eq!(config.pending_for.value, Millis(7_200_000));
    assert_eq!(config.hosts.value, ["cis.example.org"]);
    assert_eq!((config.rate.value, config.metrics.value), (50, Metrics::Open));
}

#[test]
fn everything_is_kept_unless_the_settings_say_otherwise() {
    let config = House::new("").load();
    assert_eq!((config.max_age.value, config.max_size.value, config.keep.value), (None, None, 0));
    let house = House::new("[retention]\nmax_age = \"730d\"\nmax_size = \"10GB\"\nkeep = 3\n");
    let config = house.load();
    assert_eq!(config.max_age.value, Some(Millis(730 * 86_400_000)));
    assert_eq!((config.max_size.value, config.keep.value), (Some(10_000_000_000), 3));
    let shown = show::table(&config).render(None);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("retention.max_age").contains(" 730d "), "{shown}");
    let wrong = House::new("[retention]\nmax_age = \"0d\"\nmax_size = 0\nkeep = -1\n");
    assert_eq!(
        wrong.problems(),
        [
            "line 2: retention.max_age: it must last | write it as `\"90d\"` or `\"12h\"`",
            "line 3: retention.max_size: without any room nothing could be kept | -",
            "line 4: retention.keep: -1 is not between 0 and 4294967295 | -",
        ]
    );
}

#[test]
fn flags_beat_the_environment_and_that_beats_the_file() {
    let house = House::new("[dag]\nslots = 2\ngrace = 5\ndurability = \"process\"\n")
        .set("CIS_SLOTS", "3")
        .set("CIS_GRACE", "7")
        .set("CIS_DURABILITY", "")
        .set("CIS_SKILL_PATH", "/a:/b");
    let flags = Flags { slots: Some(9), data_dir: Some("/d".into()), ..Flags::default() };
    let config = Config::load(&flags, &house.around).unwrap();
    assert_eq!(config.slots, Setting { value: 9, source: Source::Flag("--slots") });
    assert_eq!(config.grace, Setting { value: Millis(7_000), source: Source::Env("CIS_GRACE") });
    assert_eq!(config.durability.value, Durability::Process);
    assert_eq!(config.skill_dirs.value, [PathBuf::from("/a"), PathBuf::from("/b")]);
    assert_eq!(config.data_dir, Setting { value: "/d".into(), source: Source::Flag("--data-dir") });
}

#[test]
fn the_data_directory_follows_the_home() {
    let with = |name: &str, value: &str| House::new("").set(name, value).load().data_dir;
    assert_eq!(with("CIS_HOME", "/h"), Setting { value: "/h/data".into(), source: Source::Env("CIS_HOME") });
    assert_eq!(with("XDG_DATA_HOME", "/x").value, PathBuf::from("/x/cis"));
    assert!(with("XDG_DATA_HOME", "relative").value.ends_with(".local/share/cis"));
    assert_eq!(with("CIS_DATA_DIR", "/y").value, PathBuf::from("/y"));
}

#[test]
fn every_problem_is_told_at_once() {
    let house = House::new(
        "slots = 3\n[dga]\n[dag]\nmode = \"cluster\"\ndurabilty = \"power\"\nslots = 0\ngrace = \"soon\"\n\
         log_cap = \"10 cats\"\ndurability = \"powr\"\n[node]\nid = \"a b\"\nname = 3\nenv_pass = [1]\n\
         hosts = [\"http://a\"]\nrate = 0\nmetrics = \"opne\"\n",
    )
    .set("CIS_LOG_CAP", "lots");
    assert_eq!(
        house.problems(),
        [
            "CIS_LOG_CAP: `lots` is not a size | write it as `\"10MiB\"`, `\"512KiB\"` or a number of bytes",
            "line 1, column 1: slots: unknown key | `slots` belongs under `[dag]`",
            "line 2, column 2: dga: unknown key | did you mean `dag`?",
            "line 4: dag.mode: mode `cluster` is not yet supported | use `mode = \"standalone\"`, the default",
            "line 5, column 1: dag.durabilty: unknown key | did you mean `durability`?",
            "line 6: dag.slots: 0 is not between 1 and 10000 | -",
            "line 7: dag.grace: `soon` is not a duration | write it as `\"10s\"`, `\"1m30s\"` or a number of seconds",
            "line 9: dag.durability: `powr` means nothing here | did you mean `power`?",
            "line 11: node.id: `a b` is not a name: use 1 to 128 of A-Z a-z 0-9 . _ - | -",
            "line 12: node.name: a string belongs here | -",
            "line 13, column 12: node.env_pass: this key takes no array like that | -",
            "line 14: node.hosts: `http://a` is neither the name of a host (letters, digits, `.` and `-`) nor an address | -",
            "line 15: node.rate: 0 is not between 1 and 1000000 | -",
            "line 16: node.metrics: `opne` means nothing here | did you mean `open`?",
        ]
    );
}

#[test]
fn what_a_node_does_is_said_clearly() {
    let house = House::new(
        "[dag]\nauto_execute = true\n[node]\nauth = \"trusted\"\npending_for = 0\nauto_execute = \"yes\"\n",
    );
    assert_eq!(
        house.problems(),
        [
            "line 2, column 1: dag.auto_execute: unknown key | `auto_execute` belongs under `[node]`",
            "line 4: node.auth: `trusted` means nothing here | known here: `tokens`, `trusted-local`",
            "line 5: node.pending_for: it must last | -",
            "line 6: node.auto_execute: `true` or `false` belongs here | -",
        ]
    );
    let config = House::new("").set("CIS_AUTO_EXECUTE", "true").set("CIS_PENDING_FOR", "90").load();
    assert_eq!((config.auto_execute.value, config.pending_for.value), (true, Millis(90_000)));
    let usual = House::new("").load();
    assert_eq!((usual.auth.value, usual.auto_execute.value), (Auth::Tokens, false));
    assert_eq!(usual.pending_for.value, Millis(86_400_000));
}

#[test]
fn broken_toml_and_missing_files_are_told() {
    let house = House::new("[dag\nslots = 3\n");
    assert!(house.problems()[0].starts_with("line 1, column"), "{:?}", house.problems());
    let flags = Flags { config: Some("/nowhere/c.toml".into()), ..Flags::default() };
    let error = Config::load(&flags, &house.around).unwrap_err();
    assert_eq!(error.report().code, "NotFound");
    let homeless = Config::load(&Flags::default(), &Surroundings::default()).unwrap_err();
    assert!(matches!(homeless, ConfigError::Homeless));
    let ConfigError::Invalid { problems, .. } = Config::load(&Flags::default(), &house.around).unwrap_err()
    else {
        panic!("not a problem of the file")
    };
    assert_eq!(problems[0].code, ProblemCode::Syntax);
}

#[test]
fn the_data_directory_is_its_owners() {
    let house = House::new("").set("CIS_HOME", "");
    let config = house.load();
    config.create_data_dir().unwrap();
    config.create_data_dir().unwrap();
    let mode = fs::metadata(&config.data_dir.value).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn skills_are_looked_for_nearest_first() {
    let house = House::new("[skills]\ndirs = [\"/shared\"]\n").set("CIS_HOME", "");
    let path = house.load().skill_path(&["/flag".into()], Some(Path::new("/app")));
    let own = house.dir.path().join(".cis/skills");
    assert_eq!(path.dirs(), [Path::new("/flag"), Path::new("/app/.cis/skills"), Path::new("/shared"), &own]);
}

#[test]
fn settings_are_shown_with_their_sources() {
    let house = House::new("[dag]\nslots = 2\n").set("CIS_LOG_CAP", "1234");
    let shown = show::table(&house.load()).render(None);
    let shown = anstream::adapter::strip_str(&shown).to_string();
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("dag.slots").ends_with("config.toml:2"), "{shown}");
    assert!(
        line("dag.log_cap").contains(" 1234B ") && line("dag.log_cap").ends_with("CIS_LOG_CAP"),
        "{shown}"
    );
    let told = show::to_json(&house.load());
    assert_eq!(
        told["settings"][6],
        serde_json::json!({"key": "dag.log_cap", "value": "1234B", "source": "CIS_LOG_CAP"})
    );
}
