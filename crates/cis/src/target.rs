//! Whom a command asks to do something: the coordinator of the data directory, or a node that was named. The calls are the
//! same; what only the owner of a data directory may say with them, a node is not told.

use cis_api::node::CoordinatorInfo;
use cis_api::run::RunStarted;
use cis_api::{Call, Request};
use cis_client::Client;
use cis_core::error::Refusal;
use cis_engine::app::{Answer, App};

use crate::session::Session;

/// See the module.
#[derive(Debug)]
pub enum Target {
    /// The coordinator of this data directory, in this process or another.
    Here(Box<Session>),
    Node(Client),
}

impl Target {
    pub fn is_node(&self) -> bool {
        matches!(self, Self::Node(_))
    }

    /// Makes a call.
    pub fn call<C: Call>(&mut self, request: &Request<C>) -> Result<C::Response, Refusal>
    where
        App: Answer<C>,
    {
        match self {
            Self::Here(session) => session.call(request),
            Self::Node(client) => client.call(request),
        }
    }

    /// Starts a run; if it is attached, it ends with this process. Runs of a node are its own.
    pub fn start<C>(&mut self, request: &Request<C>, is_attached: bool) -> Result<RunStarted, Refusal>
    where
        C: Call<Response = RunStarted>,
        App: Answer<C>,
    {
        match self {
            Self::Here(session) if is_attached => session.start_attached(request),
            target => target.call(request),
        }
    }

    /// What the coordinator of this data directory says of itself. A node tells only its owner.
    pub fn coordinator(&mut self) -> Result<Option<CoordinatorInfo>, Refusal> {
        match self {
            Self::Here(session) => session.coordinator().map(Some),
            Self::Node(_) => Ok(None),
        }
    }

    /// After the coordinator went away: finds or becomes the next one.
    pub fn reopen(&mut self) -> Result<(), Refusal> {
        match self {
            Self::Here(session) => session.reopen(),
            Self::Node(_) => Ok(()),
        }
    }

    /// Lets go.
    pub fn close(self) -> Result<(), Refusal> {
        match self {
            Self::Here(session) => session.close(),
            Self::Node(_) => Ok(()),
        }
    }
}
