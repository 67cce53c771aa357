//! Asks for giant answers, and reads them as fast as they come.

use super::line::Line;
use super::{Attacker, breathe, slow};
use crate::chance::Chance;

/// Of one answer: some have no end.
const READ_MAX: u64 = 16 << 20;

pub(super) fn read_giants(attacker: &Attacker<'_>, mut chance: Chance) {
    let giants = slow::giants(attacker);
    while attacker.goes_on() {
        breathe();
        let (Ok(mut line), Some(giant)) = (Line::open(attacker), chance.pick(&giants)) else { continue };
        // The connection is left open after the answer, unless the node is asked to close it.
        let closing = String::from_utf8_lossy(giant).replacen("\r\n", "\r\nConnection: close\r\n", 1);
        if line.send(attacker, closing.as_bytes()).is_ok() {
            line.drain(READ_MAX);
        }
    }
}
