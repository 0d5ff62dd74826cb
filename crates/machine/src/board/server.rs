//! One listener on a thread of its own, which serves one client at a time and ends with its owner.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A listener with its thread.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    life: Arc<Life>,
    thread: Option<JoinHandle<()>>,
}

/// What owner and thread share.
#[derive(Debug, Default)]
struct Life {
    is_over: AtomicBool,
    /// The client that is being served, so that its end can be brought about.
    client: Mutex<Option<TcpStream>>,
}

/// How long a client may be silent within a message.
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Server ===

impl Server {
    /// Binds, then serves each client until `serve` returns.
    pub(super) fn start(
        address: SocketAddr,
        serve: impl Fn(TcpStream) + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let life = Arc::new(Life::default());
        let shared = life.clone();
        let thread = std::thread::Builder::new().name("board".to_owned());
        let thread = thread.spawn(move || accept(&listener, &shared, serve))?;
        Ok(Self { address, life, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.life.is_over.store(true, Ordering::SeqCst);
        let client = self.life.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(client) = client {
            // One that has gone by itself needs no end.
            let _ = client.shutdown(Shutdown::Both);
        }
        // A listener that waits is woken by a client.
        let woken = TcpStream::connect_timeout(&reachable(self.address), Duration::from_secs(1));
        drop(woken);
        if let Some(thread) = self.thread.take() {
            // A server that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, life: &Life, serve: impl Fn(TcpStream)) {
    for stream in listener.incoming() {
        if life.is_over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        // Without its limit it could only be served worse.
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let known = stream.try_clone().ok();
        *life.client.lock().unwrap_or_else(PoisonError::into_inner) = known;
        if life.is_over.load(Ordering::SeqCst) {
            return;
        }
        serve(stream);
        life.client.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Where a listener on all addresses is reached from this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        match address {
            SocketAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        }
    }
    address
}
