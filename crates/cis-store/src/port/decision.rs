//! Decisions that people made, as they are told.

use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who decided, when, and with what note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionLine {
    pub decided_by: String,
    pub decided_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
