//! What happened in a world, for people, and as a number: two worlds of one seed must have the same.

/// Lines that are shown of a world that went wrong.
const SHOWN: usize = 80;

/// FNV-1a.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// The story of a world.
#[derive(Debug)]
pub(super) struct Trace {
    lines: Vec<String>,
    hash: u64,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { lines: Vec::new(), hash: BASIS }
    }

    pub(super) fn tell(&mut self, line: String) {
        self.count(&line);
        self.lines.push(line);
    }

    /// Something that makes a difference, but is not shown.
    pub(super) fn count(&mut self, line: &str) {
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// How it came to this.
    pub(super) fn last_steps(&self) -> String {
        self.lines[self.lines.len().saturating_sub(SHOWN)..].join("\n      ")
    }
}
