//! The chores of this repository, as `cargo xtask …`.
//!
//! It deliberately knows nothing of how CIS works: it builds, checks and measures what the other crates are.
//!
//! | module | what lives there |
//! |---|---|
//! | [`suite`] | `cargo xtask test`: every check there is, in one command |
//! | [`api`] | the API against its own description |
//! | [`tidy`] | rules about the repository itself that no compiler knows |
//! | [`docs`] | pages generated from code |
//! | [`bench`] | builds and starts the benchmark, which is a program of its own (`src/bin/cis-bench/`) |
//! | [`fuzz`] | the long dose for the parsers (`crates/cis-fuzz`) |
//! | [`mutants`] | whether the tests notice when a rule is changed |
//! | [`torture`] | builds and starts what breaks CIS on purpose (`crates/cis-torture`) |
//! | [`tool`] | programs that must be there, and how they get there |
//! | [`run`] | running a command and saying what failed |
//! | [`repo`] | where things are |
//! | [`clock`] | the one place that asks for the time |

pub mod api;
pub mod bench;
pub mod clock;
pub mod docs;
pub mod fuzz;
pub mod mutants;
pub mod repo;
pub mod run;
pub mod suite;
pub mod tidy;
pub mod tool;
pub mod torture;
