//! The typed client: makes any call of `cis-api`, over TCP to a node or over the Unix socket of a data directory to its
//! coordinator. It knows nothing of data directories, stores or runs; its caller says what to call and what the response
//! means.
//!
//! Every call blocks its thread, and threads may call at once. It starts no thread of its own and drives its connections on
//! the calling one, so it must not be called from within an asynchronous task.
//!
//! ```text
//!   Request<C> ──► target (path, query) and body ──► connect ──► stream (one exchange, one connection) ──► C::Response
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | `target` | paths with their names filled in, and queries |
//! | `connect` | TCP, TLS and Unix sockets, however long their path |
//! | `stream` | one exchange: whole answers, lines, and [`Held`] connections |
//! | `pin` | knowing a node by its DID |
//! | `error` | [`CallError`]: refused, or not asked |
//! | [`tls`] | TLS with the certificates that this machine trusts |

mod connect;
mod error;
mod pin;
mod stream;
mod target;
pub mod tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use cis_api::call::Body;
use cis_api::error::Success;
use cis_api::{Call, Request};
use cis_core::error::{ErrorCode, Refusal};
use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;

pub use connect::with_short_path;
pub use error::{CallError, Peer};
pub use pin::NodePin;
pub use stream::{Held, HeldWatch};

use connect::{Connected, Node};
use pin::PinError;
use stream::{Answer, Exchange, Lines};

/// How long the other side may take to answer, beyond what it was asked to wait.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Names the owner of the data directory on its socket.
pub const USER_HEADER: HeaderName = HeaderName::from_static("cis-user");

/// With it, a call is done once.
pub const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The content type of events; the other streams are lines of JSON.
const EVENT_STREAM: &str = "text/event-stream";

/// A caller of a node or a coordinator. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    place: Arc<Place>,
    peer: Peer,
    authorization: HeaderValue,
    /// The owner on the socket.
    user: Option<HeaderValue>,
    /// What a node must prove to be, on every connection, before it is sent the token.
    pin: Option<Arc<NodePin>>,
    runtime: Arc<Runtime>,
}

enum Place {
    Node(Node),
    Socket(PathBuf),
}

impl fmt::Debug for Client {
    /// Without the token: what is printed is read by others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// How a call is made.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions<'k> {
    /// How long the other side may take to answer.
    pub patience: Duration,
    /// For calls that take one: with the same key, it is done once.
    pub idempotency_key: Option<&'k str>,
}

impl Default for CallOptions<'_> {
    fn default() -> Self {
        Self { patience: PATIENCE, idempotency_key: None }
    }
}

impl Client {
    /// A caller of the node at `url`, with `token`.
    pub fn tcp(url: &str, token: &str) -> Result<Self, Refusal> {
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
        let peer = Peer::node(base.to_string().trim_end_matches('/'));
        Self::new(Place::Node(Node { base, tls }), peer, token, None)
    }

    /// A caller of the coordinator that listens at `path`, with the key of its data directory: the owner, called `user`.
    pub fn socket(path: &Path, key: &str, user: &str) -> Result<Self, Refusal> {
        let user = header_value(user, "a user's name")?;
        let peer = Peer::coordinator(&path.display().to_string());
        Self::new(Place::Socket(path.to_owned()), peer, key.trim(), Some(user))
    }

