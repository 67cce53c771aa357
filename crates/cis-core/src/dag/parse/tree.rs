//! One compact tree for all three formats: what was written, where, and nothing about what it means.
//!
//! Nodes live in one list and point at each other by index, all text lives in one string, and keys are
//! interned, so that a file of 100,000 tasks costs about 20 MB however it was written. Every node knows its
//! parent, so the path of a problem is made only when there is a problem.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::dag::problem::ProblemCode;

/// Deepest nesting of lists and maps.
pub(super) const DEPTH_MAX: usize = 64;
/// Most values in one file; ten keys for each of 100,000 tasks and a million edges fit three times over.
pub(super) const VALUES_MAX: usize = 6_000_000;

/// A node's place in the tree.
pub(super) type Ix = u32;
/// An interned key.
pub(super) type Symbol = u32;

const NONE: u32 = u32::MAX;
/// From this many keys on, a map gets a hash index.
const WIDE: usize = 16;

/// What stands at one place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(Wide),
    Float(Wide),
    /// An integer beyond 64 bits.
    Huge,
    Text(Text),
    /// A TOML date or time.
    Date,
    List(Origin, Children),
    Map(Origin, Children),
}

/// Eight bytes at four-byte alignment, which keeps a node at 32 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wide([u32; 2]);

/// A part of the tree's text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text {
    start: u32,
    len: u32,
}

/// The ends of a list of siblings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Children {
    first: Ix,
    last: Ix,
}

/// How a map or a list came to be; TOML allows more to be added to some than to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Written in one piece.
    Closed,
    /// By a `[header]`, or `[[header]]` for a list.
    Header,
    /// As the parent of a `[header.below]`.
    Implied,
    /// By a `dotted.key`.
    Dotted,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    value: Value,
    /// Byte offset of the value.
    at: u32,
    key: Symbol,
    key_at: u32,
    parent: Ix,
    next: Ix,
}

/// Where a new node goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Slot {
    Root,
    Item(Ix),
    Key(Ix, Symbol, u32),
}

/// Why reading had to stop.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) code: ProblemCode,
    pub(super) at: usize,
    pub(super) problem: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(super) fn new(code: ProblemCode, at: usize, problem: impl Into<String>) -> Self {
        Self { code, at, problem: problem.into(), hint: None }
    }

    pub(super) fn syntax(at: usize, problem: impl Into<String>) -> Self {
        Self::new(ProblemCode::Syntax, at, problem)
    }

    #[must_use]
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A file as it was written.
#[derive(Debug)]
pub(super) struct Tree<'s> {
    source: &'s str,
    nodes: Vec<Node>,
    text: String,
    keys: Vec<Box<str>>,
    symbols: HashMap<Box<str>, Symbol>,
    /// Hash indices of the maps with many keys.
    wide: HashMap<Ix, HashMap<Symbol, Ix>>,
    /// Values whose key was already taken: known by their parent, unknown to it.
    pub(super) repeats: Vec<Ix>,
}

impl Wide {
    fn of(bits: u64) -> Self {
        Self([(bits >> 32) as u32, bits as u32])
    }

    fn bits(self) -> u64 {
        (u64::from(self.0[0]) << 32) | u64::from(self.0[1])
    }

    pub(super) fn int(self) -> i64 {
        self.bits().cast_signed()
    }

    pub(super) fn float(self) -> f64 {
        f64::from_bits(self.bits())
    }
}

impl Value {
    pub(super) fn int(number: i64) -> Self {
        Self::Int(Wide::of(number.cast_unsigned()))
    }

    pub(super) fn float(number: f64) -> Self {
        Self::Float(Wide::of(number.to_bits()))
    }

    pub(super) fn list(origin: Origin) -> Self {
        Self::List(origin, Children { first: NONE, last: NONE })
    }

    pub(super) fn map(origin: Origin) -> Self {
        Self::Map(origin, Children { first: NONE, last: NONE })
    }

    /// What people call it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Huge => "an integer",
            Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::Date => "a date",
            Self::List(..) => "a list",
            Self::Map(..) => "a table",
        }
    }
}

