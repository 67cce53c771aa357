//! Lists, page by page.

use cis_api::calls::{ListDagRuns, ListDags, ListPending, ListRuns, ListTasks};
use cis_api::dag::{DagSummary, Dags};
use cis_api::review::{Pending, PendingItem};
use cis_api::run::{RunSummary, Runs};
use cis_api::task::{TaskSummary, Tasks};
use cis_api::{Call, Request};
use cis_core::error::Refusal;
use cis_engine::app::Read;

use super::{Cut, Source};

/// Lines of one page of a node: as many as it gives.
const PAGE: usize = 1_000;

/// A list that is told in pages.
pub(super) trait Paged: Read {
    type Item;

    /// Asks for a page.
    fn turn(query: &mut Self::Query, cursor: Option<String>, limit: u32);

    /// What it holds, and where the list goes on if it does.
    fn open(page: Self::Response) -> (Vec<Self::Item>, Option<String>);
}

macro_rules! paged {
    ($call:ty, $page:ident.$items:ident: $item:ty) => {
        impl Paged for $call {
            type Item = $item;

            fn turn(query: &mut <Self as Call>::Query, cursor: Option<String>, limit: u32) {
                (query.cursor, query.limit) = (cursor, Some(limit));
            }

            fn open(page: $page) -> (Vec<$item>, Option<String>) {
                (page.$items, page.next_cursor)
            }
        }
    };
}

paged!(ListDags, Dags.dags: DagSummary);
paged!(ListDagRuns, Runs.runs: RunSummary);
paged!(ListRuns, Runs.runs: RunSummary);
paged!(ListTasks, Tasks.tasks: TaskSummary);
paged!(ListPending, Pending.pending: PendingItem);

impl Source {
    /// A list, up to `limit` lines; and whether there are more.
    pub(super) fn list<C: Paged>(
        &self,
        mut request: Request<C>,
        limit: usize,
    ) -> Result<Cut<C::Item>, Refusal> {
        let (mut lines, mut cursor) = (Vec::new(), None);
        // The store itself tells as much at once as it is asked for.
        let page = if self.is_here() { limit } else { PAGE };
        loop {
            let room = (limit - lines.len()).clamp(1, page.max(1));
            C::turn(&mut request.query, cursor.take(), u32::try_from(room).unwrap_or(u32::MAX));
            let (more, next) = C::open(self.get(request.clone())?);
            lines.extend(more);
            if next.is_none() || lines.len() >= limit {
                let more = lines.len() > limit || next.is_some();
                lines.truncate(limit);
                return Ok((lines, more));
            }
            cursor = next;
        }
    }
}
