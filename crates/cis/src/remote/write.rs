//! What a node is asked to do.

use std::time::Duration;

use cis_client::Method;
use cis_core::access::Preset;
use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, RunId, RunKey, Scope};
use cis_core::review::ReviewId;
use cis_core::run::RunStatus;
use cis_core::source::Millis;
use cis_engine::token::FreshToken;
use cis_store::port::{Approved, Decided, Published, RunRef};
use cis_store::sqlite::reader::RunLine;
use serde_json::{Map, Value, json};

use super::{Remote, escaped, took, with};
use crate::document;

impl Remote {
    /// Publishes a definition; answers also the run that a node starts by itself, if it is one that asks nobody.
    pub fn publish(&self, dag: &Dag, new_revision: bool) -> Result<(Published, Option<RunId>), Refusal> {
        let mut body = document::to_value(dag)?;
        if new_revision {
            body["revision"] = true.into();
        }
        let mut told = self.client.post("/api/v1/dag/publish", &body)?;
        let published = Published {
            created: told["status"] == "created",
            definition: 0,
            scope: took(told["scope"].take())?,
            dag_id: took(told["dag_id"].take())?,
            revision: took(told["revision"].take())?,
            status: took(told["revision_status"].take())?,
            content_hash: took(told["content_hash"].take())?,
            waits: None,
            review_id: took(told["review_id"].take())?,
        };
        Ok((published, took(told["run_id"].take())?))
    }

    /// Confirms or rejects exactly this content.
    pub fn decide(
        &self,
        dag_id: &DagId,
        scope: &Scope,
        content_hash: &str,
        confirm: bool,
        note: Option<&str>,
    ) -> Result<Decided, Refusal> {
        let what = if confirm { "confirm" } else { "reject" };
        let path = with(&format!("/api/v1/dag/{dag_id}/{what}"), &[("scope", scope.as_str())]);
        decided(self.client.post(&path, &json!({"content_hash": content_hash, "note": note}))?)
    }

    /// Confirms or rejects exactly the revision with this review id.
    pub fn decide_review(
        &self,
        review: ReviewId,
        confirm: bool,
        note: Option<&str>,
    ) -> Result<Decided, Refusal> {
        decided(self.client.post(&of_review(review, confirm), &json!({"note": note}))?)
    }

    /// Runs confirmed content again.
    pub fn start(
        &self,
        dag_id: &DagId,
        scope: &Scope,
        content_hash: &str,
        params: &Map<String, Value>,
        max_parallel: Option<u32>,
    ) -> Result<RunRef, Refusal> {
        let path = with(&format!("/api/v1/dag/{dag_id}/runs"), &[("scope", scope.as_str())]);
        let body = json!({"content_hash": content_hash, "params": params, "max_parallel": max_parallel});
        started(self.client.post(&path, &body)?)
    }

    /// Runs what a run did not complete, or a task of it and everything that depends on it.
    pub fn carry_on(
        &self,
        run: &RunLine,
        task: Option<&str>,
        max_parallel: Option<u32>,
    ) -> Result<RunRef, Refusal> {
        let mut body = json!({"max_parallel": max_parallel});
        let what = match task {
            Some(task) => {
                body["task"] = task.into();
                "retry"
            }
            None => "resume",
        };
        started(self.client.post(&of_run(run.run_id, what), &body)?)
    }

    pub fn stop(&self, run: RunId, kill: bool) -> Result<RunStatus, Refusal> {
        let mut told = self.client.post(&of_run(run, "cancel"), &json!({"kill": kill}))?;
        took(told["status"].take())
    }

    /// Approves or rejects a task; `asks` says whether it still waited to be.
    pub fn approve(
        &self,
        run: &RunRef,
        task: &str,
        approve: bool,
        body: &Value,
        asks: bool,
    ) -> Result<Approved, Refusal> {
        let what = if approve { "approve" } else { "reject" };
        let path = of_run(run.run_id, &format!("tasks/{}/{what}", escaped(task)));
        approved(self.client.post(&path, body)?, run.clone(), approve, asks)
    }

