//! A peer for the client: a real HTTP server on a thread of its own, whose answers the test decides.

use std::convert::Infallible;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;

use cis_client::{Client, with_short_path};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) const KEY: &str = "the-key-of-the-directory";
pub(crate) const TOKEN: &str = "a-token";

/// What the peer was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// What the peer answers.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Whole(u16, &'static str),
    /// These pieces, and then it stays open until the client goes.
    Open(Vec<String>),
    /// These pieces, and then the stream ends.
    Pieces(Vec<String>),
    /// It never answers.
    Silence,
}

impl Answer {
    pub(crate) fn open(pieces: &[&str]) -> Self {
        Self::Open(owned(pieces))
    }

    pub(crate) fn pieces(pieces: &[&str]) -> Self {
        Self::Pieces(owned(pieces))
    }
}

fn owned(pieces: &[&str]) -> Vec<String> {
    pieces.iter().map(|piece| (*piece).to_owned()).collect()
}

/// What a peer saw happen.
pub(crate) struct Peer {
    pub(crate) asked: Receiver<Asked>,
    /// Answers whose connection is gone.
    pub(crate) closed: Receiver<()>,
    /// Ends open answers, from the side of the peer.
    pub(crate) hang_up: tokio::sync::watch::Sender<bool>,
}

impl Peer {
    fn new() -> (Self, Served) {
        let (tell, asked) = channel();
        let (gone, closed) = channel();
        let (hang_up, hung_up) = tokio::sync::watch::channel(false);
        (Self { asked, closed, hang_up }, Served { tell, gone, hung_up })
    }
}

#[derive(Clone)]
struct Served {
    tell: Sender<Asked>,
    gone: Sender<()>,
    hung_up: tokio::sync::watch::Receiver<bool>,
}

/// A peer on a Unix socket, and its client.
pub(crate) fn on_socket(path: &Path, answers: Vec<Answer>) -> (Client, Peer) {
    let listener = with_short_path(path, |short| UnixListener::bind(short)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (peer, served) = Peer::new();
    serve(answers, served, async move |accepted| {
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        loop {
            accepted(Box::new(listener.accept().await.unwrap().0));
        }
    });
    (Client::socket(path, KEY, "ann").unwrap(), peer)
}

/// A peer on loopback, and its client.
pub(crate) fn on_loopback(answers: Vec<Answer>) -> (Client, Peer) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/under/", listener.local_addr().unwrap());
    let (peer, served) = Peer::new();
    serve(answers, served, async move |accepted| {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            accepted(Box::new(listener.accept().await.unwrap().0));
        }
    });
    (Client::tcp(&url, TOKEN).unwrap(), peer)
}

pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Transport for S {}

/// Serves one answer after the other, to whichever connection comes next.
fn serve(
    answers: Vec<Answer>,
    served: Served,
    accept: impl AsyncFnOnce(&dyn Fn(Box<dyn Transport>)) + Send + 'static,
) {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(accept(&|stream| {
            let (answers, served) = (answers.clone(), served.clone());
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let answer = answers.lock().unwrap().next().expect("one more answer");
                    respond(request, answer, served.clone())
                });
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }));
    });
}

async fn respond(
    request: Request<Incoming>,
    answer: Answer,
    served: Served,
) -> Result<Response<Pieces>, Infallible> {
    let (head, body) = request.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let line = format!("{} {}", head.method, head.uri);
    let _ = served.tell.send(Asked { line, headers: head.headers, body });
    let (status, pieces, stays_open) = match answer {
        Answer::Whole(status, text) => (status, vec![text.to_owned()], false),
        Answer::Open(pieces) => (201, pieces, true),
        Answer::Pieces(pieces) => (200, pieces, false),
        Answer::Silence => std::future::pending().await,
    };
    let mut hung_up = served.hung_up.clone();
    let ends: Pin<Box<dyn Future<Output = ()> + Send>> = match stays_open {
        true => Box::pin(async move {
            let _ = hung_up.wait_for(|hung_up| *hung_up).await;
        }),
        false => Box::pin(std::future::ready(())),
    };
    let body = Pieces { left: pieces.into_iter(), ends, gone: stays_open.then_some(served.gone) };
    Ok(Response::builder().status(status).body(body).unwrap())
}

/// A body in pieces, and whether it stays open after the last.
struct Pieces {
    left: std::vec::IntoIter<String>,
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
    gone: Option<Sender<()>>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.left.next() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(piece))))),
            None => self.ends.as_mut().poll(cx).map(|()| None),
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if let Some(gone) = &self.gone {
            let _ = gone.send(());
        }
    }
}
