//! Decoder of received bytes: frames of two connections, each a stream of ttrpc messages.
//!
//! ```text
//! frame    connection id (4)  length (4)  payload          all numbers are big endian
//! message  length (4)  stream id (4)  type (1)  flags (1)  payload
//! ```
//!
//! A message may be cut into frames anywhere.
//!
//! # Guarantees
//!
//! Memory is bounded by the bytes that arrived, and by two of the largest messages per connection.

/// Size of a frame's header.
const FRAME_HEADER: usize = 8;
/// Size of a message's header (`messageHeaderLength`).
pub(crate) const MESSAGE_HEADER: usize = 10;
/// Largest body of a message (`messageLengthMax`).
const MAX_MESSAGE: usize = 4 << 20;
/// Largest frame (`maxPayloadSize`).
const MAX_FRAME: usize = MESSAGE_HEADER + MAX_MESSAGE;

/// Connection within the socket, by the service that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `PluginServiceConn`: the runtime calls.
    Plugin = 1,
    /// `RuntimeServiceConn`: the plugin calls.
    Runtime = 2,
}

/// A ttrpc message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its connection.
    pub service: Service,
    /// Id of the call in its connection.
    pub stream: u32,
    /// Type: 1 for a request, 2 for a response.
    pub kind: u8,
    /// The protobuf message.
    pub body: Vec<u8>,
}

/// Violation of the protocol, after which the connection is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame is too long.
    #[error("a frame of {0} bytes is above the limit of {MAX_FRAME}")]
    Frame(usize),
    /// A message is too long.
    #[error("a message of {0} bytes is above the limit of {MAX_MESSAGE}")]
    Message(usize),
}

/// Decoder of one socket.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// Bytes of the unfinished frame.
    trunk: Vec<u8>,
    /// Bytes of the unfinished message of each service.
    plugin: Vec<u8>,
    runtime: Vec<u8>,
}

// === impl Decoder ===

impl Decoder {
    /// Takes received bytes. Returns the messages that they complete, in order.
    ///
    /// Frames of unknown connections are skipped, as the runtime does.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Message>, ProtocolError> {
        self.trunk.extend_from_slice(bytes);
        let (mut messages, mut taken) = (Vec::new(), 0);
        while let Some(frame) = next(&self.trunk[taken..], FRAME_HEADER, 4) {
            if frame.length > MAX_FRAME {
                return Err(ProtocolError::Frame(frame.length));
            }
            let Some(payload) = frame.body else { break };
            taken += FRAME_HEADER + frame.length;
            let (service, stream) = match number(frame.head) {
                1 => (Service::Plugin, &mut self.plugin),
                2 => (Service::Runtime, &mut self.runtime),
                _ => continue,
            };
            stream.extend_from_slice(payload);
            take_messages(service, stream, &mut messages)?;
        }
        self.trunk.drain(..taken);
        Ok(messages)
    }
}

/// Moves complete messages out of the bytes of a service.
fn take_messages(
    service: Service,
    bytes: &mut Vec<u8>,
    messages: &mut Vec<Message>,
) -> Result<(), ProtocolError> {
    let mut taken = 0;
    while let Some(found) = next(&bytes[taken..], MESSAGE_HEADER, 0) {
        if found.length > MAX_MESSAGE {
            return Err(ProtocolError::Message(found.length));
        }
        let Some(body) = found.body else { break };
        let (stream, kind) = (number(&found.head[4..]), found.head[8]);
        messages.push(Message { service, stream, kind, body: body.to_vec() });
        taken += MESSAGE_HEADER + found.length;
    }
    bytes.drain(..taken);
    Ok(())
}

/// Beginning of a frame or message.
struct Found<'a> {
    head: &'a [u8],
    length: usize,
    /// `None` while bytes of it are missing.
    body: Option<&'a [u8]>,
}

/// The first frame or message, by the size of its header and the place of its length; `None` without a whole header.
fn next(bytes: &[u8], header: usize, length_at: usize) -> Option<Found<'_>> {
    let (head, rest) = bytes.split_at_checked(header)?;
    let length = usize::try_from(number(&head[length_at..])).unwrap_or(usize::MAX);
    Some(Found { head, length, body: rest.get(..length) })
}

/// The first four bytes as a number.
fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("a header has four bytes there"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(connection: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        [&connection.to_be_bytes(), &length.to_be_bytes(), payload].concat()
    }

    fn message(stream: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).expect("short");
        [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[1, 0], body].concat()
    }

    /// Two messages of the runtime and one of the plugin, with the frames of the first cut in its header.
    fn conversation() -> Vec<u8> {
        let (first, second) = (message(1, b"abc"), message(3, &[7; 5000]));
        [
            frame(1, &first[..4]),
            frame(9, b"of nobody"),
            frame(2, &message(1, b"")),
            frame(1, &[&first[4..], &second[..100]].concat()),
            frame(1, &second[100..]),
        ]
        .concat()
    }

    #[test]
    fn messages_are_whole_however_their_bytes_arrive() {
        let expected = [
            Message { service: Service::Runtime, stream: 1, kind: 1, body: Vec::new() },
            Message { service: Service::Plugin, stream: 1, kind: 1, body: b"abc".to_vec() },
            Message { service: Service::Plugin, stream: 3, kind: 1, body: vec![7; 5000] },
        ];
        for size in [1, 7, 4096, 1 << 20] {
            let mut decoder = Decoder::default();
            let parts = conversation();
            let parts = parts.chunks(size).map(|part| decoder.push(part).expect("valid"));
            assert_eq!(parts.collect::<Vec<_>>().concat(), expected, "{size}");
        }
    }

    #[test]
    fn the_largest_message_is_taken_and_a_larger_one_ends_the_connection() {
        let largest = message(1, &vec![0; MAX_MESSAGE]);
        let found = Decoder::default().push(&frame(1, &largest)).expect("taken");
        assert_eq!(found[0].body.len(), MAX_MESSAGE);
        let error = Decoder::default().push(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(error, Err(ProtocolError::Frame(0xffff_ffff)));
        let too_long = [0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0];
        let error = Decoder::default().push(&frame(1, &too_long));
        assert_eq!(error, Err(ProtocolError::Message(MAX_MESSAGE + 1)));
    }

    proptest! {
        #[test]
        fn no_bytes_end_the_decoder(bytes: Vec<u8>, size in 1_usize..64) {
            let mut decoder = Decoder::default();
            for part in bytes.chunks(size) {
                if decoder.push(part).is_err() {
                    break;
                }
            }
        }
    }
}
