//! What a command in a sandbox may try against the node and its data directory, in every kind of sandbox, as the superuser
//! and as a plain user. The attacks are made by this very program, started inside.
#![allow(unsafe_code, reason = "ptrace has no safe interface")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Timestamps, XattrFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use support::http::Up;
use support::pty::{CTRL_C, Terminal};
use support::{Node, Ran, Running};

/// A user that no machine has.
const PLAIN_USER: u32 = 12_345;

/// What Landlock leaves open, as `docs/security.md` says.
const OPEN_TO_LANDLOCK: [&str; 8] =
    ["list", "chmod-directory", "chmod-file", "xattr", "times", "connect", "command-line", "limits"];

/// And where the kernel cannot scope them.
const OPEN_WITHOUT_SCOPES: [&str; 3] = ["signal-node", "signal-task", "abstract"];

/// What works where there is no sandbox, so that it shows that the attacks are made well.
const CONTROL: [&str; 11] = [
    "read-token",
    "read-key",
    "list",
    "chmod-directory",
    "chmod-file",
    "connect",
    "command-line",
    "limits",
    "signal-node",
    "signal-task",
    "abstract",
];

/// A node with a task that runs, and what else an agent may attack.
struct Target {
    node: Node,
    up: Up,
    task: String,
    program: PathBuf,
    _abstract: UnixListener,
    name: String,
}

impl Target {
    fn new(node: Node) -> Self {
        let up = node.up();
        let started = node.fifo("started");
        // The task's user is the node's.
        fs::set_permissions(node.path("started"), Permissions::from_mode(0o666)).unwrap();
        let command = format!("echo $$ > {}; exec sleep 1000", node.path("started").display());
        let dag = serde_json::json!({"dag_id": "d", "tasks": [{"id": "t", "command": command}]});
        up.client.run(&dag.to_string());
        let task = started.line();
        let program = node.lend(&std::env::current_exe().unwrap(), "attacker");
        fs::create_dir(node.path("beside")).unwrap();
        fs::set_permissions(node.path("beside"), Permissions::from_mode(0o777)).unwrap();
        let name = format!("cis-test-{}-{}", std::process::id(), up.running.pid());
        let abstract_ = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self { node, up, task, program, _abstract: abstract_, name }
    }

    /// Makes every attack in this kind of sandbox.
    fn attack(&self, kind: &str) -> Ran {
        let mut command = self.node.command(["agent", "run", "--sandbox", kind, "a", "--"]);
        command.arg(&self.program).args(["--exact", "attacks_that_are_asked_for_are_made", "--nocapture"]);
        command.env("ATTACK_DATA", &self.node.data).env("ATTACK_BESIDE", self.node.path("beside"));
        command.env("ATTACK_NODE", self.up.running.pid().to_string()).env("ATTACK_TASK", &self.task);
        command.env("ATTACK_SOCKET", &self.name).env("ATTACK_KIND", kind);
        Running::start(command).wait()
    }

    /// Everything is as it was.
    fn assert_unharmed(&self) {
        let token = fs::read_to_string(self.node.data.join("admin.token")).unwrap();
        assert_eq!(token.trim(), self.up.client.token);
        assert_eq!(self.up.client.get("/api/v1/dag/d/status").json()["tasks"][0]["status"], "running");
        assert_eq!(fs::metadata(&self.node.data).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(self.node.path("beside")).unwrap().count(), 0);
    }
}

/// A node of the user of the tests, and where that is the superuser, one of a plain user.
fn nodes() -> Vec<Node> {
    let is_superuser = rustix::process::geteuid().is_root();
    [Some(Node::new()), is_superuser.then(|| Node::new().for_user(PLAIN_USER))]
        .into_iter()
        .flatten()
        .collect()
}

/// Which attacks succeeded.
fn succeeded(ran: &Ran) -> Vec<&str> {
    assert!(ran.out.contains("attacks made"), "{ran}");
    ran.out.lines().filter_map(|line| line.strip_suffix(" yes")).collect()
}

