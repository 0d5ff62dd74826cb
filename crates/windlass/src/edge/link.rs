//! A link between two simulated boards: connections whose bytes arrive as late as the ports of both let them.
//!
//! Threads and not tasks carry the bytes: a thread wakes within some microseconds, tokio's timer within a millisecond.

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

use super::port::{Passage, Port};
use crate::precise::{be_woken_on_time, sleep_until};

/// A listener that forwards each connection to a stage of another board.
#[derive(Debug)]
pub(super) struct Link {
    address: SocketAddr,
    route: Arc<Route>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Route {
    target: SocketAddr,
    from: Arc<Port>,
    /// The port of the board that the stage is on, which changes when the stage is placed anew.
    to: Mutex<Arc<Port>>,
    is_closed: AtomicBool,
    /// Both sides of each connection, to end them.
    streams: Mutex<Vec<TcpStream>>,
}

/// A part of a stream on its way.
struct Chunk {
    bytes: Vec<u8>,
    arrives: Instant,
}

/// Chunks of one flow that have arrived and are not taken, besides those on their way: what a socket holds back then, the
/// sender sees as back-pressure.
const WAITING: usize = 4;

// === impl Link ===

impl Link {
    pub(super) fn start(from: Arc<Port>, to: Arc<Port>, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let route = Arc::new(Route {
            target,
            from,
            to: Mutex::new(to),
            is_closed: AtomicBool::new(false),
            streams: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&route);
        let listener = thread::spawn(move || accepting.accept(&listener));
        Ok(Self { address, route, listener: Some(listener) })
    }

    /// Address for the stage that sends.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The stage that receives is on another board from now on.
    pub(super) fn lead_to(&self, to: Arc<Port>) {
        *self.route.to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.route.is_closed.store(true, Ordering::Relaxed);
        self.route.close_streams();
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
        if let Some(listener) = self.listener.take() {
            // A panic was printed where it happened.
            let _ = listener.join();
        }
    }
}

// === impl Route ===

impl Route {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut carriers = Vec::new();
        while let Ok((client, _)) = listener.accept() {
            if self.is_closed.load(Ordering::Relaxed) {
                break;
            }
            // A stage that is not there refuses: the client sees its connection end.
            let Ok(server) = TcpStream::connect(self.target) else { continue };
            carriers.retain(|carrier: &JoinHandle<()>| !carrier.is_finished());
            if carriers.is_empty() {
                self.streams.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            carriers.extend(self.carry(&client, &server).into_iter().flatten());
        }
        self.close_streams();
        for carrier in carriers {
            // A panic was printed where it happened.
            let _ = carrier.join();
        }
    }

    /// Carries both directions of a connection.
    fn carry(&self, client: &TcpStream, server: &TcpStream) -> io::Result<Vec<JoinHandle<()>>> {
        let to = Arc::clone(&self.to.lock().unwrap_or_else(PoisonError::into_inner));
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.extend([client.try_clone()?, server.try_clone()?]);
        drop(streams);
        let there = direction(
            client.try_clone()?,
            server.try_clone()?,
            Arc::clone(&self.from),
            Arc::clone(&to),
        );
        let back = direction(server.try_clone()?, client.try_clone()?, to, Arc::clone(&self.from));
        Ok(there.into_iter().chain(back).collect())
    }

    fn close_streams(&self) {
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // One that has ended is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Starts the threads of one direction: one takes bytes and reserves the ports, one hands them on when they arrive.
fn direction(
    from: TcpStream,
    to: TcpStream,
    sender: Arc<Port>,
    receiver: Arc<Port>,
) -> [JoinHandle<()>; 2] {
    let (queue, chunks) = sync_channel(WAITING + sender.underway_to(&receiver));
    let take = thread::spawn(move || take(from, &queue, &sender, &receiver));
    let deliver = thread::spawn(move || deliver(to, &chunks));
    [take, deliver]
}

fn take(mut from: TcpStream, queue: &SyncSender<Chunk>, sender: &Port, receiver: &Port) {
    be_woken_on_time();
    let mut buffer = vec![0; sender.chunk_to(receiver)];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let Passage { begins, arrives } = sender.send(receiver, length);
        if queue.send(Chunk { bytes: buffer[..length].to_vec(), arrives }).is_err() {
            return;
        }
        // The next chunk queues up while this one passes; those of other flows come in between.
        sleep_until(begins);
    }
}

fn deliver(mut to: TcpStream, chunks: &Receiver<Chunk>) {
    be_woken_on_time();
    for chunk in chunks {
        sleep_until(chunk.arrives);
        if to.write_all(&chunk.bytes).is_err() {
            break;
        }
    }
    // The other side may have gone first.
    let _ = to.shutdown(Shutdown::Both);
}
