//! The rules of CIS, as pure code: definitions of DAGs, the life of runs and tasks, and every
//! decision that follows from them. Input in, decisions out as data.
//!
//! It deliberately does not know async, SQL, HTTP, processes, or what time it is: time and
//! randomness come in as arguments (see [`source`]), so a simulation can drive all of it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`id`] | newtypes for ids, fences, versions, positions |
//! | [`source`] | where time and randomness come from: `Clock`, `Random`, `Timestamp`, `Millis` |
//! | [`dag`] | definitions: parse, validate, canonical hash, graph |
//! | [`revision`], [`run`], [`task`] | the three state machines, one table each |
//! | [`retry`] | the one decision after an attempt that did not succeed |
//! | [`readiness`] | when a task's dependencies let it go, and what its end means to others |
//! | [`policy`] | how a run ends |
//! | [`review`] | ids that people decide by |
//! | [`template`] | values into `env`, and `when` expressions |
//! | [`event`] | what happened, and folding it back into state |
//! | [`notice`] | what people are told of without asking |
//! | [`access`], [`did`] | callers, their roles and scopes; their names |
//! | [`why`] | what holds the tasks of a run |
//! | [`error`] | stable error codes |

pub mod access;
pub mod dag;
pub mod did;
pub mod error;
pub mod event;
pub mod id;
pub mod notice;
pub mod policy;
pub mod readiness;
pub mod retry;
pub mod review;
pub mod revision;
pub mod run;
pub mod source;
pub mod task;
pub mod template;
pub mod why;