impl<'s> Tree<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self {
            source,
            nodes: Vec::new(),
            text: String::new(),
            keys: Vec::new(),
            symbols: HashMap::new(),
            wide: HashMap::new(),
            repeats: Vec::new(),
        }
    }

    pub(super) fn source(&self) -> &'s str {
        self.source
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Keeps `text` and says where.
    pub(super) fn keep(&mut self, text: &str) -> Text {
        let start = self.text.len();
        self.text.push_str(text);
        Text { start: narrow(start), len: narrow(text.len()) }
    }

    pub(super) fn intern(&mut self, key: &str) -> Symbol {
        if let Some(symbol) = self.symbols.get(key) {
            return *symbol;
        }
        let symbol = narrow(self.keys.len());
        self.keys.push(key.into());
        self.symbols.insert(key.into(), symbol);
        symbol
    }

    /// Adds a value. One whose key is already taken is noted in `repeats` and not linked.
    pub(super) fn add(&mut self, slot: Slot, value: Value, at: usize) -> Result<Ix, Fault> {
        if self.nodes.len() >= VALUES_MAX {
            let problem = format!("more than {VALUES_MAX} values in one file");
            return Err(Fault::new(ProblemCode::FileTooLarge, at, problem));
        }
        let (parent, key, key_at) = match slot {
            Slot::Root => (NONE, NONE, NONE),
            Slot::Item(parent) => (parent, NONE, NONE),
            Slot::Key(parent, key, key_at) => (parent, key, key_at),
        };
        if matches!(value, Value::List(..) | Value::Map(..)) && self.depth(parent) >= DEPTH_MAX {
            let problem = format!("nested more than {DEPTH_MAX} levels deep");
            return Err(Fault::new(ProblemCode::TooDeep, at, problem));
        }
        let taken = matches!(slot, Slot::Key(..)) && self.find(parent, key).is_some();
        let ix = narrow(self.nodes.len());
        self.nodes.push(Node { value, at: narrow(at), key, key_at, parent, next: NONE });
        if taken {
            self.repeats.push(ix);
        } else if parent != NONE {
            self.link(parent, key, ix);
        }
        Ok(ix)
    }

    fn link(&mut self, parent: Ix, key: Symbol, ix: Ix) {
        if !self.wide.is_empty()
            && let Some(index) = self.wide.get_mut(&parent)
        {
            index.insert(key, ix);
        }
        let (Value::List(_, children) | Value::Map(_, children)) = &mut self.nodes[parent as usize].value
        else {
            return;
        };
        let last = children.last;
        children.last = ix;
        if last == NONE {
            children.first = ix;
        } else {
            self.nodes[last as usize].next = ix;
        }
    }

    /// The value of `key` in the map `ix`.
    pub(super) fn find(&mut self, ix: Ix, key: Symbol) -> Option<Ix> {
        if !self.wide.is_empty()
            && let Some(index) = self.wide.get(&ix)
        {
            return index.get(&key).copied();
        }
        let (mut count, mut found) = (0, None);
        for child in self.children(ix) {
            count += 1;
            if self.nodes[child as usize].key == key {
                found = Some(child);
                break;
            }
        }
        if count > WIDE {
            let index = self.children(ix).map(|child| (self.nodes[child as usize].key, child)).collect();
            self.wide.insert(ix, index);
        }
        found
    }

    fn depth(&self, mut ix: Ix) -> usize {
        let mut depth = 0;
        while ix != NONE {
            depth += 1;
            ix = self.nodes[ix as usize].parent;
        }
        depth
    }

    pub(super) fn value(&self, ix: Ix) -> Value {
        self.nodes[ix as usize].value
    }

    pub(super) fn set_origin(&mut self, ix: Ix, origin: Origin) {
        if let Value::List(old, _) | Value::Map(old, _) = &mut self.nodes[ix as usize].value {
            *old = origin;
        }
    }

    pub(super) fn str(&self, text: Text) -> &str {
        &self.text[text.start as usize..(text.start + text.len) as usize]
    }

    /// The key under which `ix` stands in its map; empty for an item of a list.
    pub(super) fn key(&self, ix: Ix) -> &str {
        self.symbol_text(self.nodes[ix as usize].key)
    }

    /// Every key of the file, in the order of their symbols.
    pub(super) fn all_keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| &**key)
    }

    pub(super) fn symbol_text(&self, symbol: Symbol) -> &str {
        self.keys.get(symbol as usize).map_or("", |key| key)
    }

    pub(super) fn symbol(&self, ix: Ix) -> Symbol {
        self.nodes[ix as usize].key
    }

    pub(super) fn at(&self, ix: Ix) -> usize {
        self.nodes[ix as usize].at as usize
    }

    /// Where its key stands; for an item of a list, where it stands itself.
    pub(super) fn key_at(&self, ix: Ix) -> usize {
        let node = &self.nodes[ix as usize];
        if node.key_at == NONE { node.at as usize } else { node.key_at as usize }
    }

    pub(super) fn parent(&self, ix: Ix) -> Option<Ix> {
        Some(self.nodes[ix as usize].parent).filter(|parent| *parent != NONE)
    }

    /// The items of a list or the values of a map, in file order; none for anything else.
    pub(super) fn children(&self, ix: Ix) -> impl Iterator<Item = Ix> + '_ {
        let first = match self.value(ix) {
            Value::List(_, children) | Value::Map(_, children) => children.first,
            _ => NONE,
        };
        let some = |ix: Ix| Some(ix).filter(|ix| *ix != NONE);
        std::iter::successors(some(first), move |ix| some(self.nodes[*ix as usize].next))
    }

    pub(super) fn last_child(&self, ix: Ix) -> Option<Ix> {
        match self.value(ix) {
            Value::List(_, children) | Value::Map(_, children) => {
                Some(children.last).filter(|ix| *ix != NONE)
            }
            _ => None,
        }
    }

    /// `dag.tasks[3].depends_on[0]`.
    pub(super) fn path(&self, ix: Ix) -> String {
        let mut steps = Vec::new();
        let mut here = ix;
        while let Some(parent) = self.parent(here) {
            steps.push((parent, here));
            here = parent;
        }
        let mut path = String::new();
        for (parent, child) in steps.into_iter().rev() {
            if self.nodes[child as usize].key == NONE {
                let index = self.children(parent).position(|ix| ix == child).unwrap_or(0);
                // Writing to a string cannot fail.
                let _ = write!(path, "[{index}]");
            } else {
                push_key(&mut path, self.key(child));
            }
        }
        path
    }
}

/// Appends `.key` to a path, quoted where it would read as something else.
fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    if !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')) {
        path.push_str(key);
    } else {
        let shown: String = key.chars().take(80).collect();
        let _ = write!(path, "{shown:?}");
    }
}

/// Files are at most 32 MiB, so every count and offset fits; saturating keeps a broken promise harmless.
fn narrow(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(NONE)
}
