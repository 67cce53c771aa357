//! What happens on a node, as it happens; and what tasks printed, and print.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver};

use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::{CREATE, Change, Event};
use cis_core::id::{RunKey, TaskIx, Version};
use cis_core::run::{RunMove, RunStatus};
use cis_core::task::{TaskMove, TaskStatus};
use cis_engine::logs::{self, Line};
use cis_store::sqlite::LogLine;
use cis_store::sqlite::reader::RunLine;
use serde_json::Value;

use super::{Remote, misunderstood, took, with};

/// The events of a run from its beginning to its end, or to what is wrong.
#[derive(Debug)]
pub struct News(Receiver<Result<Event, Refusal>>);

impl News {
    /// What has come since.
    pub fn so_far(&self) -> Result<Vec<Event>, Refusal> {
        self.0.try_iter().collect()
    }
}

impl Remote {
    /// Follows a run from its beginning.
    pub fn follow(&self, run: &RunLine, dag: &Dag) -> Result<News, Refusal> {
        let (tell, news) = mpsc::channel();
        let tasks: HashMap<String, TaskIx> =
            (0..).map(TaskIx).zip(&dag.tasks).map(|(ix, task)| (task.id.to_string(), ix)).collect();
        let (remote, run_id) = (self.clone(), run.run_id.to_string());
        let mut after = run.first_position.0 - 1;
        let follow = move || {
            let mut goes_on = true;
            while goes_on {
                let path = with("/api/v1/events", &[("run", &run_id), ("after", &after.to_string())]);
                let heard = remote.client.lines(&path, |line| {
                    let Some(event) = event(line, &tasks) else { return true };
                    after = event.position.0;
                    let over = matches!(event.change, Change::Run { to, .. } if to.is_terminal());
                    goes_on = tell.send(Ok(event)).is_ok() && !over;
                    goes_on
                });
                if let Err(refusal) = heard {
                    // Whoever asked may be gone.
                    let _ = tell.send(Err(refusal));
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("cis-news".into())
            .spawn(follow)
            .map_err(|e| Refusal::new(ErrorCode::Unavailable, format!("cannot start a thread: {e}")))?;
        Ok(News(news))
    }

    /// What tasks of a run printed, handed to `hear` until there is no more, or it has heard enough.
    pub fn logs(
        &self,
        run: &RunLine,
        query: &[(&str, &str)],
        mut hear: impl FnMut(&Line) -> bool,
    ) -> Result<(), Refusal> {
        let mut wrong = None;
        self.client.lines(&with(&format!("/api/v1/runs/{}/logs", run.run_id), query), |text| {
            match line(text) {
                Ok(line) => hear(&line),
                Err(refusal) => {
                    wrong = Some(refusal);
                    false
                }
            }
        })?;
        wrong.map_or(Ok(()), Err)
    }
}

/// What a line of a stream of events tells, if it is of a run.
fn event(line: &str, tasks: &HashMap<String, TaskIx>) -> Option<Event> {
    let mut told: Value = serde_json::from_str(line.strip_prefix("data:")?.trim_start()).ok()?;
    let told: LogLine = serde_json::from_value(told["data"].take()).ok()?;
    let change = match &told.task_id {
        Some(task) => Change::Task {
            task: *tasks.get(task)?,
            by: TaskMove::from_word(&told.step)?,
            to: TaskStatus::from_word(&told.status)?,
        },
        None if told.step == CREATE => Change::RunCreated,
        None => Change::Run { by: RunMove::from_word(&told.step)?, to: RunStatus::from_word(&told.status)? },
    };
    let LogLine { position, at, version, data, .. } = told;
    Some(Event { position, run: RunKey(0), at, version: Version(version), change, data })
}

fn line(text: &str) -> Result<Line, Refusal> {
    let mut told: Value = serde_json::from_str(text).map_err(misunderstood)?;
    Ok(Line {
        task_id: took(told["task_id"].take())?,
        attempt: took(told["attempt"].take())?,
        stream: logs::word(logs::stream(told["stream"].as_str().unwrap_or_default())?),
        at: took(told["at"].take())?,
        text: took(told["text"].take())?,
    })
}
