//! What is kept in memory until it has changed, so that asking the same again costs no look at the store. The store's
//! pulse says when that is, before whoever changed it is answered: nobody is told less than what was acknowledged.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::HeaderValue;
use cis_api::token::TokenSummary;
use cis_core::error::Refusal;
use cis_core::id::Scope;
use cis_core::source::Timestamp;
use cis_store::Pulse;
use tokio::sync::{Mutex as AsyncMutex, watch};

use cis_engine::app::Reads;

/// Bodies of answers kept at once, in bytes; one that is larger than a few pages is not kept.
const BODIES_MAX: usize = 4 << 20;
const BODY_MAX: usize = 16 << 10;

/// Tokens kept at once, with what they allow. Of all others that are good only the hashes are kept.
const TOKENS_MAX: usize = 10_000;

/// Where a DAG stands, ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Stand {
    /// The pulse before it was read.
    pub(crate) beat: u64,
    pub(crate) version: i64,
    pub(crate) tag: HeaderValue,
    pub(crate) body: Bytes,
}

/// What was asked, and by somebody who sees what: for the same, the answer is the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) dag_id: String,
    pub(crate) scope: Option<Scope>,
    pub(crate) scopes: Option<Vec<Scope>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    pulse: Pulse,
    stands: Mutex<Stands>,
    tokens: Mutex<Tokens>,
    /// Held while the hashes are read, so that one request reads them for all that wait.
    reading_hashes: AsyncMutex<()>,
    tokens_changed: watch::Receiver<u64>,
}

#[derive(Debug, Default)]
struct Stands {
    by_view: HashMap<View, Stand>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Tokens {
    /// Since then none was made or taken back.
    since: u64,
    by_hash: HashMap<String, Arc<TokenSummary>>,
    /// The hashes of all that were good when they were read. What is not among them needs no look at the store, however
    /// many such tokens come.
    good: Option<Arc<HashSet<Box<str>>>>,
}

impl Kept {
    pub(crate) fn new(pulse: Pulse) -> Self {
        let (stands, tokens, reading_hashes) = (Mutex::default(), Mutex::default(), AsyncMutex::default());
        Self { stands, tokens, reading_hashes, tokens_changed: pulse.tokens(), pulse }
    }

    /// The pulse of what a view shows: taken before the store is read.
    pub(crate) fn beat(&self, view: &View) -> u64 {
        self.pulse.of_dag(&view.dag_id)
    }

    /// What a view showed, if it still does.
    pub(crate) fn stand(&self, view: &View) -> Option<Stand> {
        let beat = self.beat(view);
        lock(&self.stands).by_view.get(view).filter(|stand| stand.beat == beat).cloned()
    }

    /// Keeps what a view shows.
    pub(crate) fn keep_stand(&self, view: View, stand: Stand) {
        if stand.body.len() > BODY_MAX {
            return;
        }
        let mut stands = lock(&self.stands);
        if stands.bytes + stand.body.len() > BODIES_MAX {
            // Whatever is asked for often is soon back.
            *stands = Stands::default();
        }
        stands.bytes += stand.body.len();
        let before = stands.by_view.insert(view, stand);
        stands.bytes -= before.map_or(0, |before| before.body.len());
    }

    /// The token whose secret has this hash, if it was met since the last change to any.
    pub(crate) fn token(&self, hash: &str) -> Option<Arc<TokenSummary>> {
        let tokens = lock(&self.tokens);
        (tokens.since == *self.tokens_changed.borrow()).then(|| tokens.by_hash.get(hash).cloned()).flatten()
    }

    /// The token whose secret has this hash, if it is good at `now`. One that is not costs no look at the store once the
    /// hashes of those that are have been read: at the first request, and after each change to any.
    pub(crate) async fn good_token(
        &self,
        hash: &str,
        now: Timestamp,
        reads: &Reads,
    ) -> Result<Option<Arc<TokenSummary>>, Refusal> {
        let token = match self.token(hash) {
            Some(token) => Some(token),
            None if self.good_hashes(now, reads).await?.contains(hash) => {
                self.find_token(hash, reads).await?
            }
            None => None,
        };
        Ok(token.filter(|token| token.is_good(now)))
    }

    /// The hashes of all good tokens: as they stand now, or later.
    async fn good_hashes(&self, now: Timestamp, reads: &Reads) -> Result<Arc<HashSet<Box<str>>>, Refusal> {
        if let Some(known) = self.known_hashes() {
            return Ok(known);
        }
        let _turn = self.reading_hashes.lock().await;
        if let Some(known) = self.known_hashes() {
            return Ok(known);
        }
        let since = *self.tokens_changed.borrow();
        let good = Arc::new(reads.read(move |reader| Ok(reader.good_token_hashes(now)?)).await?);
        self.tokens_since(since).good = Some(good.clone());
        Ok(good)
    }

    fn known_hashes(&self) -> Option<Arc<HashSet<Box<str>>>> {
        let tokens = lock(&self.tokens);
        (tokens.since == *self.tokens_changed.borrow()).then(|| tokens.good.clone()).flatten()
    }

    /// What is kept of tokens, without what was read before `since`.
    fn tokens_since(&self, since: u64) -> MutexGuard<'_, Tokens> {
        let mut tokens = lock(&self.tokens);
        if tokens.since != since {
            *tokens = Tokens { since, ..Tokens::default() };
        }
        tokens
    }

    /// The token whose secret has this hash, from the store.
    pub(crate) async fn find_token(
        &self,
        hash: &str,
        reads: &Reads,
    ) -> Result<Option<Arc<TokenSummary>>, Refusal> {
        let since = *self.tokens_changed.borrow();
        let wanted = hash.to_owned();
        let found = reads.read(move |reader| Ok(reader.token(&wanted)?)).await?.map(Arc::new);
        if let Some(token) = &found {
            let mut tokens = self.tokens_since(since);
            if tokens.by_hash.len() >= TOKENS_MAX {
                tokens.by_hash.clear();
            }
            tokens.by_hash.insert(hash.to_owned(), token.clone());
        }
        Ok(found)
    }

    /// Changes with every token that is made or taken back.
    pub(crate) fn tokens_changed(&self) -> watch::Receiver<u64> {
        self.tokens_changed.clone()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
