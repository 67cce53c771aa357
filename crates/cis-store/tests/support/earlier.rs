//! Files as earlier versions wrote them.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

/// Every migration there is, in order.
pub(crate) fn migrations() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cis-store/src/sqlite/schema");
    let entries = dir.read_dir().expect("the migrations");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a migration").path()).collect();
    paths.retain(|path| !path.ends_with("whole.sql"));
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).expect("a migration")).collect()
}

/// An empty file after these migrations, one after the other.
pub(crate) fn migrated(file: &Path, migrations: &[String]) {
    let conn = Connection::open(file).expect("a new file");
    for sql in migrations {
        conn.execute_batch(sql).expect("a migration that works");
    }
    conn.pragma_update(None, "user_version", migrations.len()).expect("a version");
}

/// Makes of a closed store of this version one of `version` with the same rows. What that version has no place for is left
/// out.
pub(crate) fn written_by(version: usize, file: &Path) {
    let (all, earlier) = (migrations(), file.with_extension("earlier"));
    migrated(&earlier, &all[..version]);
    let conn = Connection::open(&earlier).expect("the earlier file");
    conn.execute_batch("PRAGMA foreign_keys = OFF").expect("rows in any order");
    conn.execute("ATTACH ?1 AS later", [file.to_str()]).expect("the file of this version");
    for table in texts(&conn, "SELECT name FROM main.sqlite_schema WHERE type = 'table'") {
        let known = format!(
            "SELECT name FROM pragma_table_info('{table}', 'main')
             INTERSECT SELECT name FROM pragma_table_info('{table}', 'later')"
        );
        let columns = texts(&conn, &known).join(", ");
        // Of leases that earlier versions had, all were of tasks.
        let (into, from) = match texts(&conn, "SELECT name FROM pragma_table_info('leases', 'main')") {
            of if table == "leases" && of.iter().any(|column| column == "execution_id") => {
                (format!("{columns}, execution_id"), format!("{columns}, subject_key"))
            }
            _ => (columns.clone(), columns),
        };
        let sql = format!(
            "DELETE FROM main.\"{table}\"; INSERT INTO main.\"{table}\" ({into}) SELECT {from} FROM later.\"{table}\""
        );
        conn.execute_batch(&sql).expect("the same rows");
    }
    drop(conn);
    std::fs::rename(&earlier, file).expect("the earlier file in its place");
}

fn texts(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).expect("a look at the schema");
    let rows = statement.query_map([], |row| row.get(0)).expect("names");
    rows.collect::<Result<_, _>>().expect("names")
}
