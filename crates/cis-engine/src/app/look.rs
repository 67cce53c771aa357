//! Reading for a caller: what it may not see is not there. The same functions answer over HTTP and for a command on the data
//! directory itself.

use cis_api::{Call, Request};
use cis_core::access::{Caller, Preset};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, RunId, Scope};
use cis_core::source::{Clock, Timestamp};
use cis_store::Reader;
use cis_store::rows::{DagRow, RunRow};
use serde_json::json;

use super::page::LIMIT_MAX;
use crate::system::{System, user};

/// Whose eyes the store is read with.
#[derive(Debug, Clone, Copy)]
pub struct Look<'l> {
    pub reader: &'l Reader,
    pub caller: &'l Caller,
    /// Tasks that the coordinator's runner runs at once, where that is known.
    pub slots: Option<u32>,
    /// The most lines of a list that are told at once.
    pub page_max: u32,
    pub now: Timestamp,
}

/// A call that only reads.
pub trait Read: Call {
    /// Answers it from the store.
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Self::Response, Refusal>
    where
        Self: Sized;

    /// About how many bytes the answer will take, where that may be many: room is made for them before they are read.
    fn expected_bytes(_look: Look<'_>, _request: &Request<Self>) -> Result<usize, Refusal>
    where
        Self: Sized,
    {
        Ok(0)
    }
}

/// Answers a call for the owner of the data directory from the store itself, whether it has a coordinator or not. Lists are as
/// long as the owner asks for: what they cost is the owner's own.
pub fn read_as_owner<C: Read>(
    reader: &Reader,
    slots: Option<u32>,
    request: Request<C>,
) -> Result<C::Response, Refusal> {
    let caller = Caller::preset(user(), Preset::Owner, None);
    let look = Look { page_max: u32::MAX, ..Look::new(reader, &caller, slots, System.now()) };
    C::read(look, request)
}

impl<'l> Look<'l> {
    /// A caller's: of lists it is told so much at once and no more.
    pub fn new(reader: &'l Reader, caller: &'l Caller, slots: Option<u32>, now: Timestamp) -> Self {
        Self { reader, caller, slots, page_max: LIMIT_MAX, now }
    }

    /// The DAG of this name that the caller may know of; it says which if there are several.
    pub(super) fn dag(&self, id: &str, scope: Option<&Scope>) -> Result<DagRow, Refusal> {
        let known = id.parse::<DagId>().is_ok();
        let found = if known { self.reader.dag(id, scope.map(Scope::as_str))? } else { Vec::new() };
        let mut seen = found.into_iter().filter(|dag| self.caller.sees(&dag.scope));
        let Some(first) = seen.next() else { return Err(not_found("DAG", id)) };
        let mut scopes: Vec<Scope> = seen.map(|dag| dag.shown.scope).collect();
        if scopes.is_empty() {
            return Ok(first);
        }
        scopes.insert(0, first.shown.scope);
        Err(Refusal::new(ErrorCode::Ambiguous, format!("`{id}` exists in several scopes"))
            .hint("add `?scope=`")
            .details(json!({"scopes": scopes})))
    }

    /// The run with this id that the caller may know of, or that it was pruned.
    pub fn run(&self, id: &str) -> Result<RunRow, Refusal> {
        let Ok(run_id) = id.parse::<RunId>() else { return Err(not_found("run", id)) };
        match self.reader.run_by_id(run_id)? {
            Some(run) if self.caller.sees(&run.scope) => Ok(run),
            Some(_) => Err(not_found("run", id)),
            None => {
                let pruned = self.reader.pruned_by_id(run_id)?;
                let pruned = pruned.filter(|pruned| self.caller.sees(&pruned.run.scope));
                Err(pruned.map_or_else(|| not_found("run", id), |pruned| pruned.refusal()))
            }
        }
    }
}

/// Nothing here by that name, or nothing the caller may know of.
pub(super) fn not_found(what: &str, name: &str) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no {what} `{name}`"))
}
