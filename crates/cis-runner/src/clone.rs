//! One process more: what `posix_spawn` does, for somebody who starts thousands.
//!
//! `posix_spawn` maps and unmaps a stack for each child, resets 64 signals one by one, and leaves it to the caller to
//! open a descriptor of the child: together a fifth of what the runner takes per attempt. Here the stack is kept, only
//! signals that are not at their default are reset, and the descriptor comes with the process.
//!
//! This is the one place of the product with `unsafe` code. The child runs in the memory of its parent, which the kernel
//! stops until the child has become another program or is gone (`CLONE_VFORK`); so nothing is copied, and the child may
//! do nothing but system calls on what was prepared for it.
#![allow(unsafe_code, reason = "a child that shares its parent's memory")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::{Pid, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// More than a few frames and the C library's wrappers need.
const STACK_BYTES: usize = 64 << 10;

const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

/// A program, and what it starts with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program<'a> {
    pub(crate) path: &'a CStr,
    pub(crate) arguments: &'a [CString],
    pub(crate) environment: &'a [&'a CStr],
    /// Standard input, output and error. None of these is 0, 1 or 2 itself.
    pub(crate) descriptors: [BorrowedFd<'a>; 3],
    /// What it would inherit and must not.
    pub(crate) closed: &'a [RawFd],
    /// In a process group of its own.
    pub(crate) leads: bool,
    /// How many files it may have open, if not as many as its parent.
    pub(crate) files: Option<Rlimit>,
}

/// Starts processes, one at a time.
#[derive(Debug)]
pub(crate) struct Cloner {
    /// For the child, until it is another program. Of 16 bytes each, as a stack has to be aligned.
    stack: Box<[u128]>,
    /// Signals that are ignored or handled in this process.
    unusual: Vec<c_int>,
}

/// What the child sees of its parent's memory.
struct Plan<'a> {
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    descriptors: [RawFd; 3],
    closed: &'a [RawFd],
    leads: bool,
    files: Option<libc::rlimit>,
    unusual: &'a [c_int],
    /// Why it could not become the program.
    failure: c_int,
}

impl Cloner {
    /// For a process that has set up its signals and leaves them so.
    pub(crate) fn new() -> Cloner {
        Cloner { unusual: SIGNALS.filter(|signal| is_unusual(*signal)).collect(), ..Cloner::wary() }
    }

    /// For a process whose other threads may be about to set up signals: all of them are reset.
    pub(crate) fn wary() -> Cloner {
        Cloner { stack: vec![0; STACK_BYTES / size_of::<u128>()].into(), unusual: SIGNALS.collect() }
    }

    /// Starts `program` with default signals and none of them blocked; answers the process and a descriptor of it.
    pub(crate) fn start(&mut self, program: &Program<'_>) -> io::Result<(Pid, OwnedFd)> {
        let arguments = pointers(program.arguments.iter().map(CString::as_c_str));
        let environment = pointers(program.environment.iter().copied());
        let mut plan = Plan {
            path: program.path.as_ptr(),
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
            descriptors: program.descriptors.map(|descriptor| descriptor.as_raw_fd()),
            closed: program.closed,
            leads: program.leads,
            files: program.files.map(raw),
            unusual: &self.unusual,
            failure: 0,
        };
        let mut pidfd: RawFd = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        let before = mask(&all_signals());
        // SAFETY: the stack is ours alone (`&mut self`) and its end is aligned. The plan, and all that it points to, lives
        // in this frame or with its caller, and this call returns only after the child has stopped using any of it.
        // Signals are blocked, so that no handler of this process runs in the child. `CLONE_PIDFD` takes where to put the
        // descriptor as the first of the further arguments.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr_range().end;
            libc::clone(child, top.cast(), flags, (&raw mut plan).cast(), &raw mut pidfd)
        };
        let failed = io::Error::last_os_error();
        mask(&before);
        let Some(pid) = Pid::from_raw(pid.max(0)) else { return Err(failed) };
        if pidfd >= 0 {
            // SAFETY: the kernel has just made it for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            if plan.failure == 0 {
                return Ok((pid, pidfd));
            }
        }
        // A kernel that takes no notice of `CLONE_PIDFD` has started a process that nobody could watch.
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        let failure = if plan.failure == 0 { libc::ENOSYS } else { plan.failure };
        Err(io::Error::from_raw_os_error(failure))
    }
}

