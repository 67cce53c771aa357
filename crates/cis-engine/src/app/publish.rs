//! Publishing a definition.

mod beside;

use std::collections::BTreeMap;
use std::sync::Arc;

use cis_api::Request;
use cis_api::calls::{PublishDag, SubmitTask};
use cis_api::dag::{Novelty, Published};
use cis_api::definition::DefinitionBody;
use cis_core::access::Caller;
use cis_core::dag::parse::{Defaults, Format, parse};
use cis_core::dag::{Dag, canonical};
use cis_core::error::{ErrorCode, Refusal};
use cis_store::PUBLIC_TEXT_FROM;
use cis_store::port::{Decide, Decided, Once, Publish, Published as Stored};
use serde_json::{Value, json};

use super::turns::{Share, Turn, Turns, closed};
use super::{Answer, App, Permit, Sender, broke_off, invalid};
use crate::coordinator::handle::News;
use crate::skill::{self, KeptLock, SkillPath};
use beside::{Beside, cut_out};

/// Definitions up to this size are parsed several at once.
const SMALL_DEFINITION: usize = 256 << 10;

/// A place is left for other identities. As many wait as an edge lets one identity have under way.
const SMALL: Share = Share { what: "definitions", at_once: 4, own_at_once: 3, own_queue_max: 256 };

/// One takes seconds of a core, and memory many times its size. Its text is in memory while it waits.
const LARGE: Share = Share { what: "large definitions", at_once: 1, own_at_once: 1, own_queue_max: 16 };

/// Who parses definitions. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Parsing {
    small: Turns,
    large: Turns,
}

impl Default for Parsing {
    fn default() -> Self {
        Self { small: Turns::new(SMALL), large: Turns::new(LARGE) }
    }
}

/// A definition that was checked.
pub(super) struct Checked {
    pub(super) dag: Arc<Dag>,
    pub(super) content_hash: String,
    pub(super) new_revision: bool,
    /// Its public text is worth keeping.
    is_large: bool,
    /// Its skills stay kept until it is published.
    kept: Option<KeptLock>,
    /// So many definitions are in memory at once, and no more.
    _turn: Option<Turn>,
}

impl Answer<PublishDag> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<PublishDag>,
    ) -> Result<Once<Published>, Refusal> {
        self.publish(sender, request.body).await
    }
}

impl Answer<SubmitTask> for App {
    /// A DAG of one task, behind the same confirmation.
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<SubmitTask>,
    ) -> Result<Once<Published>, Refusal> {
        let mut task = request.body.0;
        let mut dag = serde_json::Map::new();
        for key in ["dag_id", "scope", "priority", "params"] {
            // A task's own `params` are its input.
            if let Some(value) = task.remove(key) {
                dag.insert(key.to_owned(), value);
            }
        }
        if let Some(by) = task.remove("submitted_by") {
            let Some(by) = by.as_str() else { return Err(invalid("`submitted_by` is a name")) };
            dag.insert("description".to_owned(), format!("submitted by {by}").into());
        }
        let unnamed = || format!("task-{}", self.new_run_id()).into();
        dag.entry("dag_id").or_insert_with(unnamed);
        task.entry("id").or_insert_with(|| "task".into());
        if !["type", "kind", "command", "cmd", "skill"].iter().any(|key| task.contains_key(*key)) {
            task.insert("type".to_owned(), "external".into());
        }
        dag.insert("tasks".to_owned(), json!([task]));
        let text = Value::Object(dag).to_string().into_bytes();
        self.publish(sender, DefinitionBody::Text(text)).await
    }
}

