//! From a claimed task to a process to start: its program, its environment, its limits.

use std::cell::LazyCell;
use std::ops::Deref;
use std::path::PathBuf;

use cis_core::dag::{Kind, SkillCall};
use cis_core::source::{Millis, Timestamp};
use cis_core::template::{self, Scene};
use cis_runner::exec_limit::fits_variable;
use cis_runner::log;
use cis_runner::protocol::{AttemptKey, FRAME_MAX, Lane, Start};
use cis_store::Durability;
use cis_store::port::Claimed;
use serde_json::{Value, json};

use crate::context::Context;
use crate::data_dir::DataDir;
use crate::skill::checked::CheckedSkills;
use crate::value_files::ValueFiles;

/// What a message has around what it carries.
const FRAME_MARGIN: usize = 1 << 10;

/// What every attempt gets unless its task says otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Between SIGTERM and SIGKILL.
    pub grace: Millis,
    /// Output kept per attempt.
    pub log_cap_bytes: u64,
}

/// What is kept of a task's output over all its attempts, in caps of one attempt.
const LOG_BUDGET_CAPS: u64 = 4;

/// What is kept of an attempt, however much those before it printed: what went wrong in the last one is what is looked for.
const LOG_ATTEMPT_BYTES_MIN: u64 = 64 << 10;

impl Limits {
    /// How long the log of an attempt may become: what those before it, of the same task, left of the task's budget. Looks at
    /// their files.
    pub(crate) fn log_cap(&self, data_dir: &DataDir, run: i64, execution: i64, attempt: u32) -> u64 {
        let stored = |earlier| log::stored_bytes(&data_dir.log(run, execution, earlier));
        let budget = self.log_cap_bytes.saturating_mul(LOG_BUDGET_CAPS);
        let left = (1..attempt).map(stored).fold(budget, u64::saturating_sub);
        left.max(LOG_ATTEMPT_BYTES_MIN).min(self.log_cap_bytes)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { grace: Millis(10_000), log_cap_bytes: 10 << 20 }
    }
}

/// Makes processes of claims.
#[derive(Debug)]
pub(crate) struct Dispatch {
    data_dir: DataDir,
    limits: Limits,
    skills: CheckedSkills,
    values: ValueFiles,
}

impl Dispatch {
    pub(crate) fn new(data_dir: DataDir, limits: Limits, durability: Durability) -> Self {
        let skills = CheckedSkills::new(&data_dir, durability);
        let values = ValueFiles::new(data_dir.clone());
        Self { data_dir, limits, skills, values }
    }

    /// Remembers an attempt that an earlier coordinator started.
    pub(crate) fn adopt(&mut self, key: AttemptKey) {
        self.values.adopt(key);
    }

    /// Removes what an attempt was given in files: it is over.
    pub(crate) fn remove_values(&mut self, key: AttemptKey) {
        self.values.remove(key);
    }

    /// The attempt to start, or why it cannot be.
    pub(crate) fn start(
        &mut self,
        claim: &Claimed,
        context: &Context,
        tied: bool,
        lane: Option<Lane>,
        now: Timestamp,
    ) -> Result<Start, String> {
        let started = self.try_start(claim, context, tied, lane, now);
        if started.is_err() {
            self.remove_values(key_of(claim));
        }
        started
    }