/// Was this kind refused because the machine has none of it? Then `auto` says so, and takes another.
fn is_refused(node: &Node, ran: &Ran) -> bool {
    if !ran.err.contains("no such sandbox") {
        return false;
    }
    println!("not on this machine: {ran}");
    let auto = node.cis(["agent", "run", "a", "--", "true"]).code(0);
    assert!(auto.err.contains("do not work here") || auto.err.contains("sandbox: namespaces"), "{auto}");
    assert_eq!(ran.status.code(), Some(1), "{ran}");
    true
}

#[test]
fn attacks_fail_in_namespaces() {
    for node in nodes() {
        let target = Target::new(node);
        let ran = target.attack("namespaces");
        if is_refused(&target.node, &ran) {
            continue;
        }
        let open: &[&str] = if ran.err.contains("cannot scope") { &["abstract"] } else { &[] };
        assert_eq!(succeeded(&ran), open, "{ran}");
        target.assert_unharmed();
    }
}

#[test]
fn attacks_fail_under_landlock_but_for_what_it_leaves_open() {
    for node in nodes() {
        let target = Target::new(node);
        let ran = target.attack("landlock");
        if is_refused(&target.node, &ran) {
            continue;
        }
        let mut yes = succeeded(&ran);
        yes.retain(|attack| !OPEN_TO_LANDLOCK.contains(attack));
        if ran.err.contains("cannot scope") {
            yes.retain(|attack| !OPEN_WITHOUT_SCOPES.contains(attack));
        }
        assert_eq!(yes, [""; 0], "{ran}");
        target.assert_unharmed();
    }
}

#[test]
fn attacks_succeed_without_a_sandbox() {
    for node in nodes() {
        let target = Target::new(node);
        let ran = target.attack("off").tells("warning: no sandbox: `--sandbox off`");
        let yes = succeeded(&ran);
        CONTROL.iter().for_each(|attack| assert!(yes.contains(attack), "{attack}: {ran}"));
    }
}

/// The other half of the tests above: without what they set, there is nothing to attack.
#[test]
fn attacks_that_are_asked_for_are_made() {
    let Some(data) = std::env::var_os("ATTACK_DATA").map(PathBuf::from) else { return };
    let var = |name: &str| std::env::var(name).unwrap();
    let beside = PathBuf::from(var("ATTACK_BESIDE"));
    // The name of the test stands before the first line.
    println!();
    spare(&data, &var("ATTACK_SOCKET"), &var("ATTACK_NODE"), &var("ATTACK_TASK"));
    if var("ATTACK_KIND") != "off" {
        harm(&data, &beside);
        look_into(&data, &var("ATTACK_NODE"));
        remount(&data, &beside, &var("ATTACK_NODE"));
    }
    println!("attacks made");
}

