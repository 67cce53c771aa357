//! What a process starts with: an environment that was put together once per run, three descriptors, a process group of
//! its own, and nothing of how the runner itself was started (ignored signals, a signal mask).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Rlimit};

use crate::clone::{Cloner, Program};
use crate::exec_limit;
use crate::files::limit_before;
use crate::protocol::{Start, Text};

/// The environment and directory that attempts of one run start from.
#[derive(Debug)]
pub(crate) struct Context {
    /// `NAME=value`, each name once.
    variables: Vec<CString>,
    places: HashMap<Vec<u8>, usize>,
    cwd: PathBuf,
    /// Programs found on the context's PATH.
    programs: RefCell<HashMap<String, CString>>,
}

impl Context {
    pub(crate) fn new(env: Vec<(Text, Text)>, cwd: PathBuf) -> Context {
        let mut context =
            Context { variables: Vec::new(), places: HashMap::new(), cwd, programs: RefCell::default() };
        for (name, value) in env {
            let (Some(name), Some(value)) = (text_bytes(name), text_bytes(value)) else {
                continue;
            };
            // A variable with a NUL cannot exist; whoever sent it did not take it from an environment.
            let Some(variable) = variable(&name, &value) else {
                continue;
            };
            match context.places.get(&name) {
                Some(place) => context.variables[*place] = variable,
                None => {
                    context.places.insert(name, context.variables.len());
                    context.variables.push(variable);
                }
            }
        }
        context
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        let place = self.places.get(name.as_bytes())?;
        self.variables.get(*place)?.to_bytes().get(name.len() + 1..)
    }
}

fn text_bytes(text: Text) -> Option<Vec<u8>> {
    let hex = match text {
        Text::Utf8(text) => return Some(text.into_bytes()),
        Text::Hex { hex } => hex,
    };
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn variable(name: &[u8], value: &[u8]) -> Option<CString> {
    let mut text = Vec::with_capacity(name.len() + value.len() + 2);
    text.extend_from_slice(name);
    text.push(b'=');
    text.extend_from_slice(value);
    CString::new(text).ok()
}

/// What is the same for every process started.
#[derive(Debug)]
pub(crate) struct Spawner {
    cloner: Cloner,
    null: OwnedFd,
    /// How many files a process may have open, where the runner itself may have more.
    pub(crate) files: Option<Rlimit>,
}

/// The descriptors a new process gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptors<'a> {
    /// `/dev/null` if there is none.
    pub(crate) stdin: Option<BorrowedFd<'a>>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
}

impl Spawner {
    pub(crate) fn new() -> std::io::Result<Spawner> {
        Ok(Spawner { cloner: Cloner::new(), null: null()?, files: None })
    }

    /// Starts the attempt; the error is for people and names what is missing.
    ///
    /// Changes the runner's own directory to the attempt's: the runner has no use for one, and this way a
    /// missing directory is told apart from a missing program.
    pub(crate) fn spawn(
        &mut self,
        start: &Start,
        context: &Context,
        cookie: &CStr,
        descriptors: Descriptors<'_>,
    ) -> Result<(Pid, OwnedFd), String> {
        let directory = match &start.workdir {
            Some(workdir) => &context.cwd.join(workdir),
            None => &context.cwd,
        };
        rustix::process::chdir(directory)
            .map_err(|error| format!("cannot enter the directory `{}`: {error}", directory.display()))?;
        let name = start.argv.first().ok_or("no program to run")?;
        let arguments = strings(&start.argv)?;
        let own = own_variables(start)?;
        let environment = environment(context, start, &own, cookie);
        let path = program(name, start, context)?;
        let stdin = descriptors.stdin.unwrap_or(self.null.as_fd());
        let program = Program {
            path: &path,
            arguments: &arguments,
            environment: &environment,
            descriptors: [stdin, descriptors.stdout, descriptors.stderr],
            closed: &[],
            leads: true,
            files: self.files,
        };
        let started = match self.cloner.start(&program) {
            Err(error) if error.kind() == ErrorKind::NotFound && !name.contains('/') => {
                // It has moved since it was found.
                context.programs.borrow_mut().remove(name);
                let path = self::program(name, start, context)?;
                self.cloner.start(&Program { path: &path, ..program })
            }
            started => started,
        };
        started.map_err(|error| {
            let why = match error.kind() {
                ErrorKind::ArgumentListTooLong => {
                    let arguments = arguments.iter().map(CString::as_c_str);
                    exec_limit::explain_too_long(arguments, environment.iter().copied())
                }
                _ => error.to_string(),
            };
            format!("cannot start `{}`: {why}", path.to_string_lossy())
        })
    }
}

/// Where the program is. Looked up in the attempt's own PATH, not in the runner's.
fn program(name: &str, start: &Start, context: &Context) -> Result<CString, String> {
    if name.contains('/') {
        return CString::new(name).map_err(|_| nul_in("program"));
    }
    let own_path = start.env.iter().rev().find(|(name, _)| name == "PATH");
    if let Some((_, path)) = own_path {
        return find(name, path.as_bytes());
    }
    if let Some(program) = context.programs.borrow().get(name) {
        return Ok(program.clone());
    }
    let program = find(name, context.value("PATH").unwrap_or(b"/usr/local/bin:/usr/bin:/bin"))?;
    context.programs.borrow_mut().insert(name.to_owned(), program.clone());
    Ok(program)
}

