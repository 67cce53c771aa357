//! Which paths lead to a directory, and how they are covered in a mount namespace of one's own.

use std::ffi::{CStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change, mount_remount,
};

use super::{Guarded, Named, SandboxError};

/// File systems by which a kernel is told things: a user may own control groups, and the superuser owns all of it.
const KERNEL_FILE_SYSTEMS: [&str; 12] = [
    "sysfs",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "binfmt_misc",
    "efivarfs",
    "bpf",
    "pstore",
    "fusectl",
];

/// The same within a mount of processes, where only the superuser writes.
const KERNEL_FILES: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

const HARMLESS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq)]
struct Mount {
    id: u64,
    device: String,
    /// Which directory of its file system it shows.
    root: PathBuf,
    point: PathBuf,
    /// What a remount must repeat.
    flags: MountFlags,
    kind: String,
}

/// Every path by which `dir` can be reached, or a part of it: through each mount of its file system.
pub(super) fn views_of(dir: &Path) -> Result<Vec<PathBuf>, SandboxError> {
    views(dir, &list_mounts()?).named(|| format!("find the mounts of `{}`", dir.display()))
}

/// Mounts all that a command sees otherwise than its caller: nothing where the hidden directory is, its own processes in `/proc`,
/// settings and what tells the kernel things for reading only. To be called by the first process of new mount and PID namespaces.
pub(super) fn prepare(guarded: &Guarded, is_superuser: bool) -> Result<(), SandboxError> {
    let dir = &guarded.hidden;
    let original = fs::metadata(dir).named(|| format!("find `{}`", dir.display()))?;
    // What is mounted outside from now on, that directory included, does not appear inside.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .named(|| "part the mounts from those outside".into())?;
    for one in &list_mounts()? {
        renew(one, is_superuser).named(|| format!("mount {} on `{}`", one.kind, one.point.display()))?;
    }
    for path in &guarded.read_only {
        make_read_only(path)?;
    }
    // The hidden directory may be among what can only be read, and so be mounted once more by now.
    let views = views_of(dir)?;
    hold_ancestors(guarded, is_superuser)?;
    for view in &views {
        cover(view).named(|| format!("cover `{}`", view.display()))?;
    }
    for view in &views {
        let now = fs::metadata(view).named(|| format!("look at `{}`", view.display()))?;
        if is_same(&now, &original) {
            return Err(SandboxError::Refused(format!("`{}` is still there", view.display())));
        }
    }
    Ok(())
}

/// Replaces what shows processes and queues outside; shuts for writing what tells the kernel things.
fn renew(one: &Mount, is_superuser: bool) -> io::Result<()> {
    if !one.is_on_top() {
        return Ok(());
    }
    match one.kind.as_str() {
        "proc" if one.root == Path::new("/") => {
            mount("proc", &one.point, "proc", HARMLESS, None)?;
            // At once: a mount that is copied before would be left, and while one shows all, more can be made.
            if is_superuser {
                let files = KERNEL_FILES.map(|name| one.point.join(name));
                files.iter().filter(|path| path.exists()).try_for_each(|path| shut_for_writing(path))?;
            }
        }
        "mqueue" => mount("mqueue", &one.point, "mqueue", HARMLESS, None)?,
        "proc" => cover(&one.point)?,
        kind if KERNEL_FILE_SYSTEMS.contains(&kind) && !one.flags.contains(MountFlags::RDONLY) => {
            mount_remount(&one.point, MountFlags::BIND | MountFlags::RDONLY | one.flags, c"")?;
        }
        _ => {}
    }
    Ok(())
}

