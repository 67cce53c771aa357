//! Reads YAML 1.2 into a [`Tree`]: `granit-parser` finds the pieces, this puts them together.
//!
//! Plain scalars mean what the core schema says (`yes` and `on` are strings). Aliases are copied, up to a limit,
//! so that a few lines cannot unfold into gigabytes.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span, Tag};

use super::tree::{DEPTH_MAX, Fault, Ix, Origin, Slot, Symbol, Text, Tree, Value};
use crate::dag::problem::ProblemCode;

/// Most values that aliases may unfold into.
const COPIES_MAX: usize = 1_000_000;
/// Most text, in bytes, that aliases may unfold into.
const COPIED_MAX: usize = 32 * 1024 * 1024;

/// Reads the whole of `text`.
pub(super) fn read(text: &str) -> Result<Tree<'_>, Fault> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    // Deeper than the tree allows, so that the tree's own words are heard.
    options.flow_nesting_limit = DEPTH_MAX + 8;
    options.block_nesting_limit = DEPTH_MAX + 8;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder {
        tree: Tree::new(text),
        open: Vec::new(),
        anchors: HashMap::new(),
        copies: 0,
        copied: 0,
        documents: 0,
    };
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        builder.event(event, span)?;
    }
    Ok(builder.tree)
}

struct Builder<'s> {
    tree: Tree<'s>,
    open: Vec<Frame>,
    anchors: HashMap<usize, Anchor>,
    copies: usize,
    copied: usize,
    documents: usize,
}

/// A list or map being read.
struct Frame {
    ix: Ix,
    map: bool,
    /// The key whose value comes next.
    key: Option<(Symbol, u32)>,
}

#[derive(Clone, Copy)]
enum Anchor {
    /// The whole of a value.
    Node(Ix),
    /// The text of a key, also as a value.
    Key(Symbol, Text),
}

fn syntax(error: &ScanError) -> Fault {
    let at = error.marker().byte_offset().unwrap_or(0);
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        let problem = format!("nested more than {DEPTH_MAX} levels deep");
        return Fault::new(ProblemCode::TooDeep, at, problem);
    }
    let problem = error.info();
    let fault = Fault::syntax(at, problem.clone());
    if problem.contains("tab") { fault.hint("indent with spaces") } else { fault }
}