impl App {
    async fn publish(&self, sender: &Sender, body: DefinitionBody) -> Result<Once<Published>, Refusal> {
        let checked = self.check_definition(sender, body).await?;
        let large = checked.is_large.then(|| checked.dag.clone());
        let Once { answer, replayed } = self.store_definition(sender, checked).await?;
        let stored = match answer {
            Ok(stored) => stored,
            Err(refusal) => return Ok(Once { answer: Err(refusal), replayed }),
        };
        if let Some(dag) = large.filter(|_| stored.created) {
            let (app, stored) = (self.clone(), stored.clone());
            // Its publisher need not wait for that; what a kill prevents, the next start makes up for.
            tokio::spawn(async move {
                let kept = app.keep_public_text(stored.definition, stored.content_hash, dag).await;
                if let Err(refusal) = kept {
                    tracing::debug!("the public text of a definition is not kept: {refusal}");
                }
            });
        }
        // The owner of the data directory confirms and starts for itself.
        let decided = match self.settings.auto_execute && sender.connection.is_none() {
            true => Some(self.execute(sender, &stored).await?),
            false => None,
        };
        Ok(Once { answer: Ok(published(&stored, decided.as_ref())), replayed })
    }

    /// Reads and checks a definition, and keeps its skills: processor work, and work on files.
    pub(super) async fn check_definition(
        &self,
        sender: &Sender,
        body: DefinitionBody,
    ) -> Result<Checked, Refusal> {
        let text = match body {
            DefinitionBody::Parsed { dag, content_hash, new_revision, .. } if sender.connection.is_some() => {
                let is_large = false;
                return Ok(Checked { dag, content_hash, new_revision, is_large, kept: None, _turn: None });
            }
            DefinitionBody::Parsed { .. } => {
                return Err(Refusal::new(
                    ErrorCode::Forbidden,
                    "only this process hands over what it parsed",
                ));
            }
            DefinitionBody::Text(text) => text,
        };
        let turns = if text.len() > SMALL_DEFINITION { &self.parsing.large } else { &self.parsing.small };
        let identity = &sender.caller.identity;
        let turn = match sender.connection {
            // The owner's connections are few, and its commands do not ask again.
            Some(_) => turns.take_unbounded(identity).await?,
            None => turns.take(identity).await?,
        };
        let (app, sender) = (self.clone(), sender.clone());
        // The turn goes with the work: a caller that goes away does not end it, and must not make room for the next.
        let checking = tokio::task::spawn_blocking(move || {
            let checked = app.check_text(&sender, text)?;
            Ok(Checked { _turn: Some(turn), ..checked })
        });
        checking.await.map_err(|_| closed())?
    }

    fn check_text(&self, sender: &Sender, mut text: Vec<u8>) -> Result<Checked, Refusal> {
        let Beside { revision, skills } = cut_out(&mut text, sender.connection.is_some());
        let skills: Option<BTreeMap<String, String>> = match skills {
            Some(skills) => {
                Some(serde_json::from_str(&skills).map_err(|e| invalid(format!("`skills`: {e}")))?)
            }
            None => None,
        };
        let Caller { scopes, .. } = &sender.caller;
        let scope = match scopes.as_deref() {
            Some([only]) => Some(only.clone()),
            _ => None,
        };
        let parsed = parse(&text, Format::Json, &Defaults { dag_id: None, scope })
            .map_err(|problems| invalid_definition(&json!(problems)))?;
        let mut dag = parsed.dag;
        if !sender.caller.sees(&dag.scope) {
            return Err(Refusal::new(ErrorCode::Forbidden, format!("your token is not for `{}`", dag.scope)));
        }
        let kept = match skills {
            Some(skills) => {
                // They are kept already; a copy that is not there is found when a task starts.
                dag.skills = skills;
                None
            }
            None => {
                let path = SkillPath::new(self.settings.skill_dirs.clone());
                let problems = skill::pin(&mut dag, &path);
                if !problems.is_empty() {
                    return Err(invalid_definition(&json!(problems)));
                }
                skill::keep(&dag, &path, &self.options.data_dir, self.options.durability)?
            }
        };
        let content_hash = canonical::content_hash(&dag).as_str().to_owned();
        let new_revision = revision.unwrap_or(false);
        let is_large = text.len() >= PUBLIC_TEXT_FROM;
        Ok(Checked { dag: Arc::new(dag), content_hash, new_revision, is_large, kept, _turn: None })
    }

