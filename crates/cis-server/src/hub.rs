//! Where those who follow along wait. Whatever is committed is looked at once for all of them, and only those it is about
//! hear of it: five thousand who wait for something else cost a commit next to nothing.
//!
//! ```text
//!   store's pulse ─► hub ─┬─► whoever waits for a DAG to change
//!                         └─► followers: one look at the log, an event to each it is about
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::response::sse;
use cis_api::event::Event;
use cis_core::error::Refusal;
use cis_core::id::Position;
use cis_store::{Pulse, Reader};
use tokio::sync::{Notify, mpsc, oneshot};

use cis_engine::app::Reads;

/// Between two looks, so that a storm of commits is not a storm of looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Events read at once.
pub(crate) const BATCH: u32 = 256;

/// Events that may wait for a slow follower before it is left behind; then it reads on by itself.
const AHEAD: usize = 2 * BATCH as usize;

/// An event, and how followers are told of it.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) line: Event,
    pub(crate) event: sse::Event,
}

impl News {
    pub(crate) fn of(line: Event) -> Self {
        let event = sse::Event::default()
            .id(line.position.to_string())
            .event(line.name.cloud_event_type())
            .data(line.cloud_event().to_string());
        Self { line, event }
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
    by_dag: HashMap<Option<String>, HashMap<u64, mpsc::Sender<Arc<News>>>>,
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
    pub(crate) news: mpsc::Receiver<Arc<News>>,
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
    }
}

impl Hub {
    pub(crate) fn new(pulse: Pulse) -> Self {
        let followers = Followers { told: Position(0), next_key: 0, by_dag: HashMap::new() };
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
                lock(&self.followers).by_dag.clear();
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
                    followers.retain(|_, to| to.try_send(news.clone()).is_ok());
                }
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
