//! The coordinator: commands in, transactions and effects out.
//!
//! ```text
//!  cis.sock ─► server ─┐
//!  this process ───────┴► Handle ─► coordinator loop ─► store (one transaction) ─► runner
//!                                         ▲                                          │
//!                                         └──────────── how attempts ended ──────────┘
//! ```
//!
//! Effects never happen before the commit; their results come back as new store operations. It deliberately does
//! not know which store it runs on, nor anything of terminals or HTTP.
//!
//! | module | what lives there |
//! |---|---|
//! | [`data_dir`] | the files of one data directory, and the lock that makes its coordinator the only one |
//! | [`command`] | everything a caller can ask of a coordinator |
//! | [`coordinator`] | the loop that decides what happens next |
//! | `dispatch` | from a claimed task to a process to start |
//! | `value_files` | values that an environment may be too small for |
//! | `report` | from an ended process to what the store records |
//! | `runner_link`, `quiet` | the connection to the runner |
//! | [`server`], [`client`] | commands over `cis.sock` |
//! | [`session`] | being the coordinator, or talking to whoever is |
//! | [`node`] | a coordinator that stays, for whoever serves others |
//! | [`work`], `desk` | tasks that others work on, and where they wait for them |
//! | [`select`] | which tasks a new run runs, carries over or leaves |
//! | [`again`] | running again what was confirmed |
//! | [`logs`] | what tasks printed, a line at a time |
//! | [`growth`] | hearing that logs grow |
//! | [`why`] | what a run waits for |
//! | [`recovery`], `inspection` | what a coordinator found when it began; looking the database over after a kill |
//! | [`doctor`] | is everything of a data directory in order? |
//! | [`backup`], [`restore`] | a data directory in one file, and back |
//! | [`origin`] | where a data directory comes from: is it a copy? |
//! | [`prune`], [`retention`] | making room: what is over goes, when somebody says so or by itself |
//! | [`context`] | the environment and directory a run starts its tasks in |
//! | [`skill`] | finding, describing and pinning skills |
//! | [`identity`] | a node's key and its DID |
//! | [`proof`] | proving that identity to a client |
//! | [`token`] | making tokens |
//! | [`machine`], [`system`] | what a coordinator finds around it; the real clock and randomness |
//! | `wire` | how commands travel over `cis.sock` |

pub mod again;
pub mod app;
pub mod backup;
pub mod context;
pub mod coordinator;
pub mod data_dir;
mod desk;
mod dispatch;
pub mod doctor;
pub mod growth;
pub mod host;
pub mod identity;
mod inspection;
pub mod logs;
pub mod machine;
pub mod origin;
pub mod proof;
pub mod prune;
mod quiet;
pub mod recovery;
pub mod report;
pub mod restore;
pub mod retention;
mod runner_link;
pub mod select;
pub mod skill;
pub mod system;
pub mod token;
mod value_files;
pub mod why;
