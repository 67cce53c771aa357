//! A run as its events tell it: kept up to date from the store, shown as a view, as lines or as JSON.

use std::sync::Arc;

use cis_api::run::RunSummary;
use cis_api::task::TaskSummary;
use cis_core::dag::{Dag, Task};
use cis_core::event::{Change, Event, Subject};
use cis_core::id::{Position, TaskIx};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::{TaskMove, TaskStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Failure, pending};
use crate::live::{FailedTask, RunView, RunningTask, SMALL_RUN, TaskLine as ViewLine, Totals, Transition};
use crate::source::{LocalRun, News, Source, task_of};

/// Events read at once.
const CHUNK: u32 = 5_000;

/// Runs of up to so many tasks are told with how long each took.
const ROWS_READ_MAX: usize = 1_000;

/// Running tasks looked at for the view.
const RUNNING_SHOWN: u32 = 64;

/// A run being watched.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) source: Source,
    pub(super) run: RunSummary,
    pub(super) dag: Arc<Dag>,
    feed: Feed,
    statuses: Vec<TaskStatus>,
    totals: Totals,
    failures: Vec<FailedTask>,
}

/// Where events come from.
#[derive(Debug)]
enum Feed {
    /// The store of this machine, read up to a position.
    Here(Box<LocalRun>, Position),
    Node(News),
    /// A run at a node, of which there is nothing more to hear.
    Over,
}

impl Watch {
    /// Watches `run` from its beginning.
    pub(super) fn new(source: Source, run: RunSummary, dag: Arc<Dag>) -> Result<Self, Failure> {
        let (feed, statuses) = match &source {
            Source::Node(client) => {
                let pending = vec![TaskStatus::Pending; dag.tasks.len()];
                (Feed::Node(News::follow(client, &run, &dag)?), pending)
            }
            Source::Here(here) => {
                let local = LocalRun::open(here, run.run_id)?;
                let statuses = local.first_statuses(&dag);
                (Feed::Here(Box::new(local), Position(0)), statuses)
            }
        };
        let mut totals = Totals::default();
        statuses.iter().for_each(|status| totals.add(*status));
        Ok(Self { source, run, dag, feed, statuses, totals, failures: Vec::new() })
    }

    /// The run in the store of this machine, if it is there.
    pub(super) fn local(&self) -> Option<&LocalRun> {
        match &self.feed {
            Feed::Here(local, _) => Some(local),
            Feed::Node(_) | Feed::Over => None,
        }
    }

    /// Has it ended, and has everything been told that led there?
    pub(super) fn is_over(&self) -> bool {
        // A run that is stopped before it began is over before its tasks are.
        self.run.status.is_terminal() && self.run.left == 0 && !matches!(self.feed, Feed::Node(_))
    }

    /// Takes in what has happened since, handing each event to `tell`.
    pub(super) fn refresh(&mut self, mut tell: impl FnMut(&Self, &Event)) -> Result<(), Failure> {
        match &mut self.feed {
            // The run's row is read first, so that a run seen as over has all its events read after it.
            Feed::Here(local, _) => local.refresh()?,
            Feed::Node(_) => return self.hear(tell),
            Feed::Over => return Ok(()),
        }
        while let Feed::Here(local, position) = &mut self.feed {
            let (events, read_to) = local.events(*position, CHUNK)?;
            let is_all = read_to <= std::mem::replace(position, read_to.max(*position));
            for event in &events {
                self.take(event);
                tell(self, event);
            }
            if is_all {
                break;
            }
        }
        if let Some(local) = self.local() {
            self.run = local.summary().clone();
        }
        Ok(())
    }

