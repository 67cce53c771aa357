//! The loop that tells: one for each way, so that a slow one keeps no other waiting.

use std::sync::Arc;
use std::time::Duration;

use cis_core::error::Refusal;
use cis_core::notice::{self, Occasion};
use cis_core::source::{Random, Timestamp};
use cis_engine::app::App;
use cis_engine::coordinator::handle::next_look;
use cis_engine::system::System;
use cis_store::port::Tried;
use cis_store::{Notice, Reader};
use tokio::sync::watch;
use tokio::task::block_in_place;

use crate::message::Message;
use crate::round::{self, Outbox};
use crate::{Failed, Giver, command};

/// The outbox is looked at no more often than this, however much happens.
const TICK: Duration = Duration::from_millis(100);

/// Notices given at once by one way: a receiver that lets each wait must not hold up a storm of them for hours, and one
/// that is weak must not be stormed.
const AT_ONCE: u32 = 4;

/// Before the store is asked again after it failed, or though nothing is due yet: somebody may set the clock meanwhile, and a
/// timer does not count the time the machine is suspended.
const PAUSE: Duration = Duration::from_secs(5);

/// Tells whatever is in the outbox for `giver`, until `leaving` becomes true; what does not work is said by `warn`.
/// Needs a runtime with several threads.
pub async fn deliver(app: App, giver: Giver, mut leaving: watch::Receiver<bool>, warn: fn(&str)) {
    let giver = Arc::new(giver);
    tokio::select! {
        () = tell(&app, &giver, warn) => {}
        // What is under way is broken off, and told again by whoever comes next.
        _ = leaving.wait_for(|leaving| *leaving) => {}
    }
}

async fn tell(app: &App, giver: &Arc<Giver>, warn: fn(&str)) {
    let mut changes = app.changes();
    loop {
        let seen = *changes.borrow_and_update();
        match give_due(app, giver, warn).await {
            Ok(None) => {
                if !next_look(&mut changes, seen, TICK).await {
                    return;
                }
            }
            Ok(Some(due)) => {
                let wait = Duration::from_millis(due.since(app.now()).0).min(PAUSE);
                tokio::select! {
                    looks = next_look(&mut changes, seen, TICK) => if !looks { return },
                    () = tokio::time::sleep(wait) => {}
                }
            }
            Err(refusal) => {
                warn(&format!("notifications cannot be looked up: {refusal}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Gives everything that is due; answers when the next will be.
async fn give_due(app: &App, giver: &Arc<Giver>, warn: fn(&str)) -> Result<Option<Timestamp>, Refusal> {
    let mut outbox = WayOut { app, giver, reader: block_in_place(|| app.reader())?, warn };
    round::give_due(&mut outbox).await?;
    Ok(block_in_place(|| outbox.reader.next_notice(giver.way()))?)
}

/// The part of the store's outbox that goes one way.
struct WayOut<'n> {
    app: &'n App,
    giver: &'n Arc<Giver>,
    reader: Reader,
    warn: fn(&str),
}

impl Outbox for WayOut<'_> {
    type Notice = Notice;
    type Given = Result<(), Failed>;

    fn due(&mut self) -> Result<Vec<Notice>, Refusal> {
        let now = self.app.now();
        Ok(block_in_place(|| self.reader.due_notices(self.giver.way(), now, AT_ONCE))?)
    }

    fn give(&self, notice: Notice) -> impl Future<Output = (Notice, Result<(), Failed>)> + Send + 'static {
        give(self.giver.clone(), notice, self.app.now())
    }

    async fn settle(&mut self, notice: Notice, given: Result<(), Failed>) -> Result<(), Refusal> {
        let tried = settle(&notice, given, self.app.now(), self.warn);
        self.app.settle_notice(notice.event.position, notice.way, tried).await
    }
}

async fn give(giver: Arc<Giver>, notice: Notice, now: Timestamp) -> (Notice, Result<(), Failed>) {
    if notice.occasion == Occasion::Waiting && !notice.stands {
        // Somebody has seen to it: nobody is waited for any more.
        return (notice, Ok(()));
    }
    let message = Message::of(&notice);
    let given = match &*giver {
        Giver::Command(command) => command::run(command, &message).await,
        Giver::Webhook(webhook) => webhook.send(&message, now).await,
    };
    (notice, given)
}

/// What follows from how a try went.
fn settle(notice: &Notice, given: Result<(), Failed>, now: Timestamp, warn: fn(&str)) -> Tried {
    let again = notice::again(notice.tries + 1, System.bits());
    let (problem, again) = match given {
        Ok(()) => return Tried::Given,
        Err(Failed::ForNow(problem)) => (problem, again),
        Err(Failed::ForGood(problem)) => (problem, None),
    };
    let what = format!("{} {}", notice.event.subject, notice.occasion.word());
    let way = notice.way.word();
    match again {
        Some(wait) => {
            warn(&format!("`{what}` could not be told by {way}: {problem}; tried again in {wait}"));
            Tried::Again { at: now.after(wait), problem }
        }
        None => {
            warn(&format!("`{what}` was not told by {way}, which is given up: {problem}"));
            Tried::GivenUp { problem }
        }
    }
}
