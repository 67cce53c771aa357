//! What the writer and a round of telling meet by, as shuttle's scheduler has it.

// What the database calls back for is not a place for others to come in between.
pub(crate) use std::sync::atomic::AtomicI32;
pub(crate) use std::sync::{Arc, PoisonError, TryLockError};

pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
pub(crate) use shuttle::thread::{self, JoinHandle};
pub(crate) use tokio::sync::watch;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use shuttle::future::{JoinError, JoinHandle as Task, spawn};

/// A queue that is full at once, so that callers have to wait for a place in it.
const QUEUE_MAX: usize = 2;

pub(crate) mod mpsc {
    //! tokio's queue, with a chance for everybody else before each use of it.

    use shuttle::future::{block_on, yield_now};
    use shuttle::thread;
    use tokio::sync::mpsc;
    use tokio::sync::mpsc::error::{SendError, TryRecvError};

    #[derive(Debug)]
    pub(crate) struct Sender<T>(mpsc::Sender<T>);

    #[derive(Debug)]
    pub(crate) struct Receiver<T>(mpsc::Receiver<T>);

    pub(crate) fn channel<T>(_: usize) -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = mpsc::channel(super::QUEUE_MAX);
        (Sender(sender), Receiver(receiver))
    }

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    impl<T> Sender<T> {
        pub(crate) async fn send(&self, value: T) -> Result<(), SendError<T>> {
            yield_now().await;
            self.0.send(value).await
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn blocking_recv_many(&mut self, into: &mut Vec<T>, limit: usize) -> usize {
            thread::yield_now();
            block_on(self.0.recv_many(into, limit))
        }

        pub(crate) fn try_recv(&mut self) -> Result<T, TryRecvError> {
            thread::yield_now();
            self.0.try_recv()
        }
    }
}

pub(crate) mod oneshot {
    //! tokio's way to answer once, with a chance for everybody else before the answer.

    use shuttle::thread;
    use tokio::sync::oneshot;
    pub(crate) use tokio::sync::oneshot::Receiver;

    #[derive(Debug)]
    pub(crate) struct Sender<T>(oneshot::Sender<T>);

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Sender(sender), receiver)
    }

    impl<T> Sender<T> {
        pub(crate) fn send(self, value: T) -> Result<(), T> {
            thread::yield_now();
            self.0.send(value)
        }
    }
}

/// Tasks that run at once and end in any order; those left are broken off with it.
#[derive(Debug)]
pub(crate) struct JoinSet<T>(Vec<Task<T>>);

impl<T: Send + 'static> JoinSet<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.0.push(spawn(task));
    }

    pub(crate) async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        if self.0.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for index in 0..self.0.len() {
                if let Poll::Ready(ended) = Pin::new(&mut self.0[index]).poll(context) {
                    drop(self.0.swap_remove(index));
                    return Poll::Ready(Some(ended));
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.0.iter().for_each(Task::abort);
    }
}
