//! Followers of events: their connection stays, and what became of every run is told to each.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// A connection on which events are told.
#[derive(Debug)]
pub(in crate::siege) struct Follower {
    stream: TcpStream,
    /// Runs of which it was told that they are over.
    heard: Mutex<BTreeSet<String>>,
    /// Why it heard no more.
    ended: Mutex<Option<String>>,
}

impl Follower {
    pub(in crate::siege) fn connect(node: SocketAddr, token: &str, query: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(node)?;
        write!(
            stream,
            "GET /api/v1/events{query} HTTP/1.1\r\nHost: {node}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )?;
        Ok(Self { stream, heard: Mutex::default(), ended: Mutex::default() })
    }

    /// Reads until the connection ends.
    pub(in crate::siege) fn follow(&self) {
        let why = match self.read() {
            Ok(()) => "the node ended it".to_owned(),
            Err(e) => e.to_string(),
        };
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    fn read(&self) -> io::Result<()> {
        let mut head = BufReader::with_capacity(1, &self.stream);
        let mut line = String::new();
        head.read_line(&mut line)?;
        if !line.starts_with("HTTP/1.1 200") {
            return Err(io::Error::other(format!("refused: {}", line.trim_end())));
        }
        while line.trim_end() != "" {
            line.clear();
            head.read_line(&mut line)?;
        }
        let mut events = BufReader::new(Chunks { stream: BufReader::new(&self.stream), left: 0 });
        loop {
            line.clear();
            if events.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let event = line.strip_prefix("data:").and_then(|data| serde_json::from_str::<Value>(data).ok());
            let Some(event) = event.filter(|event| event["type"] == "cis.run.completed") else { continue };
            if let Some(run) = event["data"]["run_id"].as_str() {
                self.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(run.to_owned());
            }
        }
    }

    /// How many of these it has not been told of.
    pub(in crate::siege) fn missing<'r>(&self, runs: impl Iterator<Item = &'r str>) -> usize {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        runs.filter(|run| !heard.contains(*run)).count()
    }

    /// Hangs up; answers why it had ended before that, if it had.
    pub(in crate::siege) fn hang_up(&self) -> Option<String> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = self.stream.shutdown(Shutdown::Both);
        ended
    }
}

/// What a body in chunks says, without its framing.
struct Chunks<R> {
    stream: R,
    left: u64,
}

impl<R: BufRead> Read for Chunks<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let mut size = String::new();
            if self.stream.read_line(&mut size)? == 0 {
                return Ok(0);
            }
            // The line end after a chunk comes before the size of the next.
            if !size.trim().is_empty() {
                self.left = u64::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
                if self.left == 0 {
                    return Ok(0);
                }
            }
        }
        let n = self.stream.by_ref().take(self.left).read(into)?;
        self.left -= n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_read_without_their_framing() {
        let sent: &[u8] = b"6\r\ndata: \r\n3\r\nx\ny\r\n0\r\n\r\n";
        let mut text = String::new();
        Chunks { stream: sent, left: 0 }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "data: x\ny");
    }
}