fn tell<T, E>(attack: &str, outcome: Result<T, E>) {
    println!("{attack} {}", if outcome.is_ok() { "yes" } else { "no" });
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Attacks that change nothing.
fn spare(data: &Path, socket: &str, node: &str, task: &str) {
    let token = data.join("admin.token");
    tell("read-token", fs::read(&token));
    tell("read-key", fs::read(data.join("door.key")));
    tell("list", fs::metadata(&token));
    tell(
        "chmod-directory",
        fs::metadata(&token).and(fs::set_permissions(data, Permissions::from_mode(0o700))),
    );
    tell("chmod-file", fs::set_permissions(&token, Permissions::from_mode(0o600)));
    tell("connect", UnixStream::connect(data.join("cis.sock")));
    tell(
        "connect-runner",
        UnixStream::connect(data.join("runner.sock")).and(fs::read(data.join("door.key"))),
    );
    tell("command-line", fs::read(format!("/proc/{node}/cmdline")));
    tell("limits", prlimit(Some(pid(node)), Resource::Fsize, getrlimit(Resource::Fsize)));
    tell("signal-node", rustix::process::test_kill_process(pid(node)));
    tell("signal-task", rustix::process::test_kill_process(pid(task)));
    tell("abstract", SocketAddr::from_abstract_name(socket).and_then(|at| UnixStream::connect_addr(&at)));
}

/// Attacks on files, each of which would be noticed.
fn harm(data: &Path, beside: &Path) {
    let (token, database) = (data.join("admin.token"), data.join("dag.db"));
    tell("write", OpenOptions::new().append(true).open(&database).and_then(|mut file| file.write_all(b"x")));
    tell("truncate", OpenOptions::new().write(true).truncate(true).open(&database));
    tell("make", fs::write(data.join("new"), "x"));
    tell("remove", fs::remove_file(data.join("boot")));
    tell("rename-file", fs::rename(&token, beside.join("token")));
    tell("rename-directory", fs::rename(data, beside.join("data")));
    let parent = data.parent().unwrap();
    tell("rename-parent", fs::rename(parent, parent.with_extension("moved")));
    tell("hard-link", fs::hard_link(&token, beside.join("link")));
    tell("xattr", rustix::fs::setxattr(&token, "user.x", b"y", XattrFlags::empty()));
    let now = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: now, last_modification: now };
    tell("times", rustix::fs::utimensat(CWD, &token, &times, AtFlags::empty()));
    let groups = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point =
        groups.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    if let Some(point) = point {
        tell("control-group", OpenOptions::new().write(true).open(Path::new(point).join("cgroup.procs")));
    }
    let devices = fs::read_dir("/dev").unwrap().flatten();
    let is_disk = |name: &str| ["vd", "sd", "nvme", "xvd", "mem"].iter().any(|disk| name.starts_with(disk));
    let disks = devices.filter(|entry| is_disk(&entry.file_name().to_string_lossy()));
    if std::env::var("ATTACK_KIND").unwrap() == "namespaces" {
        let opened = disks.filter_map(|entry| fs::File::open(entry.path()).ok()).next();
        tell("disk", opened.ok_or(()));
        tell("kernel-setting", OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern"));
    }
}

/// Attacks on the node's process.
fn look_into(data: &Path, node: &str) {
    let proc = PathBuf::from(format!("/proc/{node}"));
    // The superuser can open it, and reads nothing.
    let environ = fs::read(proc.join("environ")).unwrap_or_default();
    tell("environ", if environ.is_empty() { Err(()) } else { Ok(()) });
    tell("memory", fs::File::open(proc.join("mem")));
    tell("descriptors", fs::read_link(proc.join("fd/0")));
    tell("root", fs::read(proc.join("root").join(data.join("admin.token").strip_prefix("/").unwrap())));
    tell("working-directory", fs::read_link(proc.join("cwd")));
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: it takes no memory of ours.
    let seized =
        unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid(node).as_raw_nonzero().get(), nothing, nothing) };
    tell("ptrace", if seized == 0 { Ok(()) } else { Err(()) });
    let namespaces = fs::File::open(proc.join("ns/mnt"));
    let enter = |file: fs::File| {
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), None).map_err(Into::into)
    };
    tell("enter-namespace", namespaces.and_then(enter));
}

/// Attacks on what hides the directory. Those of a shell are made in namespaces of its own, where it may mount.
fn remount(data: &Path, beside: &Path, node: &str) {
    tell("unmount", rustix::mount::unmount(data, UnmountFlags::DETACH));
    tell("mount", rustix::mount::mount("tmpfs", beside, "tmpfs", MountFlags::empty(), None));
    tell("bind", rustix::mount::mount_bind(data.parent().unwrap(), beside));
    tell("pivot", rustix::process::pivot_root(beside, beside));
    let (parent, inner) = (data.parent().unwrap().display(), data.file_name().unwrap().to_str().unwrap());
    let (at, beside) = (data.display(), beside.display());
    let (bound, below) = (format!("{beside}/{inner}"), at.to_string().trim_start_matches('/').to_owned());
    let lines = [
        ("unmount-inside", format!("unshare -Urm sh -c 'umount {at}; umount -l {at}; cat {at}/admin.token'")),
        (
            "bind-inside",
            format!("unshare -Urm sh -c 'mount --bind {parent} {beside}; cat {bound}/admin.token'"),
        ),
        (
            "bind-all-inside",
            format!(
                "unshare -Urm sh -c 'mount --rbind {parent} {beside}; umount -l {bound}; umount -l {bound}; cat {bound}/admin.token'"
            ),
        ),
        (
            "bind-root-inside",
            format!("unshare -Urm sh -c 'mount --bind / {beside} && cat {beside}/{below}/admin.token'"),
        ),
        (
            "pivot-inside",
            format!(
                "unshare -Urm sh -c 'mount --rbind / {beside} && cd {beside} && pivot_root . . && umount -l . ; cat {at}/admin.token'"
            ),
        ),
        (
            "processes-inside",
            format!("unshare -Urmpf sh -c 'mount -t proc proc {beside} && cat {beside}/{node}/cmdline'"),
        ),
        ("nsenter", format!("nsenter -t {node} -m -p cat {at}/admin.token")),
        (
            "chroot",
            format!(
                "chroot {parent} /{inner}/../bin/cat /{inner}/admin.token; chroot /proc/{node}/root cat {at}/admin.token"
            ),
        ),
        ("first-process", format!("cat /proc/1/root{at}/admin.token; nsenter -t 1 -m cat {at}/admin.token")),
    ];
    for (attack, line) in lines {
        let ran = Command::new("sh").arg("-c").arg(&line).output().unwrap();
        let got = String::from_utf8_lossy(&ran.stdout);
        tell(attack, if got.contains("cis_") || got.contains("node") { Ok(()) } else { Err(()) });
    }
}

