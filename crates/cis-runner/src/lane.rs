//! Which of the queued attempts is next: the first one whose lane has room. Attempts without a lane, nearly all of them,
//! cost nothing here: what is taken of which lane is counted only where a lane is in the way.

use std::collections::HashMap;

use crate::protocol::Start;
use crate::runner::{Queued, Runner};

/// How many places of each lane are taken.
#[derive(Debug)]
struct Taken(HashMap<i64, u32>);

impl Taken {
    fn of<'a>(started: impl Iterator<Item = &'a Start>) -> Taken {
        let mut taken = Taken(HashMap::new());
        started.for_each(|start| taken.add(start));
        taken
    }

    fn has_room(&self, start: &Start) -> bool {
        start.lane.is_none_or(|lane| self.0.get(&lane.id).is_none_or(|count| *count < lane.max.max(1)))
    }

    fn add(&mut self, start: &Start) {
        if let Some(lane) = start.lane {
            *self.0.entry(lane.id).or_default() += 1;
        }
    }

    /// Takes a place, if there is one.
    fn admit(&mut self, start: &Start) -> bool {
        let admitted = self.has_room(start);
        if admitted {
            self.add(start);
        }
        admitted
    }
}

impl Runner {
    /// Takes up to `count` attempts from the queue, in its order; those whose lane is full stay where they are.
    pub(crate) fn take_startable(&mut self, count: usize) -> Vec<Queued> {
        if self.queue.iter().take(count).all(|queued| queued.start.lane.is_none()) {
            return self.queue.drain(..count.min(self.queue.len())).collect();
        }
        let mut taken = self.taken_places(&[]);
        let admitted = self.queue.iter().enumerate().filter(|(_, queued)| taken.admit(&queued.start));
        let places: Vec<usize> = admitted.map(|(place, _)| place).take(count).collect();
        let mut batch: Vec<Queued> =
            places.into_iter().rev().filter_map(|place| self.queue.remove(place)).collect();
        batch.reverse();
        batch
    }

    /// Could any queued attempt be started, given a slot, beside what runs and `batch`?
    pub(crate) fn has_startable(&self, batch: &[Queued]) -> bool {
        match self.queue.front() {
            None => false,
            Some(first) if first.start.lane.is_none() => true,
            Some(_) => {
                let taken = self.taken_places(batch);
                self.queue.iter().any(|queued| taken.has_room(&queued.start))
            }
        }
    }

    fn taken_places(&self, batch: &[Queued]) -> Taken {
        let running = self.attempts.values().map(|attempt| &*attempt.start);
        Taken::of(running.chain(batch.iter().map(|queued| &*queued.start)))
    }
}
