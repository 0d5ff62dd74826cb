//! Minimal HTTP/1 server: one request without a body per connection.
//!
//! hyper is not used because hyper 1.12 reads the date on each turn of a connection, even without a `date` header
//! (`proto/h1/dispatch.rs`), and panics if the clock is before 1970. The agent reads no bodies and keeps no
//! connections alive, so it needs little of hyper.

use std::io;

use bytes::{Buf as _, Bytes};
pub(super) use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use windlass_page::CONTENT_SECURITY_POLICY;

/// Parsed request head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path without the query.
    pub(super) path: String,
    /// Query; empty without one.
    pub(super) query: String,
    /// Accepted media types; empty without the header.
    pub(super) accept: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
}

/// Failure to read a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    /// The client closed the connection.
    Disconnected,
    /// Not HTTP/1.
    Malformed,
    /// The head exceeds the limit.
    TooLarge,
}

/// Initial buffer; Prometheus sends about 600 bytes.
const INITIAL_HEAD_BYTES: usize = 1 << 10;

/// Limit of a request head, with room for the headers of proxies.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Limit of the request body that is read and discarded before closing.
const MAX_DISCARDED: u64 = 64 << 10;

pub(super) const TEXT: &str = "text/plain; charset=utf-8";

pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Request, RequestError> {
    let mut head = Vec::with_capacity(INITIAL_HEAD_BYTES);
    loop {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return Err(RequestError::Disconnected),
            Ok(_) => {}
        }
        if let Some(end) = end_of_head(&head) {
            let head = str::from_utf8(&head[..end]).ok();
            return head.and_then(parse).ok_or(RequestError::Malformed);
        }
        if head.len() > MAX_HEAD_BYTES {
            return Err(RequestError::TooLarge);
        }
    }
}

/// Sends the response and ends the connection; `HEAD` omits the body.
pub(super) async fn send_response(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    response: &Response,
) -> io::Result<()> {
    let body = if method == "HEAD" { Bytes::new() } else { response.body.clone() };
    let mut text = Bytes::from(response.head()).chain(body);
    stream.write_all_buf(&mut text).await?;
    stream.shutdown().await?;
    // Closing with unread input resets the connection, and the client loses the response.
    tokio::io::copy(&mut stream.take(MAX_DISCARDED), &mut tokio::io::sink()).await.map(drop)
}

/// Index of the line break before the empty line that ends the head.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let is_end = |index: usize| {
        ["\n\r\n", "\n\n"]
            .iter()
            .any(|line_breaks| bytes[index..].starts_with(line_breaks.as_bytes()))
    };
    (0..bytes.len()).find(|&index| is_end(index))
}

fn parse(head: &str) -> Option<Request> {
    let mut lines = head.lines();
    let words: Vec<_> = lines.next()?.split(' ').collect();
    let [method, target, version] = words.as_slice() else { return None };
    if method.is_empty() || !version.starts_with("HTTP/1.") {
        return None;
    }
    // A client that uses the agent as a proxy sends the whole URL (RFC 9112, section 3.2.2).
    let target = match target.split_once("://") {
        Some((_, location)) => location.find('/').map_or("/", |start| &location[start..]),
        None => target,
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = lines.filter_map(|line| line.split_once(':'));
    let accept = headers.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let accept: Vec<_> = accept.map(|(_, value)| value.trim()).collect();
    Some(Request {
        method: (*method).to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        accept: accept.join(","),
    })
}

// === impl Response ===

impl Response {
    pub(super) fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, content_type: TEXT, body: body.into().into() }
    }

    /// Status line and headers; responses are never cached.
    fn head(&self) -> String {
        let Self { status, content_type, body } = self;
        let is_allowed = *status != StatusCode::METHOD_NOT_ALLOWED;
        let allow = if is_allowed { "" } else { "allow: GET, HEAD\r\n" };
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\
             cache-control: no-store\r\ncontent-security-policy: {CONTENT_SECURITY_POLICY}\r\n\
             x-content-type-options: nosniff\r\n{allow}connection: close\r\n\r\n",
            body.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_request(bytes: &[u8]) -> Result<Request, RequestError> {
        read(&mut &bytes[..]).await
    }

    #[tokio::test]
    async fn a_request_has_a_method_a_path_and_the_accepted_media_types() {
        let check = async |text: &str, expected: Option<(&str, &str, &str)>| {
            let request = read_request(text.as_bytes()).await;
            let request = request
                .as_ref()
                .map(|request| (&*request.method, &*request.path, &*request.accept));
            assert_eq!(request.ok(), expected, "{text:?}");
        };
        check("GET / HTTP/1.1\r\nHost: n\r\n\r\n", Some(("GET", "/", ""))).await;
        check("HEAD /a?b=c HTTP/1.0\n\n", Some(("HEAD", "/a", ""))).await;
        check("GET http://n:1/a HTTP/1.1\r\n\r\n", Some(("GET", "/a", ""))).await;
        check("GET http://n HTTP/1.1\r\n\r\n", Some(("GET", "/", ""))).await;
        let accepts = "GET /m HTTP/1.1\r\naccept: a/b\r\nX: y\r\nACCEPT:c/d;q=0.1\r\n\r\nrest";
        check(accepts, Some(("GET", "/m", "a/b,c/d;q=0.1"))).await;
        for malformed in ["nonsense", "GET /", "GET / HTTP/2", "GET  / HTTP/1.1", " / HTTP/1.1", ""]
        {
            check(&format!("{malformed}\r\n\r\n"), None).await;
        }
        assert_eq!(read_request(b"GET /\xff HTTP/1.1\r\n\r\n").await, Err(RequestError::Malformed));
    }

    #[tokio::test]
    async fn an_endless_head_is_too_large_and_an_unfinished_one_is_a_disconnect() {
        let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(2 * MAX_HEAD_BYTES));
        assert_eq!(read_request(endless.as_bytes()).await, Err(RequestError::TooLarge));
        let unfinished = read_request(b"GET / HTTP/1.1\r\nx: y\r\n").await;
        assert_eq!(unfinished, Err(RequestError::Disconnected));
    }

    #[tokio::test]
    async fn a_refusal_reaches_a_client_that_sends_a_body() {
        let (mut client, mut server) = tokio::io::duplex(1 << 20);
        client.write_all(&[b'x'; 1000]).await.expect("sent");
        client.shutdown().await.expect("ended");
        let refusal = Response::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        send_response(&mut server, "POST", &refusal).await.expect("answered");
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("received");
        insta::assert_snapshot!(text.replace('\r', ""), @"
        HTTP/1.1 405 Method Not Allowed
        content-type: text/plain; charset=utf-8
        content-length: 18
        cache-control: no-store
        content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'
        x-content-type-options: nosniff
        allow: GET, HEAD
        connection: close

        only GET and HEAD
        ");
    }
}