/// Runs `cis agent run` on what was started in a mount namespace in which `setup` was done, and says what it printed.
fn with_mounts(node: &Node, kind: &str, setup: &str, script: &str) -> Ran {
    let plain = node.command(["agent", "run", "--sandbox", kind, "a", "--", "sh", "-c", script]);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{setup} && exec \"$@\""), "sh"]);
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(node.dir()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Running::start(command).wait()
}

#[test]
fn other_mounts_of_the_data_directory_are_shut_too() {
    if !rustix::process::geteuid().is_root() {
        println!("only the superuser mounts");
        return;
    }
    let node = Node::new();
    let _up = node.up();
    let views = ["whole", "above", "part"].map(|name| node.path(name));
    views.iter().for_each(|view| fs::create_dir(view).unwrap());
    let setup = "mount --bind data whole && mount --bind . above && mount --bind data/skills part";
    fs::create_dir_all(node.data.join("skills")).unwrap();
    fs::write(node.data.join("skills/secret"), "secret").unwrap();
    for kind in ["namespaces", "landlock"] {
        let ran = with_mounts(&node, kind, setup, "cat whole/* above/data/* part/*; echo done");
        if !is_refused(&node, &ran) {
            assert_eq!(ran.out, "done\n", "{ran}");
        }
    }
    // Without a sandbox it is all there.
    assert!(with_mounts(&node, "off", setup, "cat whole/admin.token part/*").out.ends_with("secret"));
}

/// As in a container, or where AppArmor or a setting of the kernel forbids them.
#[test]
fn refused_namespaces_fall_back_to_landlock_or_to_a_refusal() {
    let node = Node::new();
    let _up = node.up();
    let run = |kind: &str| {
        let plain = node.command(["agent", "run", "--sandbox", kind, "a", "--", "echo", "ran"]);
        let mut command = Command::new("unshare");
        let none = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"";
        command.args(["-Ur", "sh", "-c", none, "sh"]).arg(plain.get_program()).args(plain.get_args());
        command.current_dir(node.dir()).env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Running::start(command).wait()
    };
    if !Command::new("unshare").args(["-Ur", "true"]).status().unwrap().success() {
        // This machine refuses them itself.
        let ran = node.cis(["agent", "run", "a", "--", "true"]).code(0);
        ran.tells("namespaces do not work here (cannot make a user namespace");
        return;
    }
    let why = "namespaces do not work here (cannot make a user namespace";
    run("namespaces").code(1).says_nothing().tells("error[Unavailable]: no such sandbox").tells(why);
    match cis::sandbox::landlock::is_available() {
        true => {
            run("auto").code(0).says("ran").tells("sandbox: Landlock").tells(why);
            run("require").code(0).says("ran").tells("sandbox: Landlock").tells(why);
        }
        false => {
            run("auto").code(0).says("ran").tells("warning: no sandbox").tells(why);
            run("require").code(1).says_nothing().tells("error[Unavailable]: no such sandbox");
        }
    }
}

