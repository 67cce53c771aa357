//! Trees: their links and bounds, their copies, and what is done before each attempt.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cis_core::source::Timestamp;
use cis_store::{Durability, Reader, SqliteStore};
use tempfile::TempDir;

use super::SkillPath;
use super::checked::CheckedSkills;
use super::kept::{Kept, KeptSkills, is_packed_tree};
use super::packed::unpack;
use super::tree::{self, Of};
use crate::data_dir::DataDir;

/// Long after anything in these tests is written.
const LATER: Timestamp = Timestamp(1 << 50);

/// A skill directory with one skill, `lint`, and a data directory.
struct Place {
    dir: TempDir,
    data: DataDir,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let data = DataDir::create(&dir.path().join("data")).unwrap();
        let place = Self { dir, data };
        place
            .put("SKILL.md", "---\nname: lint\ndescription: d\ncommand: sh \"$CIS_SKILL_DIR/run.sh\"\n---\n");
        place.put("run.sh", "echo good\n");
        place
    }

    fn skill(&self) -> PathBuf {
        self.dir.path().join("skills/lint")
    }

    fn put(&self, path: &str, text: &str) -> PathBuf {
        let path = self.skill().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn dirs(&self) -> Vec<PathBuf> {
        vec![self.dir.path().join("skills")]
    }

    fn hash(&self) -> String {
        tree::hash(&self.skill(), Of::Source).unwrap()
    }

    fn why(&self) -> String {
        SkillPath::new(self.dirs()).find("lint").unwrap_err().to_string()
    }

    fn kept(&self) -> KeptSkills {
        KeptSkills::of(&self.data)
    }

    /// Keeps the skill; answers its hash and where it is kept.
    fn keep(&self) -> (String, PathBuf) {
        let hash = self.hash();
        self.kept().lock().unwrap().keep(&self.skill(), &hash, Durability::Power).unwrap();
        let place = self.kept().place(&hash).unwrap();
        (hash, place)
    }

    fn checked(&self) -> CheckedSkills {
        CheckedSkills::new(&self.data, Durability::Process)
    }
}