    fn try_start(
        &mut self,
        claim: &Claimed,
        context: &Context,
        tied: bool,
        lane: Option<Lane>,
        now: Timestamp,
    ) -> Result<Start, String> {
        let (task, dag) = (claim.task(), &claim.run.definition.dag);
        let more = task.more();
        // Most tasks have no template, and never look at it.
        let scene = LazyCell::new(|| scene(claim));
        let mut env = Vec::with_capacity(dag.env.len() + more.env.len() + 8);
        for (name, value) in dag.env.iter().chain(&more.env) {
            env.push((name.clone(), fill(value, &scene, name)?));
        }
        let (argv, stdin) = match &task.kind {
            Kind::Shell { command } => {
                (vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_string()], None)
            }
            Kind::Skill(call) => self.skill(claim, call, context, &scene, &mut env, now)?,
            Kind::External { .. } => {
                return Err("others claim external tasks: none is started here".to_owned());
            }
            Kind::Approval(_) => return Err("an approval starts no process".to_owned()),
        };
        let key = key_of(claim);
        self.values.place(key, &mut env)?;
        self.cookies(claim, &mut env);
        let start = Start {
            key,
            context: claim.run.key.0,
            argv,
            env,
            workdir: workdir(dag.workdir.as_deref(), more.workdir.as_deref()),
            stdin,
            log: DataDir::log_name(claim.run.key.0, claim.execution.0, claim.attempt),
            timeout_ms: more.timeout.map(|limit| limit.0),
            grace_ms: more.grace.unwrap_or(self.limits.grace).0,
            log_cap_bytes: self.limits.log_cap(
                &self.data_dir,
                claim.run.key.0,
                claim.execution.0,
                claim.attempt,
            ),
            tied,
            detach: task.detach,
            lane,
        };
        check_size(&start)?;
        Ok(start)
    }

    /// How a task knows itself, and how its processes are known to be its own.
    fn cookies(&self, claim: &Claimed, env: &mut Vec<(String, String)>) {
        let dag = &claim.run.definition.dag;
        let output = self.data_dir.output(claim.execution.0, claim.fence.0);
        env.extend([
            ("CIS_DAG_ID".to_owned(), dag.dag_id.to_string()),
            ("CIS_RUN_ID".to_owned(), claim.run.run_id.to_string()),
            ("CIS_RUN_NUMBER".to_owned(), claim.run.number.to_string()),
            ("CIS_TASK_ID".to_owned(), claim.task().id.to_string()),
            ("CIS_ATTEMPT".to_owned(), claim.attempt.to_string()),
            ("CIS_FENCE".to_owned(), claim.fence.to_string()),
            ("CIS_OUTPUT".to_owned(), output.to_string_lossy().into_owned()),
            ("CIS_DATA_DIR".to_owned(), self.data_dir.root().to_string_lossy().into_owned()),
        ]);
    }

    /// A skill's program, with its input on stdin and in `CIS_INPUT`, or in the file `CIS_INPUT_FILE` where it is too long.
    fn skill(
        &mut self,
        claim: &Claimed,
        call: &SkillCall,
        context: &Context,
        scene: &Scene,
        env: &mut Vec<(String, String)>,
        now: Timestamp,
    ) -> Result<(Vec<String>, Option<String>), String> {
        let pinned = claim.run.definition.dag.skills.get(&call.skill).map(String::as_str);
        let skill = self.skills.get(&call.skill, pinned, &context.skill_dirs, now)?;
        let argv = skill.argv().map_err(|e| e.to_string())?.to_vec();
        let input = template::fill_json(&call.input, scene).map_err(|e| format!("input {e}"))?.to_string();
        env.extend(skill.env());
        env.push(("CIS_TASK_NAME".to_owned(), claim.task().title().to_owned()));
        match fits_variable("CIS_INPUT", &input) {
            true => env.push(("CIS_INPUT".to_owned(), input.clone())),
            false => {
                let path = self.values.write(key_of(claim), "CIS_INPUT", &input)?;
                env.push(("CIS_INPUT_FILE".to_owned(), path));
            }
        }
        Ok((argv, Some(input)))
    }
}

fn key_of(claim: &Claimed) -> AttemptKey {
    AttemptKey { execution: claim.execution.0, fence: claim.fence.0 }
}

/// Refuses what the runner could not be told of: it would take no message of that size.
fn check_size(start: &Start) -> Result<(), String> {
    let env: usize = start.env.iter().map(|(name, value)| name.len() + value.len()).sum();
    let text =
        env + start.argv.iter().map(String::len).sum::<usize>() + start.stdin.as_ref().map_or(0, String::len);
    // A character takes six bytes at most, as `\u0000`.
    if text < FRAME_MAX / 8 {
        return Ok(());
    }
    let message = serde_json::to_vec(start).map_or(usize::MAX, |message| message.len());
    match message <= FRAME_MAX - FRAME_MARGIN {
        true => Ok(()),
        false => Err(format!(
            "command, environment ({env} bytes) and input are too much together: at most {} MiB go to a process at once; hand \
             large values on in files",
            FRAME_MAX >> 20
        )),
    }
}

fn fill(text: &str, scene: &impl Deref<Target = Scene>, name: &str) -> Result<String, String> {
    if !template::is_template(text) {
        return Ok(text.to_owned());
    }
    let value = template::fill(text, scene).map_err(|e| format!("env `{name}` {e}"))?;
    if value.contains('\0') {
        return Err(format!("env `{name}`: the value holds a NUL character"));
    }
    Ok(value)
}

/// What a task's templates see.
pub(crate) fn scene(claim: &Claimed) -> Scene {
    let tasks = claim.upstream.iter().map(|(id, outputs)| (id.clone(), json!({"outputs": outputs})));
    Scene {
        params: claim.run.params.clone(),
        tasks: Value::Object(tasks.collect()),
        dag_id: claim.run.definition.dag.dag_id.to_string(),
        run_id: claim.run.run_id.to_string(),
    }
}

/// The task's directory, relative to the DAG's.
fn workdir(dag: Option<&str>, task: Option<&str>) -> Option<String> {
    match (dag, task) {
        (Some(dag), Some(task)) => Some(PathBuf::from(dag).join(task).to_string_lossy().into_owned()),
        (dag, task) => task.or(dag).map(ToOwned::to_owned),
    }
}