#[test]
fn home_around_the_data_directory_is_usable_in_namespaces() {
    for node in nodes() {
        let _up = node.up();
        let script = "id -u; umask 077; echo x > new && mv new other && rm other && mkdir d && cat /dev/null > d/f && echo made";
        let ran = node.cis(["agent", "run", "--sandbox", "namespaces", "a", "--", "sh", "-c", script]);
        if !is_refused(&node, &ran) {
            let user = node.user().unwrap_or_else(|| rustix::process::geteuid().as_raw());
            assert_eq!(ran.code(0).out, format!("{user}\nmade\n"));
        }
    }
}

#[test]
fn everything_started_in_namespaces_ends_with_the_command() {
    let node = Node::new();
    let _up = node.up();
    let script = "setsid sleep 1000 > /dev/null 2>&1 & sleep 1000 > /dev/null 2>&1 & exit 3";
    let ran = node.cis(["agent", "run", "--sandbox", "namespaces", "a", "--", "sh", "-c", script]);
    if !is_refused(&node, &ran) {
        ran.code(3);
        node.assert_no_survivors();
    }
}

#[test]
fn ways_past_the_mounts_are_not_inherited() {
    let node = Node::new();
    let _up = node.up();
    let run = |setup: &str| {
        let (plain, exe) = (node.command(["x"]), node.exe());
        let script = "cat admin.token; ls; ls /proc/self/cwd/";
        let line =
            format!("{setup}; exec {} agent run --sandbox namespaces a -- sh -c '{script}'", exe.display());
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(node.dir()).env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Running::start(command).wait()
    };
    let inside = run("cd data");
    if is_refused(&node, &inside) {
        return;
    }
    assert_eq!(inside.out, "", "{inside}");
    let open = run("exec 7< data").code(1).says_nothing();
    open.tells("descriptor 7 is an open directory");
}

/// A script that starts both the node and an agent has them in one process group.
#[test]
fn signal_to_the_group_of_the_command_reaches_nothing_outside() {
    let node = Node::new();
    let _up = node.up();
    for kind in ["namespaces", "landlock"] {
        let (plain, exe) = (node.command(["x"]), node.exe());
        let line = format!(
            "sleep 1000 & {} agent run --sandbox {kind} a -- sh -c 'kill -KILL 0'; echo code=$?; kill $! && echo alive",
            exe.display()
        );
        let mut command = Command::new("setsid");
        command.args(["--wait", "sh", "-c", &line]).current_dir(node.dir()).env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ran = Running::start(command).wait();
        if ran.err.contains("no such sandbox") {
            println!("not on this machine: {ran}");
            continue;
        }
        assert_eq!(ran.out, "code=137\nalive\n", "{ran}");
    }
}

#[test]
fn terminal_interrupts_and_stops_a_command_in_every_sandbox() {
    let node = Node::new();
    let _up = node.up();
    for kind in ["namespaces", "landlock"] {
        let probe = node.cis(["agent", "run", "--sandbox", kind, "a", "--", "true"]);
        if is_refused(&node, &probe) {
            continue;
        }
        let plain = node.command(["x"]);
        let mut shell = Command::new("sh");
        shell.arg("-i").current_dir(node.dir()).env("PS1", "$ ");
        shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut terminal = Terminal::start(200, shell);
        let agent = |label: &str, script: &str| {
            let exe = node.exe();
            format!("{} agent run --sandbox {kind} a -- sh -c '{script}'; echo {label}=$?\n", exe.display())
        };
        let script =
            "trap \"exit 9\" INT; trap \"echo resu\"\"med\" CONT; echo rea\"\"dy; while :; do sleep 1; done";
        terminal.press(&agent("first", script));
        terminal.until("ready\r\n");
        terminal.press("\u{1a}");
        terminal.until("first=148\r\n");
        terminal.press("fg; echo then=$?\n");
        terminal.until("resumed\r\n");
        terminal.press(CTRL_C);
        terminal.until("then=9\r\n");
        // One that stops itself gives the terminal back as well.
        terminal.press(&agent("second", "kill -STOP $$; exit 4"));
        terminal.until("second=148\r\n");
        terminal.press("fg; echo last=$?\n");
        terminal.until("last=4\r\n");
        terminal.press("exit\n");
        terminal.wait();
    }
}

