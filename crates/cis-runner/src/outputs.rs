//! Reading the files that a command writes for CIS: within a bound, and never anything but a plain file. A command may put a
//! pipe, a link, a directory or a device in its place.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A file of outputs larger than this breaks the attempt.
pub const OUTPUTS_BYTES_MAX: u64 = 1 << 20;

/// Opens a file that a command may have written; `None` if there is none. A pipe or a device in its place does not hold up
/// the reader, and a link does not lead it elsewhere.
fn open_plain(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(io::Error::other("it is a link, not a plain file")),
        Err(error) => return Err(error.into()),
        Ok(file) => File::from(file),
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(io::Error::other("not a plain file")),
    }
}

/// What a command wrote as its outputs; `None` if it wrote nothing.
pub fn read_outputs(path: &Path) -> io::Result<Option<String>> {
    let Some(file) = open_plain(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(OUTPUTS_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > OUTPUTS_BYTES_MAX {
        return Err(io::Error::other("more than 1 MiB"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| io::Error::other("not UTF-8"))
}

/// The last `bytes_max` bytes of what a command wrote, as text; `None` if it wrote nothing.
pub fn read_tail(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let Some(mut file) = open_plain(path)? else { return Ok(None) };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn anything_but_a_plain_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        assert_eq!(read_outputs(&path).unwrap(), None);
        std::fs::create_dir(&path).unwrap();
        assert!(read_outputs(&path).unwrap_err().to_string().contains("not a plain file"));
        std::fs::remove_dir(&path).unwrap();
        for target in ["/dev/zero", "/etc/passwd", "/no/such/file"] {
            symlink(target, &path).unwrap();
            assert!(read_outputs(&path).unwrap_err().to_string().contains("a link"), "{target}");
            assert!(read_tail(&path, 10).is_err(), "{target}");
            std::fs::remove_file(&path).unwrap();
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(read_outputs(&path).unwrap_err().to_string().contains("not a plain file"));
        assert!(read_tail(&path, 10).is_err());
    }

    #[test]
    fn outputs_are_bounded_and_a_tail_is_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(read_outputs(&path).unwrap().unwrap().len(), 1 << 20);
        std::fs::write(&path, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(read_outputs(&path).unwrap_err().to_string().contains("more than 1 MiB"));
        std::fs::write(&path, "one\ntwo").unwrap();
        assert_eq!(read_tail(&path, 3).unwrap().as_deref(), Some("two"));
        assert_eq!(read_tail(&path, 99).unwrap().as_deref(), Some("one\ntwo"));
    }
}
