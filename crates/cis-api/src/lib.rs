//! Everything a caller can ask of CIS and be answered: one table of calls, the types of their requests and responses, and
//! the shape of errors. Server, client and command line share it, whatever the edge.
//!
//! ```text
//!   calls (the table) ──► routes and OpenAPI document (cis-server)
//!                    ├──► typed client (cis-client)
//!                    └──► one function per call (cis-engine, `app`)
//! ```
//!
//! It does no I/O, and knows neither HTTP servers nor the store. Times are RFC 3339 with milliseconds, durations carry their
//! unit in their name.
//!
//! | module | what lives there |
//! |---|---|
//! | [`call`] | what a call is: method, path, who may call, request, response |
//! | [`calls`] | the table of calls |
//! | [`error`] | how a refusal travels |
//! | [`dag`], [`definition`] | DAGs, their revisions, and how a definition is sent |
//! | [`run`], [`task`] | runs and their tasks |
//! | [`review`] | what waits for a person |
//! | [`work`], [`fence`] | tasks for workers: claim, heartbeat, result |
//! | [`event`], [`log`] | what happened; what tasks printed |
//! | [`token`], [`node`] | who may call; the node and its coordinator |
//! | [`why`] | what a run waits for |

pub mod call;
pub mod calls;
pub mod dag;
pub mod definition;
pub mod error;
pub mod event;
pub mod fence;
pub mod log;
pub mod node;
pub mod review;
pub mod run;
pub mod task;
pub mod token;
pub mod why;
pub mod work;

pub use call::{Access, Call, Nothing, Request};
