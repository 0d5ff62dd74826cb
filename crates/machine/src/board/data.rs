//! Data port of the simulated Darwin3 board: one message per connection, and its answer.
//!
//! ```text
//!   message: type, length of each edge (W, E, N, S)   20 bytes, then the flits, edge after edge
//!   answer:        length of each edge                16 bytes, then the flits, edge after edge
//! ```
//!
//! Lengths count bytes. An edge of length zero has no flits in the message or the answer. Both ends of the real board
//! use their machine's byte order, which is little-endian.
//!
//! The real server reads a message with one `recv`. If the first packet lacks a part of the header, the server's loop
//! ends. If the packet lacks flits, the server may lose them. The simulation wedges in the first case, and waits for
//! the missing flits in the second.

use std::{
    io::{self, Read, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{BoardEvent, Chip};

/// Message type, from the first word of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageType {
    /// Deploys a network to the chip.
    Deploy,
    /// Runs the network.
    Run,
    /// Reads or writes the state of neurons.
    State,
}

/// Edges of the chip: west, east, north and south. Headers have a length for each.
const EDGES: usize = 4;

/// Bytes of a flit, and of a word of a header.
const WORD_BYTES: usize = 4;

/// Bytes of a message's header: its type, and a length for each edge.
const HEADER_BYTES: usize = WORD_BYTES * (1 + EDGES);

/// Maximum size of an edge: the real board's DMA buffer. A header with a larger length is a protocol violation.
const MAX_EDGE_BYTES: u32 = 64 << 20;

/// Poll interval for a client on a wedged port.
const WEDGED_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Serves one message. On a wedged port it keeps the connection open without an answer.
pub(super) fn serve(mut stream: TcpStream, chip: &Chip) {
    if chip.model().is_wedged {
        return hold_open(&mut stream, chip);
    }
    let mut header = [0; HEADER_BYTES];
    // An error counts as an empty message: a broken connection also ends the real server's loop.
    let received_bytes = stream.read(&mut header).unwrap_or(0);
    if received_bytes < HEADER_BYTES {
        return chip.wedge_data_port();
    }
    if let Err(error) = answer(&mut stream, &header, chip) {
        chip.record(BoardEvent::ProtocolViolation(error.to_string()));
    }
}

fn answer(stream: &mut TcpStream, header: &[u8; HEADER_BYTES], chip: &Chip) -> io::Result<()> {
    let started_at = Instant::now();
    let [word, lengths @ ..] = words(header);
    let message_type = MessageType::of(word)?;
    let edges: Vec<_> =
        lengths.iter().map(|&length| read_edge(stream, length)).collect::<io::Result<_>>()?;
    let flits = edges.iter().map(Vec::len).sum::<usize>() / WORD_BYTES;
    let event = match message_type {
        MessageType::Deploy => BoardEvent::Deployed(flits),
        MessageType::Run => BoardEvent::Ran(flits),
        MessageType::State => BoardEvent::State(flits),
    };
    chip.record_transfer(event, started_at);
    // Runs and state transfers return the received flits, because the simulation computes nothing.
    let reply_edges =
        if message_type == MessageType::Deploy { vec![Vec::new(); EDGES] } else { edges };
    let lengths = reply_edges.iter().map(|edge| u32::try_from(edge.len()).unwrap_or(u32::MAX));
    let header = lengths.flat_map(u32::to_le_bytes).collect();
    stream.write_all(&[vec![header], reply_edges].concat().concat())
}

fn words(header: &[u8; HEADER_BYTES]) -> [u32; 1 + EDGES] {
    std::array::from_fn(|index| {
        let bytes = std::array::from_fn(|byte| header[WORD_BYTES * index + byte]);
        u32::from_le_bytes(bytes)
    })
}

fn read_edge(stream: &mut impl Read, length: u32) -> io::Result<Vec<u8>> {
    if length > MAX_EDGE_BYTES {
        return Err(io::Error::other(format!("{length} bytes exceed the board's buffer")));
    }
    if !length.is_multiple_of(4) {
        return Err(io::Error::other(format!(
            "{length} is not a multiple of {WORD_BYTES}, the bytes of a flit"
        )));
    }
    let mut edge = Vec::new();
    stream.take(length.into()).read_to_end(&mut edge)?;
    if edge.len() < length as usize {
        return Err(io::Error::other(format!("received only {} of {length} bytes", edge.len())));
    }
    Ok(edge)
}

/// Keeps a client's connection open until the client closes it or the board restarts.
fn hold_open(stream: &mut TcpStream, chip: &Chip) {
    // If the timeout cannot be set, the connection remains open until the client closes it. That is harmless on a
    // wedged port.
    let _ = stream.set_read_timeout(Some(WEDGED_POLL_INTERVAL));
    while chip.model().is_wedged {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return,
            Err(error)
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                return;
            }
            _ => {}
        }
    }
}

// === impl MessageType ===

impl MessageType {
    fn of(word: u32) -> io::Result<Self> {
        match word {
            0x7000 => Ok(Self::Deploy),
            0x7001 => Ok(Self::Run),
            0x8000 => Ok(Self::State),
            _ => Err(io::Error::other(format!("{word:#x} is not a message type"))),
        }
    }
}
