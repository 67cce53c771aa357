//! The coordinator: commands in, transactions and effects out.
//!
//! | module | what lives there |
//! |---|---|
//! | [`skill`] | finding, describing and pinning skills |

pub mod skill;