    /// The same from a node: the end of a run is the last that is heard of it.
    fn hear(&mut self, mut tell: impl FnMut(&Self, &Event)) -> Result<(), Failure> {
        let Feed::Node(news) = &self.feed else { return Ok(()) };
        for event in &news.so_far()? {
            self.take(event);
            tell(self, event);
            if matches!(event.change, Change::Run { to, .. } if to.is_terminal()) {
                self.feed = Feed::Over;
                self.run = self.source.run_now(&self.run)?.unwrap_or_else(|| self.run.clone());
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Event) {
        let Change::Task { task, to, .. } = event.change else { return };
        let Some(status) = self.statuses.get_mut(task.index()) else { return };
        self.totals.shift(*status, to);
        *status = to;
        if matches!(to, TaskStatus::Failed | TaskStatus::TimedOut) {
            let why = cause(&event.data).unwrap_or(to.word()).to_owned();
            self.failures.push(FailedTask { title: self.dag.tasks[task.index()].title().to_owned(), why });
        }
    }

    /// What the live view shows now, of a run in the store of this machine.
    pub(super) fn view(&self, now: Timestamp) -> Result<RunView, Failure> {
        let mut live = match self.local() {
            Some(local) => local.live(RUNNING_SHOWN)?,
            None => Vec::new(),
        };
        live.retain(|task| task.started_at.is_some());
        if let Some(local) = self.local().filter(|_| self.totals.of(TaskStatus::Waiting) > 0) {
            // The person at the terminal may be the one they wait for.
            live.splice(0..0, local.tasks(&[TaskStatus::Waiting], RUNNING_SHOWN)?);
        }
        let running = live
            .iter()
            .map(|task| RunningTask {
                title: self.title(task).to_owned(),
                state: task.status,
                elapsed: elapsed(task, now).unwrap_or(Millis(0)),
                last_line: self.last_line(task),
            })
            .collect();
        let tasks = if self.dag.tasks.len() <= SMALL_RUN { self.small(now)? } else { Vec::new() };
        let end = self.run.completed_at.unwrap_or(now);
        Ok(RunView {
            title: self.run.label(),
            state: self.run.status,
            totals: self.totals,
            elapsed: end.since(self.run.created_at),
            eta: None,
            tasks,
            running,
            failures: self.failures.clone(),
        })
    }

    fn small(&self, now: Timestamp) -> Result<Vec<ViewLine>, Failure> {
        let tasks = match self.local() {
            Some(local) => local.tasks(&[], u32::MAX)?,
            None => Vec::new(),
        };
        let lines = tasks.iter().map(|task| {
            // Handed to the runner, but not started yet: to a person that is still ready.
            let waits = task.status == TaskStatus::Running && task.started_at.is_none();
            let note = match task.status {
                TaskStatus::Running | TaskStatus::Cancelling | TaskStatus::Waiting => self.last_line(task),
                TaskStatus::Ready if task.not_before.is_some() => {
                    let wait = task.not_before.map_or(Millis(0), |at| at.since(now));
                    format!("{}, next try in {wait}", task.cause.as_deref().unwrap_or("failed"))
                }
                TaskStatus::Failed | TaskStatus::TimedOut | TaskStatus::Skipped => {
                    task.cause.clone().unwrap_or_default()
                }
                _ => String::new(),
            };
            ViewLine {
                title: self.title(task).to_owned(),
                state: if waits { TaskStatus::Ready } else { task.status },
                elapsed: elapsed(task, now),
                note,
            }
        });
        Ok(lines.collect())
    }

    /// The last line of its output; what it asks, if it waits for a person.
    fn last_line(&self, task: &TaskSummary) -> String {
        if task.status == TaskStatus::Waiting {
            let definition = task_of(&self.dag, &self.run, task);
            return definition.map_or_else(String::new, |asked| pending::question(task.review_id, asked));
        }
        let log = self.local().map(|local| local.log(task));
        log.and_then(|log| cis_runner::log::last_line(&log)).unwrap_or_default()
    }

    /// What people see of a task: its name, else its id.
    pub(super) fn title<'t>(&'t self, task: &'t TaskSummary) -> &'t str {
        task_of(&self.dag, &self.run, task).map_or(&task.task_id, Task::title)
    }

    /// The row of a task as it is by now.
    fn row(&self, ix: TaskIx) -> Result<Option<TaskSummary>, Failure> {
        Ok(match self.local() {
            Some(local) => local.task(ix)?,
            None => self.source.task(&self.run, self.dag.tasks[ix.index()].id.as_str())?,
        })
    }

    /// An event as a line for people; not every event is worth one.
    pub(super) fn line(&self, event: &Event) -> Result<Option<String>, Failure> {
        let Change::Task { task, by, to } = event.change else { return Ok(None) };
        let tried_again = by == TaskMove::TryAgain;
        let asks = to == TaskStatus::Waiting;
        if !to.is_terminal() && !tried_again && !asks {
            return Ok(None);
        }
        let definition = &self.dag.tasks[task.index()];
        let review = event.data["review_id"].as_str().and_then(|text| text.parse().ok());
        let question = if asks { pending::question(review, definition) } else { String::new() };
        // Of thousands, how long each took is not worth a look at its row.
        let quick = to == TaskStatus::Completed && self.dag.tasks.len() > ROWS_READ_MAX;
        let row = if quick { None } else { self.row(task)? };
        let not_before = event.data.get("not_before").and_then(|at| Timestamp::deserialize(at).ok());
        let attempt = event.data.get("attempt").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let of = definition.more().retry.as_ref().map_or(1, |retry| retry.max + 1);
        let transition = Transition {
            title: definition.title(),
            state: if tried_again { TaskStatus::Failed } else { to },
            elapsed: row.as_ref().filter(|_| !tried_again).and_then(|row| elapsed(row, event.at)),
            why: match to {
                TaskStatus::Completed => "",
                TaskStatus::Waiting => &question,
                _ => cause(&event.data).unwrap_or_default(),
            },
            attempt: attempt.filter(|_| of > 1).map(|attempt| (attempt, of)),
            retry_in: tried_again.then(|| not_before.map_or(Millis(0), |at| at.since(event.at))),
        };
        Ok(Some(transition.line()))
    }

    /// An event as machines read it.
    pub(super) fn json(&self, event: &Event) -> Value {
        let (dag_id, number) = (&self.run.dag_id, self.run.number);
        let task = match event.change {
            Change::Task { task, .. } => Some(self.dag.tasks[task.index()].id.as_str()),
            _ => None,
        };
        let subject = match task {
            Some(task) => Subject::task(dag_id, number, task),
            None => Subject::run(dag_id, number),
        };
        let mut told = json!({
            "type": event.change.name(),
            "subject": subject,
            "position": event.position,
            "at": event.at,
            "dag_id": self.run.dag_id,
            "run_id": self.run.run_id,
            "run": self.run.label(),
            "status": event.change.status(),
            "version": event.version,
        });
        if let Some(task) = task {
            told["task_id"] = json!(task);
        }
        if let Some(actor) = &event.actor {
            told["actor"] = json!(actor);
        }
        if let Some((holder, fence)) = event.holder.as_ref().zip(event.fence) {
            told["holder"] = json!(holder);
            told["fence"] = json!(fence);
        }
        if !event.data.is_null() {
            told["data"] = event.data.clone();
        }
        told
    }
}

/// How long a task has run, or ran; or has waited for a person.
pub(super) fn elapsed(task: &TaskSummary, now: Timestamp) -> Option<Millis> {
    if task.status == TaskStatus::Waiting {
        return task.asked_at.map(|asked| now.since(asked));
    }
    let end = if task.status.is_terminal() { task.completed_at? } else { now };
    task.started_at
        .filter(|_| task.status.is_terminal() || task.status.is_live())
        .map(|started| end.since(started))
}

fn cause(data: &Value) -> Option<&str> {
    data.get("cause").and_then(Value::as_str)
}
