//! What is shown is what it is: text that a caller wrote, with everything a terminal would hide, obey or reorder spelled out.
//!
//! Commands, prompts, names and notes are read before they are approved. A character that takes no room, turns the
//! direction of what follows, ends the line or moves the cursor would let the text that is read differ from the text
//! that runs. So each such character becomes `\u{…}`, its code in hexadecimal. That is the only escape there is: a backslash
//! stands for itself unless `u{` follows, and then it is spelled out as well, so that [`revealed`](reveal) text names exactly
//! one original ([`conceal`] gives it back).
//!
//! Letters are left as they are, whatever their script: two that look alike are not told apart here.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Before each line of a text.
const GUTTER: &str = "│ ";

/// Before what is left of a line that was too long for the screen.
const CONTINUED: &str = "↳ ";

/// Columns that a line of text gets at least, however narrow the screen.
const TEXT_COLUMNS_MIN: usize = 12;

/// Is this a character that a person would not see, or not where it stands? A space is one that is seen; a line end is not.
pub fn is_hidden(c: char) -> bool {
    use GeneralCategory as G;
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let unseen = matches!(
        c.general_category(),
        G::Control
            | G::Format
            | G::Surrogate
            | G::PrivateUse
            | G::Unassigned
            | G::SpaceSeparator
            | G::LineSeparator
            | G::ParagraphSeparator
    );
    unseen || is_blank_letter(c)
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
        // A braille cell without dots, and a note head without a head.
        | '\u{2800}' | '\u{1d159}'
        // Stands for an object that is not there.
        | '\u{fffc}'
    )
}

/// `text` on one line, every hidden character in it as `\u{…}`, and so is a space at its end.
pub fn reveal(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') && !text.ends_with(' ') && !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(pieces(text).map(|piece| piece.text).collect())
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
    let escaped = |c: char| c != '\n' && is_hidden(c);
    if !json.chars().any(escaped) {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if escaped(c) {
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
    let Some(width) = width else { return vec![format!("{first}{}", reveal(line))] };
    let room = |before: &str| width.saturating_sub(before.width()).max(TEXT_COLUMNS_MIN);
    let next = format!("{margin}{CONTINUED}");
    let (mut lines, mut shown, mut left) = (Vec::new(), first.to_owned(), room(first));
    for (number, piece) in pieces(line).enumerate() {
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

/// The characters of a line as they are shown.
fn pieces(text: &str) -> impl Iterator<Item = Piece> {
    text.char_indices().map(|(at, c)| {
        let rest = &text[at + c.len_utf8()..];
        let ambiguous = c == '\\' && rest.starts_with("u{");
        let unseen = is_hidden(c) || (c == ' ' && rest.is_empty());
        if ambiguous || unseen {
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
        ] {
            assert_eq!(reveal(text), shown);
        }
    }

    #[test]
    fn seen_text_stays_as_it_is() {
        for text in ["plain", "naïve 日本語 🚀", "", r"printf 'a\n\t\x1b \\ \u0041'", "a  b"] {
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
        ]);
        proptest::collection::vec(prop_oneof![odd, any::<char>()], 0..40)
            .prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn shown_text_hides_nothing_and_names_one_original(text in text()) {
            let shown = reveal(&text);
            prop_assert!(!shown.chars().any(|c| c.is_control() || is_hidden(c)), "{shown:?}");
            prop_assert!(!shown.ends_with(' '));
            prop_assert_eq!(conceal(&shown), text);
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