/// The path of the owner's directory is looked at once: a link on the way to it may lead elsewhere when the command has ended.
#[test]
fn link_to_the_data_directory_that_the_command_could_replace_is_refused() {
    for node in nodes() {
        let _up = node.up();
        symlink("data", node.path("link")).unwrap();
        let run = |kind: &str, script: &str| {
            let link = node.path("link");
            let args = ["--data-dir", link.to_str().unwrap(), "agent", "run", "--sandbox", kind, "a", "--"];
            let mut command = node.bare();
            command.args(args).args(["sh", "-c", script]);
            Running::start(command).wait()
        };
        for kind in ["auto", "namespaces", "landlock", "require"] {
            let refused = run(kind, "echo ran").code(2).says_nothing();
            refused.tells("could replace the link").tells("hint: say the real path with `--data-dir`");
        }
        // Without a sandbox nothing is promised; all the same, the token is taken back where it was made.
        run("off", "mv link old && mkdir link").code(0);
        assert_eq!(fs::read_dir(node.path("link")).unwrap().count(), 0);
        let tokens = node.json(["token", "list"]);
        let own = tokens["tokens"].as_array().unwrap().iter().find(|token| token["identity"] == "a");
        assert!(own.unwrap()["revoked_at"].is_string(), "{tokens}");
        // The same with the settings, whose directory was made by now.
        fs::rename(node.path("home/.cis"), node.path("home/real")).unwrap();
        symlink("real", node.path("home/.cis")).unwrap();
        let refused = node.cis(["agent", "run", "a", "--", "echo", "ran"]).code(2).says_nothing();
        refused.tells("could replace the link").tells("hint: say the real path with `CIS_HOME`");
    }
}

/// A link that only others can replace leads to the same directory for ever.
#[test]
fn link_that_only_others_can_replace_is_followed() {
    let Some(node) = nodes().into_iter().find(|node| node.user().is_some()) else {
        println!("only the superuser has others");
        return;
    };
    let _up = node.up();
    let other = tempfile::tempdir().unwrap();
    fs::set_permissions(other.path(), Permissions::from_mode(0o755)).unwrap();
    let link = other.path().join("link");
    symlink(&node.data, &link).unwrap();
    let mut command = node.bare();
    command.arg("--data-dir").arg(&link).args(["agent", "run", "a", "--", "sh", "-c"]);
    command.arg(format!("cat {}/admin.token; echo ran", link.display()));
    let ran = Running::start(command).wait().code(0);
    let is_off = ran.err.contains("warning: no sandbox");
    assert!(is_off || ran.out == "ran\n", "{ran}");
}

/// Each line is told if it works. `$1` is the directory of the settings, `$2` another file that they are read from.
const CHANGE_SETTINGS: &str = r#"
    dir=$1 file=$2 up=$(dirname "$1")
    cat "$dir/config.toml" > /dev/null && echo read
    mkdir -p "$dir" 2> /dev/null
    (echo x >> "$dir/config.toml") && echo written
    (echo x > "$dir/new") && echo made
    (echo x >> "$file") && echo linked
    rm "$dir/config.toml" && echo removed
    (echo x > beside/own) && mv beside/own "$dir/config.toml" && echo replaced
    ln "$dir/config.toml" beside/hard && (echo x >> beside/hard) && echo hard-linked
    mv "$dir" "$dir.moved" && echo moved
    mv "$up" "$up.moved" && echo moved-parent
    mv "$(dirname "$file")" beside/files && echo moved-file
    unshare -rUm sh -c "umount '$dir'; umount -l '$dir'; mount -o remount,bind,rw '$dir'; echo x >> '$dir/config.toml'" && echo remounted
    echo done
"#;

/// Who can write the settings has the next node run what is published.
#[test]
fn settings_can_be_read_and_not_changed_from_a_sandbox() {
    for kind in ["namespaces", "landlock", "off"] {
        for node in nodes() {
            let settings = node.path("home/.cis");
            let file = node.write("files/deep/cis.toml", "[node]\nname = 'linked'\n");
            fs::create_dir_all(&settings).unwrap();
            fs::create_dir(node.path("beside")).unwrap();
            symlink(&file, settings.join("config.toml")).unwrap();
            let own = ["home", "home/.cis", "files", "files/deep", "files/deep/cis.toml", "beside"];
            own.iter().for_each(|name| chown(node.path(name), node.user(), node.user()).unwrap());
            let _up = node.up();
            let ran = change_settings(&node, kind, &settings, &file);
            if is_refused(&node, &ran) {
                continue;
            }
            match kind {
                "off" => {
                    assert!(ran.out.starts_with("read\nwritten\nmade\nlinked\nremoved\nreplaced\n"), "{ran}")
                }
                _ => {
                    assert_eq!(ran.out, "read\ndone\n", "{ran}");
                    assert_eq!(
                        fs::read_to_string(settings.join("config.toml")).unwrap(),
                        "[node]\nname = 'linked'\n"
                    );
                    assert_eq!(fs::read_dir(&settings).unwrap().count(), 1);
                }
            }
        }
    }
}

