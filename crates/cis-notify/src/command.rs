//! Giving a message to a command: as JSON on its standard input, and by name in its environment. Nothing of it becomes
//! part of the command itself.

use std::process::Stdio;
use std::time::Duration;

use cis_engine::system::soft_file_limit_of_children;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::Failed;
use crate::message::Message;

/// How long a command may take; then it and what it started are killed.
const TIME_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn run(command: &str, message: &Message) -> Result<(), Failed> {
    run_within(TIME_MAX, command, message).await.map_err(Failed::ForNow)
}

async fn run_within(time: Duration, command: &str, message: &Message) -> Result<(), String> {
    let mut child = shell(command, soft_file_limit_of_children())
        .envs(message.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        // What it has to say, it says where the node does.
        .stdout(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("could not be started: {e}"))?;
    let mut group = Group::of(&child);
    let ended = tokio::time::timeout(time, feed(&mut child, message)).await;
    let Ok(ended) = ended else { return Err(format!("took longer than {} s", time.as_secs())) };
    // Its leader has been reaped: from here on, its number may be somebody else's.
    group.0 = None;
    let status = ended.map_err(|e| format!("could not be waited for: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("ended with {status}")) }
}

/// A shell that runs `command`, with as many files as the limit says where there is one.
fn shell(command: &str, files: Option<u64>) -> Command {
    let mut shell = Command::new("/bin/sh");
    match files {
        Some(files) => {
            let limited = r#"ulimit -S -n "$0"; exec /bin/sh -c "$1""#;
            shell.args(["-c", limited, &files.to_string(), command])
        }
        None => shell.args(["-c", command]),
    };
    shell
}

async fn feed(child: &mut Child, message: &Message) -> std::io::Result<std::process::ExitStatus> {
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read it.
        let _ = stdin.write_all(message.body.as_bytes()).await;
    }
    child.wait().await
}

/// The processes of a command that is still running: killed unless it ends by itself.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::io::retry_on_intr;
    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    fn message() -> Message {
        let variables = vec![("CIS_EVENT", "failed".to_owned()), ("CIS_DAG", "$(exit 1); `id`".to_owned())];
        Message { id: "evt_1_1".into(), body: "{\"occasion\":\"failed\"}".into(), variables }
    }

    async fn run(command: &str) -> Result<(), String> {
        run_within(Duration::from_secs(60), command, &message()).await
    }

    #[tokio::test]
    async fn a_command_hears_it_and_its_end_is_the_answer() {
        assert_eq!(run(r#"read -r line; [ "$line" = '{"occasion":"failed"}' ]"#).await, Ok(()));
        assert_eq!(run(r#"[ "$CIS_EVENT" = failed ] && [ "$CIS_DAG" = '$(exit 1); `id`' ]"#).await, Ok(()));
        assert_eq!(run("exit 3").await, Err("ended with exit status: 3".to_owned()));
        assert_eq!(run("exec 0<&-; exit 0").await, Ok(()), "it need not listen");
    }

    #[tokio::test]
    async fn command_gets_the_limit_of_files_that_the_node_was_started_with() {
        for (files, expected) in [(Some(77), "77\n"), (Some(78), "78\n")] {
            let told = shell("ulimit -n", files).output().await.unwrap();
            assert_eq!(String::from_utf8(told.stdout).unwrap(), expected);
        }
        assert!(shell("exit 3", None).status().await.unwrap().code() == Some(3));
    }

    #[tokio::test]
    async fn a_command_may_not_take_forever() {
        let told = run_within(Duration::ZERO, "exec sleep 600", &message()).await;
        assert_eq!(told, Err("took longer than 0 s".to_owned()));
    }

    #[tokio::test]
    async fn a_command_that_is_broken_off_takes_along_what_it_started() {
        let dir = std::env::temp_dir().join(format!("cis-notify-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let fifo = dir.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let command = format!("sleep 600 & echo $! > {}; wait", fifo.display());
        let running = tokio::spawn(async move { run(&command).await });
        let told = tokio::task::spawn_blocking(move || std::fs::read_to_string(fifo)).await.unwrap().unwrap();
        let child = Pid::from_raw(told.trim().parse().unwrap()).unwrap();
        let child = pidfd_open(child, PidfdFlags::empty()).unwrap();
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        // The ends of other children interrupt it.
        let gone = retry_on_intr(|| poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&patience)));
        assert_eq!(gone, Ok(1), "it lives");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
