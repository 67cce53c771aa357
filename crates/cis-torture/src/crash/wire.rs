//! Calling a node over one connection, and telling apart what a client can know: an answer, or that the connection died
//! after the request was on its way.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Nothing asked here takes this long; past it, somebody hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a node.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
    host: SocketAddr,
}

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) body: String,
}

/// What came back, whole.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Request {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), ..Self::default() }
    }

    pub(crate) fn post(path: impl Into<String>, body: &Value) -> Self {
        Self { method: "POST", path: path.into(), body: body.to_string(), ..Self::default() }
    }

    /// The same under a name of the caller's own.
    pub(crate) fn keyed(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }
}

impl Wire {
    pub(crate) fn open(host: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), host })
    }

    /// Has the other end not closed it? Of a request that is sent after that, nothing can be learned from its failing.
    pub(crate) fn is_open(&self) -> bool {
        let stream = self.stream.get_ref();
        let nothing_yet = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
        let open = nothing_yet.is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
        stream.set_nonblocking(false).is_ok() && open
    }

    /// Asks, and reads the whole answer, which is JSON. After an error the caller does not know what became of the request.
    pub(crate) fn call(&mut self, token: &str, request: &Request) -> io::Result<Reply> {
        let (status, bytes) = self.exchange(token, request)?;
        Ok(Reply { status, body: serde_json::from_slice(&bytes)? })
    }

    /// The same of an answer that may be anything: its status and its body.
    pub(crate) fn exchange(&mut self, token: &str, request: &Request) -> io::Result<(u16, Vec<u8>)> {
        let Request { method, path, key, body } = request;
        let key = key.as_ref().map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        let (host, length) = (self.host, body.len());
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{key}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(text.as_bytes())?;
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status in `{line}`")))?;
        let mut length = 0;
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().map_err(io::Error::other)?;
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok((status, bytes))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}
