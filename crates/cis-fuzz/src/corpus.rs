//! The documents a target begins with, and how they are changed: by bytes, by words, by lines, by pieces of each other.

use std::fmt;
use std::fs;
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};

use bolero::{Driver, ValueGenerator};

/// Inputs of a target in the test command, unless `BOLERO_RANDOM_ITERATIONS` says otherwise.
const INPUTS: usize = 2_000;

/// Longest input: nests and repeats as deep as anything here allows, and is still read in no time.
const BYTES_MAX: usize = 32 << 10;

/// Changes of one document at most.
const CHANGES_MAX: usize = 6;

/// What parsers have tripped over before.
const WORDS: [&[u8]; 56] = [
    b"",
    b"0",
    b"-1",
    b"1.5",
    b"1e999",
    b"-0",
    b"00",
    b"9007199254740993",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"inf",
    b"nan",
    b"true",
    b"null",
    b"\"",
    b"'",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[[",
    b"]]",
    b"(",
    b")",
    b"{{",
    b"}}",
    b"{%",
    b"%}",
    b"{#",
    b":",
    b": ",
    b"=",
    b",",
    b"#",
    b"-",
    b"- ",
    b"---\n",
    b"\n",
    b"\r\n",
    b"\t",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xc3\xa9",
    b"\xe6\xbc\xa2",
    b"\xe2\x80\xae",
    b"&a ",
    b"*a",
    b"<<: *a\n",
    b"'''",
    b"..",
    b"/",
    b"@",
];

/// The documents of one target.
#[derive(Debug)]
pub struct Corpus {
    target: &'static str,
    documents: Vec<Vec<u8>>,
    inputs: usize,
}

/// What a parser is given.
#[derive(Clone, PartialEq, Eq)]
pub struct Input(pub Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl Corpus {
    /// What is kept for `target`, in the order of its files.
    #[allow(clippy::panic, reason = "a target without its corpus cannot run")]
    pub fn of(target: &'static str) -> Self {
        let documents =
            read(&directory().join(target)).unwrap_or_else(|e| panic!("the corpus of {target}: {e}"));
        Self { target, documents, inputs: INPUTS }
    }

    /// The same for a target that takes its time: so many inputs in the test command.
    #[must_use]
    pub fn inputs(self, inputs: usize) -> Self {
        Self { inputs, ..self }
    }

    /// The same with documents that are made on the spot, because files could not show what is in them.
    #[must_use]
    pub fn with(mut self, made: impl IntoIterator<Item = Vec<u8>>) -> Self {
        self.documents.extend(made);
        self
    }

    pub fn target(&self) -> &'static str {
        self.target
    }

    pub(crate) fn changed(&self) -> usize {
        self.inputs
    }

    pub fn documents(&self) -> impl Iterator<Item = &[u8]> {
        self.documents.iter().map(Vec::as_slice)
    }

    fn any<D: Driver>(&self, dice: &mut D) -> Option<&[u8]> {
        self.documents.get(below(dice, self.documents.len())?).map(Vec::as_slice)
    }

    fn change<D: Driver>(&self, text: &mut Vec<u8>, dice: &mut D) -> Option<()> {
        let at = below(dice, text.len() + 1)?;
        match below(dice, 14)? {
            0 => text.insert(at, dice.produce()?),
            1 => *byte(text, at) = dice.produce()?,
            // Digits and lengths, one more or one less.
            2 => *byte(text, at) = byte(text, at).wrapping_add(if dice.produce()? { 1 } else { u8::MAX }),
            3 => drop(text.drain(piece(text, at, dice)?)),
            4 => text.truncate(at),
            5 => repeat(text, at, dice)?,
            6 => insert(text, at, WORDS[below(dice, WORDS.len())?]),
            7 => {
                let other = self.any(dice)?;
                let from = below(dice, other.len() + 1)?;
                insert(text, at, &other[piece(other, from, dice)?]);
            }
            8 => {
                let other = self.any(dice)?;
                let from = run(other, below(dice, other.len() + 1)?, |b| b != b'\n');
                drop(text.splice(run(text, at, |b| b != b'\n'), other[from].iter().copied()));
            }
            // What still reads as before, but says something else.
            9 => drop(text.splice(run(text, at, is_word), WORDS[below(dice, WORDS.len())?].iter().copied())),
            _ => {
                let other = self.any(dice)?;
                let from = run(other, below(dice, other.len() + 1)?, is_word);
                drop(text.splice(run(text, at, is_word), other[from].iter().copied()));
            }
        }
        Some(())
    }
}

impl ValueGenerator for Corpus {
    type Output = Input;

    fn generate<D: Driver>(&self, dice: &mut D) -> Option<Input> {
        // Now and then from nothing: what no document looks like.
        let mut text = if below(dice, 16)? == 0 { Vec::new() } else { self.any(dice)?.to_vec() };
        // Mostly few: what is changed everywhere is refused at once, and nothing behind the first check is reached.
        let most = below(dice, CHANGES_MAX)?;
        for _ in 0..=below(dice, most + 1)? {
            self.change(&mut text, dice)?;
            text.truncate(BYTES_MAX);
        }
        Some(Input(text))
    }
}

/// Asked when running, not when compiling: targets in other crates come here too.
fn directory() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    own.join("../cis-fuzz/corpus")
}

fn read(dir: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths =
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    paths.iter().map(fs::read).collect()
}

/// A number below `end`; 0 if there is none.
fn below<D: Driver>(dice: &mut D, end: usize) -> Option<usize> {
    dice.gen_usize(Bound::Included(&0), Bound::Excluded(&end.max(1)))
}

/// The byte at `at`, made if there is none.
fn byte(text: &mut Vec<u8>, at: usize) -> &mut u8 {
    if at == text.len() {
        text.push(b' ');
    }
    &mut text[at]
}

/// Some bytes from `from` on: mostly a few, sometimes many.
fn piece<D: Driver>(text: &[u8], from: usize, dice: &mut D) -> Option<Range<usize>> {
    let magnitude = below(dice, 10)?;
    let length = 1 + below(dice, 1 << magnitude)?;
    Some(from..(from + length).min(text.len()))
}

/// Says a piece up to 256 times more: nests, long lists, long lines.
fn repeat<D: Driver>(text: &mut Vec<u8>, at: usize, dice: &mut D) -> Option<()> {
    let piece = piece(text, at, dice)?;
    let times = (1 << below(dice, 9)?).min(BYTES_MAX / piece.len().max(1));
    let again = text[piece].repeat(times);
    insert(text, at, &again);
    Some(())
}

fn insert(text: &mut Vec<u8>, at: usize, piece: &[u8]) {
    drop(text.splice(at..at, piece.iter().copied()));
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || byte >= 0x80
}

/// The longest run of bytes around `at` that are all `like`.
fn run(text: &[u8], at: usize, like: impl Fn(u8) -> bool) -> Range<usize> {
    let before = text[..at].iter().rev().take_while(|b| like(**b)).count();
    let after = text[at..].iter().take_while(|b| like(**b)).count();
    at - before..at + after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_around_a_place() {
        let text = b"a = one_two\n";
        assert_eq!(run(text, 6, is_word), 4..11);
        assert_eq!(run(text, 2, is_word), 2..2);
        assert_eq!(run(text, 3, |b| b != b'\n'), 0..11);
        assert_eq!(run(text, 12, is_word), 12..12);
    }
}
