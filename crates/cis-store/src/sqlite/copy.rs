//! Copies of a store: one moment of it in a file of its own, with other files inside, and what is needed to make a store
//! of it again.
//!
//! ```text
//!   writer ──► dag.db + its log ◄── Moment: a reader's snapshot, held until it is copied
//!                                      └── page by page ──► Copy: a database of one file, `backup` and `backup_files` in it
//! ```
//!
//! The writer is never waited for and never held up: it only cannot begin its log anew while a moment is held.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cis_core::id::{Epoch, Position};
use cis_core::source::Timestamp;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OptionalExtension, params};

use super::reader::Reader;
use super::{fences, migrate};
use crate::port::{Answer, StoreError};

/// Pages copied at a time: 4 MiB, so that a caller who wants to stop can.
const PAGES: i32 = 1_000;

/// Beside the store's own tables: what the copy is, and the files that go with it.
const TABLES: &str = "
    CREATE TABLE backup (taken_at INTEGER NOT NULL, position INTEGER NOT NULL, version TEXT NOT NULL) STRICT;
    CREATE TABLE backup_files (name TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT;";

/// One moment of a store, held.
#[derive(Debug)]
pub struct Moment {
    reader: Reader,
}

/// A copy, open for writing.
#[derive(Debug)]
pub struct Copy {
    conn: Connection,
    /// It was made by a version in which an epoch's fences had 32 bits.
    pub had_long_counts: bool,
}

/// What a copy says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub taken_at: Timestamp,
    /// The last event in it.
    pub position: Position,
    /// The program that took it.
    pub version: String,
}

impl Moment {
    /// The present moment of the store in `file`.
    pub fn of(file: &Path) -> Answer<Self> {
        let reader = Reader::open(file)?;
        // The transaction ends with the connection; the first read in it settles what it sees.
        reader.conn.execute_batch("BEGIN")?;
        reader.last_position()?;
        Ok(Self { reader })
    }

    /// The store as it was.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Writes it to `file`, which is to be new.
    pub fn copy_to(&self, file: &Path, label: &Label) -> Answer<Copy> {
        let made = File::options().create_new(true).write(true).mode(0o600).open(file);
        made.map_err(|e| StoreError::Database(format!("`{}`: {e}", file.display())))?;
        let mut conn = Connection::open(file)?;
        // Whoever takes the copy forces it to disk once, when it is whole.
        conn.execute_batch("PRAGMA synchronous = OFF")?;
        let backup = Backup::new(&self.reader.conn, &mut conn)?;
        loop {
            match backup.step(PAGES)? {
                StepResult::More => {}
                StepResult::Done => break,
                _ => return Err(StoreError::Database("the database is locked".into())),
            }
        }
        drop(backup);
        // One file: a log beside it would be left behind when it is moved.
        conn.execute_batch("PRAGMA journal_mode = DELETE")?;
        conn.execute_batch(TABLES)?;
        let Label { taken_at, position, version } = label;
        conn.execute("INSERT INTO backup VALUES (?1, ?2, ?3)", params![taken_at.0, position.0, version])?;
        Ok(Copy { conn, had_long_counts: false })
    }
}

impl Copy {
    /// The copy in `file`, its schema brought up to date. A plain copy of a store will do.
    pub fn open(file: &Path) -> Answer<Self> {
        let mut conn = Connection::open(file)?;
        migrate::check_owner(&conn)?;
        conn.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA synchronous = OFF")?;
        let had_long_counts = migrate::has_long_counts(&conn)?;
        migrate::migrate(&mut conn)?;
        Ok(Self { conn, had_long_counts })
    }

    /// What it says of itself; nothing, if it is a plain copy of a store.
    pub fn label(&self) -> Answer<Option<Label>> {
        if !self.is_labelled()? {
            return Ok(None);
        }
        let sql = "SELECT taken_at, position, version FROM backup";
        let label = self.conn.query_row(sql, [], |row| {
            let (taken_at, position) = (Timestamp(row.get(0)?), Position(row.get(1)?));
            Ok(Label { taken_at, position, version: row.get(2)? })
        });
        Ok(label.optional()?)
    }

    /// Puts files into it, all or none.
    pub fn add_files(&mut self, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Answer<()> {
        let tx = self.conn.transaction()?;
        for (name, content) in files {
            tx.prepare_cached("INSERT INTO backup_files VALUES (?1, ?2)")?.execute(params![name, content])?;
        }
        Ok(tx.commit()?)
    }

    /// Hands out the files in it, one at a time.
    pub fn files(&self, mut take: impl FnMut(&str, &[u8]) -> Answer<()>) -> Answer<()> {
        if !self.is_labelled()? {
            return Ok(());
        }
        let mut statement = self.conn.prepare("SELECT name, content FROM backup_files ORDER BY name")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (name, content) = (row.get_ref(0)?.as_str(), row.get_ref(1)?.as_blob());
            let unlike = |_| StoreError::Damaged("a file in it has no name or no content".into());
            take(name.map_err(unlike)?, content.map_err(unlike)?)?;
        }
        Ok(())
    }

    /// The highest epoch in use in it.
    pub fn epoch(&self) -> Answer<Epoch> {
        migrate::epoch(&self.conn)
    }

    /// Makes a store of it that has lived through `epoch`: no fence from then is given out again.
    pub fn into_store(self, epoch: Epoch) -> Answer<()> {
        fences::keep_epoch(&self.conn, epoch)?;
        // What went with it would stay in the file as room for more.
        self.conn.execute_batch("DROP TABLE IF EXISTS backup; DROP TABLE IF EXISTS backup_files; VACUUM")?;
        Ok(())
    }

    fn is_labelled(&self) -> Answer<bool> {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name IN ('backup', 'backup_files')";
        Ok(self.conn.query_row(sql, [], |row| row.get::<_, u32>(0))? == 2)
    }
}

impl Reader {
    /// The highest epoch in use in the store: that of its last coordinator, or one which that took later.
    pub fn epoch(&self) -> Answer<Epoch> {
        migrate::epoch(&self.conn)
    }

    /// The same of a store in `file` that may be of an earlier version.
    pub fn epoch_in(file: &Path) -> Answer<Epoch> {
        migrate::epoch_in(file)
    }

    /// How many runs it knows.
    pub fn run_count(&self) -> Answer<u64> {
        Ok(self.conn.query_row("SELECT count(*) FROM dag_runs", [], |row| row.get(0))?)
    }
}
