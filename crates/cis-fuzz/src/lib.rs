//! Input that no parser of CIS may trip over: documents of a corpus, changed here and there, thousands of them in the
//! test command and as many as you like by `cargo xtask fuzz`.
//!
//! ```text
//!  corpus/<target>/* ─► every document as it is ─┐
//!                    └► changed: bolero's dice ──┴► the target: reads it, checks what must hold, says whether it took it
//! ```
//!
//! Targets of what other crates offer are tests beside this library; what they keep to themselves has its target among
//! their own tests. All are called `fuzz_…`, which is what `cargo xtask fuzz` looks for. It deliberately knows nothing
//! of what is read.
//!
//! | module | what lives there |
//! |---|---|
//! | `corpus` | the documents, and how they are changed |

mod corpus;

use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use corpus::{Corpus, Input};

/// Gives every document to `takes`, then as many changed ones as were asked for; it panics where something must not be,
/// and says whether it took what it was given. A target that takes everything, or nothing, has looked at nothing.
#[allow(clippy::panic, reason = "it is called by tests, and this is how they fail")]
pub fn fuzz(corpus: &Corpus, takes: impl Fn(&[u8]) -> bool + RefUnwindSafe) {
    let (inputs, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let give = |bytes: &[u8]| {
        inputs.fetch_add(1, Relaxed);
        taken.fetch_add(u64::from(takes(bytes)), Relaxed);
    };
    for document in corpus.documents() {
        give(document);
    }
    bolero::check!(name = corpus.target())
        .with_generator(corpus)
        .with_iterations(corpus.changed())
        .for_each(|input: &Input| give(&input.0));
    let (inputs, taken) = (inputs.into_inner(), taken.into_inner());
    println!("fuzz {}: {inputs} inputs, {taken} taken", corpus.target());
    assert!(taken > 0 && taken < inputs, "{taken} of {inputs} taken: this target looks at nothing");
}
