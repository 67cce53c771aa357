//! The schema after all migrations is the one that is written down, and files of other versions are refused in
//! words that tell what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};

use cis_store::StoreError;
use cis_store::sqlite::{Durability, Reader, SqliteStore};
use rusqlite::Connection;

/// What `sqlite_master` must hold; an intended change of the schema changes this file with it.
const EXPECTED: &str = include_str!("schema.sql");

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

#[test]
fn migrations_make_the_schema_that_is_written_down() {
    let dir = support::dir();
    let found = schema(&created(dir.path()));
    assert!(found == EXPECTED, "if this is meant, put it into tests/schema.sql:\n{found}");
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
