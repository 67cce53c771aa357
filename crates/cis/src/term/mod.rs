//! The terminal kit: what every command uses to speak to a person.
//!
//! | module | what lives there |
//! |---|---|
//! | [`out`] | saying it |
//! | [`face`] | how each state looks: glyph, word, tone |
//! | [`visible`] | showing text for what it is, whatever it tries to hide |
//! | [`sheet`] | named values below each other, nothing of them cut |
//! | [`text`] | output of tasks without escapes; cutting and padding by display width |
//! | [`table`] | aligned columns without borders |
//! | [`time`] | `3m ago` |
//! | [`report`] | errors, for people and as JSON |
//!
//! Data goes to stdout, everything else to stderr. Strings made here carry ANSI styles; `say!` and `tell!` print them through
//! [`anstream`], which drops the styles where nobody sees them (`NO_COLOR`, pipes) and keeps them where asked
//! (`CLICOLOR_FORCE`).

#[macro_use]
pub mod out;
pub mod face;
pub mod report;
pub mod sheet;
pub mod table;
pub mod text;
pub mod time;
pub mod visible;

use std::os::fd::AsFd;

pub use face::{Face, Tone};
pub use report::Report;
pub use sheet::Sheet;
pub use table::Table;
pub use text::clean;
pub use visible::reveal;

/// Columns and rows of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

impl Size {
    /// What a terminal is taken for that does not tell.
    pub const USUAL: Self = Self { cols: 80, rows: 24 };

    /// The size of the terminal behind `file`; `None` if there is none.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(file).ok()?;
        // Serial lines and some test harnesses are terminals of size zero.
        let or = |told: u16, usual: u16| if told == 0 { usual } else { told };
        Some(Self { cols: or(size.ws_col, Self::USUAL.cols), rows: or(size.ws_row, Self::USUAL.rows) })
    }
}
