//! Speaking: data to stdout, the rest to stderr. Nothing here panics or ends the process where nobody can hear it; whoever
//! ends the process asks whether all was [written](unwritten).

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Why something could not be written to stdout, the first time.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// A line of data, on stdout.
macro_rules! say {
    ($($text:tt)*) => { $crate::term::out::put(format_args!("{}\n", format_args!($($text)*))) };
}

/// A JSON value as a line of data, on stdout.
macro_rules! say_json {
    ($value:expr) => {
        $crate::term::out::put(format_args!("{}\n", $crate::term::visible::escape_json(&$value.to_string())))
    };
}

/// A line for people, on stderr.
macro_rules! tell {
    () => { $crate::term::out::tell(format_args!("\n")) };
    ($($text:tt)*) => { $crate::term::out::tell(format_args!("{}\n", format_args!($($text)*))) };
}

/// Data, on stdout. After a failure, nothing more.
pub fn put(text: Arguments<'_>) {
    if unwritten().is_some() {
        return;
    }
    let mut stdout = anstream::stdout().lock();
    if let Err(e) = stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        let _ = UNWRITTEN.set(e);
    }
}

/// For people, on stderr. Where that cannot be written, nobody is left to be told so.
pub fn tell(text: Arguments<'_>) {
    let _ = anstream::stderr().lock().write_fmt(text);
}

/// Why not everything reached stdout, if so.
pub fn unwritten() -> Option<&'static io::Error> {
    UNWRITTEN.get()
}
