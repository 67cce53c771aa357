//! Reads TOML into a [`Tree`]: `toml_parser` finds the pieces, this puts them together.
//!
//! The parser wants a list of tokens, which for a large file is several times the file. A document is a
//! sequence of expressions, so it is handed over a few thousand tokens at a time, cut between expressions.

use std::borrow::Cow;

use toml_parser::decoder::{Encoding, IntegerRadix, ScalarKind};
use toml_parser::lexer::{Token, TokenKind};
use toml_parser::parser::{EventReceiver, ValidateWhitespace, parse_document};
use toml_parser::{ErrorSink, ParseError, Source, Span};

use super::tree::{DEPTH_MAX, Fault, Ix, Origin, Slot, Symbol, Tree, Value};
use crate::dag::problem::ProblemCode;

/// Tokens gathered before the parser sees them.
const CHUNK: usize = 4_096;
/// Most tokens of one expression: a file of 100,000 tasks in one inline list needs a third of it.
const EXPRESSION_MAX: usize = 8_000_000;

/// Reads the whole of `text`.
pub(super) fn read(text: &str) -> Result<Tree<'_>, Fault> {
    let source = Source::new(text);
    let mut tree = Tree::new(text);
    let root = tree.add(Slot::Root, Value::map(Origin::Header), 0)?;
    let mut builder =
        Builder { source, tree, root, stack: vec![root], keys: Vec::new(), fault: None, header: None };
    let mut tokens: Vec<Token> = Vec::with_capacity(CHUNK);
    let mut depth = 0usize;
    for token in source.lex() {
        tokens.push(token);
        match token.kind() {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => depth += 1,
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => depth = depth.saturating_sub(1),
            TokenKind::Newline if depth == 0 && tokens.len() >= CHUNK => builder.chunk(&mut tokens)?,
            _ => {}
        }
        // One more than the tree allows: whatever gets here is too deep, or not TOML.
        if depth > DEPTH_MAX + 1 {
            return Err(builder.too_deep(token.span()));
        }
        if tokens.len() > EXPRESSION_MAX {
            let problem = "one value of more than 8,000,000 parts";
            return Err(Fault::new(ProblemCode::FileTooLarge, token.span().start(), problem));
        }
    }
    builder.chunk(&mut tokens)?;
    Ok(builder.tree)
}

struct Builder<'s> {
    source: Source<'s>,
    tree: Tree<'s>,
    root: Ix,
    /// The table of the last header, then the inline lists and tables open now.
    stack: Vec<Ix>,
    /// The key being read: `a.b.c`.
    keys: Vec<(Symbol, u32)>,
    /// Inside a header, and is it `[[…]]`?
    header: Option<bool>,
    /// The first thing that stops the reading.
    fault: Option<Fault>,
}

impl<'s> Builder<'s> {
    /// Parses a few whole expressions.
    fn chunk(&mut self, tokens: &mut Vec<Token>) -> Result<(), Fault> {
        let mut error: Option<ParseError> = None;
        let source = self.source;
        parse_document(tokens, &mut ValidateWhitespace::new(self, source), &mut error);
        tokens.clear();
        // The builder's own fault wins: it makes the parser leave things out.
        match (self.fault.take(), error) {
            (Some(fault), _) => Err(fault),
            (None, Some(error)) => Err(self.syntax(&error)),
            (None, None) => Ok(()),
        }
    }

    fn syntax(&self, error: &ParseError) -> Fault {
        let at = error.unexpected().or(error.context()).map_or(0, |span| span.start());
        let mut problem = error.description().to_owned();
        if let Some(expected) = error.expected().filter(|expected| !expected.is_empty()) {
            let words: Vec<String> = expected
                .iter()
                .map(|word| match word {
                    toml_parser::Expected::Literal(text) => format!("`{}`", text.escape_debug()),
                    toml_parser::Expected::Description(text) => (*text).to_owned(),
                    _ => "something else".to_owned(),
                })
                .collect();
            problem.push_str(", expected ");
            problem.push_str(&words.join(" or "));
        }
        Fault::syntax(at, problem)
    }

    fn too_deep(&self, span: Span) -> Fault {
        let problem = format!("nested more than {DEPTH_MAX} levels deep");
        Fault::new(ProblemCode::TooDeep, span.start(), problem)
    }

