//! Messages of a board's data port: a type, four lengths in bytes, then the flits of each edge.
//!
//! An answer has the four lengths and the flits. `docs/devices/cleanup.md` has the facts and their source.

use std::io::{self, Read};

use bytes::Bytes;

use crate::cli::Edge;

/// Flits for each edge, in the order west, east, north, south.
pub(super) type Flits = [Bytes; 4];

/// A complete message, to be sent in one piece.
#[derive(Clone, Debug)]
pub(super) struct Message(pub(super) Vec<u8>);

/// Type of a message, with its number on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageType {
    /// Puts a network on the chip.
    Deploy = 0x7000,
    /// Runs the network.
    Run = 0x7001,
}

/// Reason why flits do not form a message.
#[derive(Debug, thiserror::Error)]
pub(in crate::commands::stage) enum FlitsError {
    #[error("is {length} bytes, not a multiple of the {WORD_BYTES} bytes of a flit")]
    PartialFlit { length: usize },
    #[error("makes a message of {length} bytes, and a board reads at most {MAX_BYTES}")]
    TooLong { length: usize },
}

/// Size of a flit, and of a word of a header, in bytes.
const WORD_BYTES: usize = 4;

/// Maximum size of a message. The vendor's server reads a message with one call, up to this size on the board's
/// Cortex-A9, and truncates a longer one.
const MAX_BYTES: usize = 4 << 20;

// === impl Message ===

impl Message {
    pub(super) fn new(message_type: MessageType, flits: &Flits) -> Result<Self, FlitsError> {
        if let Some(partial) = flits.iter().find(|edge| !edge.len().is_multiple_of(WORD_BYTES)) {
            return Err(FlitsError::PartialFlit { length: partial.len() });
        }
        let length = flits.iter().map(Bytes::len).sum::<usize>() + WORD_BYTES * (1 + flits.len());
        if length > MAX_BYTES {
            return Err(FlitsError::TooLong { length });
        }
        let lengths = flits.iter().map(|edge| u32::try_from(edge.len()).expect("below the limit"));
        let header = [message_type as u32].into_iter().chain(lengths);
        let header: Vec<_> = header.flat_map(u32::to_le_bytes).collect();
        let flits = flits.iter().map(|edge| &edge[..]);
        Ok(Self([&header[..]].into_iter().chain(flits).collect::<Vec<_>>().concat()))
    }
}

/// Reads an answer, and returns the flits of one edge.
pub(super) fn answer(reader: &mut impl Read, edge: Edge, max_bytes: usize) -> io::Result<Bytes> {
    let mut header = [0; WORD_BYTES * 4];
    reader.read_exact(&mut header)?;
    let mut selected_flits = Vec::new();
    for (index, length) in header.chunks_exact(WORD_BYTES).enumerate() {
        let length = u32::from_le_bytes(length.try_into().expect("a word"));
        if length as usize > max_bytes {
            let problem = format!("announced {length} bytes, the limit is {max_bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let mut flits = vec![0; length as usize];
        reader.read_exact(&mut flits)?;
        if index == edge as usize {
            selected_flits = flits;
        }
    }
    Ok(selected_flits.into())
}
