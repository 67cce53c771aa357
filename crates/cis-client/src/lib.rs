//! Calling a node over HTTP: one request, and its answer or the refusal it stands for. It knows nothing of data
//! directories, stores or runs; whoever uses it says what to call and what the answer means.
//!
//! Made for callers on threads of their own: every call blocks its thread, and threads may call at once.

pub mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cis_core::error::{ErrorCode, Refusal};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

pub use hyper::Method;

/// What an answer holds at most: a definition's worth.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How long a node may take to answer, beyond what it was asked to wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest line of a stream.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Somebody who calls a node. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    base: Uri,
    token: Arc<str>,
    tls: Option<TlsConnector>,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Client {
    /// Without the token: what is printed is read by others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Client {
    /// A caller of the node at `url`, with `token`.
    pub fn new(url: &str, token: &str) -> Result<Self, Refusal> {
        let invalid = |why: String| {
            Refusal::new(ErrorCode::ValidationFailed, why)
                .hint("a node's URL looks like http://127.0.0.1:6767")
        };
        let base: Uri = url.parse().map_err(|_| invalid(format!("`{url}` is not a URL")))?;
        let https = match base.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid(format!("`{url}` is not an http:// or https:// URL"))),
        };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Refusal::new(ErrorCode::Unauthorized, "what was given as a token is none"));
        }
        let tls = https.then(tls::connector).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cis-client")
            .enable_all()
            .build()
            .map_err(|e| Refusal::new(ErrorCode::Unavailable, format!("cannot start a thread: {e}")))?;
        Ok(Self { base, token: token.into(), tls, runtime: Arc::new(runtime) })
    }

    /// Where the node is.
    pub fn url(&self) -> String {
        self.base.to_string().trim_end_matches('/').to_owned()
    }

    pub fn get(&self, path: &str) -> Result<Value, Refusal> {
        self.call(Method::GET, path, None, Duration::ZERO)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        self.call(Method::POST, path, Some(body), Duration::ZERO)
    }

    /// Calls; `wait` is how long the node was asked to take its time.
    pub fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        wait: Duration,
    ) -> Result<Value, Refusal> {
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let answered = self.runtime.handle().block_on(async {
            tokio::time::timeout(wait + PATIENCE, self.exchange(method, path, body)).await
        });
        answered.map_err(|_| self.unreachable("it does not answer"))?
    }

    /// Hands each line of an answer that may never end to `hear`, until it ends or `hear` has heard enough.
    pub fn lines(&self, path: &str, mut hear: impl FnMut(&str) -> bool) -> Result<(), Refusal> {
        self.runtime.handle().block_on(async {
            let begun = tokio::time::timeout(PATIENCE, self.send(Method::GET, path, Bytes::new())).await;
            let response = begun.map_err(|_| self.unreachable("it does not answer"))??;
            if !response.status().is_success() {
                return self.answer(response).await.map(drop);
            }
            let (mut body, mut text) = (response.into_body(), Vec::new());
            while let Some(frame) = body.frame().await {
                let Ok(bytes) = frame.map_err(|e| self.unreachable(e))?.into_data() else { continue };
                text.extend_from_slice(&bytes);
                let mut from = 0;
                while let Some(length) = text[from..].iter().position(|byte| *byte == b'\n') {
                    if !hear(&String::from_utf8_lossy(&text[from..from + length])) {
                        return Ok(());
                    }
                    from += length + 1;
                }
                text.drain(..from);
                if text.len() > LINE_BYTES_MAX {
                    return Err(self.unreachable("a line of its answer has no end"));
                }
            }
            Ok(())
        })
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Value, Refusal> {
        let response = self.send(method, path, body).await?;
        self.answer(response).await
    }

    async fn answer(&self, response: Response<Incoming>) -> Result<Value, Refusal> {
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = body.map_err(|e| self.unreachable(e))?.to_bytes();
        let Ok(answer) = serde_json::from_slice::<Value>(&bytes) else {
            return Err(self.unreachable(format!("{status}, and what follows is not JSON: is it a node?")));
        };
        if status.is_success() { Ok(answer) } else { Err(refusal(status.as_u16(), answer)) }
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Refusal> {
        let host = self.base.host().unwrap_or_default();
        let port = self.base.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((bare, port)).await.map_err(|e| self.unreachable(e))?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base.path().trim_end_matches('/')))
            .header(header::HOST, format!("{host}:{port}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| {
                Refusal::new(ErrorCode::ValidationFailed, format!("`{path}` cannot be called: {e}"))
            })?;
        match &self.tls {
            None => self.speak(stream, request).await,
            Some(tls) => {
                let name = tls::name(bare).map_err(|e| self.unreachable(e))?;
                let stream = tls.connect(name, stream).await.map_err(|e| self.unreachable(e))?;
                self.speak(stream, request).await
            }
        }
    }

    async fn speak<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.unreachable(e))?;
        // It ends with the answer's last byte, or with what is wrong, which the answer tells as well.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|e| self.unreachable(e))
    }

    fn unreachable(&self, why: impl fmt::Display) -> Refusal {
        Refusal::new(ErrorCode::Unavailable, format!("the node at {} cannot be reached: {why}", self.url()))
            .hint("`cis node start` starts one; `--node URL` or `CIS_NODE` says where it is")
    }
}

/// What a node said no with.
fn refusal(status: u16, mut answer: Value) -> Refusal {
    let error = answer["error"].take();
    serde_json::from_value(error).unwrap_or_else(|_| {
        Refusal::new(ErrorCode::Unavailable, format!("the node answered {status} without saying why"))
    })
}
