//! What a node says of itself as it goes, on stderr: a line per event, for people on a terminal, as JSON for whatever
//! collects logs.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Json,
    Text,
}

/// The least a line must matter to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

/// Begins to write; `None` for the format means what suits whoever reads stderr.
pub fn begin(format: Option<Format>, level: Level) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    let usual = if stderr().is_terminal() { Format::Text } else { Format::Json };
    let lines = tracing_subscriber::fmt().with_writer(stderr).with_max_level(level).with_target(false);
    // A line there is no room for is lost; complaining of that in the same place would end the node.
    let lines = lines.log_internal_errors(false);
    match format.unwrap_or(usual) {
        Format::Json => lines.json().flatten_event(true).init(),
        Format::Text => lines.with_ansi(false).init(),
    }
}
