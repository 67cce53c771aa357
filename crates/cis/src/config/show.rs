//! `cis config show`: every setting with its value and where it came from.

use std::path::PathBuf;

use cis_core::source::Millis;
use serde_json::{Value, json};

use super::{Config, Setting, Source};
use crate::term::Table;

/// One setting, ready to be shown.
#[derive(Debug, Clone)]
pub struct Row {
    pub key: &'static str,
    pub value: Value,
    pub source: Source,
}

/// Every setting by key.
pub fn rows(config: &Config) -> Vec<Row> {
    fn row<T>(key: &'static str, setting: &Setting<T>, value: impl FnOnce(&T) -> Value) -> Row {
        Row { key, value: value(&setting.value), source: setting.source.clone() }
    }
    let notify = &config.notify;
    let path = |path: &PathBuf| json!(path.to_string_lossy());
    let paths = |paths: &Vec<PathBuf>| paths.iter().map(path).collect();
    vec![
        row("home", &config.home, path),
        row("config", &config.file, path),
        row("data_dir", &config.data_dir, path),
        row("dag.durability", &config.durability, |durability| json!(durability.word())),
        row("dag.slots", &config.slots, |slots| json!(slots)),
        row("dag.grace", &config.grace, |grace| json!(grace.to_string())),
        row("dag.log_cap", &config.log_cap_bytes, |bytes| json!(size(*bytes))),
        row("skills.dirs", &config.skill_dirs, paths),
        row("node.env_pass", &config.env_pass, |names| json!(names)),
        row("node.hosts", &config.hosts, |names| json!(names)),
        row("node.rate", &config.rate, |rate| json!(rate)),
        row("node.pending_max", &config.pending_max, |max| json!(max)),
        row("node.pending_bytes_max", &config.pending_bytes_max, |bytes| json!(size(*bytes))),
        row("node.unfinished_runs_max", &config.unfinished_runs_max, |max| json!(max)),
        row("node.metrics", &config.metrics, |metrics| json!(metrics.word())),
        row("node.id", &config.node_id, |id| json!(id)),
        row("node.name", &config.node_name, |name| json!(name)),
        row("node.auth", &config.auth, |auth| json!(auth.word())),
        row("node.pending_for", &config.pending_for, |span| json!(span.to_string())),
        row("node.auto_execute", &config.auto_execute, |truth| json!(truth)),
        row("retention.max_age", &config.max_age, |age| json!(age.map(days))),
        row("retention.max_size", &config.max_size, |bytes| json!(bytes.map(size))),
        row("retention.keep", &config.keep, |keep| json!(keep)),
        row("retention.rejected_max_age", &config.rejected_max_age, |age| json!(days(*age))),
        row("notify.on", &notify.on, |on| on.iter().map(|occasion| occasion.word()).collect()),
        row("notify.command", &notify.command, |command| json!(command)),
        row("notify.url", &notify.url, |url| json!(url.as_ref().map(ToString::to_string))),
        row("notify.secret", &notify.secret, |secret| json!(secret.as_ref().map(|_| "(not shown)"))),
        row("notify.secret_file", &notify.secret_file, |file| json!(file.as_ref().map(path))),
        row("notify.allow_private", &notify.allow_private, |yes| json!(yes)),
    ]
}

/// For people.
pub fn table(config: &Config) -> Table {
    let mut table = Table::new(&["key", "value", "source"]);
    for row in rows(config) {
        let value = match &row.value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            Value::Array(items) if items.is_empty() => "-".to_owned(),
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            other => other.to_string(),
        };
        table.row([row.key.into(), value.into(), row.source.to_string().into()]);
    }
    table
}

/// For programs.
pub fn to_json(config: &Config) -> Value {
    let settings: Vec<Value> = rows(config)
        .into_iter()
        .map(|row| json!({"key": row.key, "value": row.value, "source": row.source.to_string()}))
        .collect();
    json!({"success": true, "settings": settings})
}

/// `90d`, where it is that many days.
fn days(age: Millis) -> String {
    const DAY: u64 = 24 * 60 * 60 * 1_000;
    if age.0.is_multiple_of(DAY) { format!("{}d", age.0 / DAY) } else { age.to_string() }
}

/// `10MiB`, in the largest unit that says it exactly.
fn size(bytes: u64) -> String {
    [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .find(|(_, bits)| bytes > 0 && bytes.is_multiple_of(1 << bits))
        .map_or_else(|| format!("{bytes}B"), |(unit, bits)| format!("{}{unit}", bytes >> bits))
}
