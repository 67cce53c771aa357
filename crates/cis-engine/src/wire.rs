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
