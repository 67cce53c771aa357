//! Opening the file: pragmas, and numbered migrations that are only ever appended.

use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, ffi};

use cis_core::id::Epoch;

use super::writer::fold;
use super::{Durability, fences, reviews};
use crate::port::{Answer, StoreError};

/// Every migration, in order. `PRAGMA user_version` counts how many have been applied.
const MIGRATIONS: &[&str] = &[
    include_str!("schema/0001_init.sql"),
    include_str!("schema/0002_node.sql"),
    include_str!("schema/0003_claims.sql"),
    include_str!("schema/0004_approvals.sql"),
    include_str!("schema/0005_pause.sql"),
    include_str!("schema/0006_outbox.sql"),
    include_str!("schema/0007_at_node.sql"),
    include_str!("schema/0008_prune.sql"),
    include_str!("schema/0009_clock.sql"),
    include_str!("schema/0010_checks.sql"),
    include_str!("schema/0011_reviews.sql"),
    include_str!("schema/0012_unproven.sql"),
    FENCES,
    include_str!("schema/0014_events_and_leases.sql"),
    include_str!("schema/0015_quotas.sql"),
];

/// The one since which fences count otherwise.
const FENCES: &str = include_str!("schema/0013_fences.sql");

/// What they make of an empty file. Said at once it takes a fifth of the time.
const WHOLE: &str = include_str!("schema/whole.sql");

/// Page cache of the writer, in KiB.
const CACHE_KIB: u32 = 16_000;

/// What the log keeps of its length when it begins anew: far more than it has while nobody reads for long. Somebody who
/// does, such as a backup, lets it grow by all that is written meanwhile, which would stay.
pub(super) const LOG_BYTES: u64 = 64 << 20;

/// Opens `file` for writing and brings its schema up to date.
pub(super) fn open(file: &Path, durability: Durability) -> Answer<Connection> {
    // Created for its owner only; SQLite gives its log and index the same mode.
    let created = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file);
    created.map_err(|e| unopened(file, &e))?;
    check_length(file)?;
    let mut conn = Connection::open(file)?;
    // Until it has proved to be ours and whole, not even closing it may write to it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    check_owner(&conn)?;
    let synchronous = match durability {
        Durability::Power => "FULL",
        Durability::Process => "NORMAL",
    };
    // A page of 4 KiB matches what the disk writes at once; WAL lets readers go on while one writes. Whoever writes
    // folds the log back, and hears it if that fails.
    conn.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous};
         PRAGMA journal_mode = WAL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = {LOG_BYTES};
         PRAGMA cache_size = -{CACHE_KIB};
         PRAGMA foreign_keys = ON;
         PRAGMA temp_store = MEMORY;"
    ))?;
    // Readers never write, so this waits only for another process that ends its turn as the writer.
    conn.busy_timeout(std::time::Duration::from_secs(10))?;
    conn.set_prepared_statement_cache_capacity(96);
    let is_new = version(&conn)? == 0;
    migrate(&mut conn)?;
    // If an earlier life ended because the disk could not be synced, its log may be in memory only. Folded back, it is
    // written anew. What readers keep, or what there is no room for, is folded back later.
    if !is_new && let Err(lost @ StoreError::Lost(_)) = fold(&conn) {
        return Err(lost);
    }
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok(conn)
}

/// Refuses a file that is shorter than its own header says: pages of it are gone, though it may take long until one of them is
/// asked for. Not while a log lies beside it: as that is folded back, the header may be ahead of the file for a moment.
fn check_length(file: &Path) -> Answer<()> {
    let read = || -> io::Result<Option<(u64, u64)>> {
        let (opened, mut head) = (std::fs::File::open(file)?, [0; 32]);
        let length = opened.metadata()?.len();
        if length < head.len() as u64 {
            return Ok(None);
        }
        opened.read_exact_at(&mut head, 0)?;
        let page = match u64::from(u16::from_be_bytes([head[16], head[17]])) {
            1 => 65_536,
            page => page,
        };
        let pages = u64::from(u32::from_be_bytes([head[28], head[29], head[30], head[31]]));
        Ok(head.starts_with(b"SQLite format 3\0").then_some((length, page * pages)))
    };
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let has_log = || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    if has_log() {
        return Ok(());
    }
    match read().map_err(|e| unopened(file, &e))? {
        Some((length, says)) if length < says && !has_log() => {
            Err(StoreError::Damaged(format!("{} of its {says} bytes are missing", says - length)))
        }
        _ => Ok(()),
    }
}

