//! Where those who follow along wait. Whatever is committed is looked at once for all of them, and only those it is about
//! hear of it: five thousand who wait for something else cost a commit next to nothing.
//!
//! ```text
//!   store's pulse ─► hub ─┬─► whoever waits for a DAG to change
//!                         └─► followers: one look at the log, an event to each it is about
//! ```
//!
//! Only the latest events are held, and once for all: what waits for a follower says where an event is, not what it says.
//! A follower that comes for it too late goes on from the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::Bytes;
use cis_api::event::Event;
use cis_core::error::Refusal;
use cis_core::event::EventName;
use cis_core::id::{DagId, Position, RunId, Scope};
use cis_store::{Pulse, Reader};
use tokio::sync::{Notify, mpsc, oneshot};

use cis_engine::app::Reads;

/// Between two looks, so that a storm of commits is not a storm of looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Events read at once.
const BATCH: u32 = 256;

/// Events that may wait for a slow follower before it is left behind; then it reads on by itself. Each takes a few bytes.
const AHEAD: usize = 2 * BATCH as usize;

/// The latest events are held until they are as long as this together: more than a batch of long ones.
const RECENT_BYTES: usize = 8 << 20;

/// An event as followers are told of it, and what they choose it by.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) position: Position,
    pub(crate) name: EventName,
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    pub(crate) run_id: Option<RunId>,
    /// As an event of a stream, whole.
    pub(crate) text: Bytes,
}

impl News {
    pub(crate) fn of(line: Event) -> Self {
        let (id, name, data) = (line.position, line.name.cloud_event_type(), line.cloud_event());
        // JSON has no line ends but those between values, and those are not written.
        let text = format!("id: {id}\nevent: {name}\ndata: {data}\n\n");
        let Event { position, name, dag_id, scope, run_id, .. } = line;
        Self { position, name, dag_id, scope, run_id, text: text.into_bytes().into_boxed_slice().into() }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    pulse: Pulse,
    waiting: Mutex<Vec<Waiting>>,
    followers: Mutex<Followers>,
    bell: Notify,
}

/// Somebody who waits for a DAG's pulse to be another.
#[derive(Debug)]
struct Waiting {
    dag_id: String,
    beat: u64,
    wake: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Followers {
    /// Up to where the log has been told.
    told: Position,
    next_key: u64,
    /// By the DAG they follow; those who follow all of them under none.
    by_dag: HashMap<Option<String>, HashMap<u64, mpsc::Sender<Weak<News>>>>,
    recent: Recent,
}

/// The events told last.
#[derive(Debug, Default)]
struct Recent {
    news: VecDeque<Arc<News>>,
    bytes: usize,
}

impl Recent {
    fn push(&mut self, news: Arc<News>) {
        self.bytes += news.text.len();
        self.news.push_back(news);
        // The newest stays, however long it is: somebody may be about to take it.
        while self.bytes > RECENT_BYTES
            && self.news.len() > 1
            && let Some(oldest) = self.news.pop_front()
        {
            self.bytes -= oldest.text.len();
        }
    }
}

/// A follower's place, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Following {
    hub: Arc<Hub>,
    dag_id: Option<String>,
    key: u64,
    /// Everything after this is told.
    pub(crate) from: Position,
    /// Ends when the follower has fallen behind.
    pub(crate) news: mpsc::Receiver<Weak<News>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followers = lock(&self.hub.followers);
        if let Some(of_dag) = followers.by_dag.get_mut(&self.dag_id) {
            of_dag.remove(&self.key);
            if of_dag.is_empty() {
                followers.by_dag.remove(&self.dag_id);
            }
        }
        if followers.by_dag.is_empty() {
            followers.recent = Recent::default();
        }
    }
}

impl Hub {
    pub(crate) fn new(pulse: Pulse) -> Self {
        let followers =
            Followers { told: Position(0), next_key: 0, by_dag: HashMap::new(), recent: Recent::default() };
        Self { pulse, waiting: Mutex::default(), followers: Mutex::new(followers), bell: Notify::new() }
    }

