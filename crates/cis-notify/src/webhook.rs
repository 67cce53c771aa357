//! Sending a message to an address, signed as Standard Webhooks has it.
//!
//! ```text
//!   name ─► addresses, looked up once ─► all of them public? ─► connect to one of these ─► POST ─► its status
//! ```
//!
//! One connection a message: nothing is kept, no redirect is followed, no proxy asked, and of the answer only its
//! status is read.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cis_client::tls;
use cis_core::source::Timestamp;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::http::uri::Scheme;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use ring::hmac;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Failed;
use crate::address::is_public;
use crate::message::Message;

/// How long a receiver has to answer, all in all.
const TIME_MAX: Duration = Duration::from_secs(15);

/// What of an answer is read at most: its status and its headers.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// A shorter secret could be guessed.
const SECRET_BYTES_MIN: usize = 16;

/// What marks a secret that is written in base64.
const SECRET_MARK: &str = "whsec_";

/// Where messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    https: bool,
    /// As it is asked for, without brackets.
    host: String,
    port: u16,
    /// As it stands in the `Host` header.
    authority: String,
    /// Path and query.
    target: String,
}

impl Url {
    /// Reads an address; says what is wrong with it without repeating it, since it may hold a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|e| format!("not an address: {e}"))?;
        let https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err("an address begins with `https://` or `http://`".to_owned()),
        };
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if authority.contains('@') {
            return Err("an address with a user in it; a receiver knows us by the signature".to_owned());
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("an address without a host".to_owned());
        }
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        Ok(Self { https, host, port, authority, target })
    }

    /// Where it leads, looked up once; nowhere unless every address is public or may be private.
    async fn resolve(&self, allow_private: bool) -> Result<Vec<SocketAddr>, String> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let found: Vec<_> = found.map_err(|e| format!("`{}` is not known: {e}", self.host))?.collect();
        match found.iter().find(|address| !is_public(address.ip())) {
            Some(private) if !allow_private => Err(format!(
                "`{}` leads to {}, which is not a public address; `allow_private = true` under `[notify]` allows it",
                self.host,
                private.ip()
            )),
            _ => Ok(found),
        }
    }
}

impl fmt::Display for Url {
    /// Without its path: that is where some receivers put what only we should know.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.https { "https" } else { "http" }, self.authority)
    }
}

/// A receiver.
pub struct Webhook {
    url: Url,
    key: hmac::Key,
    allow_private: bool,
    tls: Option<TlsConnector>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Webhook({})", self.url)
    }
}

impl Webhook {
    pub fn new(url: Url, secret: &str, allow_private: bool) -> Result<Self, String> {
        let tls = url.https.then(tls::connector).transpose().map_err(|refusal| refusal.message)?;
        Ok(Self { url, key: key(secret)?, allow_private, tls })
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) async fn send(&self, message: &Message, now: Timestamp) -> Result<(), Failed> {
        let posted = tokio::time::timeout(TIME_MAX, self.post(message, now)).await;
        let late = Err(format!("no answer within {} s", TIME_MAX.as_secs()));
        judge(posted.unwrap_or(late).map_err(Failed::ForNow)?)
    }

    async fn post(&self, message: &Message, now: Timestamp) -> Result<StatusCode, String> {
        let addresses = self.url.resolve(self.allow_private).await?;
        let stream = TcpStream::connect(&*addresses).await.map_err(|e| format!("cannot connect: {e}"))?;
        let Some(tls) = &self.tls else { return self.speak(stream, message, now).await };
        let name =
            ServerName::try_from(self.url.host.clone()).map_err(|e| format!("not a name for TLS: {e}"))?;
        let stream = tls.connect(name, stream).await.map_err(|e| format!("no TLS: {e}"))?;
        self.speak(stream, message, now).await
    }

    async fn speak<S>(&self, stream: S, message: &Message, now: Timestamp) -> Result<StatusCode, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = |e: hyper::Error| format!("the connection failed: {e}");
        let request = self.request(message, now).map_err(|e| format!("cannot be asked: {e}"))?;
        let mut protocol = http1::Builder::new();
        protocol.max_buf_size(ANSWER_BYTES_MAX);
        let (mut sender, connection) = protocol.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut answer = pin!(sender.send_request(request));
        let answered = tokio::select! {
            answered = &mut answer => answered,
            // It is over; whether that was after the answer, the request knows.
            _ = connection => answer.await,
        };
        Ok(answered.map_err(broken)?.status())
    }

    fn request(&self, message: &Message, now: Timestamp) -> hyper::http::Result<Request<Full<Bytes>>> {
        let seconds = now.0 / 1_000;
        Request::post(&self.url.target)
            .header(header::HOST, &self.url.authority)
            .header(header::USER_AGENT, concat!("cis/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", signature(&self.key, &message.id, seconds, &message.body))
            .body(Full::new(Bytes::from(message.body.clone())))
    }
}

