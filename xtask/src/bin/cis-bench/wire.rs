//! Calling a node over one connection that stays open, with as little of our own in between as can be.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
    head: String,
    line: String,
    body: Vec<u8>,
}

impl Wire {
    /// Connects; every request carries `token`.
    pub(crate) fn open(address: SocketAddr, token: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).context("cannot connect")?;
        stream.set_nodelay(true)?;
        let head = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
        Ok(Self { stream: BufReader::new(stream), head, line: String::new(), body: Vec::new() })
    }

    /// Sends a request and leaves its answer unread.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let length = body.len();
        let text = format!("{method} {path} HTTP/1.1\r\n{}Content-Length: {length}\r\n\r\n{body}", self.head);
        self.stream.get_mut().write_all(text.as_bytes())?;
        Ok(())
    }

    /// The answer's body.
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &str) -> Result<&[u8]> {
        self.send(method, path, body)?;
        self.next_line()?;
        ensure!(self.line.starts_with("HTTP/1.1 2"), "{method} {path}: {}", self.line.trim());
        let mut length = None;
        loop {
            self.next_line()?;
            let line = self.line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse()?);
            }
        }
        let Some(length) = length else { bail!("{method} {path}: an answer without a length") };
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok(&self.body)
    }

    /// The same, read as JSON.
    pub(crate) fn json(&mut self, method: &str, path: &str, body: &str) -> Result<Value> {
        Ok(serde_json::from_slice(self.call(method, path, body)?)?)
    }

    fn next_line(&mut self) -> Result<()> {
        self.line.clear();
        ensure!(self.stream.read_line(&mut self.line)? > 0, "the connection was closed");
        Ok(())
    }
}
