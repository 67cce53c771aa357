//! Telling people what happened, without their asking: by a command of theirs, by a webhook.
//!
//! ```text
//!   store: event + notice, one transaction ─► look ─► give ─► store: given │ again later │ given up
//! ```
//!
//! What is to be told lies in the store's outbox before anybody is told, and stays there until somebody was: a node
//! that is killed in between tells it when it is back, and may then tell it twice, under the same id. It decides nothing
//! about runs, and knows no SQL.
//!
//! | module | what lives there |
//! |---|---|
//! | `deliver` | the loop: when to look, and what follows from how a try went |
//! | `round` | one round of it: what is due is given, then settled |
//! | `message` | a notice in the words it travels in |
//! | `command` | giving it to a command |
//! | [`webhook`] | sending it to an address, signed |
//! | `address` | which addresses a webhook may lead to |

mod address;
mod command;
mod deliver;
mod message;
mod round;
mod sync;
pub mod webhook;

use cis_core::notice::Way;

use webhook::Webhook;

pub use deliver::deliver;

/// By which way somebody is told.
#[derive(Debug)]
pub enum Giver {
    /// Run by the shell.
    Command(String),
    Webhook(Box<Webhook>),
}

/// Why somebody could not be told.
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// That may pass.
    ForNow(String),
    /// They want no more of it.
    ForGood(String),
}

impl Giver {
    pub fn way(&self) -> Way {
        match self {
            Self::Command(_) => Way::Command,
            Self::Webhook(_) => Way::Webhook,
        }
    }
}