fn change_settings(node: &Node, kind: &str, settings: &Path, file: &Path) -> Ran {
    let mut command =
        node.command(["agent", "run", "--sandbox", kind, "a", "--", "sh", "-c", CHANGE_SETTINGS, "sh"]);
    command.arg(settings).arg(file);
    Running::start(command).wait()
}

/// Where there are none, none can be made; nor those of `CIS_HOME`, with the data directory inside.
#[test]
fn settings_that_are_not_there_cannot_be_made_from_a_sandbox() {
    for kind in ["namespaces", "landlock"] {
        for node in nodes() {
            fs::create_dir(node.path("beside")).unwrap();
            chown(node.path("beside"), node.user(), node.user()).unwrap();
            let _up = node.up();
            let settings = node.path("home/.cis");
            let ran = change_settings(&node, kind, &settings, Path::new("/none/none"));
            if is_refused(&node, &ran) {
                continue;
            }
            assert_eq!(ran.out, "done\n", "{ran}");
            assert_eq!(fs::read_dir(&settings).unwrap().count(), 0);
        }
        for node in nodes() {
            let home = node.path("cis-home");
            let node = node.with("CIS_HOME", home.to_str().unwrap());
            let mut command = node.bare();
            command.args(["node", "start", "--bind", "127.0.0.1:0"]);
            let mut up = Running::start(command);
            up.until("http://");
            let mut command = node.bare();
            let script = "cat $CIS_HOME/data/admin.token; ls $CIS_HOME/data; (echo x > $CIS_HOME/config.toml); mv $CIS_HOME $CIS_HOME.moved; echo done";
            command.args(["agent", "run", "--sandbox", kind, "a", "--", "sh", "-c", script]);
            let ran = Running::start(command).wait();
            if !ran.err.contains("no such sandbox") {
                let listed = kind == "landlock";
                assert!(
                    ran.out == "done\n"
                        || (listed && ran.out.ends_with("done\n") && !ran.out.contains("cis_")),
                    "{ran}"
                );
                assert!(
                    home.join("data/admin.token").exists() && !home.join("config.toml").exists(),
                    "{ran}"
                );
            }
            up.signal(Signal::TERM);
            up.wait();
        }
    }
}

/// In a namespace of its own a command could mount the control groups anew, and end its group with `cgroup.kill`.
#[test]
fn namespaces_for_control_groups_cannot_be_made_in_namespaces() {
    for node in nodes() {
        let _up = node.up();
        let script = "unshare -UC true && echo groups; unshare -Um true && echo users";
        let run = |kind: &str| node.cis(["agent", "run", "--sandbox", kind, "a", "--", "sh", "-c", script]);
        let ran = run("namespaces");
        if !is_refused(&node, &ran) {
            assert_eq!(ran.out, "users\n", "{ran}");
            run("off").says("groups\nusers\n");
        }
    }
}

/// None of those that there are can be written, and no other can be mounted.
#[test]
fn kernel_settings_of_every_mount_of_processes_are_shut() {
    if !rustix::process::geteuid().is_root() {
        println!("only the superuser mounts");
        return;
    }
    let node = Node::new();
    let _up = node.up();
    ["second", "third"].iter().for_each(|name| fs::create_dir(node.path(name)).unwrap());
    let open = |at: &str| format!("(exec 3<> {at}/sys/kernel/core_pattern) && echo {at}");
    let script = format!(
        "{}; {}; unshare -Umpf --mount-proc=third sh -c '{}'; echo done",
        open("/proc"),
        open("second"),
        open("third")
    );
    let run = |kind: &str| with_mounts(&node, kind, "mount -t proc proc second", &script);
    let ran = run("namespaces");
    if !is_refused(&node, &ran) {
        assert_eq!(ran.out, "done\n", "{ran}");
        assert_eq!(run("off").out, "/proc\nsecond\nthird\ndone\n");
    }
}

