//! Pieces of a log: one byte each by the thousand, then told again in the wrong place, where a node that looks for where a stream
//! stands has all of them to look at; and large ones, until the node takes no more of that task.

use serde_json::json;

use super::claims::{Held, claim};
use super::line::Line;
use super::plan::LOG_STOCK;
use super::{Attacker, breathe};
use crate::chance::Chance;

/// Sent before any answer is read.
const AT_ONCE: usize = 50;

/// Pieces of one byte to each task before they are told again.
const TINY: usize = 20_000;

const LARGE: usize = 4 << 20;

/// A piece that is empty, of a stream that has none yet.
fn probe(attacker: &Attacker<'_>, held: Held) -> Vec<u8> {
    held.request(attacker, "log", json!({"stream": "stderr", "offset": 0, "text": ""}))
}

pub(super) fn write_tiny_pieces(attacker: &Attacker<'_>, _: Chance) {
    let mut held = None;
    let mut offset = 0;
    while attacker.goes_on() {
        breathe();
        let Ok(mut line) = Line::open(attacker) else { continue };
        if held.is_none() {
            held = claim(attacker, &mut line, LOG_STOCK, 1).and_then(|held| held.first().copied());
            offset = 0;
        }
        let Some(task) = held else { continue };
        while attacker.goes_on() {
            let pieces: Vec<u8> = match offset < TINY {
                true => {
                    let piece =
                        |nth| task.request(attacker, "log", json!({"offset": offset + nth, "text": "x"}));
                    (0..AT_ONCE).flat_map(piece).collect()
                }
                false => (0..AT_ONCE).flat_map(|_| probe(attacker, task)).collect(),
            };
            offset += AT_ONCE;
            let sent = line.send(attacker, &pieces);
            let read = sent.and_then(|()| (0..AT_ONCE).try_for_each(|_| line.answer().map(|_| ())));
            if read.is_err() {
                break;
            }
        }
    }
}

pub(super) fn write_large_pieces(attacker: &Attacker<'_>, _: Chance) {
    let text = "0123456789abcde\n".repeat(LARGE / 16);
    while attacker.goes_on() {
        breathe();
        let Ok(mut line) = Line::open(attacker) else { continue };
        let claimed = claim(attacker, &mut line, LOG_STOCK, 1).unwrap_or_default();
        for task in claimed {
            let mut offset = 0;
            while attacker.goes_on() {
                let piece = task.request(attacker, "log", json!({"offset": offset, "text": &text}));
                let Ok((200, _)) = line.send(attacker, &piece).and_then(|()| line.answer()) else { break };
                offset += LARGE;
            }
            // It keeps the task: what it wrote stays as long as its run does.
            let Ok(next) = Line::open(attacker) else { break };
            line = next;
        }
    }
}
