//! Values for a task that its environment may be too small for, in files that only the node's user can read. They are there
//! while the attempt is.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use cis_runner::exec_limit::{STRING_BYTES_MAX, fits_variable};
use cis_runner::protocol::AttemptKey;

use crate::data_dir::DataDir;

/// What a variable's name ends in that holds the path of another variable's value.
const SUFFIX: &str = "_FILE";

/// The files of attempts that were given any.
#[derive(Debug)]
pub(crate) struct ValueFiles {
    data_dir: DataDir,
    /// Attempts that have files. Most have none, and cost no look at the disk when they end.
    kept: HashSet<AttemptKey>,
}

impl ValueFiles {
    pub(crate) fn new(data_dir: DataDir) -> Self {
        Self { data_dir, kept: HashSet::new() }
    }

    /// Remembers an attempt that an earlier coordinator may have given files.
    pub(crate) fn adopt(&mut self, key: AttemptKey) {
        if self.path(key).exists() {
            self.kept.insert(key);
        }
    }

    /// Puts values in files where the task asks for that: of two variables `V` and `V_FILE`, the second one empty, `V_FILE`
    /// becomes the path of a file with the value of `V`, and `V` is empty where it is too long for a program to take. Refuses
    /// a value that is too long where the task does not ask: a command that finds nothing in its place might go wrong quietly.
    pub(crate) fn place(&mut self, key: AttemptKey, env: &mut [(String, String)]) -> Result<(), String> {
        // Later ones win.
        let last = |env: &[(String, String)], name: &str| env.iter().rposition(|(own, _)| own == name);
        for at in 0..env.len() {
            let (name, value) = &env[at];
            let is_asked_for = value.is_empty() && name.ends_with(SUFFIX);
            if !is_asked_for || last(env, name) != Some(at) {
                continue;
            }
            let name = name[..name.len() - SUFFIX.len()].to_owned();
            let Some(of) = last(env, &name) else { continue };
            env[at].1 = self.write(key, &name, &env[of].1)?;
            if !fits_variable(&name, &env[of].1) {
                // Not left out: the run's own environment may have a variable of that name.
                env[of].1.clear();
            }
        }
        match env.iter().find(|(name, value)| !fits_variable(name, value)) {
            Some((name, value)) => Err(too_long(name, value)),
            None => Ok(()),
        }
    }

    /// Puts the value that a variable would have in a file; the answer is its path.
    pub(crate) fn write(&mut self, key: AttemptKey, name: &str, value: &str) -> Result<String, String> {
        let dir = self.path(key);
        let path = dir.join(name);
        self.kept.insert(key);
        let written = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).and_then(|()| {
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)
        });
        written
            .and_then(|mut file| file.write_all(value.as_bytes()))
            .map_err(|e| format!("cannot write the value of `{name}` to `{}`: {e}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// The attempt is over: removes its files.
    pub(crate) fn remove(&mut self, key: AttemptKey) {
        if self.kept.remove(&key) {
            // What cannot be removed now is found when a coordinator starts, and by `cis doctor`.
            let _: io::Result<()> = fs::remove_dir_all(self.path(key));
        }
    }

    fn path(&self, key: AttemptKey) -> PathBuf {
        self.data_dir.values(key.execution, key.fence)
    }
}

fn too_long(name: &str, value: &str) -> String {
    format!(
        "env `{name}` has {} bytes, and a variable holds at most {}: declare `{name}{SUFFIX} = \"\"` beside it, and the command \
         finds the path of a file with the value in `${name}{SUFFIX}`",
        value.len(),
        STRING_BYTES_MAX - name.len() - 2
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn value_is_in_a_file_where_the_task_asks_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::create(&dir.path().join("data")).unwrap();
        let mut files = ValueFiles::new(data.clone());
        let key = AttemptKey { execution: 7, fence: 9 };
        let long = "x".repeat(200_000);
        let mut env = vec![
            pair("V", &long),
            pair("V_FILE", ""),
            pair("S", "short"),
            pair("S_FILE", ""),
            pair("A_FILE", ""),
        ];
        files.place(key, &mut env).unwrap();
        let path = |name: &str| data.values(7, 9).join(name).to_string_lossy().into_owned();
        let expected = [
            pair("V", ""),
            pair("V_FILE", &path("V")),
            pair("S", "short"),
            pair("S_FILE", &path("S")),
            pair("A_FILE", ""),
        ];
        assert_eq!(env, expected);
        assert_eq!(fs::read_to_string(path("V")).unwrap(), long);
        let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path("V")), mode(&path(""))), (0o600, 0o700));
        files.remove(key);
        assert!(!data.values(7, 9).exists());
    }

    #[test]
    fn long_value_without_a_file_is_refused_with_size_limit_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::create(&dir.path().join("data")).unwrap();
        let mut env = vec![pair("V", &"x".repeat(200_000))];
        let why = ValueFiles::new(data).place(AttemptKey { execution: 1, fence: 1 }, &mut env).unwrap_err();
        for part in ["`V` has 200000 bytes", "at most 131069", "`V_FILE = \"\"`"] {
            assert!(why.contains(part), "{why}");
        }
    }
}
