//! What is worth saying about a data directory before, or while, a command works on it.

use cis_core::error::Refusal;
use cis_engine::origin;

use super::Setup;
use crate::term::{clean, report};

/// Says so where the data directory is a copy that no coordinator has worked in yet.
pub(super) fn tell_copy(setup: &Setup) {
    if setup.node.is_some() || setup.token.is_some() {
        return;
    }
    if let Some(copied) = origin::copied(&setup.data_dir()).filter(|copied| copied.is_new) {
        tell!("note: this data directory is {}", clean(&copied.to_string()));
    }
}

/// Why a runner starts nothing, and what to do about it.
pub(super) fn tell_silence(silent: &Refusal) {
    report::warn(&in_words(silent));
}

/// A refusal in lines: what is wrong, and the remedy.
pub(super) fn in_words(refusal: &Refusal) -> String {
    match &refusal.hint {
        Some(hint) => format!("{refusal}\nhint: {hint}"),
        None => refusal.to_string(),
    }
}
