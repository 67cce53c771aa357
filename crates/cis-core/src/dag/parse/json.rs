//! Reads JSON into a [`Tree`]. By hand, because `serde_json` does not say where things stand.

use super::tree::{Fault, Ix, Origin, Slot, Tree, Value};

/// Reads the whole of `source`.
pub(super) fn read(source: &str) -> Result<Tree<'_>, Fault> {
    let mut reader =
        Reader { source, bytes: source.as_bytes(), at: 0, tree: Tree::new(source), text: String::new() };
    reader.space();
    if reader.at < reader.bytes.len() {
        reader.value(Slot::Root)?;
        reader.space();
    }
    if reader.at < reader.bytes.len() {
        return Err(Fault::syntax(reader.at, format!("unexpected {} after the end", reader.here())));
    }
    Ok(reader.tree)
}

struct Reader<'s> {
    source: &'s str,
    bytes: &'s [u8],
    at: usize,
    tree: Tree<'s>,
    /// The last string read, when it had escapes.
    text: String,
}

impl<'s> Reader<'s> {
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// What stands here, for a message.
    fn here(&self) -> String {
        match self.source.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(c) => format!("`{}`", c.escape_default()),
            None => "end of file".to_owned(),
        }
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        let fault = Fault::syntax(self.at, format!("expected {wanted}, found {}", self.here()));
        match self.bytes.get(self.at) {
            Some(b'\'') => fault.hint("JSON strings are written with double quotes"),
            Some(b'/' | b'#') => fault.hint("JSON has no comments"),
            _ => fault,
        }
    }

    /// Recursion is bounded: the tree refuses to nest deeper than its limit.
    fn value(&mut self, slot: Slot) -> Result<(), Fault> {
        let at = self.at;
        match self.bytes.get(at) {
            Some(b'{') => {
                let map = self.tree.add(slot, Value::map(Origin::Closed), at)?;
                self.map(map)
            }
            Some(b'[') => {
                let list = self.tree.add(slot, Value::list(Origin::Closed), at)?;
                self.list(list)
            }
            Some(b'"') => {
                let value = match self.string()? {
                    Some(plain) => Value::Text(self.tree.keep(plain)),
                    None => Value::Text(self.tree.keep(&self.text)),
                };
                self.tree.add(slot, value, at).map(drop)
            }
            Some(b'-' | b'0'..=b'9') => {
                let value = self.number()?;
                self.tree.add(slot, value, at).map(drop)
            }
            _ => {
                let value = self.word()?;
                self.tree.add(slot, value, at).map(drop)
            }
        }
    }

    fn map(&mut self, map: Ix) -> Result<(), Fault> {
        self.at += 1;
        self.space();
        if self.bytes.get(self.at) == Some(&b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key_at = self.at;
            if self.bytes.get(self.at) != Some(&b'"') {
                return Err(self.unexpected("a key in double quotes"));
            }
            let key = match self.string()? {
                Some(plain) => self.tree.intern(plain),
                None => self.tree.intern(&self.text),
            };
            self.space();
            if self.bytes.get(self.at) != Some(&b':') {
                return Err(self.unexpected("`:`"));
            }
            self.at += 1;
            self.space();
            self.value(Slot::Key(map, key, u32::try_from(key_at).unwrap_or(u32::MAX)))?;
            if self.end_of_item(b'}')? {
                return Ok(());
            }
        }
    }

    fn list(&mut self, list: Ix) -> Result<(), Fault> {
        self.at += 1;
        self.space();
        if self.bytes.get(self.at) == Some(&b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(Slot::Item(list))?;
            if self.end_of_item(b']')? {
                return Ok(());
            }
        }
    }

    /// After an item: a comma and the next item, or the end.
    fn end_of_item(&mut self, close: u8) -> Result<bool, Fault> {
        self.space();
        match self.bytes.get(self.at) {
            Some(b',') => {
                let comma = self.at;
                self.at += 1;
                self.space();
                if self.bytes.get(self.at) == Some(&close) {
                    return Err(Fault::syntax(comma, "a comma after the last item")
                        .hint("JSON does not allow it; remove it"));
                }
                Ok(false)
            }
            Some(b) if *b == close => {
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.unexpected(&format!("`,` or `{}`", char::from(close)))),
        }
    }

    fn word(&mut self) -> Result<Value, Fault> {
        let rest = &self.bytes[self.at..];
        for (word, value) in
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
        {
            if rest.starts_with(word.as_bytes())
                && !rest.get(word.len()).is_some_and(u8::is_ascii_alphanumeric)
            {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.unexpected("a value"))
    }

    fn number(&mut self) -> Result<Value, Fault> {
        let start = self.at;
        let skip_digits = |reader: &mut Self| {
            let from = reader.at;
            while reader.bytes.get(reader.at).is_some_and(u8::is_ascii_digit) {
                reader.at += 1;
            }
            reader.at - from
        };
        self.at += usize::from(self.bytes[self.at] == b'-');
        let zero = self.bytes.get(self.at) == Some(&b'0');
        let digits = skip_digits(self);
        if digits == 0 || (zero && digits > 1) {
            return Err(Fault::syntax(
                start,
                "not a number: JSON numbers start with one digit, and no extra 0",
            ));
        }
        let mut whole = true;
        if self.bytes.get(self.at) == Some(&b'.') {
            whole = false;
            self.at += 1;
            if skip_digits(self) == 0 {
                return Err(self.unexpected("a digit"));
            }
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            whole = false;
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            if skip_digits(self) == 0 {
                return Err(self.unexpected("a digit"));
            }
        }
        let written = &self.source[start..self.at];
        Ok(match (whole, written.parse(), written.parse()) {
            (true, Ok(int), _) => Value::int(int),
            (true, Err(_), _) => Value::Huge,
            (false, _, Ok(float)) => Value::float(float),
            (false, _, Err(_)) => return Err(Fault::syntax(start, "not a number")),
        })
    }

    /// Reads a string: borrowed when it has no escapes, else `None` and it is in `self.text`.
    fn string(&mut self) -> Result<Option<&'s str>, Fault> {
        let open = self.at;
        self.at += 1;
        let mut from = self.at;
        let mut plain = true;
        self.text.clear();
        loop {
            match self.bytes.get(self.at) {
                None => return Err(Fault::syntax(open, "a string that does not end")),
                Some(b'"') => break,
                Some(b'\\') => {
                    plain = false;
                    self.text.push_str(&self.source[from..self.at]);
                    let c = self.escape()?;
                    self.text.push(c);
                    from = self.at;
                }
                Some(0..0x20) => {
                    return Err(Fault::syntax(self.at, "a control character inside a string")
                        .hint("write a line break as \\n"));
                }
                Some(_) => self.at += 1,
            }
        }
        let end = self.at;
        self.at += 1;
        if plain {
            return Ok(Some(&self.source[from..end]));
        }
        self.text.push_str(&self.source[from..end]);
        Ok(None)
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let at = self.at;
        let c = match self.bytes.get(at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 2;
                return self.unicode(at);
            }
            _ => {
                return Err(Fault::syntax(at, "an unknown escape").hint("a backslash itself is written \\\\"));
            }
        };
        self.at += 2;
        Ok(c)
    }

    fn unicode(&mut self, at: usize) -> Result<char, Fault> {
        let broken = || Fault::syntax(at, "a broken \\u escape");
        let high = self.hex().ok_or_else(broken)?;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high).ok_or_else(broken);
        }
        if !self.bytes[self.at..].starts_with(b"\\u") {
            return Err(broken());
        }
        self.at += 2;
        let low = self.hex().filter(|low| (0xDC00..0xE000).contains(low)).ok_or_else(broken)?;
        char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)).ok_or_else(broken)
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.source.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}
