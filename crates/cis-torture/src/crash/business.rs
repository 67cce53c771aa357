//! What clients want done: DAGs of a few kinds, each with a way of its own from being published to being over.

use std::path::Path;

use serde_json::{Value, json};

/// A DAG of one client on its way.
#[derive(Debug, Clone)]
pub(super) struct Business {
    pub(super) dag: String,
    pub(super) kind: Kind,
    pub(super) stage: Stage,
    /// Its run, once the client was told.
    pub(super) run: String,
    /// Do its requests carry an idempotency key each?
    keyed: bool,
    /// What the client knows of its version.
    pub(super) version: i64,
}

/// What it consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Tasks that leave a line when they begin and when they end: one that must not be repeated, one that may be, one
    /// that is tried again, one that comes after.
    Shell,
    /// Tasks that clients claim.
    External,
    /// A question that a client answers.
    Approval,
    /// A task that never ends, which a client cancels.
    Endless,
    /// Run once more when it is over.
    Twice,
}

/// What its client does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Publish,
    Confirm,
    /// Answer the question, or cancel.
    Intervene,
    Wait,
    RunAgain,
    WaitAgain,
    Over,
}

pub(super) const KINDS: [Kind; 5] = [Kind::Shell, Kind::External, Kind::Approval, Kind::Endless, Kind::Twice];

/// The tasks that nothing allows to run twice.
pub(super) const ONCE_ONLY: [&str; 3] = ["plain", "after", "endless"];

/// Tries that `retried` has.
pub(super) const TRIES: u32 = 3;

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Shell => "shell",
            Kind::External => "external",
            Kind::Approval => "approval",
            Kind::Endless => "endless",
            Kind::Twice => "twice",
        }
    }

    /// The same of a DAG, by its name.
    pub(super) fn of(dag: &str) -> Option<Kind> {
        KINDS.into_iter().find(|kind| dag.ends_with(kind.word()))
    }

    pub(super) fn is_done_when_over(self) -> bool {
        self != Kind::Twice
    }

    /// How its runs end, where nobody kills the runner.
    pub(super) fn ends(self) -> &'static [&'static str] {
        match self {
            Kind::Shell | Kind::Approval | Kind::Twice => &["completed"],
            // Claims that were given up may cost it all its tries.
            Kind::External => &["completed", "failed"],
            Kind::Endless => &["cancelled"],
        }
    }
}

impl Business {
    pub(super) fn new(client: usize, nth: usize, kind: Kind, keyed: bool) -> Self {
        let dag = format!("c{client}-{nth}-{}", kind.word());
        Self { dag, kind, stage: Stage::Publish, run: String::new(), keyed, version: 0 }
    }

    /// The client's own name for a request of this DAG.
    pub(super) fn key(&self, what: &str) -> Option<String> {
        self.keyed.then(|| format!("{what}-{}", self.dag))
    }

    /// Its definition; tasks write their lines to `ran`.
    pub(super) fn definition(&self, ran: &Path) -> Value {
        let line = |word: &str| {
            let ran = ran.display();
            format!("echo \"{word} $CIS_RUN_ID $CIS_TASK_ID $CIS_ATTEMPT\" >> '{ran}'")
        };
        let task = |id: &str, work: &str| {
            let command = format!("{}; {work} && {}", line("begin"), line("end"));
            json!({"id": id, "command": command, "grace": "50ms"})
        };
        let with = |mut task: Value, name: &str, value: Value| {
            task[name] = value;
            task
        };
        let tasks = match self.kind {
            Kind::Shell => vec![
                task("plain", "sleep 0.05"),
                with(task("repeatable", "sleep 0.03"), "idempotent", json!(true)),
                // It fails the first time, whatever else happens to it.
                with(
                    task("retried", "[ $CIS_ATTEMPT -ge 2 ]"),
                    "retry",
                    json!({"max": TRIES - 1, "initial": "1ms"}),
                ),
                with(
                    with(task("after", "true"), "depends_on", json!(["plain"])),
                    "run_if",
                    json!("all_done"),
                ),
            ],
            Kind::External => {
                vec![json!({"id": "first", "type": "external"}), json!({"id": "second", "type": "external"})]
            }
            Kind::Approval => vec![
                json!({"id": "ask", "type": "approval", "prompt": "May it?", "input": {"n": "integer"}}),
                with(task("plain", "true"), "depends_on", json!(["ask"])),
            ],
            Kind::Endless => vec![task("endless", "sleep 1000")],
            Kind::Twice => vec![task("plain", "true")],
        };
        json!({"dag_id": self.dag, "tasks": tasks})
    }
}