/// What an answer means.
fn judge(status: StatusCode) -> Result<(), Failed> {
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::GONE => Err(Failed::ForGood(format!("answered {status}: nobody is there any more"))),
        _ if status.is_redirection() => {
            Err(Failed::ForNow(format!("answered {status}; redirects are not followed")))
        }
        _ => Err(Failed::ForNow(format!("answered {status}"))),
    }
}

fn signature(key: &hmac::Key, id: &str, seconds: i64, body: &str) -> String {
    let tag = hmac::sign(key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64_STANDARD.encode(tag))
}

/// The key a secret stands for: its bytes, or what they say in base64 behind the mark.
fn key(secret: &str) -> Result<hmac::Key, String> {
    let bytes = match secret.strip_prefix(SECRET_MARK) {
        Some(encoded) => BASE64_STANDARD.decode(encoded).map_err(|_| {
            format!("the secret says `{SECRET_MARK}` and goes on with something that is not base64")
        })?,
        None => secret.as_bytes().to_vec(),
    };
    if bytes.len() < SECRET_BYTES_MIN {
        return Err(format!("the secret is shorter than {SECRET_BYTES_MIN} bytes"));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(url: &str) -> Result<String, String> {
        Url::parse(url).map(|url| format!("{url} {} {} {}", url.host, url.port, url.target))
    }

    #[test]
    fn an_address_is_taken_apart() {
        assert_eq!(told("https://a.example/b?c=d").unwrap(), "https://a.example a.example 443 /b?c=d");
        assert_eq!(told("http://a.example:81").unwrap(), "http://a.example:81 a.example 81 /");
        assert_eq!(told("http://[::1]:80/x").unwrap(), "http://[::1]:80 ::1 80 /x");
        for (wrong, why) in [
            ("", "not an address"),
            ("a.example", "`https://`"),
            ("ftp://a.example/", "`https://`"),
            ("file:///etc/passwd", "not an address"),
            ("/path", "`https://`"),
            ("https://", "not an address"),
            ("https://u:p@a.example/", "user"),
            ("https://a example/", "not an address"),
        ] {
            assert!(told(wrong).is_err_and(|told| told.contains(why)), "{wrong}: {:?}", told(wrong));
        }
    }

    /// However an address of this machine or its network is spelled, nothing is sent to it.
    #[tokio::test]
    async fn no_spelling_of_a_private_address_leads_anywhere() {
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "localhost",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::ffff:10.0.0.1]",
            "[64:ff9b::7f00:1]",
            "0.0.0.0",
            "0",
            "10.0.0.1",
            "167772161",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "2852039166",
            "0251.0376.0251.0376",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[fe80::1]",
            "[fd00::1]",
            "[ff02::1]",
            "[2002:7f00:1::]",
            "[2001::1]",
        ] {
            let url = Url::parse(&format!("http://{host}:9/")).unwrap();
            let refused = url.resolve(false).await;
            assert!(
                refused.as_ref().is_err_and(|why| why.contains("not a public address")),
                "{host}: {refused:?}"
            );
            assert!(url.resolve(true).await.is_ok(), "{host}: allowed");
        }
        for host in
            ["8.8.8.8", "134744072", "[2001:4860:4860::8888]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]"]
        {
            assert!(Url::parse(&format!("http://{host}/")).unwrap().resolve(false).await.is_ok(), "{host}");
        }
    }

    /// The example of the specification of Standard Webhooks.
    #[test]
    fn a_signature_is_what_others_compute() {
        let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let told = signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(told, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_long_and_readable() {
        assert!(key("0123456789abcdef").is_ok());
        assert_eq!(key("0123456789abcde").unwrap_err(), "the secret is shorter than 16 bytes");
        assert!(key("whsec_!!!!").unwrap_err().contains("not base64"));
        assert!(key("whsec_MDEyMw==").unwrap_err().contains("shorter"));
    }

    #[test]
    fn only_a_success_is_one() {
        assert_eq!(judge(StatusCode::NO_CONTENT), Ok(()));
        assert!(matches!(judge(StatusCode::GONE), Err(Failed::ForGood(_))));
        for status in [301, 302, 307, 308, 400, 404, 429, 500, 503] {
            let told = judge(StatusCode::from_u16(status).unwrap());
            assert!(matches!(told, Err(Failed::ForNow(why)) if why.contains(&status.to_string())));
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let url = Url::parse("http://a.example/services/T0/B0/hidden").unwrap();
        let webhook = Webhook::new(url, "0123456789abcdef-hidden", false).unwrap();
        assert_eq!(
            (format!("{webhook:?}"), webhook.url().to_string()),
            ("Webhook(http://a.example)".to_owned(), "http://a.example".to_owned())
        );
    }
}