    /// Waits until the pulse of a DAG is another than `beat`.
    pub(crate) async fn changed(&self, dag_id: &str, beat: u64) {
        let (wake, woken) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if waiting.len() == waiting.capacity() {
                // Those who gave up: nobody else may come by for hours.
                waiting.retain(|one| !one.wake.is_closed());
            }
            waiting.push(Waiting { dag_id: dag_id.to_owned(), beat, wake });
        }
        // What came between the caller's look and now wakes nobody.
        if self.pulse.of_dag(dag_id) == beat {
            let _ = woken.await;
        }
    }

    /// Follows one DAG, or all, for `identity`.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        dag_id: Option<String>,
        reads: &Reads,
        identity: &str,
    ) -> Result<Following, Refusal> {
        let last = reads.read_for(identity, |reader| Ok(reader.last_position()?)).await?;
        let (to, news) = mpsc::channel(AHEAD);
        let mut followers = lock(&self.followers);
        if followers.by_dag.is_empty() {
            // Nobody was there to be told what came before. It may have been told beyond that, to somebody who has gone.
            followers.told = followers.told.max(last);
        }
        let (key, from) = (followers.next_key, followers.told);
        followers.next_key += 1;
        followers.by_dag.entry(dag_id.clone()).or_default().insert(key, to);
        // Something may have come since the last look, while nobody followed.
        self.bell.notify_one();
        Ok(Following { hub: self.clone(), dag_id, key, from, news })
    }

    /// Tells everybody what they wait for.
    pub(crate) async fn attend(&self, reads: &Reads) {
        let mut beats = self.pulse.beats();
        loop {
            tokio::select! {
                changed = beats.changed() => if changed.is_err() { return },
                () = self.bell.notified() => {}
            }
            self.wake();
            self.tell(reads).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn wake(&self) {
        let mut waiting = lock(&self.waiting);
        let woken =
            waiting.extract_if(.., |one| one.wake.is_closed() || self.pulse.of_dag(&one.dag_id) != one.beat);
        for one in woken {
            let _ = one.wake.send(());
        }
    }

    async fn tell(&self, reads: &Reads) {
        loop {
            let from = {
                let followers = lock(&self.followers);
                if followers.by_dag.is_empty() {
                    return;
                }
                followers.told
            };
            // The floor is asked for last: it only rises, so what was read above it is all there was.
            let look = move |reader: &Reader| Ok((reader.log(from, BATCH)?, reader.log_floor()?));
            let Ok((lines, floor)) = reads.read(look).await else {
                // What cannot be read now is read soon.
                self.bell.notify_one();
                return;
            };
            if floor > from {
                // Something went before it could be told. Whoever follows goes on from the store, and finds out.
                let mut followers = lock(&self.followers);
                followers.by_dag.clear();
                followers.recent = Recent::default();
                return;
            }
            let more = lines.len() == BATCH as usize;
            lock(&self.followers).tell(lines);
            if !more {
                return;
            }
        }
    }
}

impl Followers {
    fn tell(&mut self, lines: Vec<Event>) {
        for line in lines {
            // They may all have gone and others come, who are further.
            if line.position <= self.told {
                continue;
            }
            self.told = line.position;
            let about = Some(line.dag_id.to_string());
            if !self.by_dag.contains_key(&about) && !self.by_dag.contains_key(&None) {
                continue;
            }
            let news = Arc::new(News::of(line));
            for of_dag in [&about, &None] {
                if let Some(followers) = self.by_dag.get_mut(of_dag) {
                    // One that does not keep up is let go; it goes on from the store.
                    followers.retain(|_, to| to.try_send(Arc::downgrade(&news)).is_ok());
                }
            }
            self.recent.push(news);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(position: i64, text: &str) -> Event {
        serde_json::from_value(serde_json::json!({
            "position": position, "at": "2026-01-01T00:00:00.000Z", "dag_id": "d", "scope": "default", "type": "task.failed",
            "subject": {"kind": "task", "key": "d#1/t"}, "step": "fail", "status": "failed", "version": 1,
            "data": {"cause": text}
        }))
        .unwrap()
    }

    /// However many events wait for followers that do not come for them, the hub holds the latest few megabytes.
    #[test]
    fn events_that_nobody_takes_are_let_go() {
        let (to, mut news) = mpsc::channel(AHEAD);
        let by_dag = HashMap::from([(None, HashMap::from([(0, to)]))]);
        let mut followers = Followers { told: Position(0), next_key: 1, by_dag, recent: Recent::default() };
        let cause = "e".repeat(32 << 10);
        for position in 1..=500 {
            followers.tell(vec![event(position, &cause)]);
        }
        let (mut held, mut gone) = (0, 0);
        while let Ok(one) = news.try_recv() {
            match one.upgrade() {
                Some(one) => held += one.text.len(),
                None => gone += 1,
            }
        }
        assert!((RECENT_BYTES / 2..=RECENT_BYTES).contains(&held), "{held}");
        assert!(gone > 0, "{gone}");
        assert_eq!(followers.recent.bytes, held);
        // One that is longer than all of it is there for whoever is quick.
        followers.tell(vec![event(501, &"e".repeat(2 * RECENT_BYTES))]);
        assert!(news.try_recv().unwrap().upgrade().is_some() && followers.recent.news.len() == 1);
    }

    #[test]
    fn an_event_is_told_as_a_stream_tells_it() {
        let news = News::of(event(7, "line\nand another"));
        let text = std::str::from_utf8(&news.text).unwrap();
        let data =
            text.strip_prefix("id: 7\nevent: cis.task.failed\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["data"]["data"]["cause"], "line\nand another");
    }
}