fn null() -> std::io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}

fn find(name: &str, path: &[u8]) -> Result<CString, String> {
    let candidates = path.split(|b| *b == b':').map(|directory| match directory {
        b"" => Path::new("./").join(name),
        directory => Path::new(OsStr::from_bytes(directory)).join(name),
    });
    for candidate in candidates {
        let runs = |meta: std::fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        if candidate.metadata().is_ok_and(runs) {
            return CString::new(candidate.into_os_string().into_encoded_bytes())
                .map_err(|_| nul_in("program"));
        }
    }
    Err(format!("cannot find `{name}` in PATH"))
}

fn nul_in(what: &str) -> String {
    format!("the {what} holds a NUL byte")
}

fn strings(texts: &[String]) -> Result<Vec<CString>, String> {
    texts.iter().map(|text| CString::new(text.as_str()).map_err(|_| nul_in("command"))).collect()
}

fn own_variables(start: &Start) -> Result<Vec<CString>, String> {
    let each = start.env.iter();
    each.map(|(name, value)| {
        variable(name.as_bytes(), value.as_bytes()).ok_or_else(|| nul_in(&format!("variable `{name}`")))
    })
    .collect()
}

/// The context's variables, overridden by the attempt's own, and the cookie.
fn environment<'a>(
    context: &'a Context,
    start: &Start,
    own: &'a [CString],
    cookie: &'a CStr,
) -> Vec<&'a CStr> {
    let mut all: Vec<&CStr> = Vec::with_capacity(context.variables.len() + own.len() + 1);
    all.extend(context.variables.iter().map(CString::as_c_str));
    for (index, ((name, _), variable)) in start.env.iter().zip(own).enumerate() {
        let again = start.env[index + 1..].iter().any(|(later, _)| later == name);
        match context.places.get(name.as_bytes()) {
            _ if again => {}
            Some(place) => all[*place] = variable,
            None => all.push(variable),
        }
    }
    all.push(cookie);
    all
}

/// Starts `exe` as a process that outlives us: no descriptor of ours, no signal setting, and of our environment only the
/// variables in `kept`.
pub(crate) fn spawn_detached(
    exe: &Path,
    arguments: &[&OsStr],
    stderr: BorrowedFd<'_>,
    kept: &[&str],
) -> std::io::Result<Pid> {
    let null = null()?;
    let path = CString::new(exe.as_os_str().as_bytes())?;
    let mut argv = vec![path.clone()];
    for argument in arguments {
        argv.push(CString::new(argument.as_bytes())?);
    }
    let mut variables = Vec::new();
    for name in kept {
        if let Some(value) = std::env::var_os(name) {
            variables.extend(variable(name.as_bytes(), value.as_bytes()));
        }
    }
    let environment: Vec<&CStr> = variables.iter().map(CString::as_c_str).collect();
    let (pid, _) = Cloner::wary().start(&Program {
        path: &path,
        arguments: &argv,
        environment: &environment,
        descriptors: [null.as_fd(), null.as_fd(), stderr],
        closed: &descriptors_above_stderr()?,
        leads: false,
        files: limit_before(),
    })?;
    Ok(pid)
}

/// Descriptors that an exec might hand down: a lock or a pipe of our caller must not live as long as the runner does.
fn descriptors_above_stderr() -> std::io::Result<Vec<i32>> {
    // Not `fdinfo`, which would also tell which of them an exec closes anyway: a process that is not dumpable cannot
    // read its own on older kernels.
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let descriptor: Option<i32> = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(descriptor.filter(|descriptor| *descriptor > 2));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_variables_win() {
        let pair = |name: &str, value: &str| (Text::Utf8(name.into()), Text::Utf8(value.into()));
        let env = vec![pair("A", "1"), pair("B", "1"), pair("A", "2")];
        let context = Context::new(env, "/".into());
        let start: Start = serde_json::from_value(serde_json::json!({
            "key": {"execution": 1, "fence": 1}, "context": 1, "argv": ["true"], "log": "x",
            "grace_ms": 0, "log_cap_bytes": 0, "env": [["B", "2"], ["C", "1"], ["C", "2"]],
        }))
        .unwrap();
        let own = own_variables(&start).unwrap();
        let all = environment(&context, &start, &own, c"CIS_COOKIE=1");
        let all: Vec<_> = all.iter().map(|entry| entry.to_str().unwrap()).collect();
        assert_eq!(all, ["A=2", "B=2", "C=2", "CIS_COOKIE=1"]);
    }

    #[test]
    fn bytes_that_are_no_text_come_through() {
        assert_eq!(text_bytes(Text::Hex { hex: "ff00a".into() }), None);
        assert_eq!(text_bytes(Text::Hex { hex: "ff41".into() }), Some(vec![0xff, 0x41]));
    }
}