/// Replaces a file for reading only, as its owner can.
fn alter(path: &Path, text: &str) {
    let mode = fs::metadata(path).unwrap().permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Of the files in a tree: path, mode, content or target.
fn files(dir: &Path) -> Vec<(String, u32, String)> {
    let entries = tree::list(dir, Of::Copy).unwrap();
    let told = |entry: tree::Entry| match entry.target {
        Some(target) => (entry.path.display().to_string(), 0, target.display().to_string()),
        None => (
            entry.path.display().to_string(),
            entry.meta.mode() & 0o777,
            fs::read_to_string(dir.join(entry.path)).unwrap(),
        ),
    };
    entries.into_iter().map(told).collect()
}

#[test]
fn tree_hash_is_the_same_in_every_version() {
    let place = Place::new();
    fs::remove_file(place.skill().join("SKILL.md")).unwrap();
    fs::set_permissions(place.skill().join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    place.put("lib/a", "x");
    symlink("lib/a", place.skill().join("link")).unwrap();
    let mut packed = Vec::new();
    for (kind, path, content) in [("f", "lib/a", "x"), ("l", "link", "lib/a"), ("x", "run.sh", "echo good\n")]
    {
        packed.extend(kind.as_bytes());
        for part in [path, content] {
            packed.extend((part.len() as u64).to_le_bytes());
            packed.extend(part.as_bytes());
        }
    }
    assert_eq!(tree::pack(&place.skill(), Of::Source).unwrap(), packed);
    assert_eq!(place.hash(), "sha256:70df409241950ec0f0cd3fa6fe06e8b554175f0220d232cf640cbff312983043");
}

#[test]
fn links_that_leave_the_tree_are_refused() {
    for (path, target) in [
        ("run", "/etc/passwd"),
        ("run", "../other"),
        ("bin/run", "../../other"),
        ("bin/run", "../../lint/SKILL.md"),
        ("run", "bin/../../x"),
        ("run", "here/here/../../x"),
        ("run", ".git/config"),
    ] {
        let place = Place::new();
        place.put("bin/x", "");
        place.put(".git/config", "");
        symlink(".", place.skill().join("here")).unwrap();
        symlink(target, place.skill().join(path)).unwrap();
        let why = place.why();
        let told = format!("`{path}` links to `{target}`, outside the skill's tree");
        assert!(why.contains(&told), "{path} -> {target}: {why}");
    }
    let place = Place::new();
    symlink("b", place.skill().join("a")).unwrap();
    symlink("a", place.skill().join("b")).unwrap();
    assert!(place.why().contains("links to itself"), "{}", place.why());
}

#[test]
fn tree_that_is_too_deep_is_refused() {
    let place = Place::new();
    place.put(&format!("{}file", "d/".repeat(31)), "");
    assert_eq!(place.hash().len(), 71);
    place.put(&format!("{}file", "d/".repeat(32)), "");
    assert!(place.why().contains("is deeper than 32 directories"), "{}", place.why());
}

#[test]
fn kept_tree_is_a_whole_copy_for_reading_only() {
    let place = Place::new();
    fs::set_permissions(place.put("bin/go", "#!/bin/sh\n"), fs::Permissions::from_mode(0o755)).unwrap();
    place.put(".git/HEAD", "x");
    symlink("bin/go", place.skill().join("go")).unwrap();
    let (hash, kept) = place.keep();
    assert_eq!(
        files(&kept)[1..],
        [
            ("bin/go".into(), 0o500, "#!/bin/sh\n".into()),
            ("go".into(), 0, "bin/go".into()),
            ("run.sh".into(), 0o400, "echo good\n".into())
        ]
    );
    assert_eq!(fs::metadata(kept.join("bin")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(tree::hash(&kept, Of::Copy).unwrap(), hash);
    place.put("run.sh", "echo evil\n");
    assert!(matches!(place.kept().verify(&hash), Kept::Sound), "the copy is its own");
    assert_eq!(crate::data_dir::names(&place.data.skills()).len(), 1, "nothing half copied is left");
}

#[test]
fn skill_that_changes_while_it_is_copied_is_not_kept() {
    let place = Place::new();
    let pinned = place.hash();
    place.put("run.sh", "echo evil\n");
    let kept = place.kept();
    let error = kept.lock().unwrap().keep(&place.skill(), &pinned, Durability::Power).unwrap_err();
    assert!(error.to_string().contains("it has changed"), "{error}");
    assert!(matches!(kept.verify(&pinned), Kept::Missing));
}

#[test]
fn packed_tree_is_kept_only_under_its_own_hash() {
    let place = Place::new();
    let (hash, _) = place.keep();
    let mut packed = place.kept().pack(&hash).unwrap();
    let name = hash.strip_prefix("sha256:").unwrap();
    assert!(is_packed_tree(name, &packed) && !is_packed_tree("3f", &packed));
    *packed.last_mut().unwrap() ^= 1;
    assert!(!is_packed_tree(name, &packed));
    let kept = place.kept().lock().unwrap().keep_packed(&packed, &hash, Durability::Power);
    assert!(kept.is_err(), "a backup that was damaged");
}

#[test]
fn many_keep_the_same_tree_at_once_and_an_altered_one_is_replaced() {
    let place = Place::new();
    let (hash, kept) = place.keep();
    alter(&kept.join("run.sh"), "echo evil\n");
    assert!(matches!(place.kept().verify(&hash), Kept::Altered(why) if why.contains("`run.sh`")));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| place.keep());
        }
    });
    assert!(matches!(place.kept().verify(&hash), Kept::Sound));
    assert_eq!(crate::data_dir::names(&place.data.skills()).len(), 1, "nothing half copied is left");
}

#[test]
fn git_directory_put_into_a_kept_tree_counts_as_altered() {
    let place = Place::new();
    let (hash, kept) = place.keep();
    fs::create_dir(kept.join(".git")).unwrap();
    fs::write(kept.join(".git/config"), "evil").unwrap();
    assert!(matches!(place.kept().verify(&hash), Kept::Altered(_)));
}

