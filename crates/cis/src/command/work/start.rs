//! Starting the command of a task: what it finds in its environment, and in files beside it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cis_api::work::ClaimedTask;
use cis_core::error::ErrorCode;
use cis_runner::exec_limit::{STRING_BYTES_MAX, fits_variable, total_bytes_max};
use serde_json::json;
use tempfile::TempDir;

use super::files::WorkFiles;
use crate::command::Failure;

/// Variables whose values come from callers and may be of any size. `NAME_FILE` always names a file with the value; the
/// variable itself is there while it is small enough for a program to take.
const INPUT: &str = "CIS_INPUT";
const HANDOFF: &str = "CIS_HANDOFF";

/// A command under way.
pub(super) struct Started {
    pub(super) child: Child,
    /// Its files, for its own user only; removed with this.
    pub(super) dir: TempDir,
    /// What goes to its standard input.
    pub(super) input: String,
}

/// Why no command was started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// It cannot be started for this task: the attempt has failed.
    Broken(String),
    /// This machine cannot prepare it at present: another worker may be able.
    Unable(String),
}

/// Refuses a program that is not there before any task is claimed for it.
pub(super) fn check_program(command: &[String]) -> Result<(), Failure> {
    let Some(program) = command.first() else { return Err(Failure::usage("no command to run")) };
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = match program.contains('/') {
        true => runs(Path::new(program)),
        false => {
            // Where there is no PATH, the system has a usual one.
            let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
            std::env::split_paths(&path).any(|dir| runs(&dir.join(program)))
        }
    };
    if found {
        return Ok(());
    }
    Err(Failure::new(ErrorCode::NotFound, format!("there is no program `{program}` that can be run"))
        .hint("no task was claimed; after `--` comes the command that works on each task"))
}

/// Starts the command for a task.
pub(super) fn start(
    task: &ClaimedTask,
    command: &[String],
    files: &WorkFiles,
) -> Result<Started, NotStarted> {
    let unable = |e: io::Error| NotStarted::Unable(format!("cannot write what the command is given: {e}"));
    let dir = files.new_dir().map_err(unable)?;
    let Some((program, args)) = command.split_first() else {
        return Err(NotStarted::Broken("no command to run".to_owned()));
    };
    let (input, handoff) = (task.input.to_string(), json!(task.handoff).to_string());
    let mut process = Command::new(program);
    for (name, value) in [(INPUT, &input), (HANDOFF, &handoff)] {
        let path = write(&dir, name, value).map_err(unable)?;
        process.env(format!("{name}_FILE"), path);
        match fits_variable(name, value) {
            true => process.env(name, value),
            // The worker itself may be a task with an input of its own.
            false => process.env_remove(name),
        };
    }
    process
        .args(args)
        .env("CIS_DAG_ID", task.dag_id.as_str())
        .env("CIS_RUN_ID", task.run_id.to_string())
        .env("CIS_TASK_ID", task.task_id.as_str())
        .env("CIS_ATTEMPT", task.attempt.to_string())
        .env("CIS_FENCE", task.fence.to_string())
        .env("CIS_OUTPUT", dir.path().join("output"))
        .env("CIS_PROGRESS", dir.path().join("progress"))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = process.spawn().or_else(|e| match e.kind() {
        // All of it together may be too much where each is not.
        io::ErrorKind::ArgumentListTooLong => process.env_remove(INPUT).env_remove(HANDOFF).spawn(),
        _ => Err(e),
    });
    let child = child.map_err(|e| NotStarted::Broken(explain(program, &e)))?;
    Ok(Started { child, dir, input })
}

/// Puts a value in a file that only this user can read.
fn write(dir: &TempDir, name: &str, value: &str) -> io::Result<PathBuf> {
    let path = dir.path().join(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(value.as_bytes())?;
    Ok(path)
}

fn explain(program: &str, e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::ArgumentListTooLong => format!(
            "cannot start `{program}`: its arguments and this worker's environment are too long: the kernel takes {} bytes each \
             and about {} together",
            STRING_BYTES_MAX - 1,
            total_bytes_max()
        ),
        _ => format!("cannot start `{program}`: {e}"),
    }
}