    /// The same for the task with this review id.
    pub fn approve_review(
        &self,
        review: ReviewId,
        run: RunRef,
        approve: bool,
        body: &Value,
        asks: bool,
    ) -> Result<Approved, Refusal> {
        approved(self.client.post(&of_review(review, approve), body)?, run, approve, asks)
    }

    pub fn pause(&self, run: RunId, paused: bool) -> Result<RunStatus, Refusal> {
        let what = if paused { "pause" } else { "unpause" };
        took(self.client.post(&of_run(run, what), &json!({}))?["status"].take())
    }

    /// Lets the node start nothing more, or start again; false if it was so already.
    pub fn drain(&self, draining: bool) -> Result<bool, Refusal> {
        let what = if draining { "drain" } else { "undrain" };
        took(self.client.post(&format!("/api/v1/node/{what}"), &json!({}))?["changed"].take())
    }

    pub fn create_token(
        &self,
        identity: &str,
        preset: Preset,
        scopes: Option<&[Scope]>,
        lasts: Option<Millis>,
    ) -> Result<FreshToken, Refusal> {
        let seconds = lasts.map(|lasts| lasts.0.div_ceil(1_000));
        let body = json!({"identity": identity, "as": preset, "scopes": scopes, "expires_sec": seconds});
        let mut told = self.client.post("/api/v1/tokens", &body)?;
        Ok(FreshToken { token_id: took(told["token_id"].take())?, secret: took(told["token"].take())? })
    }

    /// Takes a token back; false if there is nothing to take back.
    pub fn revoke_token(&self, token_id: &str) -> Result<bool, Refusal> {
        let path = format!("/api/v1/tokens/{}", escaped(token_id));
        match self.client.call(Method::DELETE, &path, None, Duration::ZERO) {
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok(false),
            told => told.map(|_| true),
        }
    }
}

fn of_review(review: ReviewId, approve: bool) -> String {
    format!("/api/v1/pending/{review}/{}", if approve { "approve" } else { "reject" })
}

/// The decision about a revision that an answer tells of.
fn decided(mut told: Value) -> Result<Decided, Refusal> {
    let decision = match told["decided_by"].is_string() {
        true => Some(took(told.clone())?),
        false => None,
    };
    let run = match told["run_id"].is_string() {
        true => Some(RunRef {
            key: RunKey(0),
            run_id: took(told["run_id"].take())?,
            dag_id: took(told["dag_id"].clone())?,
            scope: took(told["scope"].clone())?,
            number: took(told["number"].take())?,
            status: took(told["run_status"].take())?,
        }),
        false => None,
    };
    Ok(Decided {
        status: took(told["status"].take())?,
        changed: true,
        dag_id: took(told["dag_id"].take())?,
        scope: took(told["scope"].take())?,
        revision: took(told["revision"].take())?,
        content_hash: took(told["content_hash"].take())?,
        tasks: took(told["tasks_count"].take())?,
        decision,
        run,
        next_due: None,
    })
}

/// The decision about a task that an answer tells of.
fn approved(mut told: Value, run: RunRef, approved: bool, changed: bool) -> Result<Approved, Refusal> {
    Ok(Approved {
        approved,
        changed,
        run,
        task_id: took(told["task_id"].take())?,
        status: took(told["task_status"].take())?,
        by: took(told["decided_by"].take())?,
        at: took(told["decided_at"].take())?,
        note: took(told["note"].take())?,
        outputs: took(told["outputs"].take())?,
    })
}

fn of_run(run: RunId, what: &str) -> String {
    format!("/api/v1/runs/{run}/{what}")
}

/// The run that an answer tells of.
fn started(mut told: Value) -> Result<RunRef, Refusal> {
    Ok(RunRef {
        key: RunKey(0),
        run_id: took(told["run_id"].take())?,
        dag_id: took(told["dag_id"].take())?,
        scope: took(told["scope"].take())?,
        number: took(told["number"].take())?,
        status: took(told["status"].take())?,
    })
}
