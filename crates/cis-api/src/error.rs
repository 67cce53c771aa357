//! How a refusal travels: the same shape over HTTP and in `--json`.

use cis_core::error::{ErrorCode, Refusal};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every bad answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// `false`.
    pub success: bool,
    pub error: ApiError,
}

/// A refusal, and the page of its code: `code`, `message`, `hint`, `details`, `docs`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    #[serde(flatten)]
    pub refusal: Refusal,
    /// Where a node says what to do.
    pub docs: String,
}

impl ErrorBody {
    pub fn new(refusal: Refusal) -> Self {
        let docs = docs_path(refusal.code);
        Self { success: false, error: ApiError { refusal, docs } }
    }
}

/// Where the page of a code is found on a node.
pub fn docs_path(code: ErrorCode) -> String {
    format!("/docs/errors/{code:?}")
}

/// Every good answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Success<T> {
    /// `true`.
    pub success: bool,
    #[serde(flatten)]
    pub answer: T,
}

impl<T: Serialize> Success<T> {
    pub fn new(answer: T) -> Self {
        Self { success: true, answer }
    }
}
