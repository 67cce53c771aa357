//! What workers and clients reach of a coordinator: as in the real one, what a caller asks for is written to the store on the
//! caller's behalf, and the loop hears of it a little later.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use cis_core::error::Refusal;
use cis_core::id::RunKey;
use cis_engine::coordinator::handle::News;
use cis_engine::coordinator::{Coordinator, Handle, Options, SELF};
use cis_store::SqliteStore;

use super::machine::MadeUp;
use super::paced::Paced;

/// The life of a coordinator: the real one, on a machine that is made up.
pub(super) struct Life {
    living: Pin<Box<dyn Future<Output = Result<(), Refusal>>>>,
    handle: Rc<RefCell<Option<Handle>>>,
}

impl Life {
    pub(super) fn begin(store: SqliteStore, options: Options, machine: MadeUp) -> Self {
        let handle: Rc<RefCell<Option<Handle>>> = Rc::default();
        let door = handle.clone();
        let living = Box::pin(async move {
            let store = Paced { store, machine: machine.clone() };
            let (coordinator, handle) = Coordinator::start(store, options, machine).await?;
            door.replace(Some(handle));
            coordinator.run().await.map(drop)
        });
        Self { living, handle }
    }

    /// Lets it go on until it has to wait; answers how it ended, if it has.
    pub(super) fn go_on(&mut self) -> Option<Result<(), Refusal>> {
        now(self.living.as_mut())
    }

    /// How to reach it, once it has begun to serve.
    pub(super) fn handle(&self) -> Option<Handle> {
        self.handle.borrow().clone()
    }
}

/// A coordinator that is asked to hand over, and goes on until it has answered.
pub(super) struct HandingOver(Pin<Box<dyn Future<Output = Result<usize, Refusal>>>>);

impl HandingOver {
    pub(super) fn ask(handle: Handle) -> Self {
        Self(Box::pin(async move { handle.hand_over().await }))
    }

    pub(super) fn answer(&mut self) -> Option<Result<usize, Refusal>> {
        now(self.0.as_mut())
    }
}

/// News on their way to the loop. They go with it.
#[derive(Debug, Default)]
pub(super) struct Mail(VecDeque<Letter>);

/// One of them.
#[derive(Debug)]
enum Letter {
    News(News),
    /// The coordinator's own process owns a run from now on.
    Attach(RunKey),
}

impl Mail {
    pub(super) fn post(&mut self, news: News) {
        self.0.push_back(Letter::News(news));
    }

    pub(super) fn post_attach(&mut self, run: RunKey) {
        self.0.push_back(Letter::Attach(run));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn deliver(&mut self, handle: &Handle) {
        match self.0.pop_front() {
            // Its inbox is full.
            Some(Letter::News(news)) if now(pin!(handle.wrote(news.clone()))).is_none() => {
                self.0.push_front(Letter::News(news));
            }
            // Sent at once; the answer says nothing.
            Some(Letter::Attach(run)) => drop(now(pin!(handle.attach(run, SELF)))),
            Some(Letter::News(_)) | None => {}
        }
    }

    pub(super) fn is_lost(&mut self) {
        self.0.clear();
    }
}

/// What a future answers at once, if it does.
pub(super) fn now<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}