/// Lets settings be read and nothing else, by every path that leads to them.
fn make_read_only(path: &Path) -> Result<(), SandboxError> {
    let views = views_of(path)?;
    let shut = |e: io::Error| SandboxError::Step { what: format!("shut `{}`", path.display()), source: e };
    for view in &views {
        mount_bind_recursive(view, view).map_err(|e| shut(e.into()))?;
    }
    let is_within = |one: &Mount| views.iter().any(|view| one.point.starts_with(view));
    for one in list_mounts()?.iter().filter(|one| is_within(one) && one.is_on_top()) {
        mount_remount(&one.point, MountFlags::BIND | MountFlags::RDONLY | one.flags, c"")
            .map_err(|e| shut(e.into()))?;
    }
    for view in &views {
        let now = rustix::fs::statvfs(view).map_err(|e| shut(e.into()))?;
        if !now.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(SandboxError::Refused(format!("`{}` can still be written", view.display())));
        }
    }
    Ok(())
}

/// Makes every directory on the way to what is guarded a mount point, which cannot be renamed: else the way could be moved aside
/// and another directory laid there for the owner to find. They are mount points in a second view of everything, which is hidden
/// beneath the cover of the hidden directory, so that files are still moved in and out of them without being copied.
fn hold_ancestors(guarded: &Guarded, is_superuser: bool) -> Result<(), SandboxError> {
    let dir = &guarded.hidden;
    let work = |e: io::Error| SandboxError::Step { what: "hold the way to it".into(), source: e };
    lay_tmpfs(dir, MountFlags::empty(), c"mode=0700,size=64k").map_err(work)?;
    let everything = dir.join("everything");
    fs::create_dir(&everything).map_err(work)?;
    mount_bind_recursive("/", &everything).map_err(|e| work(e.into()))?;
    let above = guarded.read_only.iter().chain([dir]).flat_map(|path| path.ancestors().skip(1));
    let mut ancestors: Vec<&Path> = above.filter(|path| path.parent().is_some()).collect();
    // The inner one first: it is not to be found once an outer one is covered.
    ancestors.sort_by_key(|path| (std::cmp::Reverse(path.components().count()), *path));
    ancestors.dedup();
    for ancestor in ancestors {
        cover(&everything.join(ancestor.strip_prefix("/").unwrap_or(ancestor))).map_err(work)?;
    }
    if is_superuser {
        replace_devices(&dir.join("dev")).named(|| "replace `/dev`".into())?;
    }
    Ok(())
}

/// Leaves of `/dev` what any user may read and write: the superuser could read `dir` from the disk itself.
fn replace_devices(new: &Path) -> io::Result<()> {
    let Some(old) = mount_id(Path::new("/dev")) else { return Ok(()) };
    fs::create_dir(new)?;
    copy_devices(Path::new("/dev"), new, old)?;
    mount_bind_recursive(new, "/dev")?;
    Ok(mount_remount("/dev", MountFlags::BIND | MountFlags::RDONLY | HARMLESS, c"")?)
}

fn copy_devices(from: &Path, to: &Path, mount: u64) -> io::Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        let (old, new) = (entry.path(), to.join(entry.file_name()));
        let found = fs::symlink_metadata(&old)?;
        let kind = found.file_type();
        let is_device = kind.is_char_device() || kind.is_block_device();
        if kind.is_symlink() {
            symlink(fs::read_link(&old)?, &new)?;
        } else if kind.is_dir() {
            fs::create_dir(&new)?;
            match mount_id(&old) == Some(mount) {
                true => copy_devices(&old, &new, mount)?,
                false => mount_bind_recursive(&old, &new)?,
            }
        } else if !is_device || (kind.is_char_device() && found.mode() & 0o6 == 0o6) {
            File::create(&new)?;
            mount_bind(&old, &new)?;
        }
    }
    Ok(())
}

fn shut_for_writing(path: &Path) -> io::Result<()> {
    mount_bind(path, path)?;
    Ok(mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | HARMLESS, c"")?)
}

/// Lays an empty directory that cannot be written over one, and `/dev/null` over a file.
fn cover(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_dir() {
        true => lay_tmpfs(path, MountFlags::RDONLY, c"mode=0555,size=4k,nr_inodes=1"),
        false => Ok(mount_bind("/dev/null", path)?),
    }
}

