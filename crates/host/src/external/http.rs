//! Minimal HTTP GET for boards: one request, status only.

use std::io;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Error of a GET. The caller limits its time.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The URL is not plain HTTP.
    #[error("only plain HTTP is supported: write http://host:port/path")]
    InvalidUrl,
    /// The connection failed.
    #[error("cannot reach {0}")]
    Unreachable(String, #[source] io::Error),
    /// The connection broke during the answer.
    #[error("the connection broke")]
    Interrupted(#[from] io::Error),
    /// The answer is not HTTP.
    #[error("the answer is not HTTP")]
    NotHttp,
    /// The status is not a success.
    #[error("the answer is {0}")]
    BadStatus(String),
}

/// Components of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UrlParts<'a> {
    /// Value of the `Host` header.
    authority: &'a str,
    host: &'a str,
    port: u16,
    /// Path with query.
    path: &'a str,
}

/// Limit on the bytes that are read of an answer. A status line is much shorter.
const MAX_BYTES: usize = 1024;

/// Sends a GET for a URL. Any 2xx status is success.
pub async fn get(url: &str) -> Result<(), GetError> {
    let UrlParts { authority, host, port, path } = parse_url(url).ok_or(GetError::InvalidUrl)?;
    let connection = TcpStream::connect((host, port)).await;
    let mut stream =
        connection.map_err(|error| GetError::Unreachable(authority.to_owned(), error))?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: windlass\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let line = first_line(&mut stream).await?;
    let status = line.strip_prefix("HTTP/1.").and_then(|status_line| status_line.split_once(' '));
    let (_, status) = status.ok_or(GetError::NotHttp)?;
    if status.starts_with('2') { Ok(()) } else { Err(GetError::BadStatus(status.to_owned())) }
}

async fn first_line(stream: &mut TcpStream) -> io::Result<String> {
    let (mut text, mut buffer) = (Vec::new(), [0; 256]);
    while text.len() < MAX_BYTES && !text.contains(&b'\n') {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => text.extend_from_slice(&buffer[..count]),
        }
    }
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).trim().to_owned())
}

fn parse_url(url: &str) -> Option<UrlParts<'_>> {
    let address = url.strip_prefix("http://")?;
    let (authority, path) = match address.find(['/', '?']) {
        Some(end) if address[end..].starts_with('/') => address.split_at(end),
        Some(_) => return None,
        None => (address, "/"),
    };
    let is_sendable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, 80),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let parts = UrlParts { authority, host, port, path };
    (!host.is_empty() && !host.contains('@') && is_sendable(address)).then_some(parts)
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;

    #[test]
    fn a_url_is_a_host_with_or_without_a_port_and_a_path() {
        let check = |url, expected: Option<(&str, u16, &str)>| {
            let parsed = parse_url(url).map(|parts| (parts.host, parts.port, parts.path));
            assert_eq!(parsed, expected, "{url}");
        };
        check(
            "http://board:6001/set_frequency?freq=333",
            Some(("board", 6001, "/set_frequency?freq=333")),
        );
        check("http://10.0.0.1", Some(("10.0.0.1", 80, "/")));
        check("http://[fe80::1]:6001/", Some(("fe80::1", 6001, "/")));
        check("http://[fe80::1]/a", Some(("fe80::1", 80, "/a")));
        for bad in [
            "https://board/",
            "board:6001",
            "http://",
            "http://b:x/",
            "http://b/ c\r\nd",
            "http://u@b/",
        ] {
            check(bad, None);
        }
    }

    async fn get_answered_with(answer: &'static str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = [0; 512];
            let count = stream.read(&mut request).await.expect("a request");
            assert!(request[..count].starts_with(b"GET /chip_reset HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).await.expect("sent");
        });
        let url = format!("http://{address}/chip_reset");
        get(&url).await.map_err(|error| crate::causes(&error))
    }

    #[tokio::test]
    async fn only_a_2xx_status_is_success() {
        assert_eq!(get_answered_with("HTTP/1.0 200 OK\r\n\r\n").await, Ok(()));
        assert_eq!(get_answered_with("HTTP/1.1 204 No Content\r\n\r\n").await, Ok(()));
        let error = get_answered_with("HTTP/1.1 503 Busy\r\n\r\n").await;
        assert_eq!(error, Err("the answer is 503 Busy".to_owned()));
        assert_eq!(
            get_answered_with("SSH-2.0\r\n").await,
            Err("the answer is not HTTP".to_owned())
        );
        assert_eq!(get_answered_with("").await, Err("the answer is not HTTP".to_owned()));
    }
}
