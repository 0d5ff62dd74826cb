//! A server for one browser: the assets under a prefix, and answers of the test's own, on loopback.

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

/// Where the page is; the real servers have it below another prefix each.
const PREFIX: &str = "/some/prefix/";

/// The policy that the real servers send.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// An answer: its status line, its type, its body, and the time for which it is held.
pub(crate) struct Answer(&'static str, &'static str, Vec<u8>, Duration);

impl Answer {
    pub(crate) fn json(body: &str) -> Self {
        Self("200 OK", "application/json", body.into(), Duration::ZERO)
    }

    /// The same, later.
    pub(crate) fn held(self, hold: Duration) -> Self {
        Self(self.0, self.1, self.2, hold)
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

/// A running server. It ends with the value.
pub(crate) struct Server {
    address: SocketAddr,
    refused: Arc<Mutex<Vec<String>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers each path below the prefix, query included.
    pub(crate) fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("bound");
        let refused = Arc::new(Mutex::new(Vec::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let (noted, is_over) = (Arc::clone(&refused), Arc::clone(&ends));
        let answer = Arc::new(answer);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (answer, noted) = (Arc::clone(&answer), Arc::clone(&noted));
                // A browser opens connections in advance and leaves them: each has a thread and a limit.
                thread::spawn(move || stream.and_then(|it| respond(it, &*answer, &noted)));
            }
        });
        Self { address, refused, ends, thread: Some(thread) }
    }

    pub(crate) fn url(&self, fragment: &str) -> String {
        format!("http://{}{PREFIX}{fragment}", self.address)
    }

    /// Paths that were asked for and are not there.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().expect("no thread panics with it").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the listener; if that fails it has ended.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn respond(
    mut stream: TcpStream,
    answer: &dyn Fn(&str) -> Answer,
    refused: &Mutex<Vec<String>>,
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
    let below = path.strip_prefix(PREFIX).filter(|_| method == "GET");
    let Answer(status, kind, body, hold) =
        below.map_or_else(|| Answer::refusal("404 Not Found"), answer);
    if status.starts_with("404") {
        refused.lock().expect("no thread panics with it").push(request);
    }
    thread::park_timeout(hold);
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(&body)
}
