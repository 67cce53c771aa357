//! Taking connections: so many at once, and each has so long to say what it wants and to take the answer.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use cis_engine::coordinator::Owner;
use cis_engine::system::{end_connection_when_silent, soft_file_limit};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower_service::Service;

use crate::framing::{Heads, Watched};
use crate::places::{Capacity, Full, Place, Places, no_place};
use crate::progress::Progress;
use crate::respond::refusal_text;

/// How long a connection may take to send the head of its next request, and so how long it may be idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);

/// What a connection buffers, and so the longest head of a request.
pub(crate) const BUFFER_BYTES: usize = 16 << 10;

/// How long a peer may leave unanswered what the kernel sends it.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// After an accept that failed (most likely no file descriptor is left), so that it is not tried without end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer {
    Address(IpAddr),
    /// A connection on the data directory's socket.
    Socket(Owner),
}

/// Which address of this machine a request came in at, over TCP.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalAddress(pub(crate) SocketAddr);

/// An answer is the last on its connection: beside such an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastOnConnection;

/// Serves until `leaving` becomes true and every request under way has ended.
pub(crate) async fn serve(listener: TcpListener, router: Router, leaving: watch::Receiver<bool>) {
    let places = Places::new(Capacity::of_network(soft_file_limit()));
    loop {
        let next = async {
            let (stream, from) = listener.accept().await.ok()?;
            let place = places.admit(Some(from.ip())).await;
            Some((stream, from, place))
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            () = crate::gone(leaving.clone()) => break,
        };
        let Some((stream, from, place)) = accepted else {
            places.evict_one();
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = place.map_err(|Full| refuse_connection(&stream)) else { continue };
        let (router, leaving) = (router.clone(), leaving.clone());
        end_connection_when_silent(&stream, SILENCE_MAX);
        let (peer, local) = (Peer::Address(from.ip()), stream.local_addr().ok().map(LocalAddress));
        tokio::spawn(connection_at(local, stream, peer, place, router, leaving));
    }
    places.wait_until_empty().await;
}

/// Says why a connection closes, as far as it can be said at once.
fn refuse_connection(stream: &TcpStream) {
    let body = refusal_text(no_place());
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close";
    let _ = stream.try_write(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
}

/// Serves one connection, until it closes, `leaving` becomes true, or its place goes to another.
pub(crate) async fn connection<S>(
    stream: S,
    from: Peer,
    place: Place,
    router: Router,
    leaving: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    connection_at(None, stream, from, place, router, leaving).await;
}

async fn connection_at<S>(
    local: Option<LocalAddress>,
    stream: S,
    from: Peer,
    place: Place,
    router: Router,
    leaving: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let heads = Heads::default();
    // The owner may stop a command that follows its run, and go on with it tomorrow.
    let stream = Progress::new(stream, matches!(from, Peer::Address(_)));
    let watched = Watched { stream, heads: heads.clone(), place: place.clone() };
    let of_service = place.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let place = of_service.clone();
        place.note_request();
        let checked = heads.check(&request);
        place.hold_head(heads.unfinished_bytes());
        // Nothing is taken after a request that may have been read otherwise, nor after one whose end only hyper sees.
        let is_last = checked.is_err() || request.headers().contains_key(header::TRANSFER_ENCODING);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(from);
        if let Some(local) = local {
            request.extensions_mut().insert(local);
        }
        request.extensions_mut().insert(place.clone());
        if let Err(malformed) = checked {
            request.extensions_mut().insert(malformed);
        }
        let mut router = router.clone();
        async move {
            let mut response = router.call(request).await.unwrap_or_else(|never| match never {});
            if is_last || response.extensions().get::<LastOnConnection>().is_some() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            place.note_answer();
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(BUFFER_BYTES);
    let mut serving = pin!(http.serve_connection(TokioIo::new(watched), service));
    // What breaks a connection is the other side's affair.
    tokio::select! {
        biased;
        () = place.evicted() => return,
        _ = serving.as_mut() => return,
        () = crate::gone(leaving) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}