fn offset(span: &Span) -> usize {
    span.start.byte_offset().unwrap_or(0)
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let at = offset(&span);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(
                        Fault::syntax(at, "a second document").hint("one file holds one DAG; split it")
                    );
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(&text, style, anchor, tag.as_deref(), at)?
            }
            Event::SequenceStart(_, anchor, tag) => self.begin(false, anchor, tag.as_deref(), at)?,
            Event::MappingStart(_, anchor, tag) => self.begin(true, anchor, tag.as_deref(), at)?,
            Event::SequenceEnd | Event::MappingEnd => drop(self.open.pop()),
            Event::Alias(id) => self.alias(id, at)?,
            _ => {}
        }
        Ok(())
    }

    /// Is the next scalar a key?
    fn wants_key(&self) -> bool {
        self.open.last().is_some_and(|frame| frame.map && frame.key.is_none())
    }

    fn slot(&mut self, at: usize) -> Result<Slot, Fault> {
        let Some(frame) = self.open.last_mut() else {
            return Ok(Slot::Root);
        };
        if !frame.map {
            return Ok(Slot::Item(frame.ix));
        }
        match frame.key.take() {
            Some((key, key_at)) => Ok(Slot::Key(frame.ix, key, key_at)),
            None => Err(Fault::syntax(at, "a list or a table as a key").hint("keys are strings")),
        }
    }

    fn begin(&mut self, map: bool, anchor: usize, tag: Option<&Tag>, at: usize) -> Result<(), Fault> {
        check_tag(tag, if map { "map" } else { "seq" }, at)?;
        let slot = self.slot(at)?;
        let value = if map { Value::map(Origin::Closed) } else { Value::list(Origin::Closed) };
        let ix = self.tree.add(slot, value, at)?;
        self.open.push(Frame { ix, map, key: None });
        self.anchor(anchor, Anchor::Node(ix));
        Ok(())
    }

    fn anchor(&mut self, id: usize, anchor: Anchor) {
        if id != 0 {
            self.anchors.insert(id, anchor);
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        at: usize,
    ) -> Result<(), Fault> {
        if self.wants_key() {
            let key = self.tree.intern(text);
            if let Some(frame) = self.open.last_mut() {
                frame.key = Some((key, u32::try_from(at).unwrap_or(u32::MAX)));
            }
            if anchor != 0 {
                let text = self.tree.keep(text);
                self.anchor(anchor, Anchor::Key(key, text));
            }
            return Ok(());
        }
        let plain = matches!(style, ScalarStyle::Plain);
        let value = match tag.and_then(Tag::core_suffix) {
            None if tag.is_some_and(|tag| tag.original() != "!") => {
                return check_tag(tag, "str", at);
            }
            None if tag.is_none() && plain => resolve(text),
            Some("null" | "bool" | "int" | "float") => resolve(text),
            _ => None,
        };
        let value = match value {
            Some(value) => value,
            None => Value::Text(self.tree.keep(text)),
        };
        let slot = self.slot(at)?;
        let ix = self.tree.add(slot, value, at)?;
        self.anchor(anchor, Anchor::Node(ix));
        Ok(())
    }

    fn alias(&mut self, id: usize, at: usize) -> Result<(), Fault> {
        let Some(target) = self.anchors.get(&id).copied() else {
            return Err(Fault::syntax(at, "an alias of nothing"));
        };
        if self.wants_key() {
            let key = match target {
                Anchor::Key(key, _) => key,
                Anchor::Node(ix) => match self.tree.value(ix) {
                    Value::Text(text) => {
                        let text = self.tree.str(text).to_owned();
                        self.tree.intern(&text)
                    }
                    _ => return Err(Fault::syntax(at, "an alias as a key must name a string")),
                },
            };
            if let Some(frame) = self.open.last_mut() {
                frame.key = Some((key, u32::try_from(at).unwrap_or(u32::MAX)));
            }
            return Ok(());
        }
        let slot = self.slot(at)?;
        match target {
            Anchor::Key(_, text) => {
                self.count_copy(self.tree.str(text).len(), at)?;
                self.tree.add(slot, Value::Text(text), at).map(drop)
            }
            Anchor::Node(ix) => {
                if self.open.iter().any(|frame| frame.ix == ix) {
                    return Err(Fault::syntax(at, "an alias inside what it names"));
                }
                self.copy(ix, slot, at)
            }
        }
    }

    /// One more value, with so much text.
    fn count_copy(&mut self, text: usize, at: usize) -> Result<(), Fault> {
        self.copies += 1;
        self.copied += text;
        if self.copies > COPIES_MAX || self.copied > COPIED_MAX {
            let problem = format!("aliases unfold into more than {COPIES_MAX} values or {COPIED_MAX} bytes");
            return Err(Fault::new(ProblemCode::TooDeep, at, problem));
        }
        Ok(())
    }

    /// Copies the value `from`; recursion is bounded by the tree's depth.
    fn copy(&mut self, from: Ix, slot: Slot, at: usize) -> Result<(), Fault> {
        let text = match self.tree.value(from) {
            Value::Text(text) => self.tree.str(text).len(),
            _ => 0,
        };
        self.count_copy(text + self.tree.key(from).len(), at)?;
        let value = self.tree.value(from);
        let empty = match value {
            Value::List(..) => Value::list(Origin::Closed),
            Value::Map(..) => Value::map(Origin::Closed),
            scalar => {
                // Where it was written first, so that numbers can be read as they were written.
                return self.tree.add(slot, scalar, self.tree.at(from)).map(drop);
            }
        };
        let to = self.tree.add(slot, empty, at)?;
        let children: Vec<Ix> = self.tree.children(from).collect();
        for child in children {
            let slot = match value {
                Value::List(..) => Slot::Item(to),
                _ => Slot::Key(to, self.tree.symbol(child), u32::try_from(at).unwrap_or(u32::MAX)),
            };
            self.copy(child, slot, at)?;
        }
        Ok(())
    }
}

/// Only the core schema's tags mean anything here.
fn check_tag(tag: Option<&Tag>, fits: &str, at: usize) -> Result<(), Fault> {
    let Some(tag) = tag else { return Ok(()) };
    if tag.core_suffix() == Some(fits) || tag.original() == "!" {
        return Ok(());
    }
    Err(Fault::syntax(at, format!("the tag `{}` means nothing here", tag.original())).hint("remove it"))
}

/// What a plain scalar means in the core schema; `None` for a string.
fn resolve(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "true" | "True" | "TRUE" => return Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Some(Value::Bool(false)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" | "-.Inf" | "-.INF" | "+.Inf" | "+.INF" => {
            return Some(Value::float(f64::INFINITY));
        }
        ".nan" | ".NaN" | ".NAN" => return Some(Value::float(f64::NAN)),
        _ => {}
    }
    if !matches!(text.as_bytes().first(), Some(b'0'..=b'9' | b'+' | b'-' | b'.')) {
        return None;
    }
    let all = |digits: &str, radix: u32| !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix).filter(|digits| all(digits, radix)) {
            return Some(i64::from_str_radix(digits, radix).map_or(Value::Huge, Value::int));
        }
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if all(unsigned, 10) {
        return Some(text.parse().map_or(Value::Huge, Value::int));
    }
    is_float(unsigned).then(|| text.parse().ok().map(Value::float))?
}

/// `[.][0-9]+ | [0-9]+ ( . [0-9]* )?`, then an exponent perhaps.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole)
        && digits(part)
        && !(whole.is_empty() && part.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}
