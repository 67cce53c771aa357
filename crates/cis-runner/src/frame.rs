//! Framing of [`crate::protocol`] messages: bytes in, messages out, no I/O. Works the same under a blocking
//! socket, an epoll loop or an async runtime.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::FRAME_MAX;

const LENGTH_BYTES: usize = 4;

/// What is wrong with a frame. The connection it came on is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is larger than the limit of {FRAME_MAX}")]
    TooLarge(usize),
    #[error("not a message: {0}")]
    Json(#[from] serde_json::Error),
}

/// One message as a frame, ready to be written.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - LENGTH_BYTES;
    let header = header(length)?;
    frame[..LENGTH_BYTES].copy_from_slice(&header);
    Ok(frame)
}

/// The header of a frame whose body has `length` bytes.
pub(crate) fn header(length: usize) -> Result<[u8; LENGTH_BYTES], FrameError> {
    match u32::try_from(length) {
        Ok(n) if length <= FRAME_MAX => Ok(n.to_le_bytes()),
        _ => Err(FrameError::TooLarge(length)),
    }
}

/// Puts messages together from bytes that come in any pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How much of `bytes` has been taken as messages already.
    taken: usize,
}

/// A buffer larger than this is given back once it is empty.
const KEEP_BYTES: usize = 256 << 10;

impl Decoder {
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Adds what was read from the peer.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
            self.bytes.shrink_to(KEEP_BYTES);
        } else if self.taken > KEEP_BYTES {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, or `None` until more bytes come.
    pub fn pull<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let rest = &self.bytes[self.taken..];
        let Some((head, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > FRAME_MAX {
            return Err(FrameError::TooLarge(length));
        }
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body)?;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{AttemptKey, ToRunner};

    #[test]
    fn messages_survive_any_cutting() {
        let mut bytes = Vec::new();
        for fence in 0..3 {
            let key = AttemptKey { execution: 7, fence };
            bytes.extend(encode(&ToRunner::Stop { key, kill: false }).unwrap());
        }
        for step in 1..bytes.len() {
            let mut decoder = Decoder::new();
            let mut fences = Vec::new();
            for piece in bytes.chunks(step) {
                decoder.push(piece);
                while let Some(message) = decoder.pull::<ToRunner>().unwrap() {
                    if let ToRunner::Stop { key, .. } = message {
                        fences.push(key.fence);
                    }
                }
            }
            assert_eq!(fences, [0, 1, 2], "cut every {step} bytes");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_read() {
        let mut decoder = Decoder::new();
        decoder.push(&(FRAME_MAX as u32 + 1).to_le_bytes());
        assert!(matches!(decoder.pull::<ToRunner>(), Err(FrameError::TooLarge(_))));
    }
}
