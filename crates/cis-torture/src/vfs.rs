//! A SQLite file system that wraps the usual one: databases on a watched [`Disk`] pass by it, all others do not notice.
//! It becomes the default of this process, so that a store opens its files as it always does. The index of the log
//! (`-shm`) is memory that no power loss leaves: it is left alone.
//!
//! It takes `unsafe` code, because SQLite's interface is one of C: tables of functions, and files that are as large as
//! their table says.
#![allow(unsafe_code, reason = "SQLite calls it by function pointers")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use crate::disk::Disk;

/// A file of ours; that of the wrapped file system lies directly behind it in the same memory.
#[repr(C)]
struct File {
    base: sqlite3_file,
    /// Owned: made when it is opened, freed when it is closed.
    place: *mut Place,
}

/// Which file on which disk.
struct Place {
    disk: Arc<Disk>,
    name: Arc<str>,
}

/// The wrapped file system, as it was before ours became the default.
struct Wrapped(*mut sqlite3_vfs);

// SAFETY: SQLite's file systems are made to be used by every thread, are never changed once registered and live as
// long as the process.
unsafe impl Send for Wrapped {}
// SAFETY: as above.
unsafe impl Sync for Wrapped {}

static WRAPPED: OnceLock<Option<Wrapped>> = OnceLock::new();

/// Makes the wrapping file system the default of this process, once.
pub(crate) fn install() -> io::Result<()> {
    let installed = WRAPPED.get_or_init(|| {
        // SAFETY: a null name asks for the default; SQLite initialises itself.
        let usual = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
        // SAFETY: checked for null; a registered file system is never freed.
        let of_usual = unsafe { usual.as_ref() }?;
        let mut ours = *of_usual;
        ours.szOsFile += c_int::try_from(size_of::<File>()).ok()?;
        ours.pNext = std::ptr::null_mut();
        ours.zName = c"watched".as_ptr();
        // Whatever is not replaced is the wrapped one's own function, none of which asks whose table it came from.
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        // SAFETY: leaked, so it lives as long as the process, as SQLite wants it; complete, since it is a copy.
        let code = unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 1) };
        (code == ffi::SQLITE_OK).then_some(Wrapped(usual))
    });
    match installed {
        Some(_) => Ok(()),
        None => Err(io::Error::other("SQLite takes no other file system")),
    }
}

fn wrapped() -> *mut sqlite3_vfs {
    WRAPPED.get().and_then(Option::as_ref).map_or(std::ptr::null_mut(), |wrapped| wrapped.0)
}

/// The disk a file is on, if SQLite named it and it is watched.
///
/// # Safety
/// `name` is null or ends with a zero byte.
unsafe fn place(name: *const c_char) -> Option<Place> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let (disk, name) = Disk::of(Path::new(OsStr::from_bytes(name.to_bytes())))?;
    Some(Place { disk, name })
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite hands over a name with an end and `szOsFile` bytes for the file: room for ours and, behind it,
    // the wrapped one's. A file that is not watched is simply the wrapped one's.
    unsafe {
        let usual = wrapped();
        let Some(open) = usual.as_ref().and_then(|usual| usual.xOpen) else { return ffi::SQLITE_ERROR };
        let Some(place) = place(name) else { return open(usual, name, file, flags, out) };
        (*file).pMethods = std::ptr::null();
        let code = open(usual, name, real(file), flags, out);
        if code == ffi::SQLITE_OK {
            (*file.cast::<File>()).place = Box::into_raw(Box::new(place));
            (*file).pMethods = &METHODS;
        }
        code
    }
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: the name has an end; the wrapped function is called with its own table.
    unsafe {
        let usual = wrapped();
        let Some(delete) = usual.as_ref().and_then(|usual| usual.xDelete) else { return ffi::SQLITE_ERROR };
        let code = delete(usual, name, sync_dir);
        if let Some(place) = place(name).filter(|_| code == ffi::SQLITE_OK) {
            place.disk.deleted(&place.name, sync_dir != 0);
        }
        code
    }
}

