//! The `cis` program: command line, settings, wiring, and everything a person sees. No rules live here.
//!
//! | module | what lives there |
//! |---|---|
//! | [`cli`] | what can be typed |
//! | [`command`] | what each command does |
//! | [`config`] | settings and where each comes from |
//! | [`sandbox`] | running a command out of reach of a directory |
//! | [`document`] | definitions as files, and as a node tells them |
//! | [`session`] | being the coordinator of a data directory, or talking to it |
//! | [`source`], [`target`] | where commands read from, and whom they ask to do something: here or at a node |
//! | [`project`] | which project a directory belongs to |
//! | [`term`] | colours, tables, errors |
//! | [`live`] | a run while it happens |
//! | [`graph`] | pictures of DAGs |
//! | [`init`] | a first DAG |
//! | [`log`] | what a node says of itself as it goes |

// First: everybody speaks by its macros.
#[macro_use]
pub mod term;

pub mod cli;
pub mod command;
pub mod config;
pub mod document;
pub mod graph;
pub mod init;
pub mod live;
pub mod log;
pub mod project;
pub mod sandbox;
pub mod session;
pub mod source;
pub mod target;
