//! What is shown is what it is: text that a caller wrote, with everything a terminal would hide, obey or reorder spelled out.
//!
//! Commands, prompts, names and notes are read before they are approved. A character that takes no room, turns the
//! direction of what follows, ends the line or moves the cursor would let the text that is read differ from the text
//! that runs. So each such character becomes `\u{…}`, its code in hexadecimal. That is the only escape there is: a backslash
//! stands for itself unless `u{` follows, and then it is spelled out as well, so that [`revealed`](reveal) text names exactly
//! one original ([`conceal`] gives it back).
//!
//! Letters that are read from left to right are left as they are, whatever their script, and so are up to two marks on each:
//! two that look alike are not told apart here.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Before each line of a text.
pub const GUTTER: &str = "│ ";

/// Before what is left of a line that was too long for the screen.
pub const CONTINUED: &str = "↳ ";

/// Columns that a line of text gets at least, however narrow the screen.
pub const TEXT_COLUMNS_MIN: usize = 12;

/// Marks on one letter that are left as they are; more of them would be drawn over each other, or over the line above.
const MARKS_MAX: usize = 2;

/// Is this a character that a person would not see, or not where it stands, whatever is before it? A space is one that is
/// seen; a line end is not.
pub fn is_hidden(c: char) -> bool {
    use GeneralCategory as G;
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let category = c.general_category();
    let unseen = matches!(
        category,
        G::Control
            | G::Format
            | G::Surrogate
            | G::PrivateUse
            | G::Unassigned
            | G::SpaceSeparator
            | G::LineSeparator
            | G::ParagraphSeparator
            | G::EnclosingMark
    );
    let mark = matches!(category, G::NonspacingMark | G::SpacingMark);
    let roomless = c.width().unwrap_or(0) == 0 && !mark;
    unseen || roomless || is_blank_letter(c) || is_overlay(c) || is_right_to_left(c)
}

/// What is hidden in a text, character by character: a mark is seen on a letter only.
#[derive(Debug, Default)]
pub struct Looker {
    /// The letter that a mark would stand on, and how many it has.
    letter: Option<(char, usize)>,
}

impl Looker {
    /// Is the next character of the text hidden?
    pub fn misses(&mut self, c: char) -> bool {
        use GeneralCategory as G;
        if is_hidden(c) {
            self.letter = None;
            return true;
        }
        if c.is_ascii() {
            self.letter = c.is_ascii_alphabetic().then_some((c, 0));
            return false;
        }
        if c.general_category() == G::NonspacingMark || c.width().unwrap_or(0) == 0 {
            let fits = |(letter, marks): &(char, usize)| *marks < MARKS_MAX && belongs(c, *letter);
            self.letter = self.letter.filter(fits).map(|(letter, marks)| (letter, marks + 1));
            return self.letter.is_none();
        }
        let letter = c.is_alphabetic() || c.general_category() == G::SpacingMark;
        self.letter = letter.then_some((c, 0));
        false
    }
}

/// Does text have something hidden in it? A line end is not.
pub fn hides(text: &str) -> bool {
    let mut looker = Looker::default();
    text.chars().any(|c| looker.misses(c) && c != '\n')
}

/// Is it a mark for every script, or one of the letter's own? Codes of a script stand together.
fn belongs(mark: char, letter: char) -> bool {
    let common = matches!(
        mark,
        '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{fe20}'..='\u{fe2f}'
    );
    common || u32::from(mark) >> 8 == u32::from(letter) >> 8
}

/// Marks that are drawn through or around what is before them.
fn is_overlay(c: char) -> bool {
    matches!(c, '\u{334}'..='\u{338}' | '\u{20d0}'..='\u{20ff}')
}

/// The blocks of scripts that are written from right to left: a terminal may reorder what is beside them.
fn is_right_to_left(c: char) -> bool {
    matches!(
        c,
        '\u{590}'..='\u{8ff}'
            | '\u{fb1d}'..='\u{fdff}'
            | '\u{fe70}'..='\u{feff}'
            | '\u{10800}'..='\u{10fff}'
            | '\u{1e800}'..='\u{1efff}'
    )
}

