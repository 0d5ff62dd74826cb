//! HTTP server for one browser, on the loopback: the assets below a prefix, and answers of the test.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Prefix of the page. The real servers have other prefixes.
const PREFIX: &str = "/some/prefix/";

/// Value of `Content-Security-Policy`, which the real servers send.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// An answer: status line, media type, body, and the delay before it is sent.
pub(crate) struct Answer(&'static str, &'static str, Vec<u8>, Duration);

impl Answer {
    pub(crate) fn json(body: &str) -> Self {
        Self("200 OK", "application/json", body.into(), Duration::ZERO)
    }

    /// Delays the answer.
    pub(crate) fn delayed(self, delay: Duration) -> Self {
        Self(self.0, self.1, self.2, delay)
    }

    pub(crate) fn refusal(status: &'static str) -> Self {
        Self(status, "text/plain; charset=utf-8", "the reason in words".into(), Duration::ZERO)
    }

    /// A file of the assets.
    pub(crate) fn asset(folder: &Path, name: &str) -> Self {
        let name = if name.is_empty() { "index.html" } else { name };
        let kind = match name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            _ => "image/svg+xml",
        };
        match fs::read(folder.join(name)) {
            Ok(body) => Self("200 OK", kind, body, Duration::ZERO),
            Err(_) => Self::refusal("404 Not Found"),
        }
    }
}

/// A running server. A drop stops it.
pub(crate) struct Server {
    address: SocketAddr,
    not_found: Arc<Mutex<Vec<String>>>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server. `answer` gets each path below the prefix, query included.
    pub(crate) fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("bound");
        let not_found = Arc::new(Mutex::new(Vec::new()));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (not_found_log, stop_flag) = (Arc::clone(&not_found), Arc::clone(&is_stopping));
        let answer = Arc::new(answer);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stop_flag.load(Ordering::SeqCst) {
                    return;
                }
                let (answer, not_found_log) = (Arc::clone(&answer), Arc::clone(&not_found_log));
                // A browser opens connections in advance and may never use them: each has a thread and a time limit.
                thread::spawn(move || stream.and_then(|it| respond(it, &*answer, &not_found_log)));
            }
        });
        Self { address, not_found, is_stopping, thread: Some(thread) }
    }

    pub(crate) fn url(&self, fragment: &str) -> String {
        format!("http://{}{PREFIX}{fragment}", self.address)
    }

    /// Requests that were answered with 404.
    pub(crate) fn not_found(&self) -> Vec<String> {
        self.not_found.lock().expect("the lock is not poisoned").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the listener. A failure means that the listener has ended.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn respond(
    mut stream: TcpStream,
    answer: &dyn Fn(&str) -> Answer,
    not_found: &Mutex<Vec<String>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    // A connection that was opened in advance ends without a request.
    let Some(request) = lines.next().transpose()? else { return Ok(()) };
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let asset_path = path.strip_prefix(PREFIX).filter(|_| method == "GET");
    let Answer(status, kind, body, delay) =
        asset_path.map_or_else(|| Answer::refusal("404 Not Found"), answer);
    if status.starts_with("404") {
        not_found.lock().expect("the lock is not poisoned").push(request);
    }
    thread::park_timeout(delay);
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(&body)
}
