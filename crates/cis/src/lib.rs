//! The binary's own rooms: configuration, first steps, and everything people see. Wiring and commands are in
//! `main.rs`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`] | settings: defaults, file, environment, flags, and where each value came from |
//! | [`project`] | which project a file belongs to |
//! | [`init`] | a first DAG from what a directory holds |
//! | [`graph`] | drawing a DAG: ascii, mermaid, dot, svg |
//! | [`live`] | a run on the terminal while it happens |
//! | [`term`] | colours, tables, errors, and making text safe to print |

pub mod config;
pub mod graph;
pub mod init;
pub mod live;
pub mod project;
pub mod term;
