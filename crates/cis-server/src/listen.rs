//! Taking connections: so many at once, and each has so long to say what it wants.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use cis_engine::coordinator::Owner;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

use crate::framing::{Heads, Watched};
use crate::socket::Known;

/// Connections open at once; the next one waits in the kernel. More than requests that may wait, so that those who
/// are refused hear it.
const CONNECTIONS_MAX: u32 = 12_288;

/// How long a connection may take to send the head of its next request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);

/// What a connection buffers, and so the longest head of a request.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;

/// After an accept that failed (most likely no file descriptor is left), so that it is not tried without end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer {
    Address(IpAddr),
    /// A connection on the data directory's socket.
    Socket(Owner),
}

/// Serves until `leaving` becomes true and every request under way has ended.
pub(crate) async fn serve(listener: TcpListener, router: Router, leaving: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = crate::gone(leaving.clone()) => break,
        };
        let Ok((stream, from)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (router, leaving) = (router.clone(), leaving.clone());
        tokio::spawn(async move {
            connection(stream, Peer::Address(from.ip()), None, router, leaving).await;
            drop(place);
        });
    }
    // Once every place is free, everybody has gone.
    let _ = places.acquire_many(CONNECTIONS_MAX).await;
}

/// Serves one connection, until it closes or `leaving` becomes true.
pub(crate) async fn connection<S>(
    stream: S,
    from: Peer,
    known: Option<Known>,
    router: Router,
    leaving: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let heads = Heads::default();
    let watched = Watched { stream, heads: heads.clone() };
    let service = service_fn(move |request: Request<Incoming>| {
        let checked = heads.check(&request);
        // Nothing is taken after a request that may have been read otherwise, nor after one whose end only hyper sees.
        let is_last = checked.is_err() || request.headers().contains_key(header::TRANSFER_ENCODING);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(from);
        if let Some(known) = &known {
            request.extensions_mut().insert(known.clone());
        }
        if let Err(malformed) = checked {
            request.extensions_mut().insert(malformed);
        }
        let mut router = router.clone();
        async move {
            let mut response = router.call(request).await.unwrap_or_else(|never| match never {});
            if is_last {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(BUFFER_BYTES);
    let mut serving = pin!(http.serve_connection(TokioIo::new(watched), service));
    // What breaks a connection is the other side's affair.
    tokio::select! {
        _ = serving.as_mut() => return,
        () = crate::gone(leaving) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}
