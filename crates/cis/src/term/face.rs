//! How each state looks: one glyph, one word, one tone, the same in lists, graphs and the live view.

use anstyle::{AnsiColor, Style};
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;

/// What a state means to someone who glances at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tone {
    /// Nothing has happened yet.
    Quiet,
    /// Could go on, or needs a person.
    Waiting,
    /// Happening now.
    Active,
    Good,
    Bad,
    /// Stopped or left out on purpose.
    Stopped,
}

/// How a state looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Face {
    pub word: &'static str,
    pub glyph: char,
    pub tone: Tone,
}

const fn face(word: &'static str, glyph: char, tone: Tone) -> Face {
    Face { word, glyph, tone }
}

/// Every state of a task, in the order people want them listed.
pub const TASK: [Face; 10] = [
    face("pending", '○', Tone::Quiet),
    face("waiting", '?', Tone::Waiting),
    face("ready", '◌', Tone::Waiting),
    face("running", '●', Tone::Active),
    face("cancelling", '◍', Tone::Stopped),
    face("completed", '✓', Tone::Good),
    face("failed", '✗', Tone::Bad),
    face("cancelled", '⊘', Tone::Stopped),
    face("timed_out", '◷', Tone::Bad),
    face("skipped", '↷', Tone::Stopped),
];

/// Every state of a run.
pub const RUN: [Face; 8] = [
    face("queued", '○', Tone::Quiet),
    face("running", '●', Tone::Active),
    face("cancelling", '◍', Tone::Stopped),
    face("compensating", '↺', Tone::Active),
    face("completed", '✓', Tone::Good),
    face("failed", '✗', Tone::Bad),
    face("cancelled", '⊘', Tone::Stopped),
    face("timed_out", '◷', Tone::Bad),
];

/// Every state of a revision.
pub const REVISION: [Face; 4] = [
    face("pending", '?', Tone::Waiting),
    face("confirmed", '✓', Tone::Good),
    face("rejected", '✗', Tone::Bad),
    face("expired", '◷', Tone::Stopped),
];

/// For a word this version does not know (written by a newer one).
const UNKNOWN: Face = face("unknown", '·', Tone::Quiet);

/// How a task in state `word` looks.
pub fn task(word: &str) -> Face {
    among(&TASK, word)
}

/// How a run in state `word` looks.
pub fn run(word: &str) -> Face {
    among(&RUN, word)
}

/// How a revision in state `word` looks.
pub fn revision(word: &str) -> Face {
    among(&REVISION, word)
}

fn among(faces: &[Face], word: &str) -> Face {
    faces.iter().find(|face| face.word == word).copied().unwrap_or(UNKNOWN)
}

impl From<TaskStatus> for Face {
    fn from(status: TaskStatus) -> Self {
        task(status.word())
    }
}

impl From<RunStatus> for Face {
    fn from(status: RunStatus) -> Self {
        run(status.word())
    }
}

impl Tone {
    /// Its style on a terminal.
    pub const fn style(self) -> Style {
        match self {
            Self::Quiet | Self::Stopped => Style::new().dimmed(),
            Self::Waiting => AnsiColor::Yellow.on_default(),
            Self::Active => AnsiColor::Cyan.on_default(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
        }
    }

    /// Its class name in drawings.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Stopped => "stopped",
        }
    }

    /// Every tone.
    pub const ALL: [Self; 6] =
        [Self::Quiet, Self::Waiting, Self::Active, Self::Good, Self::Bad, Self::Stopped];
}

impl Face {
    /// `✓`, styled.
    pub fn mark(self) -> String {
        paint(self.tone.style(), &self.glyph.to_string())
    }

    /// `✓ completed`, styled.
    pub fn label(self) -> String {
        paint(self.tone.style(), &format!("{} {}", self.glyph, self.word))
    }
}

/// `text` in `style`; untouched if the style is plain.
pub fn paint(style: Style, text: &str) -> String {
    if style.is_plain() { text.to_owned() } else { format!("{style}{text}{style:#}") }
}

/// For names and headings.
pub const BOLD: Style = Style::new().bold();

/// For what matters less.
pub const DIM: Style = Style::new().dimmed();

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthChar;

    #[test]
    fn every_glyph_is_one_column_wide() {
        for face in TASK.iter().chain(&RUN).chain(&REVISION) {
            assert_eq!(face.glyph.width(), Some(1), "{}", face.word);
        }
    }

    #[test]
    fn no_state_is_without_a_face() {
        for status in TaskStatus::ALL {
            assert_eq!(Face::from(status).word, status.word());
        }
        for status in RunStatus::ALL {
            assert_eq!(Face::from(status).word, status.word());
        }
    }

    #[test]
    fn words_find_their_faces() {
        assert_eq!(task("timed_out").tone, Tone::Bad);
        assert_eq!(run("compensating").glyph, '↺');
        assert_eq!(revision("pending").tone, Tone::Waiting);
        assert_eq!(task("from the future").word, "unknown");
    }

    #[test]
    fn labels_are_styled_and_reset() {
        assert_eq!(task("completed").label(), "\u{1b}[32m✓ completed\u{1b}[0m");
        assert_eq!(paint(Style::new(), "x"), "x");
    }
}
