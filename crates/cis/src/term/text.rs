//! Making the output of tasks safe to print, and cutting text to the width of a screen.
//!
//! An escape sequence in what a task prints could move the cursor, rewrite what was shown or set the clipboard, so it passes
//! through [`clean`] before it reaches a terminal. What is read before it is approved (names, commands, prompts) must show
//! what it is: [`visible`](super::visible) does that.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Output of a task on one line, without colours, control characters or characters that reorder what follows.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let plain = anstream::adapter::strip_str(text).to_string();
    Cow::Owned(plain.chars().map(safe).collect())
}

/// The last line of `output` that says something, as a screen would show it: after a carriage return,
/// what follows counts.
pub fn last_line(output: &str) -> Cow<'_, str> {
    let line = output
        .rsplit('\n')
        .flat_map(|line| line.rsplit('\r'))
        .find(|piece| !clean(piece).trim().is_empty())
        .unwrap_or("");
    match clean(line) {
        Cow::Borrowed(line) => Cow::Borrowed(line.trim()),
        Cow::Owned(line) => Cow::Owned(line.trim().to_owned()),
    }
}

fn is_unsafe(c: char) -> bool {
    c.is_control() || reorders(c)
}

/// What to print in place of `c`.
fn safe(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        c if is_unsafe(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Marks that change the direction of the text after them, and line separators a terminal may obey.
fn reorders(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// How many columns `text` takes, styles not counted.
pub fn columns(text: &str) -> usize {
    if text.contains('\u{1b}') {
        return anstream::adapter::strip_str(text).map(UnicodeWidthStr::width).sum();
    }
    text.width()
}

/// `text` cut to `width` columns, with `…` where something was cut. For text without styles.
pub fn fit(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    if width == 0 {
        return Cow::Borrowed("");
    }
    let mut cut = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        // One column stays free for the mark of the cut.
        if used + wide >= width {
            break;
        }
        used += wide;
        cut.push(c);
    }
    cut.push('…');
    Cow::Owned(cut)
}

/// `text`, styles and all, followed by spaces up to `width` columns.
pub fn pad(text: &str, width: usize) -> String {
    text.to_owned() + &spaces(width.saturating_sub(columns(text)))
}

/// Spaces up to `width` columns, then `text`.
pub fn pad_left(text: &str, width: usize) -> String {
    spaces(width.saturating_sub(columns(text))) + text
}

/// However many: the width of a format is a `u16`.
fn spaces(count: usize) -> String {
    " ".repeat(count)
}

/// `text` as one word of a command that can be typed.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || "._-/+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// `1 task`, `2 tasks`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", thousands(number)) }
}

/// `12,345`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_take_it_apart() {
        assert_eq!((quoted("/a/b-c.d"), quoted("")), ("/a/b-c.d".into(), "''".into()));
        assert_eq!((quoted("a b"), quoted("it's $HOME")), ("'a b'".into(), r"'it'\''s $HOME'".into()));
    }

    #[test]
    fn what_is_very_long_is_padded_too() {
        const WIDE: usize = 70_000;
        assert_eq!((pad("a", WIDE).len(), pad_left("a", WIDE).len()), (WIDE, WIDE));
        assert_eq!((pad("ab", 1), pad_left("ab", 1)), ("ab".to_owned(), "ab".to_owned()));
    }

    #[test]
    fn escapes_and_controls_do_not_reach_the_terminal() {
        let nasty = [
            "\u{1b}[2Jgone",
            "\u{1b}]0;title\u{7}x",
            "\u{1b}]52;c;ZXZpbA==\u{1b}\\x",
            "a\u{9b}31mb",
            "a\u{8}\u{8}b",
            "a\rb\nc\td",
            "\u{202e}txt.exe",
            "\u{1b}",
            "\u{1b}Pq#0\u{1b}\\sixel",
        ];
        for text in nasty {
            let shown = clean(text);
            assert!(!shown.chars().any(is_unsafe), "{text:?} became {shown:?}");
        }
        assert_eq!(clean("\u{1b}[1mbold\u{1b}[0m"), "bold");
        assert_eq!(clean("a\tb"), "a b");
    }

    #[test]
    fn harmless_text_is_left_alone() {
        for text in ["plain", "naïve 日本語 🚀", ""] {
            assert!(matches!(clean(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn the_last_line_is_what_a_screen_would_show() {
        assert_eq!(last_line("one\ntwo\n\n"), "two");
        assert_eq!(last_line("10%\r50%\r100%"), "100%");
        assert_eq!(last_line("work\r\n"), "work");
        assert_eq!(last_line("\u{1b}[32mok\u{1b}[0m\n  \n"), "ok");
        assert_eq!(last_line(""), "");
    }

    #[test]
    fn cuts_by_columns_not_by_bytes() {
        assert_eq!(fit("hello", 5), "hello");
        assert_eq!(fit("hello!", 5), "hell…");
        assert_eq!(fit("日本語です", 5), "日本…");
        assert_eq!(fit("日本語", 1), "…");
        assert_eq!(fit("x", 0), "");
    }

    #[test]
    fn pads_around_styles() {
        assert_eq!(pad("ab", 4), "ab  ");
        assert_eq!(pad("\u{1b}[1mab\u{1b}[0m", 4), "\u{1b}[1mab\u{1b}[0m  ");
        assert_eq!(pad_left("日", 4), "  日");
        assert_eq!(pad("abc", 2), "abc");
    }

    #[test]
    fn counts_read_well() {
        assert_eq!(count(1, "task"), "1 task");
        assert_eq!(count(0, "task"), "0 tasks");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(999), "999");
    }
}
