//! Waiting for a command, and passing on what this process is told meanwhile.

use std::fs::File;
use std::io;
use std::process::Child;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// From here on signals wait until [`supervise`] takes them: to be called before there is a command.
pub fn hear_signals() -> io::Result<Signals> {
    Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGCONT])
}

/// Waits until the command has ended. Returns its exit code, 128 + *n* after signal *n*.
///
/// A command that stops itself, as an editor does at Ctrl-Z, may be unable to stop the rest of its process group from inside
/// a sandbox. So this process stops itself too, and the shell that started it has its terminal back.
pub fn supervise(child: &Child, mut signals: Signals) -> io::Result<u8> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        let heard: Vec<i32> = signals.wait().collect();
        heard.iter().for_each(|signal| pass_on(pid, *signal));
        while let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
            if let Some(code) = exit_code(status) {
                return Ok(code);
            }
            // Right after this process was continued, the stop is the one that has just ended.
            if status.stopped() && !heard.contains(&SIGCONT) && is_in_foreground() {
                kill_process(getpid(), Signal::TSTP)?;
            }
        }
    }
}

fn exit_code(status: WaitStatus) -> Option<u8> {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?))?;
    Some(u8::try_from(code).unwrap_or(1))
}

/// Passes a signal on, unless a terminal has told the command itself.
fn pass_on(command: Pid, signal: i32) {
    let by_terminal = matches!(signal, SIGINT | SIGQUIT) && is_in_foreground();
    if let (true, Some(signal)) = (is_for_command(signal) && !by_terminal, Signal::from_named_raw(signal)) {
        // It is not reaped before this process says so: the id is still its own.
        let _ = kill_process(command, signal);
    }
}

fn is_for_command(signal: i32) -> bool {
    matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
}

/// Does Ctrl-C at this process's terminal reach its process group?
fn is_in_foreground() -> bool {
    let group = File::open("/dev/tty").and_then(|terminal| Ok(rustix::termios::tcgetpgrp(&terminal)?));
    group.is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Is there a terminal whose job control this process takes part in?
pub fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
