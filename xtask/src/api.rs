//! The API against its own description: schemathesis reads the OpenAPI document of a real node and calls everything in
//! it, thousands of times. What it may not do is in `xtask/schemathesis/`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::run::{output, run};
use crate::{repo, tool};

/// Fewer cases would not be worth the name.
const CASES_MIN: u64 = 10_000;

/// Cases per call and seed, from which at least [`CASES_MIN`] follow. With more calls, fewer of each do.
const EXAMPLES: u32 = 76;

/// One process each, all at once: what they think up takes longer than what the node answers.
const SEEDS: [u32; 2] = [3, 7];

/// A task with everything a task can have to show.
const KNOWN: &str = r#"
    [[tasks]]
    id = "say"
    command = "echo said=yes > $CIS_OUTPUT; echo hello; echo oh >&2"
"#;

/// Calls a node until it is clear that it does what it says.
pub fn check() -> Result<()> {
    let schemathesis = tool::schemathesis()?;
    let node = Node::start()?;
    let made = node.cis(&["token", "create", "schemathesis", "--as", "owner", "--json"])?;
    let token: Token =
        serde_json::from_str(&made).context("`cis token create --json` said something else")?;
    let run_id = node.run()?;
    let call = |seed| node.called_by(&schemathesis, &token, &run_id, seed);
    let callers = SEEDS.map(call).into_iter().collect::<Result<Vec<_>>>()?;
    let cases = callers.into_iter().map(Caller::cases).collect::<Vec<_>>();
    node.stop()?;
    let cases: u64 = cases.into_iter().sum::<Result<_>>()?;
    println!("   schemathesis made {cases} cases, and found nothing");
    ensure!(cases >= CASES_MIN, "fewer than {CASES_MIN} cases: raise `EXAMPLES` in `xtask/src/api.rs`");
    Ok(())
}

#[derive(Deserialize)]
struct Token {
    token: String,
    token_id: String,
}

/// Schemathesis at work.
struct Caller {
    process: Child,
    log: PathBuf,
    report: PathBuf,
}

impl Caller {
    /// How many cases it made, all of which must have gone well.
    fn cases(mut self) -> Result<u64> {
        let status = self.process.wait()?;
        if !status.success() {
            println!("{}", fs::read_to_string(&self.log)?);
            bail!("schemathesis ended with {status}: see above");
        }
        let report = fs::read(&self.report).context("schemathesis wrote no report")?;
        let report: Value = serde_json::from_slice(&report).context("its report is no JSON")?;
        report.pointer("/test_cases/generated").and_then(Value::as_u64).context("its report counts no cases")
    }
}

/// A node of our own, on a data directory that is gone afterwards.
struct Node {
    dir: TempDir,
    url: String,
    process: Child,
}

impl Node {
    fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cis-api").tempdir()?;
        let mut start = cis(dir.path())?;
        start.args(["node", "start", "--bind", "127.0.0.1:0", "--log", "warn"]).stdout(Stdio::piped());
        let mut process = start.spawn().context("cannot start `cis node start`")?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let Some(at) = line.find("http://") else { bail!("`cis node start` did not come up: {line}") };
        let url = line[at..].trim().to_owned();
        Ok(Self { dir, url, process })
    }

    fn cis(&self, arguments: &[&str]) -> Result<String> {
        output(cis(self.dir.path())?.args(arguments))
    }

    /// Runs something, so that there is something to look at.
    fn run(&self) -> Result<String> {
        fs::write(self.dir.path().join("known.toml"), KNOWN)?;
        let said = self.cis(&["run", "known.toml", "--json"])?;
        let last: Value = serde_json::from_str(said.lines().last().unwrap_or_default())?;
        let run_id = last["run_id"].as_str().context("`cis run --json` named no run")?;
        Ok(run_id.to_owned())
    }

    fn called_by(&self, schemathesis: &Path, token: &Token, run_id: &str, seed: u32) -> Result<Caller> {
        let (settings, dir) = (repo::root().join("xtask/schemathesis"), self.dir.path());
        let place = |kind: &str| dir.join(format!("{seed}.{kind}"));
        let (log, report) = (place("log"), place("json"));
        let mut calls = Command::new(schemathesis);
        calls.arg("--config-file").arg(settings.join("schemathesis.toml"));
        calls.args(["run", &format!("{}/api/v1/openapi.json", self.url)]);
        calls.args(["--max-examples", &EXAMPLES.to_string(), "--seed", &seed.to_string()]);
        calls.arg("--report-json-path").arg(&report);
        calls.env("SCHEMATHESIS_HOOKS", settings.join("hooks.py"));
        calls.env("CIS_URL", &self.url).env("CIS_RUN_ID", run_id);
        calls.env("CIS_TOKEN", &token.token).env("CIS_TOKEN_ID", &token.token_id);
        // It leaves notes where it runs.
        calls.current_dir(dir).stdin(Stdio::null()).stdout(File::create(&log)?);
        let process = calls.spawn().context("cannot start schemathesis")?;
        Ok(Caller { process, log, report })
    }

    /// Lets it end as a person would; whatever it says then would be a defect.
    fn stop(mut self) -> Result<()> {
        run(Command::new("kill").args(["-TERM", &self.process.id().to_string()]))?;
        let status = self.process.wait()?;
        ensure!(status.success(), "`cis node start` ended with {status}");
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn cis(dir: &Path) -> Result<Command> {
    let mut command = Command::new(repo::target()?.join("debug/cis"));
    command.arg("--data-dir").arg(dir.join("data")).current_dir(dir);
    // Neither the disk is what is tested, nor how much one caller may ask for.
    command
        .env("CIS_DURABILITY", "process")
        .env("CIS_NODE_RATE", "1000000")
        .env("CIS_NODE_PENDING_MAX", "1000000")
        .stdin(Stdio::null());
    Ok(command)
}
