//! What is on offer, arranged so that a claimer finds what it can take without going through all of it.
//!
//! Each offer stands under one of its needs: the one that the fewest offers share. A claimer looks under each of its
//! capabilities, and where nothing is needed. Claimers with the same abilities search together: where one of them found
//! nothing, the others need not look, since offers only ever go while a round lasts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use cis_core::id::Scope;
use cis_store::Offer;

use super::Able;

/// What came of looking for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It may be taken.
    Offer(usize),
    Nothing,
    /// To be asked again.
    OutOfSteps,
}

/// The offers of a round.
#[derive(Debug)]
pub(super) struct Board {
    offers: Vec<Numbered>,
    needs: HashMap<String, usize>,
    scopes: HashMap<Scope, usize>,
    /// Offers by the need under which they stand.
    by_need: Vec<Vec<usize>>,
    /// Those that need nothing.
    plain: Vec<usize>,
    /// By where their abilities are in memory; they keep those there.
    searches: HashMap<usize, Search>,
    /// What the claimer that searches can do. All false when none does.
    can: Vec<bool>,
}

/// An offer, with numbers for names.
#[derive(Debug)]
struct Numbered {
    scope: usize,
    needs: Box<[usize]>,
    tasks: u32,
}

/// How far claimers with the same abilities have come.
#[derive(Debug)]
struct Search {
    _able: Arc<Able>,
    /// In order; nothing if all of them.
    scopes: Option<Box<[usize]>>,
    /// Of those that an offer needs.
    capabilities: Box<[usize]>,
    /// The list that is looked through, and where in it: first `plain`, then one for each capability.
    list: usize,
    at: usize,
}

impl Board {
    /// Offers that need more than `most` capabilities are for none of those who wait.
    pub(super) fn new(offers: Vec<Offer>, most: usize) -> Self {
        let (mut needs, mut scopes) = (HashMap::new(), HashMap::new());
        let mut shared_by = Vec::new();
        let mut numbered = Vec::new();
        for offer in offers.into_iter().filter(|offer| offer.tasks > 0 && offer.needs.len() <= most) {
            let count = scopes.len();
            let scope = *scopes.entry(offer.scope).or_insert(count);
            let mut numbers = Vec::with_capacity(offer.needs.len());
            for need in offer.needs {
                let count = needs.len();
                let number = *needs.entry(need).or_insert(count);
                shared_by.resize(needs.len(), 0_usize);
                shared_by[number] += 1;
                numbers.push(number);
            }
            numbered.push(Numbered { scope, needs: numbers.into_boxed_slice(), tasks: offer.tasks });
        }
        let (mut by_need, mut plain) = (vec![Vec::new(); needs.len()], Vec::new());
        for (number, offer) in numbered.iter().enumerate() {
            match offer.needs.iter().min_by_key(|need| shared_by[**need]) {
                Some(rarest) => by_need[*rarest].push(number),
                None => plain.push(number),
            }
        }
        let (can, searches) = (vec![false; needs.len()], HashMap::new());
        Self { offers: numbered, needs, scopes, by_need, plain, searches, can }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// One task of an offer is spoken for.
    pub(super) fn take(&mut self, offer: usize) {
        self.offers[offer].tasks -= 1;
    }

    /// The next offer with a task left that `able` can take. Each look costs a step.
    pub(super) fn find(&mut self, able: &Arc<Able>, steps: &mut usize) -> Found {
        let search = match self.searches.entry(Arc::as_ptr(able).addr()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if *steps == 0 => return Found::OutOfSteps,
            Entry::Vacant(new) => {
                let scopes = able.scopes.as_ref().map(|scopes| {
                    let mut numbers: Box<[usize]> =
                        scopes.iter().filter_map(|scope| self.scopes.get(scope)).copied().collect();
                    numbers.sort_unstable();
                    numbers
                });
                let numbers = able.capabilities.iter().filter_map(|name| self.needs.get(name));
                let capabilities = numbers.copied().collect();
                // However few steps are left: each part of a round comes further.
                let cost = able.capabilities.len() + able.scopes.as_ref().map_or(0, |scopes| scopes.len());
                *steps = steps.saturating_sub(cost);
                new.insert(Search { _able: able.clone(), scopes, capabilities, list: 0, at: 0 })
            }
        };
        if search.is_over() {
            return Found::Nothing;
        }
        for can in &search.capabilities {
            self.can[*can] = true;
        }
        let found = search.next(&self.offers, &self.plain, &self.by_need, &self.can, steps);
        for can in &search.capabilities {
            self.can[*can] = false;
        }
        found
    }
}

impl Search {
    fn is_over(&self) -> bool {
        self.list > self.capabilities.len()
    }

    fn next(
        &mut self,
        offers: &[Numbered],
        plain: &[usize],
        by_need: &[Vec<usize>],
        can: &[bool],
        steps: &mut usize,
    ) -> Found {
        while !self.is_over() {
            let list = match self.list.checked_sub(1) {
                Some(capability) => by_need[self.capabilities[capability]].as_slice(),
                None => plain,
            };
            while let Some(&number) = list.get(self.at) {
                let Some(left) = steps.checked_sub(1) else { return Found::OutOfSteps };
                *steps = left;
                let offer = &offers[number];
                let in_scope =
                    self.scopes.as_ref().is_none_or(|scopes| scopes.binary_search(&offer.scope).is_ok());
                if offer.tasks > 0 && in_scope && offer.needs.iter().all(|need| can[*need]) {
                    // It may have more tasks than this one.
                    return Found::Offer(number);
                }
                self.at += 1;
            }
            (self.list, self.at) = (self.list + 1, 0);
        }
        Found::Nothing
    }
}