    fn new(place: Place, peer: Peer, token: &str, user: Option<HeaderValue>) -> Result<Self, Refusal> {
        let mut authorization = header_value(&format!("Bearer {token}"), "a token")?;
        authorization.set_sensitive(true);
        // Driven by the calling threads: it has none of its own.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(|e| {
                Refusal::new(ErrorCode::Unavailable, format!("cannot wait for connections: {e}"))
            })?;
        Ok(Self { place: Arc::new(place), peer, authorization, user, pin: None, runtime: Arc::new(runtime) })
    }

    /// The same, but the token goes to none but this node. The coordinator on a socket is known by its directory.
    #[must_use]
    pub fn pinned(mut self, pin: NodePin) -> Self {
        self.pin = Some(Arc::new(pin));
        self
    }

    /// Makes a call.
    pub fn call<C: Call>(&self, request: &Request<C>) -> Result<C::Response, Refusal> {
        self.call_waiting(request, Duration::ZERO)
    }

    /// Makes a call that asks the other side to wait for something, for `wait` at most.
    pub fn call_waiting<C: Call>(
        &self,
        request: &Request<C>,
        wait: Duration,
    ) -> Result<C::Response, Refusal> {
        let options = CallOptions { patience: PATIENCE + wait, ..CallOptions::default() };
        Ok(self.try_call(request, options)?)
    }

    /// Makes a call, for callers that tell a refusal from a peer that is not there or does not answer.
    pub fn try_call<C: Call>(
        &self,
        request: &Request<C>,
        options: CallOptions<'_>,
    ) -> Result<C::Response, CallError> {
        let bytes = self.exchange(request, options, async |answer| {
            self.check(answer).await?.read().await.map_err(|why| self.no_answer(why))
        })?;
        self.response(&bytes)
    }

    /// Hands each part of a response that may never end to `hear`, until it ends or `hear` has heard enough: `false`.
    pub fn follow<C: Call>(
        &self,
        request: &Request<C>,
        mut hear: impl FnMut(C::Response) -> bool,
    ) -> Result<(), Refusal> {
        let mut lines = self.exchange(request, CallOptions::default(), async |answer| {
            self.check(answer).await.map(Answer::lines)
        })?;
        let is_events = C::STREAM == Some(EVENT_STREAM);
        let mut event = Vec::new();
        // What is heard may take its time: other threads' calls must not wait for it, so it is heard outside the runtime.
        while let Some(line) = self.runtime.block_on(lines.next()).map_err(|why| self.no_answer(why))? {
            let part = match is_events {
                true => take_event(&line, &mut event),
                false => Some(line).filter(|line| !line.is_empty()),
            };
            let Some(part) = part else { continue };
            let told = match is_events {
                true => self.read::<CloudEvent<C::Response>>(&part)?.data,
                false => self.read(&part)?,
            };
            if !hear(told) {
                break;
            }
        }
        Ok(())
    }

    /// Makes a call whose answer stays open, and is the ownership of what it started: it ends with the [`Held`] that comes
    /// with the response.
    pub fn hold<C: Call>(
        &self,
        request: &Request<C>,
        options: CallOptions<'_>,
    ) -> Result<(C::Response, Held), CallError> {
        let (first, lines) = self.exchange(request, options, async |answer| {
            let mut lines: Lines = self.check(answer).await?.lines();
            let first = lines.next().await.map_err(|why| self.no_answer(why))?;
            let first = first.ok_or_else(|| self.no_answer("it ended before it said anything"))?;
            Ok((first, lines))
        })?;
        Ok((self.response(&first)?, lines.hold(self.runtime.clone())))
    }

    /// The process that listens on the socket, whatever it speaks. A node over TCP does not tell.
    pub fn peer_pid(&self) -> io::Result<u32> {
        match &*self.place {
            Place::Socket(path) => connect::peer_pid(path, PATIENCE),
            Place::Node(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Connects, sends the request, and hands the head of the answer to `take`; all of that within the patience.
    fn exchange<C: Call, T>(
        &self,
        request: &Request<C>,
        options: CallOptions<'_>,
        take: impl AsyncFnOnce(Answer) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let request = self.http_request(request, options).map_err(CallError::Refused)?;
        let unreachable = |e: io::Error| match e.kind() {
            io::ErrorKind::TimedOut => CallError::TimedOut(self.peer.clone()),
            _ => CallError::Unreachable(self.peer.clone(), e),
        };
        // Before the runtime is entered: this may block, and other threads' calls must not wait for it.
        let socket = match &*self.place {
            Place::Socket(path) => Some(connect::unix(path, options.patience).map_err(unreachable)?),
            Place::Node(_) => None,
        };
        let exchanged = async {
            let connected = match (&*self.place, socket) {
                (_, Some(stream)) => connect::adopt(stream),
                (Place::Node(node), None) => node.connect().await,
                (Place::Socket(_), None) => Err(io::ErrorKind::NotConnected.into()),
            };
            let connected: Connected = connected.map_err(unreachable)?;
            let peer = connected.peer;
            let mut exchange = Exchange::open(connected).await.map_err(|why| self.no_answer(why))?;
            if let (Place::Node(node), Some(pin)) = (&*self.place, &self.pin) {
                pin.check(node, peer, &mut exchange).await.map_err(|e| match e {
                    PinError::WrongNode(refusal) => CallError::Refused(refusal),
                    PinError::NoAnswer(why) => self.no_answer(why),
                })?;
            }
            let answer = exchange.send(request).await.map_err(|why| self.no_answer(why))?;
            take(answer).await
        };
        let answered =
            self.runtime.block_on(async { tokio::time::timeout(options.patience, exchanged).await });
        answered.unwrap_or_else(|_| Err(CallError::TimedOut(self.peer.clone())))
    }

    fn http_request<C: Call>(
        &self,
        request: &Request<C>,
        options: CallOptions<'_>,
    ) -> Result<hyper::Request<Full<Bytes>>, Refusal> {
        let (prefix, host) = match &*self.place {
            Place::Node(node) => (node.base.path().trim_end_matches('/'), node.address()),
            Place::Socket(_) => ("", "localhost".to_owned()),
        };
        let target = target::of(request);
        let mut http = hyper::Request::builder()
            .method(C::METHOD.as_str())
            .uri(format!("{prefix}{target}"))
            .header(header::HOST, host)
            // One call each: so the other side closes the connection where its answer ends.
            .header(header::CONNECTION, "close")
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(user) = &self.user {
            http = http.header(USER_HEADER, user);
        }
        if let Some(key) = options.idempotency_key {
            http = http.header(KEY_HEADER, header_value(key, "an idempotency key")?);
        }
        http.body(Full::new(request.body.write().into())).map_err(|e| {
            Refusal::new(ErrorCode::ValidationFailed, format!("`{target}` cannot be called: {e}"))
        })
    }

    /// The answer, if it is a good one.
    async fn check(&self, answer: Answer) -> Result<Answer, CallError> {
        let status = answer.status;
        if status.is_success() {
            return Ok(answer);
        }
        let bytes = answer.read().await.map_err(|why| self.no_answer(why))?;
        let Ok(mut said) = serde_json::from_slice::<Value>(&bytes) else {
            return Err(self.no_answer(format!("{status}, and what follows is not JSON: is it a node?")));
        };
        Err(CallError::Refused(serde_json::from_value(said["error"].take()).unwrap_or_else(|_| {
            let why = format!("the node answered {} without saying why", status.as_u16());
            Refusal::new(ErrorCode::Unavailable, why)
        })))
    }

    fn response<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, CallError> {
        self.read::<Success<T>>(bytes).map(|success| success.answer)
    }

    fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, CallError> {
        serde_json::from_slice(bytes).map_err(|e| match e.classify() {
            serde_json::error::Category::Data => CallError::NotUnderstood(self.peer.clone(), e),
            _ => self.no_answer("what it says is not JSON: is it a node?"),
        })
    }

    fn no_answer(&self, why: impl fmt::Display) -> CallError {
        CallError::NoAnswer(self.peer.clone(), why.to_string())
    }
}

/// The text of a header, as the bytes it has.
fn header_value(text: &str, what: &str) -> Result<HeaderValue, Refusal> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        Refusal::new(ErrorCode::ValidationFailed, format!("{what} cannot hold control characters"))
    })
}

/// The envelope of an event.
#[derive(Deserialize)]
struct CloudEvent<T> {
    data: T,
}

/// Adds a line to an event, which an empty line ends; then this is what the event says, if it says anything.
fn take_event(line: &[u8], event: &mut Vec<u8>) -> Option<Vec<u8>> {
    if line.is_empty() {
        return Some(std::mem::take(event)).filter(|event| !event.is_empty());
    }
    // Other fields name it, number it, or only keep the connection busy.
    if let Some(data) = line.strip_prefix(b"data:") {
        if !event.is_empty() {
            event.push(b'\n');
        }
        event.extend_from_slice(data.trim_ascii_start());
    }
    None
}