#[test]
fn packed_tree_makes_no_file_outside_its_directory() {
    let file = |kind: &str, path: &str, content: &str| {
        let mut bytes = kind.as_bytes().to_vec();
        for part in [path, content] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
        bytes
    };
    let dir = TempDir::new().unwrap();
    let into = dir.path().join("into");
    for (what, packed) in [
        ("a path that leads elsewhere", file("f", "../x", "")),
        ("a path that leads elsewhere", file("f", "/tmp/x", "")),
        ("a path that leads elsewhere", file("f", "a/./x", "")),
        ("a path that leads elsewhere", file("f", "", "")),
        ("outside the skill's tree", file("l", "a", "..")),
        ("a file below a file", [file("l", "a", "b"), file("f", "a/x", "")].concat()),
        ("a file twice", [file("f", "a", ""), file("f", "a", "")].concat()),
        ("a file of no kind", file("d", "a", "")),
        ("it ends too early", file("f", "a", "abc")[..12].to_vec()),
        ("it ends too early", [b"f".as_slice(), &[255; 8]].concat()),
        ("is deeper than", file("f", &format!("{}x", "d/".repeat(32)), "")),
    ] {
        fs::create_dir(&into).unwrap();
        let error = unpack(&packed, &into, Durability::Process).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "nothing is made of it");
        fs::remove_dir(&into).unwrap();
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn altered_kept_skill_is_refused_before_every_attempt() {
    for at_start in [true, false] {
        let place = Place::new();
        let (hash, kept) = place.keep();
        let mut skills = place.checked();
        let mut get = || skills.get("lint", Some(&hash), &place.dirs(), LATER);
        if !at_start {
            assert_eq!(get().unwrap().dir.as_deref(), Some(kept.as_path()));
            assert_eq!(get().unwrap().env()[0].1, kept.to_str().unwrap());
        }
        // The same length, and the time of writing put back.
        let written = fs::metadata(kept.join("run.sh")).unwrap().modified().unwrap();
        alter(&kept.join("run.sh"), "echo evil\n");
        fs::File::open(kept.join("run.sh")).unwrap().set_modified(written).unwrap();
        for _ in 0..2 {
            let why = get().unwrap_err();
            assert!(why.contains("skill `lint` is not what was confirmed"), "{why}");
            assert!(why.contains("`run.sh`"), "{why}");
        }
        alter(&kept.join("run.sh"), "echo good\n");
        get().expect("what was put back is what was confirmed");
        fs::write(kept.join("more"), "").unwrap();
        assert!(get().unwrap_err().contains("`more`"));
    }
}

#[test]
fn tree_hashed_right_after_a_change_is_hashed_again() {
    let place = Place::new();
    let (hash, kept) = place.keep();
    let changed = fs::metadata(kept.join("run.sh")).unwrap();
    let now = Timestamp(changed.ctime() * 1_000 + changed.ctime_nsec() / 1_000_000);
    let mut skills = place.checked();
    skills.get("lint", Some(&hash), &[], now).unwrap();
    assert!(!skills.trusts_stamps(&hash, "lint"));
    skills.get("lint", Some(&hash), &[], LATER).unwrap();
    assert!(skills.trusts_stamps(&hash, "lint"));
}

#[test]
fn skill_that_is_not_kept_is_found_only_as_it_was_pinned() {
    let place = Place::new();
    let hash = place.hash();
    let mut skills = place.checked();
    let found = skills.get("lint", Some(&hash), &place.dirs(), LATER).unwrap();
    assert_eq!(found.dir, place.kept().place(&hash), "it is kept from then on");
    place.put("run.sh", "echo evil\n");
    skills.get("lint", Some(&hash), &place.dirs(), LATER).unwrap();
    fs::remove_dir_all(place.data.skills()).unwrap();
    let why = skills.get("lint", Some(&hash), &place.dirs(), LATER).unwrap_err();
    assert!(why.contains("has changed since this revision was confirmed"), "{why}");
    assert!(skills.get("lint", None, &place.dirs(), LATER).unwrap_err().contains("was not pinned"));
    assert!(skills.get("echo", Some("builtin:echo:1"), &[], LATER).is_ok());
    for other in ["builtin:echo:2", "sha256:../../x", "sha256:"] {
        assert!(skills.get("echo", Some(other), &place.dirs(), LATER).is_err(), "{other}");
    }
}

#[test]
fn tree_of_a_revision_being_published_is_not_removed() {
    let place = Place::new();
    SqliteStore::open(&place.data.database(), Durability::Process).unwrap().close();
    let reader = Reader::open(&place.data.database()).unwrap();
    let hash = place.hash();
    let kept = place.kept();
    let unneeded = || {
        let mut found = 0;
        kept.for_each_unneeded(&reader, |_| found += 1).unwrap();
        found
    };
    let publishing = kept.lock().unwrap();
    publishing.keep(&place.skill(), &hash, Durability::Process).unwrap();
    assert_eq!(unneeded(), 0, "its revision is about to be committed");
    drop(publishing);
    assert_eq!(unneeded(), 1, "it never was");
}
