//! Claims: they may wait for a task, but neither past the node's end nor past that of the token.

use cis_api::calls::ClaimTasks;
use cis_api::work::ClaimedTasks;
use cis_store::port::Once;

use super::request::ApiRequest;
use super::told;
use crate::respond::HandlerResult;

pub(super) async fn claim(request: ApiRequest<ClaimTasks>) -> HandlerResult {
    let ApiRequest { state, session, sender, request, .. } = request;
    let claimed = tokio::select! {
        claimed = state.app.call(&sender, request) => claimed?,
        () = crate::gone(state.leaving.clone()) => Once::new(ClaimedTasks { tasks: Vec::new() }),
        // What it claimed from then on it could neither keep nor end.
        refusal = session.no_longer_good(&state) => return Err(refusal.into()),
    };
    Ok(told::<ClaimTasks>(claimed))
}
