//! The one text that stands for a definition's meaning, and its hash.
//!
//! Canonical JSON (RFC 8785) of everything but the address (`dag_id`, `scope`), with defaults left out and durations
//! in milliseconds. Written directly in key order: the tree of values that a general canonicalizer works on would
//! cost several times the definition. Only free-form values (`params`, `input`) go through it.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::approval::{Approval, OnTimeout};
use super::model::{Dag, Kind, More, Policy, RunIf, SkillCall, Task};
use crate::retry::{Backoff, Retry};
use crate::source::Millis;

/// SHA-256 of the canonical text, in lowercase hex.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ContentHash(Box<str>);

impl ContentHash {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Two definitions mean the same exactly if this text is the same.
pub fn canonical_json(dag: &Dag) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_dag(&mut text, dag);
    text
}

/// The hash of [`canonical_json`], without making the text.
pub fn content_hash(dag: &Dag) -> ContentHash {
    let mut sink = Sink(Sha256::new());
    let _ = write_dag(&mut sink, dag);
    finish(sink)
}

/// The hash of a text of [`canonical_json`].
pub fn hash_text(text: &str) -> ContentHash {
    finish(Sink(Sha256::new_with_prefix(text)))
}

fn finish(sink: Sink) -> ContentHash {
    let mut hex = String::with_capacity(64);
    for byte in sink.0.finalize() {
        let _ = write!(hex, "{byte:02x}");
    }
    ContentHash(hex.into_boxed_str())
}

/// Hashes what is written to it.
struct Sink(Sha256);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Writes the members of one object; the caller names them in order.
struct Object<'w, W: Write> {
    out: &'w mut W,
    empty: bool,
}

impl<'w, W: Write> Object<'w, W> {
    fn open(out: &'w mut W) -> Result<Self, fmt::Error> {
        out.write_char('{')?;
        Ok(Self { out, empty: true })
    }

    fn key(&mut self, key: &str) -> Result<&mut W, fmt::Error> {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.write_char(',')?;
        }
        write_text(self.out, key)?;
        self.out.write_char(':')?;
        Ok(self.out)
    }

    fn text(&mut self, key: &str, text: Option<&str>) -> fmt::Result {
        text.map_or(Ok(()), |text| write_text(self.key(key)?, text))
    }

    fn number(&mut self, key: &str, number: Option<i64>) -> fmt::Result {
        number.map_or(Ok(()), |number| write!(self.key(key)?, "{number}"))
    }

    fn span(&mut self, key: &str, span: Option<Millis>) -> fmt::Result {
        span.map_or(Ok(()), |span| write!(self.key(key)?, "{}", span.0))
    }

    fn truth(&mut self, key: &str, truth: bool) -> fmt::Result {
        if truth { self.key(key)?.write_str("true") } else { Ok(()) }
    }

    /// Names are ASCII, so the map's order is the canonical one.
    fn texts(&mut self, key: &str, texts: &BTreeMap<String, String>) -> fmt::Result {
        if texts.is_empty() {
            return Ok(());
        }
        let mut inner = Object::open(self.key(key)?)?;
        for (name, text) in texts {
            inner.text(name, Some(text))?;
        }
        inner.close()
    }

    fn value(&mut self, key: &str, value: &Value) -> fmt::Result {
        let out = self.key(key)?;
        out.write_str(&serde_json_canonicalizer::to_string(value).map_err(|_| fmt::Error)?)
    }

    fn close(self) -> fmt::Result {
        self.out.write_char('}')
    }
}

// Every part is taken apart by all of its fields, without `..`: a new field does not compile before it is either written
// here, so that a confirmation covers it, or left out in plain sight.

fn write_dag(out: &mut impl Write, dag: &Dag) -> fmt::Result {
    let Dag {
        // The address is no part of the content.
        dag_id: _,
        scope: _,
        description,
        target_node,
        priority,
        policy,
        max_parallel,
        timeout,
        queue_timeout,
        env,
        params,
        workdir,
        skills,
        tasks,
    } = dag;
    let mut object = Object::open(out)?;
    object.text("description", description.as_deref())?;
    object.texts("env", env)?;
    object.number("max_parallel", max_parallel.map(i64::from))?;
    if !params.is_empty() {
        let params = params.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        object.value("params", &Value::Object(params))?;
    }
    object.text("policy", (*policy != Policy::default()).then(|| policy.word()))?;
    object.number("priority", (*priority != 0).then(|| (*priority).into()))?;
    object.span("queue_timeout_ms", *queue_timeout)?;
    object.texts("skills", skills)?;
    object.text("target_node", target_node.as_deref())?;
    let out = object.key("tasks")?;
    out.write_char('[')?;
    for (number, task) in tasks.iter().enumerate() {
        if number > 0 {
            out.write_char(',')?;
        }
        write_task(out, task, tasks)?;
    }
    out.write_char(']')?;
    object.span("timeout_ms", *timeout)?;
    object.text("workdir", workdir.as_deref())?;
    object.close()
}

