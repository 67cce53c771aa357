//! From an ended process to what the store records.

use cis_core::dag::Kind;
use cis_core::id::{ExecutionId, Fence};
use cis_core::retry::Failure;
use cis_core::source::Timestamp;
use cis_runner::protocol::{Ended, Outcome, TAIL_BYTES};
use cis_store::port::{Claimed, Ending, Report};
use serde_json::{Map, Value};

/// What the store should record of an attempt that ended. `claim` is what it was, if we still know.
pub(crate) fn report(ended: Ended, claim: Option<&Claimed>, random: u64) -> Report {
    let (mut ending, exit_code) = ending(&ended.outcome);
    let mut outputs = None;
    if ending == Ending::Succeeded {
        match read_outputs(&ended, claim) {
            Ok(values) => outputs = values,
            Err(why) => ending = broken(why),
        }
    }
    Report {
        execution: ExecutionId(ended.key.execution),
        fence: Fence(ended.key.fence),
        ending,
        started_at: (ended.started_ms > 0).then_some(Timestamp(ended.started_ms)),
        ended_at: Timestamp(ended.ended_ms),
        exit_code,
        output: ended.log.stdout_tail,
        error: ended.log.stderr_tail,
        log_bytes: ended.log.bytes,
        log_cut_bytes: ended.log.cut_bytes,
        outputs,
        random,
    }
}

/// An attempt that could not even be handed to the runner.
pub(crate) fn never_started(claim: &Claimed, why: String, now: Timestamp) -> Report {
    unstarted(claim.execution, claim.fence, broken(why), now)
}

/// An attempt whose processes are gone, or another directory's.
pub(crate) fn interrupted(execution: ExecutionId, fence: Fence, why: String, now: Timestamp) -> Report {
    unstarted(execution, fence, interruption(why), now)
}

/// That it was cut short, and by what.
pub(crate) fn interruption(why: String) -> Ending {
    Ending::Failed { failure: Failure::Interrupted, why: Some(why) }
}

/// An attempt that was to be stopped before anything of it was started.
pub(crate) fn stopped(execution: ExecutionId, fence: Fence, now: Timestamp) -> Report {
    unstarted(execution, fence, Ending::Stopped, now)
}

fn unstarted(execution: ExecutionId, fence: Fence, ending: Ending, now: Timestamp) -> Report {
    Report {
        execution,
        fence,
        ending,
        started_at: None,
        ended_at: now,
        exit_code: None,
        output: String::new(),
        error: String::new(),
        log_bytes: 0,
        log_cut_bytes: 0,
        outputs: None,
        random: 0,
    }
}

fn broken(why: String) -> Ending {
    Ending::Failed { failure: Failure::Broken, why: Some(why) }
}

fn ending(outcome: &Outcome) -> (Ending, Option<i32>) {
    let failed = |failure, why: Option<&str>| Ending::Failed { failure, why: why.map(ToOwned::to_owned) };
    match outcome {
        Outcome::Exited { code: 0 } => (Ending::Succeeded, Some(0)),
        Outcome::Exited { code } => (failed(Failure::Exit(*code), None), Some(*code)),
        Outcome::Broken { why } => (failed(Failure::Broken, Some(why)), None),
        Outcome::TimedOut => (failed(Failure::Timeout, None), None),
        Outcome::Stopped | Outcome::NeverStarted | Outcome::OwnerGone => (Ending::Stopped, None),
        Outcome::Interrupted => (failed(Failure::Interrupted, Some("the runner was killed")), None),
    }
}

/// What the task handed on: what it wrote to `$CIS_OUTPUT`, or for a skill a JSON object on its stdout.
fn read_outputs(ended: &Ended, claim: Option<&Claimed>) -> Result<Option<Value>, String> {
    if let Some(text) = &ended.outputs {
        return parse_outputs(text).map(|values| Some(Value::Object(values)));
    }
    let is_skill = claim.is_some_and(|claim| matches!(claim.task().kind, Kind::Skill(_)));
    let whole = ended.log.bytes <= TAIL_BYTES as u64;
    if is_skill && whole && ended.log.stdout_tail.trim_start().starts_with('{') {
        return Ok(serde_json::from_str::<Map<String, Value>>(&ended.log.stdout_tail)
            .ok()
            .map(Value::Object));
    }
    Ok(None)
}

/// A JSON object, or lines of `key=value`.
pub fn parse_outputs(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text)
            .map_err(|e| format!("`$CIS_OUTPUT` begins like JSON but is not: {e}"));
    }
    let mut values = Map::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (key, value) =
            line.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or_else(|| {
                format!("`$CIS_OUTPUT` line {}: expected `key=value`, found `{line}`", index + 1)
            })?;
        values.insert(key.trim().to_owned(), Value::String(value.to_owned()));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn outputs_are_json_or_lines() {
        let parsed = |text| Value::Object(parse_outputs(text).unwrap());
        assert_eq!(parsed("a=1\n\nb = x=y \n"), json!({"a": "1", "b": " x=y "}));
        assert_eq!(parsed(" {\"a\": [1]}"), json!({"a": [1]}));
        assert!(parse_outputs("no equals sign").unwrap_err().contains("line 1"));
        assert!(parse_outputs("{broken").is_err());
    }
}