/// What the child does. It may neither allocate nor lock anything: it holds up its parent, in the parent's memory.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: what `start` passed, which waits meanwhile. All the calls may be made in such a child.
    unsafe {
        let plan = &mut *plan.cast::<Plan<'_>>();
        for signal in plan.unusual {
            libc::signal(*signal, libc::SIG_DFL);
        }
        let ready = (!plan.leads || libc::setpgid(0, 0) == 0)
            && libc::dup2(plan.descriptors[0], 0) == 0
            && libc::dup2(plan.descriptors[1], 1) == 1
            && libc::dup2(plan.descriptors[2], 2) == 2;
        if ready {
            for descriptor in plan.closed {
                libc::close(*descriptor);
            }
            if let Some(files) = &plan.files {
                // Of this process alone: limits are shared by threads, not by whoever shares memory.
                libc::setrlimit(libc::RLIMIT_NOFILE, files);
            }
            mask(&no_signals());
            libc::execve(plan.path, plan.arguments, plan.environment);
        }
        plan.failure = *libc::__errno_location();
        libc::_exit(127)
    }
}

fn pointers<'a>(texts: impl Iterator<Item = &'a CStr>) -> Vec<*const c_char> {
    texts.map(CStr::as_ptr).chain([ptr::null()]).collect()
}

fn raw(limit: Rlimit) -> libc::rlimit {
    let bound = |value: Option<u64>| value.unwrap_or(libc::RLIM_INFINITY);
    libc::rlimit { rlim_cur: bound(limit.current), rlim_max: bound(limit.maximum) }
}

fn is_unusual(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; all zeros are a value of it.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction != libc::SIG_DFL
}

/// Blocks exactly these signals in this thread; answers which ones were.
fn mask(signals: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: both point to sets; all zeros are a value of one.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, signals, before.as_mut_ptr());
        before.assume_init()
    }
}

fn all_signals() -> libc::sigset_t {
    signals(libc::sigfillset)
}

fn no_signals() -> libc::sigset_t {
    signals(libc::sigemptyset)
}

fn signals(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: it fills in the set it is given.
    unsafe {
        fill(set.as_mut_ptr());
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// Runs a program to its end; answers its process and what it wrote.
    fn run(cloner: &mut Cloner, path: &CStr, arguments: &[&CStr], leads: bool) -> io::Result<(Pid, String)> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let (out, end) = pipe_with(PipeFlags::CLOEXEC)?;
        let arguments: Vec<CString> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let (environment, descriptors) = ([c"ONLY=this"], [null.as_fd(), end.as_fd(), null.as_fd()]);
        let closed = [];
        let started = cloner.start(&Program {
            path,
            arguments: &arguments,
            environment: &environment,
            descriptors,
            closed: &closed,
            leads,
            files: None,
        });
        drop(end);
        let (pid, pidfd) = started?;
        let mut text = String::new();
        File::from(out).read_to_string(&mut text)?;
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)?;
        let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
        assert_eq!(status.and_then(|status| status.exit_status()), Some(0));
        Ok((pid, text))
    }

    #[test]
    fn a_program_starts_with_no_signal_setting_of_ours() {
        // Rust ignores SIGPIPE, and handles SIGSEGV.
        let mut cloner = Cloner::new();
        assert!(cloner.unusual.contains(&libc::SIGPIPE) && cloner.unusual.contains(&libc::SIGSEGV));
        let before = mask(&all_signals());
        let (pid, status) = run(&mut cloner, c"/bin/cat", &[c"cat", c"/proc/self/status"], true).unwrap();
        mask(&before);
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        // The C library keeps 32 and 33 to itself.
        let ours = !(0b11 << 31);
        for signals in ["SigBlk:", "SigIgn:", "SigCgt:"] {
            assert_eq!(u64::from_str_radix(field(signals), 16).unwrap() & ours, 0, "{signals}");
        }
        assert_eq!(field("NSpgid:"), pid.as_raw_nonzero().to_string());
    }

    #[test]
    fn a_program_gets_the_environment_it_was_given() {
        let (_, text) = run(&mut Cloner::new(), c"/usr/bin/env", &[c"env"], false).unwrap();
        assert_eq!(text, "ONLY=this\n");
    }

    #[test]
    fn why_a_program_cannot_start_is_told_each_time() {
        let mut cloner = Cloner::new();
        for _ in 0..3 {
            let missing = run(&mut cloner, c"/no/such/program", &[c"program"], true).unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound);
            let directory = run(&mut cloner, c"/", &[c"directory"], true).unwrap_err();
            assert_eq!(directory.kind(), ErrorKind::PermissionDenied);
            run(&mut cloner, c"/bin/true", &[c"true"], true).unwrap();
        }
    }
}