/// Letters, marks and symbols that are drawn as nothing.
fn is_blank_letter(c: char) -> bool {
    matches!(
        c,
        // Combining grapheme joiner.
        '\u{34f}'
        // Hangul fillers.
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
        // Khmer inherent vowels.
        | '\u{17b4}' | '\u{17b5}'
        // Variation selectors: Mongolian, common, supplementary.
        | '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}'
        // Joiners of Tifinagh, Brahmi numbers and Tai Tham; blanks of Khitan and of hieroglyphs.
        | '\u{2d7f}' | '\u{1107f}' | '\u{1a60}' | '\u{16fe4}' | '\u{13441}' | '\u{13442}'
        // A braille cell without dots, and a note head without a head.
        | '\u{2800}' | '\u{1d159}'
        // Stands for an object that is not there.
        | '\u{fffc}'
    )
}

/// `text` on one line, every hidden character in it as `\u{…}`. So is a space at its beginning, at its end or after another
/// one: on a line of several things, or one that is wrapped by the terminal, room between two words would pass for a column
/// or the end of the line.
pub fn reveal(text: &str) -> Cow<'_, str> {
    let spaced = text.starts_with(' ') || text.ends_with(' ') || text.contains("  ");
    if !spaced && !text.contains('\\') && !text.contains('\n') && !hides(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(pieces(text, Spaces::Single).map(|piece| piece.text).collect())
}

/// [Revealed](reveal) text in lines of at most `width` columns, broken at a space where there is one: for a cell of a table.
/// All but the first begin with the mark of a line that goes on; after `most` lines it is cut, with `…`.
pub fn fold(revealed: &str, width: usize, most: usize) -> Vec<String> {
    let width = width.max(TEXT_COLUMNS_MIN);
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for word in revealed.split(' ') {
        let mut space = usize::from(!line.is_empty() && line != CONTINUED);
        if used + space + word.width() > width && space == 1 {
            lines.push(std::mem::replace(&mut line, CONTINUED.to_owned()));
            (used, space) = (CONTINUED.width(), 0);
        }
        line.push_str(&" ".repeat(space));
        used += space;
        for part in parts(word) {
            if used + part.width() > width {
                lines.push(std::mem::replace(&mut line, CONTINUED.to_owned()));
                used = CONTINUED.width();
            }
            line.push_str(part);
            used += part.width();
        }
        if lines.len() > most {
            break;
        }
    }
    lines.push(line);
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            *last = cut(last, width);
        }
    }
    lines
}

/// A line that has room for `…` after it, with it. An escape is never split.
fn cut(line: &str, width: usize) -> String {
    let mut kept = String::new();
    for part in parts(line) {
        if kept.width() + part.width() >= width {
            break;
        }
        kept.push_str(part);
    }
    kept + "…"
}

/// The characters of revealed text, an escape as one.
fn parts(revealed: &str) -> impl Iterator<Item = &str> {
    let mut rest = revealed;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let escape = rest.starts_with("\\u{").then(|| rest.find('}')).flatten().map(|end| end + 1);
        let (part, after) = rest.split_at(escape.unwrap_or(first.len_utf8()));
        rest = after;
        Some(part)
    })
}

/// The text that [`reveal`] made `shown` of.
pub fn conceal(shown: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(shown.len()), shown);
    while let Some(at) = rest.find("\\u{") {
        let (before, escape) = rest.split_at(at);
        text.push_str(before);
        let code = escape[3..].split_once('}');
        let c = code.and_then(|(hex, _)| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        match (code, c) {
            (Some((_, after)), Some(c)) => {
                text.push(c);
                rest = after;
            }
            _ => {
                text.push_str(&escape[..3]);
                rest = &escape[3..];
            }
        }
    }
    text + rest
}

/// JSON with what a terminal would hide as `\uXXXX`: only strings have such characters, and there it means the same.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    if !hides(json) {
        return Cow::Borrowed(json);
    }
    let (mut text, mut looker) = (String::with_capacity(json.len()), Looker::default());
    for c in json.chars() {
        if looker.misses(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    Cow::Owned(text)
}

/// `text` line by line, each behind `margin` and a gutter. With a `width`, a line that is longer goes on below, behind a mark
/// that says so: nothing is cut or joined, and spaces stay as many as they are.
pub fn block(text: &str, margin: &str, width: Option<usize>) -> Vec<String> {
    let first = format!("{margin}{GUTTER}");
    text.split('\n').flat_map(|line| wrap(line, &first, margin, width)).collect()
}

/// One line behind `first`; what does not fit into `width` columns below it, behind `margin` and the mark of a line that goes
/// on. An escape is never split.
pub fn wrap(line: &str, first: &str, margin: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else {
        return vec![format!(
            "{first}{}",
            pieces(line, Spaces::All).map(|piece| piece.text).collect::<String>()
        )];
    };
    let room = |before: &str| width.saturating_sub(before.width()).max(TEXT_COLUMNS_MIN);
    let next = format!("{margin}{CONTINUED}");
    let (mut lines, mut shown, mut left) = (Vec::new(), first.to_owned(), room(first));
    for (number, piece) in pieces(line, Spaces::All).enumerate() {
        if number > 0 && piece.columns > left {
            lines.push(std::mem::replace(&mut shown, next.clone()));
            left = room(&next);
        }
        left = left.saturating_sub(piece.columns);
        shown.push_str(&piece.text);
    }
    lines.push(shown);
    lines
}

/// One character as it is shown.
struct Piece {
    text: String,
    columns: usize,
}

/// Which spaces of a text are shown as they are; one at its end never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spaces {
    All,
    /// Those between two words.
    Single,
}

