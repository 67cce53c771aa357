//! Where claimers from outside wait for something to do. Whatever is committed is looked at once for all of them, and
//! only those there is something for are woken: five thousand who wait cost a commit no more than one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cis_core::id::Scope;
use cis_store::{Offer, Reader};
use tokio::sync::{Notify, oneshot, watch};

use crate::coordinator::Changes;

/// Between two looks, so that a storm of commits is not a storm of looks.
const PAUSE: Duration = Duration::from_millis(1);

/// What a claimer can take.
#[derive(Debug, Clone)]
pub(crate) struct Able {
    pub(crate) scopes: Option<Vec<Scope>>,
    pub(crate) capabilities: Vec<String>,
}

impl Able {
    fn takes(&self, offer: &Offer) -> bool {
        let in_scope = self.scopes.as_ref().is_none_or(|scopes| scopes.contains(&offer.scope));
        in_scope && offer.needs.iter().all(|need| self.capabilities.contains(need))
    }
}

/// The desk. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Desk {
    waiting: Arc<Mutex<VecDeque<Waiting>>>,
    bell: Arc<Notify>,
}

#[derive(Debug)]
struct Waiting {
    able: Able,
    wake: oneshot::Sender<()>,
}

impl Desk {
    /// Waits until there may be something for `able`. It may be gone by the time it is asked for.
    pub(crate) async fn wait(&self, able: Able) {
        let (wake, woken) = oneshot::channel();
        self.lock().push_back(Waiting { able, wake });
        // Something may have come between the last look and now.
        self.bell.notify_one();
        let _ = woken.await;
    }

    /// Wakes those who wait, for as long as the coordinator lives.
    pub(crate) async fn attend(self, mut changes: watch::Receiver<Changes>, reader: Reader) {
        let mut reader = Some(reader);
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = self.bell.notified() => {}
            }
            let waiting = self.count();
            if waiting == 0 {
                continue;
            }
            let Some(mine) = reader.take() else { return };
            let looked = tokio::task::spawn_blocking(move || (mine.offers(waiting), mine)).await;
            let Ok((offers, mine)) = looked else { return };
            reader = Some(mine);
            // What cannot be read now is looked for with the next change.
            self.wake(offers.unwrap_or_default());
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Wakes, for every task on offer, the first who waits for such a one.
    fn wake(&self, offers: Vec<Offer>) {
        let mut waiting = self.lock();
        for offer in offers {
            for _ in 0..offer.tasks {
                let Some(first) = waiting.iter().position(|one| one.able.takes(&offer)) else { break };
                if let Some(one) = waiting.remove(first) {
                    let _ = one.wake.send(());
                }
            }
        }
    }

    /// How many wait; those who gave up are forgotten.
    fn count(&self) -> u32 {
        let mut waiting = self.lock();
        waiting.retain(|one| !one.wake.is_closed());
        u32::try_from(waiting.len()).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
