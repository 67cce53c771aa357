//! One round of telling: what is due is given, a few at once, and what became of each is settled as soon as it is known.
//!
//! Nothing is settled before it was given, so a round that is broken off anywhere loses nothing: what it had given and
//! not settled is given again. `crates/cis-schedule` breaks it off everywhere.

use cis_core::error::{ErrorCode, Refusal};

use crate::sync::JoinSet;

/// Where notices lie, and how they are given.
pub(crate) trait Outbox {
    type Notice: Send + 'static;
    type Given: Send + 'static;

    /// What is to be told now, a few at most.
    fn due(&mut self) -> Result<Vec<Self::Notice>, Refusal>;

    /// Tells it.
    fn give(
        &self,
        notice: Self::Notice,
    ) -> impl Future<Output = (Self::Notice, Self::Given)> + Send + 'static;

    /// Keeps what became of it.
    fn settle(
        &mut self,
        notice: Self::Notice,
        given: Self::Given,
    ) -> impl Future<Output = Result<(), Refusal>> + Send;
}

/// Gives everything that is due.
pub(crate) async fn give_due(outbox: &mut impl Outbox) -> Result<(), Refusal> {
    loop {
        let due = outbox.due()?;
        if due.is_empty() {
            return Ok(());
        }
        let mut under_way = JoinSet::new();
        for notice in due {
            under_way.spawn(outbox.give(notice));
        }
        while let Some(given) = under_way.join_next().await {
            let (notice, given) =
                given.map_err(|_| Refusal::new(ErrorCode::Internal, "telling somebody broke off"))?;
            outbox.settle(notice, given).await?;
        }
    }
}
