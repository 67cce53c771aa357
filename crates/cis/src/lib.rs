//! The binary's own rooms: configuration, first steps, and everything people see. Wiring and commands are in
//! `main.rs`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`term`] | colours, tables, errors, and making text safe to print |

pub mod term;
