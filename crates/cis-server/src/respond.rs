//! Answers and errors as HTTP responses: every body is a JSON object with `success`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cis_api::error::{ErrorBody, Success};
use cis_core::error::{ErrorCode, Refusal};
use serde::Serialize;
use serde_json::{Value, json};

/// A refusal on its way out, perhaps with more beside it.
#[derive(Debug)]
pub(crate) struct RefusedResponse(pub(crate) Refusal, pub(crate) Value);

/// Why the node failed, beside the response that says so: for its log.
#[derive(Debug, Clone)]
pub(crate) struct FailureReason(pub(crate) String);

/// What a handler comes to.
pub(crate) type HandlerResult = Result<Response, RefusedResponse>;

impl<E: Into<Refusal>> From<E> for RefusedResponse {
    fn from(e: E) -> Self {
        Self(e.into(), Value::Null)
    }
}

impl IntoResponse for RefusedResponse {
    fn into_response(self) -> Response {
        let Self(refusal, beside) = self;
        let code = refusal.code;
        let why = FailureReason(refusal.message.clone());
        let mut body = json!(ErrorBody::new(refusal));
        if let (Value::Object(body), Value::Object(beside)) = (&mut body, beside) {
            body.extend(beside);
        }
        let mut response = json(status(code), body.to_string().into());
        if response.status().is_server_error() {
            response.extensions_mut().insert(why);
        }
        let headers = response.headers_mut();
        match code {
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

/// A refusal that is the node's usual business, such as being full: its operator needs not look after it.
pub(crate) fn expected(refusal: Refusal) -> Response {
    let mut response = RefusedResponse::from(refusal).into_response();
    response.extensions_mut().remove::<FailureReason>();
    response
}

/// A refusal as the text of a body.
pub(crate) fn refusal_text(refusal: Refusal) -> String {
    json!(ErrorBody::new(refusal)).to_string()
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
        ErrorCode::Gone => StatusCode::GONE,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::WrongNode => StatusCode::MISDIRECTED_REQUEST,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        ErrorCode::RateLimited | ErrorCode::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::Unavailable | ErrorCode::DatabaseDamaged => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A good answer: `success` and whatever `answer` holds.
pub(crate) fn success(status: StatusCode, answer: impl Serialize) -> Response {
    json(status, success_text(answer).into())
}

/// The body of a good answer.
pub(crate) fn success_text(answer: impl Serialize) -> String {
    // Not by way of a tree: what is kept as text is sent as it is.
    serde_json::to_string(&Success::new(answer)).unwrap_or_default()
}

/// An answer that is JSON already.
pub(crate) fn json(status: StatusCode, text: Body) -> Response {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A refusal as the answer it is.
pub(crate) fn refused(refusal: Refusal) -> Response {
    RefusedResponse::from(refusal).into_response()
}

/// Nothing here by that name, or nothing the caller may know of.
pub(crate) fn not_found(what: &str, name: &str) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no {what} `{name}`"))
}
