//! Whom a node tells of what, and `cis node notifications`: whom it could not.

use cis_core::error::{ErrorCode, Refusal};
use cis_core::notice::{Occasion, Wanted};
use cis_core::source::{Clock, Timestamp};
use cis_engine::system::System;
use cis_notify::Giver;
use cis_notify::webhook::Webhook;
use serde_json::json;

use super::{Failure, Outcome, Setup, list};
use crate::config::Notify;
use crate::term::Table;
use crate::term::table::Cell;

/// By which ways the settings say that somebody is told.
pub(super) fn givers(notify: &Notify) -> Result<Vec<Giver>, Failure> {
    let command = notify.command.value.clone().map(Giver::Command);
    let webhook = webhook(notify)?.map(|webhook| Giver::Webhook(Box::new(webhook)));
    Ok(command.into_iter().chain(webhook).collect())
}

fn webhook(notify: &Notify) -> Result<Option<Webhook>, Failure> {
    let Some(url) = notify.url.value.clone() else { return Ok(None) };
    let secret = match (&notify.secret.value, &notify.secret_file.value) {
        (Some(secret), _) => secret.0.clone(),
        (None, Some(file)) => std::fs::read_to_string(file).map_err(|e| {
            Failure::new(ErrorCode::Unavailable, format!("cannot read `{}`: {e}", file.display()))
                .hint("`notify.secret_file` names the file that holds the secret of the webhook")
        })?,
        (None, None) => String::new(),
    };
    let unable =
        |why| Refusal::new(ErrorCode::ValidationFailed, format!("the webhook cannot be used: {why}"));
    Ok(Some(Webhook::new(url, secret.trim(), notify.allow_private.value).map_err(unable)?))
}

/// What the store is to keep for them.
pub(super) fn wanted(notify: &Notify, givers: &[Giver]) -> Wanted {
    Wanted { on: notify.on.value.clone(), by: givers.iter().map(Giver::way).collect() }
}

/// Where notifications go, for people.
pub(super) fn told(notify: &Notify) -> String {
    let command = notify.command.value.as_ref().map(|_| "a command".to_owned());
    let url = notify.url.value.as_ref().map(ToString::to_string);
    let to: Vec<String> = command.into_iter().chain(url).collect();
    let on: Vec<&str> = notify.on.value.iter().copied().map(Occasion::word).collect();
    format!("to {} when {}", to.join(" and "), on.join(", "))
}

/// `cis node notifications`.
pub(super) fn show(setup: &Setup, limit: u32) -> Outcome {
    let notices = match setup.reader()? {
        Some(reader) => reader.notices(limit).map_err(Refusal::from)?,
        None => Vec::new(),
    };
    if setup.json {
        say_json!(json!({"success": true, "notifications": notices}));
        return Ok(0);
    }
    if notices.is_empty() {
        tell!("nothing is left to tell");
        return Ok(0);
    }
    let mut table = Table::new(&["WHAT", "OCCASION", "BY", ">TRIES", "NEXT", "PROBLEM"]);
    for notice in &notices {
        let problem = notice.problem.clone().unwrap_or_default();
        let row = [
            notice.event.subject.to_string(),
            notice.occasion.word().to_owned(),
            notice.way.word().to_owned(),
            notice.tries.to_string(),
            next(notice.due_at),
            problem,
        ];
        table.row(row.map(Cell::from));
    }
    list::print(&table);
    Ok(0)
}

fn next(due_at: Option<Timestamp>) -> String {
    match due_at.map(|at| at.since(System.now())) {
        None => "given up".to_owned(),
        Some(wait) if wait.0 == 0 => "now".to_owned(),
        Some(wait) => format!("in {wait}"),
    }
}
