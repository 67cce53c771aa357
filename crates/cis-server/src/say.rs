//! Answers and errors as JSON: every body is an object with `success`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cis_core::error::{ErrorCode, Refusal};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::page;

/// A refusal on its way out, perhaps with more beside it.
#[derive(Debug)]
pub(crate) struct No(pub(crate) Refusal, pub(crate) Value);

/// Every bad answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Refused {
    /// `false`.
    success: bool,
    error: Documented,
}

/// A refusal, and the page of its code.
#[derive(Debug, Serialize, ToSchema)]
struct Documented {
    #[serde(flatten)]
    refusal: Refusal,
    /// Where this node says what to do.
    docs: String,
}

/// Every good answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Yes<T> {
    /// `true`.
    success: bool,
    #[serde(flatten)]
    told: T,
}

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
        let code = refusal.code;
        let why = Why(refusal.message.clone());
        let error = Documented { refusal, docs: page::path(code) };
        let mut told = json!(Refused { success: false, error });
        if let (Value::Object(told), Value::Object(beside)) = (&mut told, beside) {
            told.extend(beside);
        }
        let mut response = json(status(code), told.to_string().into());
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
        ErrorCode::Gone => StatusCode::GONE,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        ErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::Unavailable | ErrorCode::DatabaseDamaged => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl<T: Serialize> Yes<T> {
    pub(crate) fn new(told: T) -> Self {
        Self { success: true, told }
    }

    pub(crate) fn text(&self) -> String {
        json!(self).to_string()
    }
}

/// A good answer: `success` and whatever `told` holds.
pub(crate) fn yes(status: StatusCode, told: impl Serialize) -> Response {
    json(status, Yes::new(told).text().into())
}

/// An answer that is JSON already.
pub(crate) fn json(status: StatusCode, text: Body) -> Response {
    let mut response = Response::new(text);
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
