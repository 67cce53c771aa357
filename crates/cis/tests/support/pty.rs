//! `cis` on a terminal: a real pseudo-terminal of a given size, with a person at the other end who reads and types.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use unicode_width::UnicodeWidthStr;

use super::{Node, PATIENCE, process, wait_gone};

/// Rows of every terminal: fewer than most of what is shown here.
const ROWS: u16 = 10;

/// What ends the input where it is typed on a line of its own.
pub const CTRL_D: &str = "\u{4}";

/// What interrupts.
pub const CTRL_C: &str = "\u{3}";

/// A command on a terminal.
pub struct Terminal {
    columns: u16,
    child: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    screen: Vec<u8>,
}

/// What a terminal showed until its command ended.
#[derive(Debug)]
pub struct Screen {
    pub status: ExitStatus,
    pub text: String,
    columns: u16,
}

impl Node {
    /// Starts `cis` with these arguments on a terminal so many columns wide.
    pub fn on_terminal<S: AsRef<OsStr>>(&self, columns: u16, args: impl IntoIterator<Item = S>) -> Terminal {
        Terminal::start(columns, self.command(args))
    }
}

impl Terminal {
    /// Starts `command` with the terminal as its own: what is typed there can interrupt it.
    pub fn start(columns: u16, command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let path = PathBuf::from(ptsname(&master, Vec::new()).unwrap().into_string().unwrap());
        let slave = OpenOptions::new().read(true).write(true).open(path).unwrap();
        tcsetwinsize(slave.as_fd(), size).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // A script's background job ignores interrupts, and hands that on to all it starts: these tests may be in one.
        let mut own = Command::new("env");
        own.args(["--default-signal=INT", "setsid", "--ctty", "--wait"]);
        own.arg(command.get_program()).args(command.get_args());
        own.env_clear().env("NO_COLOR", "1").env("TERM", "xterm");
        own.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        own.current_dir(command.get_current_dir().unwrap());
        let child = own.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keys = File::from(master);
        let mut output = keys.try_clone().unwrap();
        let (tell, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4_096];
            // It ends with an error once no process has the terminal open.
            while let Ok(n @ 1..) = output.read(&mut chunk) {
                let _ = tell.send(chunk[..n].to_vec());
            }
        });
        Self { columns, child, keys, shown, screen: Vec::new() }
    }

    /// Waits until `text` is on the screen.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            let seen = String::from_utf8_lossy(&self.screen).into_owned();
            if seen.contains(text) {
                return seen;
            }
            match self.shown.recv_timeout(PATIENCE) {
                Ok(more) => self.screen.extend(more),
                Err(_) => panic!("`{text}` never came:\n{seen}"),
            }
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the command has ended.
    pub fn wait(mut self) -> Screen {
        if !wait_gone(self.child.id()) {
            process::kill(self.child.id());
            panic!("does not end:\n{}", String::from_utf8_lossy(&self.screen));
        }
        let status = self.child.wait().unwrap();
        // What it wrote is there until it is read, and a coordinator in the background does not have the terminal.
        while let Ok(more) = self.shown.recv_timeout(PATIENCE) {
            self.screen.extend(more);
        }
        Screen { status, text: String::from_utf8_lossy(&self.screen).into_owned(), columns: self.columns }
    }
}

impl Screen {
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}", self.text);
        self
    }

    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.text.contains(text), "no `{text}`:\n{}", self.text);
        self
    }

    /// The lines it showed before it asked. None is wider than the terminal, and nothing in them but line ends moves the
    /// cursor.
    #[track_caller]
    pub fn lines(&self) -> Vec<&str> {
        let (before, _) = self.text.split_once("[y/N]").unwrap_or((&self.text, ""));
        let lines: Vec<&str> = before.split("\r\n").collect();
        for line in &lines {
            assert!(line.width() <= usize::from(self.columns), "too wide: {line}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        lines
    }
}
