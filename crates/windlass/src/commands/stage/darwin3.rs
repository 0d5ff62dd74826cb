//! Work by Darwin3 boards: the payload is flits of spikes, the result is the flits of the answer.
//!
//! A client that connects and disconnects without a message blocks the board until a person restarts its server. So
//! this code builds a message before it connects, and sends it at once, on a thread that nothing cancels: a task could
//! be dropped between connect and send. A kill of the process between the two remains a risk.

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

use self::message::{Flits, FlitsError, Message, MessageType, answer};
use crate::cli::{Darwin3Args, DataPorts, Edge, EdgeFile, LimitArgs};

/// The boards of a stage. Each serves one run at a time.
#[derive(Debug)]
pub(super) struct Darwin3 {
    boards: Vec<Mutex<BoardState>>,
    network: Option<Message>,
    run_flits: Flits,
    result_edge: Edge,
    /// Time limit for a message and its answer.
    limit: Duration,
    max_answer: usize,
}

#[derive(Debug)]
struct BoardState {
    address: String,
    has_network: bool,
}

/// Reason why a run has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum BoardError {
    #[error(transparent)]
    Flits(#[from] FlitsError),
    #[error("cannot connect to the Darwin3 board at {address}: check that its server runs")]
    Connect { address: String, source: io::Error },
    #[error(
        "the Darwin3 board at {address} did not answer within {limit:?}; if it \
         never answers, its data port is blocked: restart its server"
    )]
    Timeout { address: String, limit: Duration },
    #[error(
        "the Darwin3 board at {address} sent an incomplete or invalid answer: see the log of its server"
    )]
    Answer { address: String, source: io::Error },
}

/// Connection with one deadline for all its reads and writes.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Instant,
}

/// Variable with the boards of a container, which the shipped device profiles set.
const ENDPOINTS: &str = "DARWIN3_ENDPOINTS";

/// Time limit to connect. A board is one or two hops away.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Minimum time to send a message once the connection is open, even after the deadline.
const MIN_SEND: Duration = Duration::from_secs(1);

// === impl Darwin3 ===

impl Darwin3 {
    /// Boards of the command line; `None` without `--darwin3`. Connects to no board yet.
    pub(super) fn of(args: &Darwin3Args, limits: LimitArgs) -> Result<Option<Self>> {
        let Some(ports) = &args.darwin3 else { return Ok(None) };
        let ports = if ports.0.is_empty() { container_boards()? } else { ports.0.clone() };
        ensure!(limits.workers == 1, "--workers: each board of --darwin3 is one worker");
        let run_flits = flits("--run-with", &args.run_with)?;
        ensure!(
            run_flits[Edge::West as usize].is_empty(),
            "--run-with: payloads enter at the west edge; name another edge: east=FILE"
        );
        ensure!(
            args.result_edge == Edge::West || !run_flits[args.result_edge as usize].is_empty(),
            "--result-edge: the board answers only for edges that receive flits: give some with --run-with"
        );
        let network = flits("--network", &args.network)?;
        let network = Message::new(MessageType::Deploy, &network).context("--network")?;
        let board = |address| Mutex::new(BoardState { address, has_network: false });
        let batch = u32::try_from(limits.batch).unwrap_or(u32::MAX);
        Ok(Some(Self {
            boards: ports.into_iter().map(board).collect(),
            network: (!args.network.is_empty()).then_some(network),
            run_flits,
            result_edge: args.result_edge,
            // Shorter than the stage's own limit for the batch, because this error names the board.
            limit: limits.work_timeout.mul_f64(0.9) / batch,
            max_answer: limits.max_payload,
        }))
    }

    /// Number of boards.
    pub(super) fn board_count(&self) -> usize {
        self.boards.len()
    }

    /// Runs spikes on a board, on a thread that may block.
    pub(super) fn run(&self, spikes: Bytes) -> Result<Bytes, BoardError> {
        let mut flits = self.run_flits.clone();
        flits[Edge::West as usize] = spikes;
        let run = Message::new(MessageType::Run, &flits)?;
        let deadline = Instant::now() + self.limit;
        let mut board = self.lock_idle();
        let has_network = std::mem::replace(&mut board.has_network, false);
        if let Some(network) = self.network.as_ref().filter(|_| !has_network) {
            self.exchange(&board.address, network, deadline)?;
            tracing::info!(board = board.address, "network deployed");
        }
        let result = self.exchange(&board.address, &run, deadline)?;
        board.has_network = true;
        Ok(result)
    }

    /// Locks an idle board. One exists, because there are as many workers as boards.
    fn lock_idle(&self) -> MutexGuard<'_, BoardState> {
        let idle = self.boards.iter().find_map(|board| match board.try_lock() {
            Ok(idle) => Some(idle),
            // A panic leaves the board as any failure does: without a network.
            Err(TryLockError::Poisoned(idle)) => Some(idle.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        idle.unwrap_or_else(|| self.boards[0].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn exchange(
        &self,
        address: &str,
        message: &Message,
        deadline: Instant,
    ) -> Result<Bytes, BoardError> {
        let owned = || address.to_owned();
        let stream = connect(address, self.limit.min(CONNECT_LIMIT));
        let stream = stream.map_err(|source| BoardError::Connect { address: owned(), source })?;
        let mut board = DeadlineStream { stream, deadline };
        let outcome = board
            .send(&message.0)
            .and_then(|()| answer(&mut board, self.result_edge, self.max_answer));
        outcome.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                BoardError::Timeout { address: owned(), limit: self.limit }
            }
            _ => BoardError::Answer { address: owned(), source },
        })
    }
}

/// Boards of the container, from its environment.
fn container_boards() -> Result<Vec<String>> {
    let endpoints = std::env::var(ENDPOINTS).unwrap_or_default();
    ensure!(
        !endpoints.is_empty(),
        "--darwin3: write HOST:PORT, or run in a container with a board: {ENDPOINTS} is not set"
    );
    let ports: DataPorts = endpoints.parse().map_err(anyhow::Error::msg).context(ENDPOINTS)?;
    Ok(ports.0)
}

/// Reads the flits of each edge.
fn flits(flag: &str, files: &[EdgeFile]) -> Result<Flits> {
    let mut flits = Flits::default();
    for EdgeFile { edge, path } in files {
        let bytes = fs::read(path);
        let bytes = bytes.with_context(|| format!("{flag}: cannot read {}", path.display()))?;
        ensure!(flits[*edge as usize].is_empty(), "{flag}: an edge has two files");
        flits[*edge as usize] = bytes.into();
    }
    Ok(flits)
}

fn connect(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

// === impl DeadlineStream ===

impl DeadlineStream {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        // Ignore a failure. Without the timeout a blocked board is found late, but a return without a message would
        // block it.
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let _ = self.stream.set_write_timeout(Some(remaining.max(MIN_SEND)));
        self.stream.write_all(message)
    }

    fn remaining(&self) -> io::Result<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.remaining()?))?;
        self.stream.read(buffer)
    }
}
