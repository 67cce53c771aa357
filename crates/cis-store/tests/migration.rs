//! A new file is what all migrations together make of an empty one, and files of other versions are refused in words
//! that tell what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};

use cis_store::StoreError;
use cis_store::sqlite::{Durability, Reader, SqliteStore};
use rusqlite::Connection;

fn created(dir: &Path) -> PathBuf {
    let file = dir.join("dag.db");
    SqliteStore::open(&file, Durability::Process).expect("a store").close();
    file
}

fn schema(file: &Path) -> String {
    let conn = Connection::open(file).unwrap();
    let mut statement =
        conn.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name").unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|sql| sql.unwrap() + ";\n").collect()
}

fn set_version(file: &Path, version: u32) {
    Connection::open(file).unwrap().pragma_update(None, "user_version", version).unwrap();
}

fn version(file: &Path) -> u32 {
    Connection::open(file).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

fn words<T>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Database(why)) => why,
        Err(other) => panic!("not a failure of the database: {other}"),
        Ok(_) => panic!("opened"),
    }
}

/// An empty file after every migration there is, one after the other.
fn migrated(dir: &Path) -> PathBuf {
    let file = dir.join("migrated.db");
    let conn = Connection::open(&file).unwrap();
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite/schema");
    let mut paths: Vec<PathBuf> = migrations.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| !path.ends_with("whole.sql"));
    paths.sort();
    for path in &paths {
        conn.execute_batch(&std::fs::read_to_string(path).unwrap()).unwrap();
    }
    conn.pragma_update(None, "user_version", paths.len()).unwrap();
    file
}

fn counters(file: &Path) -> Vec<(String, i64)> {
    let conn = Connection::open(file).unwrap();
    let mut statement = conn.prepare("SELECT name, value FROM counters ORDER BY name").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn a_new_file_is_what_migrations_make_of_an_empty_one() {
    let dir = support::dir();
    let (new, migrated) = (created(dir.path()), migrated(dir.path()));
    let found = schema(&migrated);
    assert!(schema(&new) == found, "if this is meant, put it into whole.sql:\n{found}");
    assert_eq!(counters(&new), counters(&migrated));
    assert_eq!(version(&new), version(&migrated));
}

#[test]
fn opening_again_migrates_nothing() {
    let dir = support::dir();
    let file = created(dir.path());
    let (version_before, before) = (version(&file), schema(&file));
    created(dir.path());
    assert_eq!((version(&file), schema(&file)), (version_before, before));
}

#[test]
fn a_newer_file_is_refused() {
    let dir = support::dir();
    let file = created(dir.path());
    let newer = version(&file) + 1;
    set_version(&file, newer);
    let told = words(SqliteStore::open(&file, Durability::Process));
    assert!(told.contains(&format!("schema version {newer} is newer")), "{told}");
    assert!(told.contains("use the newer program"), "{told}");
    let told = words(Reader::open(&file));
    assert!(told.contains(&format!("schema version {newer}")) && told.contains("newer program"), "{told}");
    assert_eq!(version(&file), newer, "and left as it is");
}

#[test]
fn an_older_file_is_read_only_after_a_write_has_migrated_it() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    set_version(&file, 0);
    let told = words(Reader::open(&file));
    assert!(told.contains("schema version 0") && told.contains("bring it up to date"), "{told}");
    created(dir.path());
    Reader::open(&file).expect("up to date now");
}

#[test]
fn reading_makes_no_file() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    words(Reader::open(&file));
    assert!(!file.exists());
}
