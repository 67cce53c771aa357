//! What a client writes down for itself: what it asked, when, and what it was answered. All that the checker believes.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

/// One request of one client.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) client: usize,
    /// Which life of the node it was sent to.
    pub(super) life: u64,
    /// From the beginning of the storm.
    pub(super) sent: Duration,
    /// When the answer was there, or it was clear that none would come.
    pub(super) ended: Duration,
    pub(super) ask: Ask,
    pub(super) answer: Answer,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    Publish {
        dag: String,
    },
    Confirm {
        dag: String,
    },
    /// Another run, under this idempotency key.
    Again {
        dag: String,
        key: String,
    },
    Cancel {
        run: String,
    },
    Approve {
        run: String,
        input: Value,
    },
    Claim {
        claim: String,
    },
    Heartbeat {
        execution: i64,
        fence: i64,
    },
    Complete {
        execution: i64,
        fence: i64,
        outputs: Value,
    },
    Fail {
        execution: i64,
        fence: i64,
    },
    Release {
        execution: i64,
        fence: i64,
    },
    Status {
        dag: String,
    },
}

/// What was answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// Done, and what it says of that.
    Acknowledged(Value),
    /// Not done.
    Refused { status: u16, code: String },
    /// The connection died, or the node said that it does not know.
    Unknown,
}

/// When and how something was killed.
#[derive(Debug, Clone)]
pub(super) struct Kill {
    /// Just before the signal; of one that was told to die at some point, when it was seen to have.
    pub(super) at: Duration,
    /// The life of the node that was under way.
    pub(super) life: u64,
    pub(super) node: bool,
    pub(super) runner: bool,
}

impl Ask {
    /// Does it change anything?
    pub(super) fn writes(&self) -> bool {
        !matches!(self, Ask::Status { .. })
    }

    /// The DAG of which it wants a run, and under which key.
    pub(super) fn wants_run(&self) -> Option<(&str, &str)> {
        match self {
            Ask::Confirm { dag } => Some((dag, "")),
            Ask::Again { dag, key } => Some((dag, key)),
            _ => None,
        }
    }

    /// The claimed attempt it speaks of.
    pub(super) fn attempt(&self) -> Option<(i64, i64)> {
        match self {
            Ask::Heartbeat { execution, fence }
            | Ask::Complete { execution, fence, .. }
            | Ask::Fail { execution, fence }
            | Ask::Release { execution, fence } => Some((*execution, *fence)),
            _ => None,
        }
    }
}

impl Entry {
    pub(super) fn told(&self) -> Option<&Value> {
        match &self.answer {
            Answer::Acknowledged(told) => Some(told),
            _ => None,
        }
    }

    pub(super) fn is_unanswered(&self) -> bool {
        self.answer == Answer::Unknown
    }

    /// The run that it was told of.
    pub(super) fn run(&self) -> Option<&str> {
        self.told()?["run_id"].as_str()
    }

    /// The status that was read.
    pub(super) fn status(&self) -> Option<&str> {
        self.told().filter(|_| matches!(self.ask, Ask::Status { .. }))?["status"].as_str()
    }

    /// Had it been sent and not been answered when this struck? Of a node that died: it never was.
    pub(super) fn was_cut_by(&self, kill: &Kill) -> bool {
        if !self.ask.writes() || self.sent > kill.at {
            return false;
        }
        match kill.node {
            true => self.answer == Answer::Unknown && self.life == kill.life,
            false => self.ended >= kill.at,
        }
    }

    /// The attempts that a claim was answered with.
    pub(super) fn claimed(&self) -> impl Iterator<Item = (i64, i64)> {
        let tasks = match (&self.ask, self.told()) {
            (Ask::Claim { .. }, Some(told)) => told["tasks"].as_array().map(Vec::as_slice),
            _ => None,
        };
        let pair = |task: &Value| Some((task["execution_id"].as_i64()?, task["fence"].as_i64()?));
        tasks.unwrap_or_default().iter().filter_map(pair).collect::<Vec<_>>().into_iter()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, ended) = (self.sent.as_secs_f64(), self.ended.as_secs_f64());
        write!(f, "{sent:.4} to {ended:.4}, client {}, life {}: {:?} → ", self.client, self.life, self.ask)?;
        match &self.answer {
            Answer::Acknowledged(told) => write!(f, "{told}"),
            Answer::Refused { status, code } => write!(f, "refused: {status} {code}"),
            Answer::Unknown => f.write_str("no answer"),
        }
    }
}
