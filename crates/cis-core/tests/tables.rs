//! The three state machines, move by move: `docs/lifecycle.md` shows the tables, and is what people rely on.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::event;
use cis_core::revision::{self, RevisionMove, RevisionStatus};
use cis_core::run::{self, RunMove, RunStatus, StopReason};
use cis_core::task::{self, TaskMove, TaskStatus};
use serde_json::json;

#[test]
fn the_page_shows_every_move() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lifecycle.md");
    let page = std::fs::read_to_string(page).unwrap();
    for table in [revision::table(), run::table(), task::table(), event::table()] {
        assert!(page.contains(&table), "the page does not hold\n{table}\n`cargo xtask docs` writes it");
    }
}

#[test]
fn nothing_leaves_a_terminal_status_and_everything_else_can_end() {
    for status in RevisionStatus::ALL {
        let next: Vec<_> = RevisionMove::ALL.into_iter().filter_map(|step| status.after(step).ok()).collect();
        assert_eq!(next.is_empty(), status.is_terminal(), "{status}");
        assert!(status.is_terminal() || next.iter().any(|next| next.is_terminal()), "{status}");
    }
    for status in RunStatus::ALL {
        let next: Vec<_> = RunMove::ALL.into_iter().filter_map(|step| status.after(step).ok()).collect();
        assert_eq!(next.is_empty(), status.is_terminal(), "{status}");
        assert!(status.is_terminal() || next.iter().any(|next| next.is_terminal()), "{status}");
    }
    for status in TaskStatus::ALL {
        let next: Vec<_> = TaskMove::ALL.into_iter().filter_map(|step| status.after(step).ok()).collect();
        assert_eq!(next.is_empty(), status.is_terminal(), "{status}");
        assert!(status.is_terminal() || next.iter().any(|next| next.is_terminal()), "{status}");
    }
}

#[test]
fn every_move_of_a_revision_leads_where_it_says() {
    for step in RevisionMove::ALL {
        assert_eq!(RevisionStatus::Pending.after(step), Ok(step.leads_to()), "{}", step.word());
    }
}

#[test]
fn rejected_and_expired_content_may_be_published_anew() {
    let again: Vec<_> = RevisionStatus::ALL.into_iter().filter(|s| !s.answers_for_its_content()).collect();
    assert_eq!(again, [RevisionStatus::Rejected, RevisionStatus::Expired]);
}

#[test]
fn illegal_move_of_a_revision_tells_where_it_stands_and_what_was_asked() {
    let refusal = Refusal::from(RevisionStatus::Rejected.after(RevisionMove::Confirm).unwrap_err());
    assert_eq!(refusal.code, ErrorCode::InvalidTransition);
    assert_eq!(refusal.message, "the revision is rejected, it cannot become confirmed");
    assert_eq!(refusal.details, json!({"from": "rejected", "step": "confirm", "to": "confirmed"}));
}

#[test]
fn only_what_was_claimed_is_live() {
    let live: Vec<_> = TaskStatus::ALL.into_iter().filter(|status| status.is_live()).collect();
    assert_eq!(live, [TaskStatus::Running, TaskStatus::Cancelling]);
}

#[test]
fn every_reason_to_stop_stops_a_run_under_way() {
    for reason in StopReason::ALL {
        assert_eq!(RunStatus::Running.after(reason.step()), Ok(RunStatus::Cancelling), "{}", reason.word());
    }
    assert_eq!(RunStatus::Queued.after(StopReason::Cancel.step()), Ok(RunStatus::Cancelled));
}
