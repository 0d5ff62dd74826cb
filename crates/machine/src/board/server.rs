//! TCP server with its own thread. It serves one client at a time and stops when dropped.

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
    shared_state: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the owner and the thread.
#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    /// Client in service, so that the owner can disconnect it.
    client: Mutex<Option<TcpStream>>,
}

/// Read timeout of a client within a message.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Server ===

impl Server {
    /// Binds, then calls `serve` for each client in turn.
    pub(super) fn start(
        address: SocketAddr,
        serve: impl Fn(TcpStream) + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared_state = Arc::new(Shared::default());
        let shared = shared_state.clone();
        let thread = std::thread::Builder::new().name("board".to_owned());
        let thread = thread.spawn(move || accept(&listener, &shared, serve))?;
        Ok(Self { address, shared_state, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared_state.is_stopped.store(true, Ordering::SeqCst);
        let client = self.shared_state.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(client) = client {
            // The call fails if the client has already disconnected.
            let _ = client.shutdown(Shutdown::Both);
        }
        // A connection wakes the thread, which waits in `accept`.
        let connection =
            TcpStream::connect_timeout(&connect_address(self.address), Duration::from_secs(1));
        drop(connection);
        if let Some(thread) = self.thread.take() {
            // A panicked server thread has already printed its message.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, shared_state: &Shared, serve: impl Fn(TcpStream)) {
    for stream in listener.incoming() {
        if shared_state.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        // If the timeout cannot be set, a silent client blocks the server until it disconnects.
        let _ = stream.set_read_timeout(Some(CLIENT_TIMEOUT));
        let client = stream.try_clone().ok();
        *shared_state.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
        if shared_state.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        serve(stream);
        shared_state.client.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Local address that reaches a listener bound to all addresses.
fn connect_address(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        match address {
            SocketAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        }
    }
    address
}