/// Under Landlock any process of the user can limit those of the node. Without the limit, all goes on.
#[test]
fn limit_of_file_sizes_ends_neither_node_nor_runner() {
    let node = Node::new();
    let up = node.up();
    let status = json_dag("first", "grep SigIgn /proc/self/status; grep SigCgt /proc/self/status");
    up.client.run(&status);
    assert_eq!(up.client.until_over("first")["status"], "completed");
    let ignored = node.logs("first", "t");
    // SIGXFSZ is 25.
    let has_it =
        |line: &str| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap() >> 24 & 1 == 1;
    assert!(!ignored.lines().any(has_it), "{ignored}");
    let (was, runner) = (getrlimit(Resource::Fsize), node.runner());
    for process in [up.running.pid(), runner] {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        assert!(status.lines().filter(|line| line.starts_with("SigCgt")).all(has_it), "{status}");
        let process = Pid::from_raw(process.cast_signed());
        prlimit(process, Resource::Fsize, Rlimit { current: Some(0), maximum: was.maximum }).unwrap();
    }
    let refused = up.client.post("/api/v1/dag/publish", &json_dag("second", "true"));
    assert!(refused.status >= 500, "{refused:?}");
    assert_eq!(up.client.get("/health").status, 200);
    assert_eq!(node.runner(), runner);
    for process in [up.running.pid(), runner] {
        prlimit(Pid::from_raw(process.cast_signed()), Resource::Fsize, was).unwrap();
    }
    assert_eq!(up.client.get("/health").status, 200);
}

fn json_dag(id: &str, command: &str) -> String {
    serde_json::json!({"dag_id": id, "tasks": [{"id": "t", "command": command}]}).to_string()
}

/// What the owner's worker gives to a command, and takes from it, is not for other agents.
#[test]
fn files_of_the_owners_worker_are_in_the_data_directory() {
    let node = Node::new();
    let up = node.up();
    let task = |dag: &str| {
        let dag = serde_json::json!({"dag_id": dag, "tasks": [{"id": "w", "type": "external", "input": {}}]});
        up.client.run(&dag.to_string());
    };
    let all = node.data.join("work-files");
    let started = node.fifo("started");
    task("first");
    let script = "dirname $CIS_INPUT_FILE > started; exec sleep 1000";
    let worker = node.spawn(["work", "--", "sh", "-c", script]);
    let first = PathBuf::from(started.line().trim());
    assert!(first.starts_with(&all), "{first:?}");
    assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o700);
    for kind in ["namespaces", "landlock"] {
        let script =
            format!("cat {0}/CIS_INPUT; echo x=1 > {0}/output && echo forged; echo done", first.display());
        let ran = node.cis(["agent", "run", "--sandbox", kind, "a", "--", "sh", "-c", &script]);
        if !is_refused(&node, &ran) {
            assert_eq!(ran.out, "done\n", "{ran}");
        }
    }
    // One that works leaves the files of the other; one that finds them left removes them.
    task("second");
    let second = node.ok(["work", "--once", "--", "sh", "-c", "echo $CIS_INPUT_FILE"]).out;
    assert!(first.exists() && second.starts_with(all.to_str().unwrap()), "{second}");
    worker.signal(Signal::KILL);
    worker.wait();
    assert!(first.exists());
    task("third");
    node.ok(["work", "--once", "--", "true"]);
    assert_eq!(fs::read_dir(&all).unwrap().count(), 1, "the lock alone");
    // A caller with a token may be kept from the data directory itself.
    task("fourth");
    let (url, token) = (format!("http://{}", up.client.address), node.token(["agent"]));
    let command =
        ["work", "--once", "--node", &url, "--token", &token, "--", "sh", "-c", "echo $CIS_INPUT_FILE"];
    let fourth = node.ok(command).out;
    assert!(!fourth.starts_with(all.to_str().unwrap()) && !Path::new(fourth.trim()).exists(), "{fourth}");
}