/// The wrapped file system's file.
///
/// # Safety
/// `file` is one that [`open`] was given.
unsafe fn real(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` has room for both, and ours is a multiple of a pointer's size, so that both are aligned.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// Functions that only pass the call on.
macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[allow(non_snake_case, reason = "SQLite's names")]
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> c_int {
            // SAFETY: SQLite calls it with an open file of ours, behind which an open one of the wrapped file system
            // lies; all else is passed on as it came.
            unsafe {
                let real = real(file);
                match (*(*real).pMethods).$name {
                    Some(call) => call(real, $($arg),*),
                    None => ffi::SQLITE_ERROR,
                }
            }
        }
    )*};
}

pass_on! {
    xRead(to: *mut c_void, bytes: c_int, at: sqlite3_int64);
    xFileSize(size: *mut sqlite3_int64);
    xLock(lock: c_int);
    xUnlock(lock: c_int);
    xCheckReservedLock(out: *mut c_int);
    xFileControl(op: c_int, arg: *mut c_void);
    xSectorSize();
    xDeviceCharacteristics();
    xShmMap(page: c_int, bytes: c_int, extend: c_int, out: *mut *mut c_void);
    xShmLock(offset: c_int, count: c_int, flags: c_int);
    xShmUnmap(delete: c_int);
    xWrite(from: *const c_void, bytes: c_int, at: sqlite3_int64);
    xTruncate(length: sqlite3_int64);
    xSync(flags: c_int);
    xClose();
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    // SAFETY: as in `pass_on`.
    unsafe {
        let real = real(file);
        if let Some(call) = (*(*real).pMethods).xShmBarrier {
            call(real);
        }
    }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, bytes: c_int, at: i64) -> c_int {
    // SAFETY: SQLite calls it with an open file of ours and `bytes` bytes to write; no more of them are passed on.
    unsafe {
        let Place { disk, name } = &*(*file.cast::<File>()).place;
        let (Ok(length), Ok(offset)) = (usize::try_from(bytes), u64::try_from(at)) else {
            return ffi::SQLITE_IOERR_WRITE;
        };
        match disk.write(name, offset, std::slice::from_raw_parts(from.cast(), length)) {
            Ok(()) => xWrite(file, from, bytes, at),
            Err(refused) => {
                if let Some(some) = c_int::try_from(refused.written).ok().filter(|some| *some > 0) {
                    xWrite(file, from, some, at);
                }
                refused.code
            }
        }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: i64) -> c_int {
    // SAFETY: SQLite calls it with an open file of ours.
    unsafe {
        let Place { disk, name } = &*(*file.cast::<File>()).place;
        let code = xTruncate(file, length);
        if code == ffi::SQLITE_OK {
            disk.truncate(name, u64::try_from(length).unwrap_or(0));
        }
        code
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite calls it with an open file of ours.
    unsafe {
        let Place { disk, name } = &*(*file.cast::<File>()).place;
        match disk.sync() {
            Ok(false) => ffi::SQLITE_OK,
            Err(code) => code,
            Ok(true) => {
                let code = xSync(file, flags);
                if code == ffi::SQLITE_OK {
                    disk.synced(name);
                }
                code
            }
        }
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite calls it once, with an open file of ours: the place was made by `open` and is not used again.
    unsafe {
        let code = xClose(file);
        drop(Box::from_raw((*file.cast::<File>()).place));
        code
    }
}

/// Version 2: no mapped reads, which SQLite then does not try.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(xRead),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(xFileSize),
    xLock: Some(xLock),
    xUnlock: Some(xUnlock),
    xCheckReservedLock: Some(xCheckReservedLock),
    xFileControl: Some(xFileControl),
    xSectorSize: Some(xSectorSize),
    xDeviceCharacteristics: Some(xDeviceCharacteristics),
    xShmMap: Some(xShmMap),
    xShmLock: Some(xShmLock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(xShmUnmap),
    xFetch: None,
    xUnfetch: None,
};
