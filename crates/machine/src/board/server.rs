//! Listener with its own thread. It serves one client at a time and stops with its owner.

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

/// Listener and its thread.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    life: Arc<Life>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the owner and the thread.
#[derive(Debug, Default)]
struct Life {
    is_over: AtomicBool,
    /// Client in service, so that the owner can disconnect it.
    client: Mutex<Option<TcpStream>>,
}

/// Longest silence of a client within a message.
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Server ===

impl Server {
    /// Binds, then calls `serve` for each client in turn.
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
            // A client that already left needs no shutdown.
            let _ = client.shutdown(Shutdown::Both);
        }
        // A connection wakes the waiting listener.
        let woken = TcpStream::connect_timeout(&reachable(self.address), Duration::from_secs(1));
        drop(woken);
        if let Some(thread) = self.thread.take() {
            // A panicked server thread has already printed its message.
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
        // Without the limit, a silent client only blocks for longer.
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

/// Local address that reaches a listener bound to all addresses.
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
