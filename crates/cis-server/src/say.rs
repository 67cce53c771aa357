//! Answers and errors as JSON: every body is an object with `success`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cis_core::error::{ErrorCode, Refusal};
use serde_json::{Value, json};

use crate::page;

/// A refusal on its way out, perhaps with more beside it.
#[derive(Debug)]
pub(crate) struct No(pub(crate) Refusal, pub(crate) Value);

/// Why the node failed, beside the answer that says so: for whoever looks after it.
#[derive(Debug, Clone)]
pub(crate) struct Why(pub(crate) String);

/// What a call comes to.
pub(crate) type Said = Result<Response, No>;

impl<E: Into<Refusal>> From<E> for No {
    fn from(e: E) -> Self {
        Self(e.into(), Value::Null)
    }
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        let Self(refusal, beside) = self;
        let mut error =
            json!({"code": refusal.code, "message": &refusal.message, "docs": page::path(refusal.code)});
        if let Some(hint) = refusal.hint {
            error["hint"] = hint.into();
        }
        if !refusal.details.is_null() {
            error["details"] = refusal.details;
        }
        let mut told = json!({"success": false, "error": error});
        if let (Value::Object(told), Value::Object(beside)) = (&mut told, beside) {
            told.extend(beside);
        }
        let mut response = body(status(refusal.code), &told);
        if response.status().is_server_error() {
            response.extensions_mut().insert(Why(refusal.message));
        }
        let headers = response.headers_mut();
        match refusal.code {
            ErrorCode::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Whatever there was too much of, a second makes room for more.
            ErrorCode::Unavailable | ErrorCode::RateLimited => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// A refusal that is the node's usual business, such as being full: nobody needs to look after it.
pub(crate) fn expected(refusal: Refusal) -> Response {
    let mut response = No::from(refusal).into_response();
    response.extensions_mut().remove::<Why>();
    response
}

/// Which HTTP status a code stands for: decided here and nowhere else.
pub(crate) fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::ContentConflict
        | ErrorCode::InvalidTransition
        | ErrorCode::AlreadyClaimed
        | ErrorCode::LeaseExpired
        | ErrorCode::AlreadyExists
        | ErrorCode::AwaitingConfirmation
        | ErrorCode::Ambiguous
        | ErrorCode::DuplicateIdempotencyKey => StatusCode::CONFLICT,
        ErrorCode::ValidationFailed | ErrorCode::NotYetSupported => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        ErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A good answer: `success` and whatever `told` holds.
pub(crate) fn yes(status: StatusCode, told: Value) -> Response {
    let mut all = json!({"success": true});
    if let (Value::Object(all), Value::Object(told)) = (&mut all, told) {
        all.extend(told);
    }
    body(status, &all)
}

fn body(status: StatusCode, told: &Value) -> Response {
    let mut response = Response::new(Body::from(told.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A refusal as the answer it is.
pub(crate) fn said_no(refusal: Refusal) -> Response {
    No::from(refusal).into_response()
}

/// Nothing here by that name, or nothing the caller may know of.
pub(crate) fn not_found(what: &str, name: &str) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no {what} `{name}`"))
}
