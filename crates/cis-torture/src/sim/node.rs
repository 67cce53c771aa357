//! What workers and clients reach of a coordinator: as in the real node, what comes often is written to the store by whoever
//! asks, and the loop hears of it a little later; the rest is asked of the loop.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use cis_core::error::Refusal;
use cis_engine::command::{Command, Reply};
use cis_engine::coordinator::handle::News;
use cis_engine::coordinator::{Coordinator, Handle, Options, SELF};
use cis_store::sqlite::SqliteStore;

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

/// Something asked of the loop, by whom it may concern.
pub(super) struct Call<T> {
    pub(super) about: T,
    waiting: Pin<Box<dyn Future<Output = Reply>>>,
}

impl<T> Call<T> {
    pub(super) fn new(handle: Handle, command: Command, about: T) -> Self {
        Self { about, waiting: Box::pin(async move { handle.call(command, SELF).await }) }
    }

    pub(super) fn answer(&mut self) -> Option<Reply> {
        now(self.waiting.as_mut())
    }
}

/// News on their way to the loop. They go with it.
#[derive(Debug, Default)]
pub(super) struct Mail(VecDeque<News>);

impl Mail {
    pub(super) fn post(&mut self, news: News) {
        self.0.push_back(news);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn deliver(&mut self, handle: &Handle) {
        if let Some(news) = self.0.pop_front()
            && now(pin!(handle.wrote(news.clone()))).is_none()
        {
            // Its inbox is full.
            self.0.push_front(news);
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
