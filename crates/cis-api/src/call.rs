//! What a call is: a method and a path, who may call it, the parts of its request, and its response.

use std::fmt;

use cis_core::access::{Caller, Role};
use cis_core::error::{ErrorCode, Refusal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// How a call is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Delete,
}

impl Method {
    /// As HTTP writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// What it takes to make a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// A token.
    Anyone,
    /// A token with this role.
    With(Role),
    /// The owner of the data directory, on its Unix socket.
    Owner,
}

impl Access {
    /// Refuses a caller that lacks the role. That a caller is the owner on the socket is checked where connections are.
    pub fn check(self, caller: &Caller) -> Result<(), Refusal> {
        match self {
            Self::Open | Self::Anyone | Self::Owner => Ok(()),
            Self::With(role) => caller.needs(role),
        }
    }
}

/// What a call is about, for readers of its description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    Dags,
    Runs,
    Tasks,
    Events,
    Tokens,
    Node,
}

impl Tag {
    /// In the order in which a reader wants to hear of them.
    pub const ALL: [Self; 6] = [Self::Dags, Self::Runs, Self::Tasks, Self::Events, Self::Tokens, Self::Node];

    /// The heading.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dags => "DAGs",
            Self::Runs => "Runs",
            Self::Tasks => "Tasks for others",
            Self::Events => "Events",
            Self::Tokens => "Tokens",
            Self::Node => "Node",
        }
    }
}

/// One call of the API. Implemented by the rows of [`crate::calls`] and nothing else.
pub trait Call: fmt::Debug + Send + Sync + 'static {
    const NAME: &'static str;
    const METHOD: Method;
    const PATH: &'static str;
    const ACCESS: Access;
    const TAG: Tag;
    /// A summary, and what else there is to say, line by line.
    const DOC: &'static [&'static str];
    /// The statuses of good answers, the usual one first, and what each means.
    const SUCCESS: &'static [(u16, &'static str)];
    /// Which of them an answer has.
    const STATUS: fn(&Self::Response) -> u16;
    /// Statuses of refusals that do not follow from what the call takes.
    const REFUSALS: &'static [u16];
    /// It takes an `Idempotency-Key`: with it, it is done once.
    const IS_KEYED: bool;
    /// What its answer is, unless that is one JSON object.
    const STREAM: Option<&'static str>;
    /// What the path names.
    type Path: Clone + Serialize + DeserializeOwned + IntoParams + Send + Sync + 'static;
    type Query: Clone + Serialize + DeserializeOwned + IntoParams + Send + Sync + 'static;
    type Body: Body;
    type Response: Serialize + DeserializeOwned + ToSchema + Send + Sync + 'static;
}

/// One row of the table, without its types.
#[derive(Debug, Clone, Copy)]
pub struct CallInfo {
    pub name: &'static str,
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
}

impl CallInfo {
    pub const fn of<C: Call>() -> Self {
        Self { name: C::NAME, method: C::METHOD, path: C::PATH, access: C::ACCESS }
    }
}

/// A request of a call.
pub struct Request<C: Call> {
    pub path: C::Path,
    pub query: C::Query,
    pub body: C::Body,
}

impl<C: Call> Request<C> {
    pub fn new(path: C::Path, query: C::Query, body: C::Body) -> Self {
        Self { path, query, body }
    }
}

impl<C: Call<Path = Nothing, Query = Nothing, Body = Nothing>> Request<C> {
    /// Of a call that takes nothing.
    pub fn bare() -> Self {
        Self::new(Nothing {}, Nothing {}, Nothing {})
    }
}

impl<C: Call> Clone for Request<C> {
    fn clone(&self) -> Self {
        Self { path: self.path.clone(), query: self.query.clone(), body: self.body.clone() }
    }
}

impl<C: Call> fmt::Debug for Request<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without its parts: they may hold secrets.
        write!(f, "Request({})", C::NAME)
    }
}

/// A part of a request that a call does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
pub struct Nothing {}

/// How the body of a request is read and written.
pub trait Body: Clone + Send + Sync + 'static {
    /// What the description shows for it; [`Nothing`] where there is no body.
    type Shown: ToSchema;
    /// May it be left out?
    const IS_OPTIONAL: bool;
    /// Reads what was sent.
    fn read(bytes: &[u8]) -> Result<Self, Refusal>;
    /// The same, where the bytes are needed no more: a large definition is kept as it came.
    fn read_owned(bytes: Vec<u8>) -> Result<Self, Refusal> {
        Self::read(&bytes)
    }
    /// Writes it as it is sent.
    fn write(&self) -> Vec<u8>;
}

impl Body for Nothing {
    type Shown = Self;
    const IS_OPTIONAL: bool = true;

    /// Whatever was sent means nothing.
    fn read(_: &[u8]) -> Result<Self, Refusal> {
        Ok(Self {})
    }

    fn write(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// Reads a body that is a JSON object; none, or `null`, counts as `{}`.
pub fn read_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let body = match body.trim_ascii() {
        b"" | b"null" => b"{}",
        // What is made of a list would be taken for the fields of an object, by their order.
        body if !body.starts_with(b"{") => {
            return Err(Refusal::new(ErrorCode::ValidationFailed, "the body is not a JSON object"));
        }
        body => body,
    };
    serde_json::from_slice(body).map_err(|e| {
        Refusal::new(ErrorCode::ValidationFailed, format!("the body is not what this call takes: {e}"))
    })
}

/// Writes a body that is a JSON object.
pub fn write_object(body: &impl Serialize) -> Vec<u8> {
    // What is sent has string keys and no failing serialisers.
    serde_json::to_vec(body).unwrap_or_default()
}

/// Makes a type the body of a request: `object_body!(Decision, optional)`.
macro_rules! object_body {
    ($type:ty, optional) => { $crate::call::object_body!(@ $type, $type, true); };
    ($type:ty, required) => { $crate::call::object_body!(@ $type, $type, false); };
    (@ $type:ty, $shown:ty, $is_optional:literal) => {
        impl $crate::call::Body for $type {
            type Shown = $shown;
            const IS_OPTIONAL: bool = $is_optional;

            fn read(bytes: &[u8]) -> Result<Self, cis_core::error::Refusal> {
                $crate::call::read_object(bytes)
            }

            fn write(&self) -> Vec<u8> {
                $crate::call::write_object(self)
            }
        }
    };
}
pub(crate) use object_body;
