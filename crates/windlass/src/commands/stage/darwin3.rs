//! Work by Darwin3 boards: the payload is flits of spikes, the result the flits that come back.
//!
//! A client that connects and leaves without a message takes the board out of service until a person restarts its
//! server. So a message is made before the board is called, and sent at once, from a thread that nothing cancels: a
//! task could be dropped between connect and send. A kill of the process there remains.

mod message;

use std::{
    fs,
    io::{self, Read, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;

use self::message::{Flits, FlitsError, Message, Purpose, answer};
use crate::cli::{Darwin3Args, DataPorts, Edge, EdgeFile, LimitArgs};

/// The boards of a stage. Each serves one run at a time.
#[derive(Debug)]
pub(super) struct Darwin3 {
    boards: Vec<Mutex<Chip>>,
    network: Option<Message>,
    run_with: Flits,
    result_edge: Edge,
    /// Time of a message and its answer.
    limit: Duration,
    max_answer: usize,
}

#[derive(Debug)]
struct Chip {
    address: String,
    has_network: bool,
}

/// A run without a result.
#[derive(Debug, thiserror::Error)]
pub(super) enum BoardError {
    #[error(transparent)]
    Flits(#[from] FlitsError),
    #[error("cannot connect to the Darwin3 board at {address}: look whether its server runs")]
    Connect { address: String, source: io::Error },
    #[error(
        "the Darwin3 board at {address} did not answer within {limit:?}: restart its server if it \
         never does, the data port is wedged"
    )]
    Silent { address: String, limit: Duration },
    #[error("the Darwin3 board at {address} gave no whole answer: see the log of its server")]
    Answer { address: String, source: io::Error },
}

/// A connection whose waits all end at the same time.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

/// Variable in which Windlass gives a container its boards; the shipped profiles set it.
const ENDPOINTS: &str = "DARWIN3_ENDPOINTS";

/// Longest wait for a connection: a board is one or two hops away.
const CONNECT: Duration = Duration::from_secs(5);
/// A board to which a connection is open gets its message, however late it is.
const LEAST_SEND: Duration = Duration::from_secs(1);

// === impl Darwin3 ===

impl Darwin3 {
    /// The boards of the command line; none without `--darwin3`. No board is called yet.
    pub(super) fn of(args: &Darwin3Args, limits: LimitArgs) -> Result<Option<Self>> {
        let Some(ports) = &args.darwin3 else { return Ok(None) };
        let ports = if ports.0.is_empty() { given()? } else { ports.0.clone() };
        ensure!(limits.workers == 1, "--workers: each board of --darwin3 is one worker");
        let run_with = flits("--run-with", &args.run_with)?;
        ensure!(
            run_with[Edge::West as usize].is_empty(),
            "--run-with: payloads go in at the west edge, name another: east=FILE"
        );
        ensure!(
            args.result_edge == Edge::West || !run_with[args.result_edge as usize].is_empty(),
            "--result-edge: the board answers for edges that are sent flits, which --run-with has"
        );
        let network = flits("--network", &args.network)?;
        let network = Message::new(Purpose::Deploy, &network).context("--network")?;
        let board = |address| Mutex::new(Chip { address, has_network: false });
        let batch = u32::try_from(limits.batch).unwrap_or(u32::MAX);
        Ok(Some(Self {
            boards: ports.into_iter().map(board).collect(),
            network: (!args.network.is_empty()).then_some(network),
            run_with,
            result_edge: args.result_edge,
            // Before the kit gives the batch up, since this error names the board.
            limit: limits.work_timeout.mul_f64(0.9) / batch,
            max_answer: limits.max_payload,
        }))
    }

    /// Number of boards.
    pub(super) fn count(&self) -> usize {
        self.boards.len()
    }

    /// Runs spikes on a board, on a thread that may block.
    pub(super) fn run(&self, spikes: Bytes) -> Result<Bytes, BoardError> {
        let mut flits = self.run_with.clone();
        flits[Edge::West as usize] = spikes;
        let run = Message::new(Purpose::Run, &flits)?;
        let until = Instant::now() + self.limit;
        let mut board = self.idle();
        let has_network = std::mem::replace(&mut board.has_network, false);
        if let Some(network) = self.network.as_ref().filter(|_| !has_network) {
            self.exchange(&board.address, network, until)?;
            tracing::info!(board = board.address, "network deployed");
        }
        let result = self.exchange(&board.address, &run, until)?;
        board.has_network = true;
        Ok(result)
    }

    /// A board without a run; there are as many workers as boards.
    fn idle(&self) -> MutexGuard<'_, Chip> {
        let idle = self.boards.iter().find_map(|board| match board.try_lock() {
            Ok(idle) => Some(idle),
            // After a panic the board is as after any failure.
            Err(TryLockError::Poisoned(idle)) => Some(idle.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        idle.unwrap_or_else(|| self.boards[0].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn exchange(
        &self,
        address: &str,
        message: &Message,
        until: Instant,
    ) -> Result<Bytes, BoardError> {
        let owned = || address.to_owned();
        let stream = connect(address, self.limit.min(CONNECT));
        let stream = stream.map_err(|source| BoardError::Connect { address: owned(), source })?;
        let mut board = Timed { stream, until };
        let outcome = board
            .send(&message.0)
            .and_then(|()| answer(&mut board, self.result_edge, self.max_answer));
        outcome.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                BoardError::Silent { address: owned(), limit: self.limit }
            }
            _ => BoardError::Answer { address: owned(), source },
        })
    }
}

/// The boards that Windlass gave the container.
fn given() -> Result<Vec<String>> {
    let given = std::env::var(ENDPOINTS).unwrap_or_default();
    ensure!(
        !given.is_empty(),
        "--darwin3: write HOST:PORT, or run where Windlass gave a board: {ENDPOINTS} is not set"
    );
    let ports: DataPorts = given.parse().map_err(anyhow::Error::msg).context(ENDPOINTS)?;
    Ok(ports.0)
}

/// Reads the flits of each edge.
fn flits(flag: &str, files: &[EdgeFile]) -> Result<Flits> {
    let mut flits = Flits::default();
    for EdgeFile { edge, path } in files {
        let read = fs::read(path);
        let read = read.with_context(|| format!("{flag}: cannot read {}", path.display()))?;
        ensure!(flits[*edge as usize].is_empty(), "{flag}: an edge has two files");
        flits[*edge as usize] = read.into();
    }
    Ok(flits)
}

fn connect(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

// === impl Timed ===

impl Timed {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        // Without the limit a wedged board is found late; a return without a message would wedge it.
        let left = self.until.saturating_duration_since(Instant::now());
        let _ = self.stream.set_write_timeout(Some(left.max(LEAST_SEND)));
        self.stream.write_all(message)
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}
