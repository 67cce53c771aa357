//! How commands travel over `cis.sock`: JSON in frames of a `u32` length (little endian) and that many bytes.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest frame: a definition of the largest allowed size, with room for its escapes.
const FRAME_MAX: u32 = 128 << 20;

fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|n| *n <= FRAME_MAX).ok_or_else(too_large)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "message too large")
}

fn length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head);
    if length > FRAME_MAX { Err(too_large()) } else { Ok(length as usize) }
}

/// Sends one message, waiting for it.
pub(crate) fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

/// Receives one message, waiting for it.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let mut body = vec![0; length(head)?];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// Sends one message.
pub(crate) async fn send_async<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    to.write_all(&frame(message)?).await
}

/// Receives one message.
pub(crate) async fn receive_async<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head).await?;
    let mut body = vec![0; length(head)?];
    from.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use cis_fuzz::{Corpus, fuzz};

    use super::*;
    use crate::command::{Command, Reply};

    #[test]
    fn fuzz_commands_and_replies() {
        fuzz(&Corpus::of("wire"), |text| {
            // As bytes off a socket, and with every line in a frame of its own.
            let framed: Vec<u8> = text.split(|b| *b == b'\n').flat_map(framed).collect();
            let read = [text, &framed].map(|bytes| all::<Command>(bytes) + all::<Reply>(bytes));
            read.iter().sum::<usize>() > 0
        });
    }

    fn framed(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes(), body].concat()
    }

    /// How many messages there are: the same for whoever waits and whoever does not, and the same when sent on.
    fn all<T: Debug + Serialize + DeserializeOwned>(mut bytes: &[u8]) -> usize {
        let mut count = 0;
        loop {
            let mut same = bytes;
            let (read, at_once) = (receive::<T>(&mut bytes), at_once(receive_async::<T>(&mut same)));
            let Ok(message) = read else {
                assert!(at_once.is_err());
                return count;
            };
            let json = serde_json::to_value(&message).unwrap();
            assert_eq!(serde_json::to_value(at_once.unwrap()).unwrap(), json);
            let mut sent = Vec::new();
            send(&mut sent, &message).unwrap();
            assert_eq!(serde_json::to_value(receive::<T>(&mut &*sent).unwrap()).unwrap(), json);
            count += 1;
        }
    }

    /// Bytes in memory are there without waiting.
    fn at_once<T>(reading: impl Future<Output = T>) -> T {
        match pin!(reading).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }
}
