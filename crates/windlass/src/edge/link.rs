//! Link between two simulated boards: a TCP proxy that delays bytes by the rate and the delay of both ports.
//!
//! Threads forward the bytes, because a thread wakes within some microseconds and tokio's timer within a millisecond.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use super::port::{Port, Transit};
use crate::precise::{minimise_timer_slack, sleep_until};

/// Listener that forwards each connection to a stage on another board.
#[derive(Debug)]
pub(super) struct Link {
    address: SocketAddr,
    route: Arc<Route>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Route {
    target: SocketAddr,
    sending_port: Arc<Port>,
    /// Port of the board with the receiving stage. It changes when the stage moves.
    receiving_port: Mutex<Arc<Port>>,
    is_closed: AtomicBool,
    /// Both sockets of each connection, to close them.
    streams: Mutex<Vec<TcpStream>>,
}

/// Bytes in transit.
struct Chunk {
    bytes: Vec<u8>,
    arrives: Instant,
}

/// Number of chunks that a flow queues after their arrival, beside those in transit. When the queue is full, the link
/// stops reading, which the sender sees as back-pressure.
const QUEUED_CHUNKS: usize = 4;

// === impl Link ===

impl Link {
    pub(super) fn start(from: Arc<Port>, to: Arc<Port>, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let route = Arc::new(Route {
            target,
            sending_port: from,
            receiving_port: Mutex::new(to),
            is_closed: AtomicBool::new(false),
            streams: Mutex::new(Vec::new()),
        });
        let listener_route = Arc::clone(&route);
        let listener = thread::spawn(move || listener_route.accept(&listener));
        Ok(Self { address, route, listener: Some(listener) })
    }

    /// Address to which the sending stage connects.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the port of the receiving stage, for new connections.
    pub(super) fn set_receiver(&self, to: Arc<Port>) {
        *self.route.receiving_port.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.route.is_closed.store(true, Ordering::Relaxed);
        self.route.close_streams();
        // Wake the listener.
        drop(TcpStream::connect(self.address));
        if let Some(listener) = self.listener.take() {
            // The thread has printed its panic.
            let _ = listener.join();
        }
    }
}

// === impl Route ===

impl Route {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut threads = Vec::new();
        while let Ok((client, _)) = listener.accept() {
            if self.is_closed.load(Ordering::Relaxed) {
                break;
            }
            // A stage that does not listen refuses. The client's connection is then closed.
            let Ok(server) = TcpStream::connect(self.target) else { continue };
            threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
            if threads.is_empty() {
                self.streams.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            threads.extend(self.forward(&client, &server).into_iter().flatten());
        }
        self.close_streams();
        for thread in threads {
            // The thread has printed its panic.
            let _ = thread.join();
        }
    }

    /// Starts the threads that forward both directions of a connection.
    fn forward(&self, client: &TcpStream, server: &TcpStream) -> io::Result<Vec<JoinHandle<()>>> {
        let to = Arc::clone(&self.receiving_port.lock().unwrap_or_else(PoisonError::into_inner));
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.extend([client.try_clone()?, server.try_clone()?]);
        drop(streams);
        let to_server = direction(
            client.try_clone()?,
            server.try_clone()?,
            Arc::clone(&self.sending_port),
            Arc::clone(&to),
        );
        let to_client =
            direction(server.try_clone()?, client.try_clone()?, to, Arc::clone(&self.sending_port));
        Ok(to_server.into_iter().chain(to_client).collect())
    }

    fn close_streams(&self) {
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Fails if the connection has ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Starts the two threads of one direction. One reads chunks and reserves time on the ports, the other writes each
/// chunk when it arrives.
fn direction(
    input: TcpStream,
    output: TcpStream,
    sender: Arc<Port>,
    receiver: Arc<Port>,
) -> [JoinHandle<()>; 2] {
    let (queue, chunks) = sync_channel(QUEUED_CHUNKS + sender.in_transit_to(&receiver));
    let reader = thread::spawn(move || read_chunks(input, &queue, &sender, &receiver));
    let writer = thread::spawn(move || write_chunks(output, &chunks));
    [reader, writer]
}

fn read_chunks(mut input: TcpStream, queue: &SyncSender<Chunk>, sender: &Port, receiver: &Port) {
    minimise_timer_slack();
    let mut buffer = vec![0; sender.chunk_size_to(receiver)];
    while let Ok(length @ 1..) = input.read(&mut buffer) {
        let Transit { begins, arrives } = sender.reserve_transfer(receiver, length);
        if queue.send(Chunk { bytes: buffer[..length].to_vec(), arrives }).is_err() {
            return;
        }
        // The next chunk queues once the receiving port begins this one. Chunks of other flows may come before it.
        sleep_until(begins);
    }
}

fn write_chunks(mut output: TcpStream, chunks: &Receiver<Chunk>) {
    minimise_timer_slack();
    for chunk in chunks {
        sleep_until(chunk.arrives);
        if output.write_all(&chunk.bytes).is_err() {
            break;
        }
    }
    // Fails if the receiver has closed the connection.
    let _ = output.shutdown(Shutdown::Both);
}