/// The characters of a line as they are shown.
fn pieces(text: &str, spaces: Spaces) -> impl Iterator<Item = Piece> {
    let (mut looker, mut after_word) = (Looker::default(), false);
    text.char_indices().map(move |(at, c)| {
        let rest = &text[at + c.len_utf8()..];
        let ambiguous = c == '\\' && rest.starts_with("u{");
        let room = c == ' ' && (rest.is_empty() || (spaces == Spaces::Single && !after_word));
        after_word = c != ' ';
        if looker.misses(c) || ambiguous || room {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{{{:x}}}", u32::from(c));
            Piece { columns: text.len(), text }
        } else {
            Piece { text: c.to_string(), columns: c.width().unwrap_or(0) }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hidden_characters_are_spelled_out() {
        for (text, shown) in [
            ("a\u{1b}[2Jb", r"a\u{1b}[2Jb"),
            ("a\rb\nc\td", r"a\u{d}b\u{a}c\u{9}d"),
            ("a\u{9b}31m", r"a\u{9b}31m"),
            ("\u{200b}ok\u{2060}", r"\u{200b}ok\u{2060}"),
            ("\u{202e}txt\u{2066}", r"\u{202e}txt\u{2066}"),
            (
                "\u{e0041}\u{ad}\u{3164}\u{115f}\u{1160}\u{ffa0}",
                r"\u{e0041}\u{ad}\u{3164}\u{115f}\u{1160}\u{ffa0}",
            ),
            ("a\u{a0}b\u{3000}c\u{2028}\u{feff}\u{fe0f}", r"a\u{a0}b\u{3000}c\u{2028}\u{feff}\u{fe0f}"),
            ("\u{e000}\u{378}\u{2800}", r"\u{e000}\u{378}\u{2800}"),
            ("x  ", r"x \u{20}"),
            ("  x   y", r"\u{20}\u{20}x \u{20}\u{20}y"),
            ("\u{13441}\u{13442}\u{16fe4}\u{2d7f}", r"\u{13441}\u{13442}\u{16fe4}\u{2d7f}"),
            ("a\u{1107f}\u{1a60}", r"a\u{1107f}\u{1a60}"),
            // A mark on nothing, on a letter of another script, the third one, and those that strike through.
            (
                "\u{301} 1\u{301} a\u{93c} e\u{301}\u{302}\u{303}",
                "\\u{301} 1\\u{301} a\\u{93c} e\u{301}\u{302}\\u{303}",
            ),
            ("a\u{336}b\u{20dd}c\u{20e3}", r"a\u{336}b\u{20dd}c\u{20e3}"),
            ("rm \u{5d0}\u{627}\u{661} x", r"rm \u{5d0}\u{627}\u{661} x"),
        ] {
            assert_eq!(reveal(text), shown);
        }
    }

    #[test]
    fn seen_text_stays_as_it_is() {
        for text in [
            "plain",
            "naïve 日本語 🚀",
            "",
            r"printf 'a\n\t\x1b \\ \u0041'",
            "a b",
            "Ju\u{308}rgen e\u{302}\u{301}",
            "\u{915}\u{94d}\u{937}\u{93f}",
        ] {
            assert_eq!(reveal(text), text);
        }
    }

    #[test]
    fn an_escape_that_was_written_is_not_one_that_was_made() {
        assert_eq!(reveal(r"\u{200b}"), r"\u{5c}u{200b}");
        assert_ne!(reveal("\u{200b}"), reveal(r"\u{200b}"));
    }

    #[test]
    fn lines_are_kept_apart_and_long_ones_go_on_below() {
        let lines = block("make # see README\nrm -rf x ", "  ", Some(20));
        assert_eq!(lines, ["  │ make # see READM", "  ↳ E", "  │ rm -rf x\\u{20}"]);
        let hidden = format!("make{};x", " ".repeat(40));
        let lines = block(&hidden, "", Some(22));
        assert_eq!(lines.concat().replace(GUTTER, "").replace(CONTINUED, ""), hidden);
        assert_eq!(lines.last().map(String::as_str), Some("↳     ;x"));
    }

    fn is_mark(c: char) -> bool {
        use GeneralCategory as G;
        matches!(c.general_category(), G::NonspacingMark | G::SpacingMark)
    }

    fn text() -> impl Strategy<Value = String> {
        let odd = prop::sample::select(vec![
            '\\',
            'u',
            '{',
            '}',
            '0',
            ' ',
            '\n',
            '\r',
            '\t',
            '\u{1b}',
            '\u{9b}',
            '\u{200b}',
            '\u{202e}',
            '\u{e0041}',
            '\u{ad}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{2028}',
            '日',
            'e',
            '\u{301}',
            '\u{336}',
            '\u{20dd}',
            '\u{93c}',
            '\u{915}',
            '\u{13441}',
            '\u{16fe4}',
            '\u{2d7f}',
            '\u{1107f}',
            '\u{1a60}',
            '\u{5d0}',
            '\u{627}',
            '\u{661}',
        ]);
        proptest::collection::vec(prop_oneof![odd, any::<char>()], 0..40)
            .prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn shown_text_hides_nothing_and_names_one_original(text in text()) {
            let shown = reveal(&text);
            prop_assert!(!hides(&shown) && !shown.chars().any(char::is_control), "{shown:?}");
            prop_assert!(!shown.starts_with(' ') && !shown.ends_with(' ') && !shown.contains("  "));
            let roomless = |c: char| c.width().unwrap_or(0) == 0;
            let chars: Vec<char> = shown.chars().collect();
            for (at, c) in chars.iter().enumerate().filter(|(_, c)| roomless(**c)) {
                prop_assert!(at > 0 && (chars[at - 1].is_alphabetic() || is_mark(chars[at - 1])), "{shown:?}");
                prop_assert!(is_mark(*c) && !is_overlay(*c), "{shown:?}");
            }
            prop_assert!(!chars.windows(MARKS_MAX + 1).any(|some| some.iter().all(|c| roomless(*c))), "{shown:?}");
            prop_assert!(!chars.iter().any(|c| is_right_to_left(*c)));
            prop_assert_eq!(conceal(&shown), text);
        }

        #[test]
        fn folded_text_fits_and_loses_nothing(text in text(), width in 12usize..90) {
            let revealed = reveal(&text);
            let lines = fold(&revealed, width, usize::MAX);
            for (number, line) in lines.iter().enumerate() {
                prop_assert!(crate::term::text::columns(line) <= width, "{line:?}");
                prop_assert_eq!(number > 0, line.starts_with(CONTINUED) && number > 0);
            }
            let back: String = lines.iter().enumerate().map(|(n, line)| if n > 0 { &line[CONTINUED.len()..] } else { line }).collect();
            prop_assert_eq!(back.replace(' ', ""), revealed.replace(' ', ""));
            let cut = fold(&revealed, width, 2);
            prop_assert!(cut.len() <= 2 && cut.iter().all(|line| crate::term::text::columns(line) <= width));
            prop_assert_eq!(lines.len() > 2, cut.last().is_some_and(|line| line.ends_with('…')) && !revealed.ends_with('…'));
        }

        #[test]
        fn a_block_fits_and_gives_the_text_back(text in text(), width in 20usize..90) {
            let (mut back, lines) = (String::new(), block(&text, "    ", Some(width)));
            for (number, line) in lines.iter().enumerate() {
                prop_assert!(crate::term::text::columns(line) <= width, "{line:?}");
                if number > 0 && line.starts_with("    │ ") {
                    back.push('\n');
                }
                back.push_str(&line[4 + GUTTER.len()..]);
            }
            // A part that is split off must not make an escape with its neighbour: decoded as a whole, line by line.
            let back: Vec<String> = back.split('\n').map(conceal).collect();
            prop_assert_eq!(back.join("\n"), text);
        }
    }
}
