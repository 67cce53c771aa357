//! Which project a file belongs to: the nearest directory above it that has a `.cis/`.

use std::path::{Path, PathBuf};

use cis_core::id::Scope;
use sha2::{Digest, Sha256};

/// The directory that marks a project.
pub const MARK: &str = ".cis";

/// Longest readable part of a project's scope.
const NAME_MAX: usize = 64;

/// The root of the project that `start` is in. The user's own `cis_home` marks no project, or everything below
/// the home directory would be one.
pub fn root(start: &Path, cis_home: &Path) -> Option<PathBuf> {
    let start = start.canonicalize().ok()?;
    let home = cis_home.canonicalize().ok();
    let is_root = |dir: &&Path| {
        let mark = dir.join(MARK);
        mark.is_dir() && mark.canonicalize().ok() != home
    };
    start.ancestors().find(is_root).map(Path::to_owned)
}

/// The scope of the project at `root`: its directory's name, and a few digits of its whole path, so that two
/// checkouts called `app` never meet.
pub fn scope(root: &Path) -> Scope {
    let digest = Sha256::digest(root.as_os_str().as_encoded_bytes());
    let mark: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let name = name(root).unwrap_or_else(|| "dir".to_owned());
    // Both parts are within the alphabet, so this cannot fail.
    format!("project-{name}-{mark}").parse().unwrap_or_else(|_| Scope::global())
}

/// The name of `dir`, as far as it is within the alphabet of names.
pub fn name(dir: &Path) -> Option<String> {
    let name: String = dir
        .file_name()?
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .take(NAME_MAX)
        .collect();
    let name = name.trim_matches(['-', '.']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_nearest_mark_wins_and_the_users_home_is_none() {
        let home = tempfile::TempDir::new().unwrap();
        let deep = home.path().join("work/app/src/deep");
        fs::create_dir_all(&deep).unwrap();
        let cis_home = home.path().join(".cis");
        fs::create_dir(&cis_home).unwrap();
        assert_eq!(root(&deep, &cis_home), None);
        fs::create_dir(home.path().join("work/app/.cis")).unwrap();
        let found = root(&deep, &cis_home).unwrap();
        assert!(found.ends_with("work/app"));
        assert_eq!(root(&deep.join("missing"), &cis_home), None);
    }

    #[test]
    fn scopes_are_readable_and_apart() {
        let (a, b) = (scope(Path::new("/one/app")), scope(Path::new("/two/app")));
        assert_ne!(a, b);
        assert!(a.as_str().starts_with("project-app-") && Scope::is_well_formed(a.as_str()));
        for odd in ["/", "/日本", "/a b", &format!("/{}", "x".repeat(300))] {
            assert!(Scope::is_well_formed(scope(Path::new(odd)).as_str()), "{odd}");
        }
        assert_eq!(name(Path::new("/my app!")).as_deref(), Some("my-app"));
    }
}
