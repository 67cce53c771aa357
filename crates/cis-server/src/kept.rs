//! What is kept in memory until it has changed, so that asking the same again costs no look at the store. The store's
//! pulse says when that is, before whoever changed it is answered: nobody is told less than what was acknowledged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::HeaderValue;
use cis_core::error::Refusal;
use cis_core::id::Scope;
use cis_store::sqlite::{Pulse, TokenLine};
use tokio::sync::watch;

use crate::reads::Reads;

/// Bodies of answers kept at once, in bytes; one that is larger than a few pages is not kept.
const BODIES_MAX: usize = 4 << 20;
const BODY_MAX: usize = 16 << 10;

/// Tokens kept at once.
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
    by_hash: HashMap<String, Arc<TokenLine>>,
}

impl Kept {
    pub(crate) fn new(pulse: Pulse) -> Self {
        let (stands, tokens) = (Mutex::default(), Mutex::default());
        Self { stands, tokens, tokens_changed: pulse.tokens(), pulse }
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
    pub(crate) fn token(&self, hash: &str) -> Option<Arc<TokenLine>> {
        let tokens = lock(&self.tokens);
        (tokens.since == *self.tokens_changed.borrow()).then(|| tokens.by_hash.get(hash).cloned()).flatten()
    }

    /// The same from the store.
    pub(crate) async fn find_token(
        &self,
        hash: &str,
        reads: &Reads,
    ) -> Result<Option<Arc<TokenLine>>, Refusal> {
        let since = *self.tokens_changed.borrow();
        let wanted = hash.to_owned();
        let found = reads.read(move |reader| Ok(reader.token(&wanted)?)).await?.map(Arc::new);
        if let Some(token) = &found {
            let mut tokens = lock(&self.tokens);
            if tokens.since != since || tokens.by_hash.len() >= TOKENS_MAX {
                *tokens = Tokens { since, by_hash: HashMap::new() };
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
