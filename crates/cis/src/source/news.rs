//! The events of a run at a node, as they happen.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver};

use cis_api::calls::FollowEvents;
use cis_api::event::{Event as Told, EventQuery};
use cis_api::run::RunSummary;
use cis_api::{Nothing, Request};
use cis_client::Client;
use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::{CREATE, Change, Event};
use cis_core::id::{RunKey, TaskIx, Version};
use cis_core::run::{RunMove, RunStatus};
use cis_core::task::{TaskMove, TaskStatus};

/// The events of a run from its beginning to its end, or to what is wrong.
#[derive(Debug)]
pub struct News(Receiver<Result<Event, Refusal>>);

impl News {
    /// Follows a run from its beginning, on a thread of its own.
    pub fn follow(client: &Client, run: &RunSummary, dag: &Dag) -> Result<Self, Refusal> {
        let (tell, news) = mpsc::channel();
        let tasks: HashMap<String, TaskIx> =
            (0..).map(TaskIx).zip(&dag.tasks).map(|(ix, task)| (task.id.to_string(), ix)).collect();
        let (client, run_id) = (client.clone(), run.run_id.to_string());
        let mut after = run.first_position.0 - 1;
        let follow = move || {
            let mut goes_on = true;
            while goes_on {
                let query =
                    EventQuery { run: Some(run_id.clone()), after: Some(after), ..EventQuery::default() };
                let request = Request::<FollowEvents>::new(Nothing {}, query, Nothing {});
                let heard = client.follow(&request, |told| {
                    after = told.position.0;
                    let Some(event) = event(told, &tasks) else { return true };
                    let over = matches!(event.change, Change::Run { to, .. } if to.is_terminal());
                    goes_on = tell.send(Ok(event)).is_ok() && !over;
                    goes_on
                });
                if let Err(refusal) = heard {
                    // The command may have ended meanwhile.
                    let _ = tell.send(Err(refusal));
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("cis-news".into())
            .spawn(follow)
            .map_err(|e| Refusal::new(ErrorCode::Unavailable, format!("cannot start a thread: {e}")))?;
        Ok(Self(news))
    }

    /// What has come since.
    pub fn so_far(&self) -> Result<Vec<Event>, Refusal> {
        self.0.try_iter().collect()
    }
}

/// An event of a run by the places of its tasks; nothing, if this version does not know what it says.
fn event(told: Told, tasks: &HashMap<String, TaskIx>) -> Option<Event> {
    let change = match &told.task_id {
        Some(task) => Change::Task {
            task: *tasks.get(task)?,
            by: TaskMove::from_word(&told.step)?,
            to: TaskStatus::from_word(&told.status)?,
        },
        None if told.step == CREATE => Change::RunCreated,
        None => Change::Run { by: RunMove::from_word(&told.step)?, to: RunStatus::from_word(&told.status)? },
    };
    let Told { position, at, version, actor, holder, fence, data, .. } = told;
    let (run, version) = (RunKey(0), Version(version));
    Some(Event { position, run, at, version, change, actor, holder, fence, data })
}