    /// Publishes what was checked. Its skills stay kept until it is committed, though its caller goes away before that.
    pub(super) async fn store_definition(
        &self,
        sender: &Sender,
        checked: Checked,
    ) -> Result<Once<Stored>, Refusal> {
        let Checked { dag, content_hash, new_revision, kept, _turn, .. } = checked;
        let now = self.now();
        let request = Publish {
            key: sender.key.clone(),
            dag,
            content_hash,
            new_revision,
            by: sender.by(),
            by_proven: sender.is_proven,
            now,
            expires_at: Some(now.after(self.settings.pending_for)),
        };
        let quotas = self.quotas_of(sender);
        self.write(
            "publishing",
            move |store| async move {
                let published = store.within(quotas).publish(request).await;
                drop((kept, _turn));
                published
            },
            move |stored: &Stored| News {
                due: stored.waits.map(|waits| now.after(waits)),
                ..News::default()
            },
        )
        .await
    }

    /// Keeps the public text of a definition beside its stored form, so that reading it costs no parsing. One whose hash was
    /// made otherwise, by an earlier version, goes on being made when it is asked for.
    pub(crate) async fn keep_public_text(
        &self,
        definition: i64,
        content_hash: String,
        dag: Arc<Dag>,
    ) -> Result<(), Refusal> {
        let make = move || {
            let text = canonical::canonical_json(&dag);
            (canonical::hash_text(&text).as_str() == content_hash).then_some(text)
        };
        let text = tokio::task::spawn_blocking(make).await.map_err(|_| broke_off("publishing"))?;
        let Some(text) = text else { return Ok(()) };
        Ok(self.store.get()?.keep_public_text(definition, text, self.now()).await?)
    }

    /// Confirms what was published on behalf of its publisher. The same again answers the same run.
    async fn execute(&self, sender: &Sender, stored: &Stored) -> Result<Decided, Refusal> {
        let request = Decide {
            key: None,
            scope: stored.scope.clone(),
            dag_id: stored.dag_id.clone(),
            content_hash: Some(stored.content_hash.clone()),
            review: stored.review_id,
            confirm: true,
            note: None,
            by: sender.by(),
            self_confirm: true,
            run_id: self.new_run_id(),
            traceparent: sender.traceparent.clone(),
            now: self.now(),
        };
        self.store_decision(request, self.quotas_of(sender)).await?.answer
    }
}

fn invalid_definition(problems: &Value) -> Refusal {
    let count = problems.as_array().map_or(0, Vec::len);
    let problem = if count == 1 { "problem" } else { "problems" };
    invalid(format!("the definition has {count} {problem}")).details(problems.clone())
}

fn published(stored: &Stored, decided: Option<&Decided>) -> Published {
    let Stored { dag_id, scope, revision, content_hash, status, created, waits, review_id, .. } = stored;
    let (waits, review_id) = (waits.filter(|_| decided.is_none()), review_id.filter(|_| decided.is_none()));
    let run = decided.and_then(|decided| decided.run.as_ref());
    Published {
        status: if *created { Novelty::Created } else { Novelty::AlreadyExists },
        dag_id: dag_id.clone(),
        scope: scope.clone(),
        revision: *revision,
        revision_status: decided.map_or(*status, |decided| decided.status),
        content_hash: content_hash.clone(),
        confirm_url: format!("/api/v1/dag/{dag_id}/confirm"),
        review_id,
        expire_sec: waits.map(|waits| waits.0 / 1_000),
        auto_executed: run.is_some(),
        run_id: run.map(|run| run.run_id),
        run: run.map(|run| format!("{dag_id}#{}", run.number)),
    }
}