/// Opens `file` for reading only. Works while others write.
pub(super) fn open_read_only(file: &Path) -> Answer<Connection> {
    check_length(file)?;
    let conn = Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    conn.busy_timeout(std::time::Duration::from_secs(10))?;
    let version = version(&conn)?;
    if version < MIGRATIONS.len() {
        check_owner(&conn)?;
        return Err(StoreError::Outdated(version));
    }
    if version > MIGRATIONS.len() {
        return Err(newer(version));
    }
    Ok(conn)
}

/// The highest epoch in use in `file`, whatever version it is of, as this version counts.
pub(super) fn epoch_in(file: &Path) -> Answer<Epoch> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    epoch(&Connection::open_with_flags(file, flags)?)
}

/// The same in an open database.
pub(super) fn epoch(conn: &Connection) -> Answer<Epoch> {
    let sql = "SELECT value FROM counters WHERE name = 'coordinator_epoch'";
    let epoch = conn.query_row(sql, [], |row| row.get(0).map(Epoch))?;
    Ok(if has_long_counts(conn)? { fences::converted(epoch) } else { epoch })
}

/// Is it of a version in which an epoch's fences had 32 bits?
pub(super) fn has_long_counts(conn: &Connection) -> Answer<bool> {
    Ok(MIGRATIONS.iter().skip(version(conn)?).any(|left| *left == FENCES))
}

/// Refuses a database that another program made.
pub(super) fn check_owner(conn: &Connection) -> Answer<()> {
    let tables: u32 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables > 0 && version(conn)? == 0 {
        return Err(StoreError::Damaged("its tables are another program's".into()));
    }
    Ok(())
}

/// Brings the schema up to date.
pub(super) fn migrate(conn: &mut Connection) -> Answer<()> {
    let applied = version(conn)?;
    if applied > MIGRATIONS.len() {
        return Err(newer(applied));
    }
    if applied == 0 {
        apply(conn, WHOLE, MIGRATIONS.len())?;
    } else {
        let mut left = MIGRATIONS.iter().enumerate().skip(applied);
        left.try_for_each(|(index, sql)| apply(conn, sql, index + 1))?;
    }
    reviews::begin(conn)
}

/// Of a version that this program does not know.
fn newer(version: usize) -> StoreError {
    let ours = MIGRATIONS.len();
    StoreError::Database(format!(
        "schema version {version} is newer than this program's {ours}; use the newer program"
    ))
}

fn apply(conn: &mut Connection, sql: &str, version: usize) -> Answer<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute_batch(sql)?;
    tx.pragma_update(None, "user_version", version)?;
    Ok(tx.commit()?)
}

fn version(conn: &Connection) -> Answer<usize> {
    Ok(conn.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))? as usize)
}

fn unopened(file: &Path, e: &io::Error) -> StoreError {
    match e.kind() {
        io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
        _ => StoreError::Database(format!("`{}`: {e}", file.display())),
    }
}

impl From<rusqlite::Error> for StoreError {
    /// What can become of a store has names of its own; everything else is told in SQLite's words.
    fn from(e: rusqlite::Error) -> Self {
        use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
        let code = e.sqlite_error().map_or(0, |e| e.extended_code);
        match (code, code & 0xff) {
            // The index of the log is a file as well.
            (ffi::SQLITE_FULL | ffi::SQLITE_IOERR_SHMSIZE, _) => Self::Full,
            // The system may have dropped what it could not write, and say next time that all is well.
            (ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC, _) => Self::Lost(format!(
                "the disk could not be synced ({e}): whether the last writes are on it is not known"
            )),
            (_, ffi::SQLITE_READONLY) => Self::ReadOnly,
            (_, ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB) => Self::Damaged(e.to_string()),
            _ => match e {
                // A value that this program would never have written.
                FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) => {
                    Self::Damaged(e.to_string())
                }
                e => Self::Database(e.to_string()),
            },
        }
    }
}