fn lay_tmpfs(path: &Path, flags: MountFlags, options: &CStr) -> io::Result<()> {
    Ok(mount("tmpfs", path, "tmpfs", HARMLESS | flags, options)?)
}

fn views(dir: &Path, mounts: &[Mount]) -> io::Result<Vec<PathBuf>> {
    let original = fs::metadata(dir)?;
    let id = mount_id(dir);
    let own = mounts.iter().find(|one| Some(one.id) == id).ok_or(io::ErrorKind::NotFound)?;
    let place = join(&own.root, dir.strip_prefix(&own.point).unwrap_or(Path::new("")));
    let mut found = vec![dir.to_owned()];
    for one in mounts.iter().filter(|one| one.device == own.device) {
        let view = match place.strip_prefix(&one.root) {
            // What is mounted over it meanwhile hides it by that path.
            Ok(rest) => Some(join(&one.point, rest))
                .filter(|view| fs::metadata(view).is_ok_and(|at| is_same(&at, &original))),
            Err(_) => Some(one.point.clone()).filter(|_| one.root.starts_with(&place) && one.is_on_top()),
        };
        found.extend(view.filter(|view| view != dir));
    }
    // One may be within another, and is not to be found once that is covered.
    found.sort_by_key(|view| std::cmp::Reverse(view.components().count()));
    found.dedup();
    Ok(found)
}

fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

impl Mount {
    /// Does its path lead to it, or has something been mounted over it?
    fn is_on_top(&self) -> bool {
        mount_id(&self.point) == Some(self.id)
    }
}

/// On which mount a path lies.
fn mount_id(path: &Path) -> Option<u64> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

fn list_mounts() -> Result<Vec<Mount>, SandboxError> {
    let text = fs::read("/proc/self/mountinfo").named(|| "read `/proc/self/mountinfo`".into())?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let all: Option<Vec<Mount>> = lines.map(parse_mount).collect();
    all.ok_or_else(|| SandboxError::Refused("`/proc/self/mountinfo` cannot be read".into()))
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG…] - KIND SOURCE OPTIONS`
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let kind = fields.iter().skip(6).position(|field| *field == b"-")? + 7;
    let text = |at: usize| std::str::from_utf8(fields.get(at)?).ok();
    let flags = text(5)?.split(',').map(|option| match option {
        "ro" => MountFlags::RDONLY,
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        _ => MountFlags::empty(),
    });
    Some(Mount {
        id: text(0)?.parse().ok()?,
        device: text(2)?.to_owned(),
        root: parse_path(fields.get(3)?),
        point: parse_path(fields.get(4)?),
        flags: flags.fold(MountFlags::empty(), MountFlags::union),
        kind: text(kind)?.to_owned(),
    })
}

/// Blanks, line ends and backslashes are written as `\` and three octal digits.
fn parse_path(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *byte == b'\\').and_then(|octal| std::str::from_utf8(octal).ok());
        match digits.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(escaped) => {
                path.push(escaped);
                rest = &after[3..];
            }
            None => {
                path.push(*byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mount_with_tags_and_blanks_is_read_whole() {
        let line =
            br"36 35 98:0 /mnt1 /mnt\0402\134x rw,nosuid,noatime master:1 shared:2 - ext3 /dev/root rw";
        let read = parse_mount(line).unwrap();
        assert_eq!((read.id, read.device.as_str(), read.kind.as_str()), (36, "98:0", "ext3"));
        assert_eq!((read.root, read.point), ("/mnt1".into(), r"/mnt 2\x".into()));
        assert_eq!(read.flags, MountFlags::NOSUID);
        assert_eq!(parse_mount(b"36 35 98:0 / / rw"), None);
    }

    #[test]
    fn directory_is_found_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        assert!(views_of(&dir).unwrap().contains(&dir));
    }
}
