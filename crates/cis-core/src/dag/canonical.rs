//! The one text that stands for a definition's meaning, and its hash.
//!
//! Canonical JSON (RFC 8785) of everything but the address (`dag_id`, `scope`), with defaults left out and durations
//! in milliseconds. Written directly in key order: the tree of values that a general canonicalizer works on would
//! cost several times the definition. Only free-form values (`params`, `input`) go through it.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::approval::OnTimeout;
use super::model::{Dag, Kind, More, Policy, RunIf, Task};
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

fn write_dag(out: &mut impl Write, dag: &Dag) -> fmt::Result {
    let mut object = Object::open(out)?;
    object.text("description", dag.description.as_deref())?;
    object.texts("env", &dag.env)?;
    object.number("max_parallel", dag.max_parallel.map(i64::from))?;
    if !dag.params.is_empty() {
        let params = dag.params.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        object.value("params", &Value::Object(params))?;
    }
    object.text("policy", (dag.policy != Policy::default()).then(|| dag.policy.word()))?;
    object.number("priority", (dag.priority != 0).then(|| dag.priority.into()))?;
    object.span("queue_timeout_ms", dag.queue_timeout)?;
    object.texts("skills", &dag.skills)?;
    object.text("target_node", dag.target_node.as_deref())?;
    let out = object.key("tasks")?;
    out.write_char('[')?;
    for (number, task) in dag.tasks.iter().enumerate() {
        if number > 0 {
            out.write_char(',')?;
        }
        write_task(out, task, &dag.tasks)?;
    }
    out.write_char(']')?;
    object.span("timeout_ms", dag.timeout)?;
    object.text("workdir", dag.workdir.as_deref())?;
    object.close()
}

fn write_task(out: &mut impl Write, task: &Task, tasks: &[Task]) -> fmt::Result {
    let more: &More = task.more();
    let mut object = Object::open(out)?;
    if let Kind::Shell { command } = &task.kind {
        object.text("command", Some(command))?;
    }
    object.text("debt", task.debt_ignorable.then_some("ignorable"))?;
    if !task.depends_on.is_empty() {
        let out = object.key("depends_on")?;
        for (number, before) in task.depends_on.iter().enumerate() {
            out.write_char(if number == 0 { '[' } else { ',' })?;
            write_text(out, tasks.get(before.index()).map_or("", |task| task.id.as_str()))?;
        }
        out.write_char(']')?;
    }
    object.text("description", more.description.as_deref())?;
    object.truth("detach", task.detach)?;
    object.texts("env", &more.env)?;
    object.span("grace_ms", more.grace)?;
    object.text("id", Some(task.id.as_str()))?;
    object.truth("idempotent", task.idempotent)?;
    if let Some(input) = task.kind.input().filter(|input| !input.is_null()) {
        object.value("input", input)?;
    }
    let approval = match &task.kind {
        Kind::Approval(approval) => Some(&**approval),
        _ => None,
    };
    if let Some(approval) = approval {
        let types = approval.input.iter().map(|(name, kind)| (name.clone(), kind.word().to_owned()));
        object.texts("input", &types.collect())?;
    }
    object.text("level", more.confirmed.then_some("confirmed"))?;
    object.text("name", more.name.as_deref())?;
    if !more.needs.is_empty() {
        let out = object.key("needs")?;
        for (number, need) in more.needs.iter().enumerate() {
            out.write_char(if number == 0 { '[' } else { ',' })?;
            write_text(out, need)?;
        }
        out.write_char(']')?;
    }
    let action =
        approval.map(|approval| approval.on_timeout).filter(|action| *action != OnTimeout::default());
    object.text("on_timeout", action.map(OnTimeout::word))?;
    object.number("priority", (task.priority != 0).then(|| task.priority.into()))?;
    object.text("prompt", approval.and_then(|approval| approval.prompt.as_deref()))?;
    object.span("queue_timeout_ms", more.queue_timeout)?;
    if let Some(retry) = &more.retry {
        write_retry(object.key("retry")?, retry)?;
    }
    object.text("run_if", (task.run_if != RunIf::default()).then(|| task.run_if.word()))?;
    if let Kind::Skill(call) = &task.kind {
        object.text("skill", Some(&call.skill))?;
    }
    object.text("target_node", more.target_node.as_deref())?;
    object.span("timeout_ms", more.timeout)?;
    // The other kinds show by what they hold.
    let shown = matches!(task.kind, Kind::Approval(_) | Kind::External { .. });
    object.text("type", shown.then(|| task.kind.word()))?;
    object.text("when", more.when.as_deref())?;
    object.text("workdir", more.workdir.as_deref())?;
    object.close()
}

fn write_retry(out: &mut impl Write, retry: &Retry) -> fmt::Result {
    let usual = Retry::default();
    let mut object = Object::open(out)?;
    object.text("backoff", (retry.backoff == Backoff::Fixed).then_some("fixed"))?;
    object.span("cap_ms", (retry.cap != usual.cap).then_some(retry.cap))?;
    object.span("initial_ms", (retry.initial != usual.initial).then_some(retry.initial))?;
    if !retry.jitter {
        object.key("jitter")?.write_str("false")?;
    }
    object.number("max", Some(retry.max.into()))?;
    if !retry.on_exit_codes.is_empty() {
        let out = object.key("on_exit_codes")?;
        for (number, code) in retry.on_exit_codes.iter().enumerate() {
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
