//! A run as its events tell it: kept up to date from the store, shown as a view, as lines or as JSON.

use std::sync::Arc;

use cis_core::dag::Dag;
use cis_core::event::{Change, Event};
use cis_core::id::{Position, TaskIx};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::{TaskMove, TaskStatus};
use cis_engine::data_dir::DataDir;
use cis_store::sqlite::reader::{RunLine, TaskLine};
use serde::Deserialize;
use serde_json::{Value, json};

use super::view::View;
use super::{Failure, pending};
use crate::live::{FailedTask, RunView, RunningTask, SMALL_RUN, TaskLine as ViewLine, Totals, Transition};
use crate::remote::News;

/// Events read at once.
const CHUNK: u32 = 5_000;

/// Runs of up to so many tasks are told with how long each took.
const ROWS_READ_MAX: usize = 1_000;

/// Running tasks looked at for the view.
const RUNNING_SHOWN: u32 = 64;

/// A run being watched.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) view: View,
    pub(super) run: RunLine,
    pub(super) dag: Arc<Dag>,
    data_dir: DataDir,
    position: Position,
    /// Where events of a run elsewhere come in.
    news: Option<News>,
    statuses: Vec<TaskStatus>,
    totals: Totals,
    failures: Vec<FailedTask>,
}

impl Watch {
    /// Watches `run` from its beginning.
    pub(super) fn new(view: View, run: RunLine, dag: Arc<Dag>, data_dir: DataDir) -> Result<Self, Failure> {
        let news = match &view {
            View::Here(_) => None,
            View::Node(node) => Some(node.follow(&run, &dag)?),
        };
        let statuses: Vec<TaskStatus> = (0..run.total).map(|ix| run.first_status(&dag, TaskIx(ix))).collect();
        let mut totals = Totals::default();
        statuses.iter().for_each(|status| totals.add(*status));
        let (position, failures) = (Position(0), Vec::new());
        Ok(Self { view, run, dag, data_dir, position, news, statuses, totals, failures })
    }

    /// Is the run one of this data directory?
    pub(super) fn is_here(&self) -> bool {
        matches!(self.view, View::Here(_))
    }

    /// Has it ended, and has everything been told that led there?
    pub(super) fn is_over(&self) -> bool {
        self.run.status.is_terminal() && self.news.is_none()
    }

    /// Takes in what has happened since, handing each event to `tell`.
    pub(super) fn refresh(&mut self, mut tell: impl FnMut(&Self, &Event)) -> Result<(), Failure> {
        // The run's row is read first, so that a run seen as over has all its events read after it.
        let run = match &self.view {
            View::Here(reader) => reader.run(self.run.key)?,
            View::Node(_) => return self.hear(tell),
        };
        while let View::Here(reader) = &self.view {
            let (events, read_to) = reader.events(&self.run, self.position, CHUNK)?;
            for event in &events {
                self.take(event);
                tell(self, event);
            }
            if read_to <= self.position {
                break;
            }
            self.position = read_to;
        }
        if let Some(run) = run {
            self.run = run;
        }
        Ok(())
    }

    /// The same from a node: the end of a run is the last that is heard of it.
    fn hear(&mut self, mut tell: impl FnMut(&Self, &Event)) -> Result<(), Failure> {
        let events = self.news.as_ref().map(News::so_far).transpose()?.unwrap_or_default();
        for event in &events {
            self.take(event);
            tell(self, event);
            if matches!(event.change, Change::Run { to, .. } if to.is_terminal()) {
                self.news = None;
                self.run = self.view.run_now(&self.run)?.unwrap_or_else(|| self.run.clone());
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

    /// What the live view shows now.
    pub(super) fn view(&self, now: Timestamp) -> Result<RunView, Failure> {
        let mut live = self.view.live(&self.run, RUNNING_SHOWN)?;
        live.retain(|task| task.started_at.is_some());
        if self.totals.of(TaskStatus::Waiting) > 0 {
            // Whoever looks may be the person they wait for.
            let waiting = self.view.tasks(&self.run, &[TaskStatus::Waiting], RUNNING_SHOWN)?;
            live.splice(0..0, waiting);
        }
        let running = live
            .iter()
            .map(|task| RunningTask {
                title: self.title(task.ix).to_owned(),
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
        let tasks = self.view.tasks(&self.run, &[], u32::MAX)?;
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
                title: self.title(task.ix).to_owned(),
                state: if waits { TaskStatus::Ready } else { task.status },
                elapsed: elapsed(task, now),
                note,
            }
        });
        Ok(lines.collect())
    }

    /// The last line of its output; what it asks, if it waits for a person.
    fn last_line(&self, task: &TaskLine) -> String {
        if task.status == TaskStatus::Waiting {
            return pending::question(task.review_id, &self.dag.tasks[task.ix.index()]);
        }
        cis_runner::log::last_line(&self.log(task)).unwrap_or_default()
    }

    /// Where the output of a task's latest attempt is.
    pub(super) fn log(&self, task: &TaskLine) -> std::path::PathBuf {
        self.data_dir.log(self.run.key.0, task.execution_id.0, task.attempt)
    }

    fn title(&self, ix: TaskIx) -> &str {
        self.dag.tasks[ix.index()].title()
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
        let row = if quick { None } else { self.view.task(&self.run, &self.dag, task)? };
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
        let mut told = json!({
            "type": event.change.name(),
            "position": event.position,
            "at": event.at,
            "dag_id": self.run.dag_id,
            "run_id": self.run.run_id,
            "run": self.run.label(),
            "status": event.change.status(),
            "version": event.version,
        });
        if let Change::Task { task, .. } = event.change {
            told["task_id"] = json!(self.dag.tasks[task.index()].id);
        }
        if !event.data.is_null() {
            told["data"] = event.data.clone();
        }
        told
    }
}

/// How long a task has run, or ran; or has waited for a person.
pub(super) fn elapsed(task: &TaskLine, now: Timestamp) -> Option<Millis> {
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