/// What the kinds of tasks hold, by the keys it is written under.
#[derive(Default)]
struct Contents<'t> {
    command: Option<&'t str>,
    skill: Option<&'t str>,
    input: Option<&'t Value>,
    approval: Option<&'t Approval>,
    /// Only of the kinds that do not show by what they hold.
    word: Option<&'static str>,
}

impl<'t> Contents<'t> {
    fn of(kind: &'t Kind) -> Self {
        let (none, word) = (Self::default(), Some(kind.word()));
        match kind {
            Kind::Shell { command } => Self { command: Some(command), ..none },
            Kind::Skill(call) => {
                let SkillCall { skill, input } = &**call;
                Self { skill: Some(skill), input: Some(input), ..none }
            }
            Kind::External { input } => Self { input: Some(input), word, ..none },
            Kind::Approval(approval) => Self { approval: Some(approval), word, ..none },
        }
    }
}

fn write_task(out: &mut impl Write, task: &Task, tasks: &[Task]) -> fmt::Result {
    let Task { id, kind, depends_on, run_if, priority, idempotent, detach, debt_ignorable, more: _ } = task;
    let More {
        name,
        description,
        when,
        confirmed,
        retry,
        timeout,
        queue_timeout,
        grace,
        env,
        workdir,
        target_node,
        needs,
    } = task.more();
    let Contents { command, skill, input, approval, word } = Contents::of(kind);
    let mut object = Object::open(out)?;
    object.text("command", command)?;
    object.text("debt", debt_ignorable.then_some("ignorable"))?;
    if !depends_on.is_empty() {
        let out = object.key("depends_on")?;
        for (number, before) in depends_on.iter().enumerate() {
            out.write_char(if number == 0 { '[' } else { ',' })?;
            write_text(out, tasks.get(before.index()).map_or("", |task| task.id.as_str()))?;
        }
        out.write_char(']')?;
    }
    object.text("description", description.as_deref())?;
    object.truth("detach", *detach)?;
    object.texts("env", env)?;
    object.span("grace_ms", *grace)?;
    object.text("id", Some(id.as_str()))?;
    object.truth("idempotent", *idempotent)?;
    if let Some(input) = input.filter(|input| !input.is_null()) {
        object.value("input", input)?;
    }
    let (mut action, mut question) = (None, None);
    if let Some(Approval { prompt, input, on_timeout }) = approval {
        let types = input.iter().map(|(name, kind)| (name.clone(), kind.word().to_owned()));
        object.texts("input", &types.collect())?;
        (action, question) = (Some(*on_timeout), prompt.as_deref());
    }
    object.text("level", confirmed.then_some("confirmed"))?;
    object.text("name", name.as_deref())?;
    if !needs.is_empty() {
        let out = object.key("needs")?;
        for (number, need) in needs.iter().enumerate() {
            out.write_char(if number == 0 { '[' } else { ',' })?;
            write_text(out, need)?;
        }
        out.write_char(']')?;
    }
    let action = action.filter(|action| *action != OnTimeout::default());
    object.text("on_timeout", action.map(OnTimeout::word))?;
    object.number("priority", (*priority != 0).then(|| (*priority).into()))?;
    object.text("prompt", question)?;
    object.span("queue_timeout_ms", *queue_timeout)?;
    if let Some(retry) = retry {
        write_retry(object.key("retry")?, retry)?;
    }
    object.text("run_if", (*run_if != RunIf::default()).then(|| run_if.word()))?;
    object.text("skill", skill)?;
    object.text("target_node", target_node.as_deref())?;
    object.span("timeout_ms", *timeout)?;
    object.text("type", word)?;
    object.text("when", when.as_deref())?;
    object.text("workdir", workdir.as_deref())?;
    object.close()
}

fn write_retry(out: &mut impl Write, retry: &Retry) -> fmt::Result {
    let Retry { max, backoff, initial, cap, jitter, on_exit_codes } = retry;
    let usual = Retry::default();
    let mut object = Object::open(out)?;
    object.text("backoff", (*backoff == Backoff::Fixed).then_some("fixed"))?;
    object.span("cap_ms", (*cap != usual.cap).then_some(*cap))?;
    object.span("initial_ms", (*initial != usual.initial).then_some(*initial))?;
    if !jitter {
        object.key("jitter")?.write_str("false")?;
    }
    object.number("max", Some((*max).into()))?;
    if !on_exit_codes.is_empty() {
        let out = object.key("on_exit_codes")?;
        for (number, code) in on_exit_codes.iter().enumerate() {
            write!(out, "{}{code}", if number == 0 { '[' } else { ',' })?;
        }
        out.write_char(']')?;
    }
    object.close()
}

/// A JSON string with the escapes RFC 8785 asks for.
fn write_text(out: &mut impl Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            0x09 => "\\t",
            0x0a => "\\n",
            0x0c => "\\f",
            0x0d => "\\r",
            0x00..0x20 => "",
            _ => continue,
        };
        out.write_str(&text[from..at])?;
        from = at + 1;
        if escape.is_empty() {
            write!(out, "\\u{byte:04x}")?;
        } else {
            out.write_str(escape)?;
        }
    }
    out.write_str(&text[from..])?;
    out.write_char('"')
}
