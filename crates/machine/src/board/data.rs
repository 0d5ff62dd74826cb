//! Data port: a header of 20 bytes, flits of 32 bits, and an answer in the same format.
//!
//! The real board's byte order is unknown. Both ends are little-endian machines that send raw memory, so
//! this simulation assumes little-endian.

use std::{
    io::{self, Read, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{BoardEvent, Chip};

/// Message type, from the first word of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Deploys a network to the chip.
    Deploy,
    /// Runs the network.
    Run,
    /// Reads or writes the state of neurons.
    State,
}

/// Edges of the chip: west, east, north and south. The header has a length for each.
const EDGES: usize = 4;

/// Bytes of a header: the first word, and a length for each edge.
const HEADER_BYTES: usize = 4 * (1 + EDGES);

/// Marker at the end of each edge's flits in an answer.
const END: u32 = 0xffff_ffff;

/// Most flits of a message: larger than any network for the largest chip. Longer announcements are protocol
/// violations.
const MOST_FLITS: u32 = 16 << 20;

/// Poll interval for a client on a wedged port.
const WEDGED_LOOK: Duration = Duration::from_millis(50);

/// Serves one client until the client closes. A wedged port holds the client silently.
pub(super) fn serve(mut stream: TcpStream, chip: &Chip) {
    if chip.model().is_wedged {
        return hold(&mut stream, chip);
    }
    let mut served = 0;
    loop {
        match message(&mut stream, chip) {
            Ok(Message::Served) => served += 1,
            // The real accept loop breaks on a client without a message.
            Ok(Message::Closed) if served == 0 => return chip.wedge(),
            Ok(Message::Closed) => return,
            Err(error) => return chip.happened(BoardEvent::Nonsense(error.to_string())),
        }
    }
}

enum Message {
    Served,
    Closed,
}

fn message(stream: &mut TcpStream, chip: &Chip) -> io::Result<Message> {
    let mut header = [0; HEADER_BYTES];
    if stream.read(&mut header[..1])? == 0 {
        return Ok(Message::Closed);
    }
    stream.read_exact(&mut header[1..])?;
    let begun = Instant::now();
    let [word, lengths @ ..] = words(&header);
    let purpose = Purpose::of(word)?;
    let mut flits = Vec::new();
    for length in lengths {
        flits.extend(read_flits(stream, length)?);
    }
    let event = match purpose {
        Purpose::Deploy => BoardEvent::Deployed(flits.len()),
        Purpose::Run => BoardEvent::Ran(flits.len()),
        Purpose::State => BoardEvent::State(flits.len()),
    };
    chip.ran(event, begun);
    stream.write_all(&reply(word, purpose, lengths, &flits))?;
    Ok(Message::Served)
}

fn words(header: &[u8; HEADER_BYTES]) -> [u32; 1 + EDGES] {
    std::array::from_fn(|index| {
        let bytes = std::array::from_fn(|byte| header[4 * index + byte]);
        u32::from_le_bytes(bytes)
    })
}

fn read_flits(stream: &mut impl Read, length: u32) -> io::Result<Vec<u32>> {
    if length > MOST_FLITS {
        return Err(io::Error::other(format!("{length} flits are more than any network has")));
    }
    let mut flit = [0; 4];
    let mut next = || stream.read_exact(&mut flit).map(|()| u32::from_le_bytes(flit));
    (0..length).map(|_| next()).collect()
}

/// Echoes spikes edge by edge, because the simulation computes nothing.
fn reply(word: u32, purpose: Purpose, lengths: [u32; EDGES], flits: &[u32]) -> Vec<u8> {
    let mut rest = flits;
    let mut body = Vec::new();
    let lengths = lengths.map(|length| {
        let (edge, others) = rest.split_at(length as usize);
        rest = others;
        let echoed = if purpose == Purpose::Deploy { &[] } else { edge };
        body.extend(echoed.iter().copied().chain([END]));
        u32::try_from(echoed.len() + 1).unwrap_or(u32::MAX)
    });
    let header = [word].into_iter().chain(lengths);
    header.chain(body).flat_map(u32::to_le_bytes).collect()
}

/// Holds a client until the client gives up or the board restarts.
fn hold(stream: &mut TcpStream, chip: &Chip) {
    // Without the limit, the hold only lasts longer, as on a wedged port.
    let _ = stream.set_read_timeout(Some(WEDGED_LOOK));
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

// === impl Purpose ===

impl Purpose {
    fn of(word: u32) -> io::Result<Self> {
        match word {
            0x7000 => Ok(Self::Deploy),
            0x7001 => Ok(Self::Run),
            0x8000 => Ok(Self::State),
            _ => Err(io::Error::other(format!("{word:#x} begins no message"))),
        }
    }
}