    fn keep_fault<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(fault) => {
                self.fault.get_or_insert(fault);
                None
            }
        }
    }

    /// Opens the table that `[a.b]` or `[[a.b]]` names.
    fn open(&mut self, list: bool, span: Span) -> Result<Ix, Fault> {
        let keys = std::mem::take(&mut self.keys);
        let Some(((last, last_at), before)) = keys.split_last().map(|(last, before)| (*last, before)) else {
            return Err(Fault::syntax(span.start(), "a table without a name"));
        };
        let mut here = self.root;
        for (key, at) in before {
            here = match self.tree.find(here, *key).map(|ix| (ix, self.tree.value(ix))) {
                Some((ix, Value::Map(origin, _))) if origin != Origin::Closed => ix,
                Some((ix, Value::List(Origin::Header, _))) => self.tree.last_child(ix).unwrap_or(ix),
                // Taken by something that cannot grow: `add` notes the repeat.
                _ => self.tree.add(Slot::Key(here, *key, *at), Value::map(Origin::Implied), *at as usize)?,
            };
        }
        let at = last_at as usize;
        let slot = Slot::Key(here, last, last_at);
        let found = self.tree.find(here, last).map(|ix| (ix, self.tree.value(ix)));
        if !list {
            if let Some((ix, Value::Map(Origin::Implied, _))) = found {
                self.tree.set_origin(ix, Origin::Header);
                return Ok(ix);
            }
            return self.tree.add(slot, Value::map(Origin::Header), at);
        }
        let list = match found {
            Some((ix, Value::List(Origin::Header, _))) => ix,
            _ => self.tree.add(slot, Value::list(Origin::Header), at)?,
        };
        self.tree.add(Slot::Item(list), Value::map(Origin::Header), span.start())
    }

    /// Where the value that begins now goes.
    fn slot(&mut self) -> Result<Slot, Fault> {
        let mut here = *self.stack.last().unwrap_or(&self.root);
        let keys = std::mem::take(&mut self.keys);
        let Some((last, before)) = keys.split_last() else {
            return Ok(Slot::Item(here));
        };
        for (key, at) in before {
            here = match self.tree.find(here, *key).map(|ix| (ix, self.tree.value(ix))) {
                Some((ix, Value::Map(Origin::Dotted, _))) => ix,
                _ => self.tree.add(Slot::Key(here, *key, *at), Value::map(Origin::Dotted), *at as usize)?,
            };
        }
        Ok(Slot::Key(here, last.0, last.1))
    }

    fn put(&mut self, value: Value, span: Span) -> Option<Ix> {
        if self.fault.is_some() {
            return None;
        }
        let slot = self.slot();
        let slot = self.keep_fault(slot)?;
        let added = self.tree.add(slot, value, span.start());
        self.keep_fault(added)
    }

    /// Begins an inline list or table; false tells the parser to step over it.
    fn begin(&mut self, value: Value, span: Span) -> bool {
        let added = self.put(value, span);
        self.stack.extend(added);
        added.is_some()
    }

    fn end(&mut self) {
        if self.fault.is_none() && self.stack.len() > 1 {
            self.stack.pop();
        }
    }
}

impl EventReceiver for Builder<'_> {
    fn std_table_open(&mut self, _span: Span, _error: &mut dyn ErrorSink) {
        self.keys.clear();
        self.header = Some(false);
    }

    fn array_table_open(&mut self, _span: Span, _error: &mut dyn ErrorSink) {
        self.keys.clear();
        self.header = Some(true);
    }

    fn std_table_close(&mut self, span: Span, _error: &mut dyn ErrorSink) {
        self.close_header(span);
    }

    fn array_table_close(&mut self, span: Span, _error: &mut dyn ErrorSink) {
        self.close_header(span);
    }

    fn inline_table_open(&mut self, span: Span, _error: &mut dyn ErrorSink) -> bool {
        self.begin(Value::map(Origin::Closed), span)
    }

    fn inline_table_close(&mut self, _span: Span, _error: &mut dyn ErrorSink) {
        self.end();
    }

    fn array_open(&mut self, span: Span, _error: &mut dyn ErrorSink) -> bool {
        self.begin(Value::list(Origin::Closed), span)
    }

    fn array_close(&mut self, _span: Span, _error: &mut dyn ErrorSink) {
        self.end();
    }

    fn simple_key(&mut self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) {
        let Some(raw) = self.raw(span, encoding) else {
            return;
        };
        let mut text = Cow::Borrowed("");
        raw.decode_key(&mut text, error);
        let key = self.tree.intern(&text);
        if self.keys.len() > DEPTH_MAX {
            let fault = self.too_deep(span);
            self.fault.get_or_insert(fault);
            return;
        }
        self.keys.push((key, u32::try_from(span.start()).unwrap_or(u32::MAX)));
    }

    fn scalar(&mut self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) {
        let Some(raw) = self.raw(span, encoding) else {
            return;
        };
        let mut text = Cow::Borrowed("");
        let value = match raw.decode_scalar(&mut text, error) {
            ScalarKind::String => Value::Text(self.tree.keep(&text)),
            ScalarKind::Boolean(value) => Value::Bool(value),
            ScalarKind::DateTime => Value::Date,
            ScalarKind::Float => Value::float(text.parse().unwrap_or(f64::NAN)),
            ScalarKind::Integer(radix) => integer(&text, radix),
        };
        self.put(value, span);
    }
}

impl<'s> Builder<'s> {
    fn raw(&self, span: Span, encoding: Option<Encoding>) -> Option<toml_parser::Raw<'s>> {
        let text = self.source.input().get(span.start()..span.end())?;
        Some(toml_parser::Raw::new_unchecked(text, encoding, span))
    }

    fn close_header(&mut self, span: Span) {
        let Some(list) = self.header.take() else { return };
        if self.fault.is_some() {
            return;
        }
        let opened = self.open(list, span);
        if let Some(table) = self.keep_fault(opened) {
            self.stack.clear();
            self.stack.push(table);
        }
    }
}

fn integer(text: &str, radix: IntegerRadix) -> Value {
    match i64::from_str_radix(text, radix.value()) {
        Ok(int) => Value::int(int),
        Err(_) => Value::Huge,
    }
}
