//! Decoder of received bytes: frames of two connections, each a stream of ttrpc messages.
//!
//! ```text
//! frame    connection id (4)  length (4)  payload          all numbers are big endian
//! message  length (4)  stream id (4)  type (1)  flags (1)  payload
//! ```
//!
//! A message may span several frames, and a frame may contain several messages.
//!
//! # Guarantees
//!
//! Memory is bounded by the received bytes, and by twice `MAX_MESSAGE` per connection.

/// Size of a frame's header.
const FRAME_HEADER: usize = 8;
/// Size of a message's header (`messageHeaderLength`).
pub(crate) const MESSAGE_HEADER: usize = 10;
/// Largest body of a message (`messageLengthMax`).
const MAX_MESSAGE: usize = 4 << 20;
/// Largest frame (`maxPayloadSize`).
const MAX_FRAME: usize = MESSAGE_HEADER + MAX_MESSAGE;

/// Logical connection within the socket, by the service that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `PluginServiceConn`: the runtime calls the plugin.
    Plugin = 1,
    /// `RuntimeServiceConn`: the plugin calls the runtime.
    Runtime = 2,
}

/// A ttrpc message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Logical connection of the message.
    pub service: Service,
    /// Id of the call, unique in its logical connection.
    pub stream: u32,
    /// Type: 1 for a request, 2 for a response.
    pub kind: u8,
    /// The protobuf message.
    pub body: Vec<u8>,
}

/// Violation of the protocol, after which the socket is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame is too long.
    #[error("a frame of {0} bytes is above the limit of {MAX_FRAME}")]
    FrameTooLong(usize),
    /// A message is too long.
    #[error("a message of {0} bytes is above the limit of {MAX_MESSAGE}")]
    MessageTooLong(usize),
}

/// Decoder of one socket.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// Bytes of an incomplete frame.
    frames: Vec<u8>,
    /// Bytes of an incomplete message to the plugin.
    plugin: Vec<u8>,
    /// Bytes of an incomplete message from the runtime's service.
    runtime: Vec<u8>,
}

// === impl Decoder ===

impl Decoder {
    /// Decodes received bytes. Returns the messages that they complete, in order.
    ///
    /// Frames of other logical connections are skipped, as the runtime does.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Vec<Message>, ProtocolError> {
        self.frames.extend_from_slice(bytes);
        let (mut messages, mut decoded) = (Vec::new(), 0);
        while let Some(frame) = split_first(&self.frames[decoded..], FRAME_HEADER, 4) {
            if frame.length > MAX_FRAME {
                return Err(ProtocolError::FrameTooLong(frame.length));
            }
            let Some(payload) = frame.body else { break };
            decoded += FRAME_HEADER + frame.length;
            let (service, stream) = match big_endian_u32(frame.header) {
                1 => (Service::Plugin, &mut self.plugin),
                2 => (Service::Runtime, &mut self.runtime),
                _ => continue,
            };
            stream.extend_from_slice(payload);
            drain_messages(service, stream, &mut messages)?;
        }
        self.frames.drain(..decoded);
        Ok(messages)
    }
}

/// Moves complete messages from the bytes of a service to `messages`.
fn drain_messages(
    service: Service,
    bytes: &mut Vec<u8>,
    messages: &mut Vec<Message>,
) -> Result<(), ProtocolError> {
    let mut decoded = 0;
    while let Some(prefixed) = split_first(&bytes[decoded..], MESSAGE_HEADER, 0) {
        if prefixed.length > MAX_MESSAGE {
            return Err(ProtocolError::MessageTooLong(prefixed.length));
        }
        let Some(body) = prefixed.body else { break };
        let (stream, kind) = (big_endian_u32(&prefixed.header[4..]), prefixed.header[8]);
        messages.push(Message { service, stream, kind, body: body.to_vec() });
        decoded += MESSAGE_HEADER + prefixed.length;
    }
    bytes.drain(..decoded);
    Ok(())
}

/// A frame or message: header, length of the body, and body.
struct LengthPrefixed<'a> {
    header: &'a [u8],
    length: usize,
    /// `None` until all of its bytes are received.
    body: Option<&'a [u8]>,
}

/// The first frame or message in `bytes`; `None` if its header is incomplete. `header_bytes` is the size of the header,
/// and `length_offset` the offset of the length in it.
fn split_first(
    bytes: &[u8],
    header_bytes: usize,
    length_offset: usize,
) -> Option<LengthPrefixed<'_>> {
    let (header, remaining) = bytes.split_at_checked(header_bytes)?;
    let length = usize::try_from(big_endian_u32(&header[length_offset..])).unwrap_or(usize::MAX);
    Some(LengthPrefixed { header, length, body: remaining.get(..length) })
}

/// The first four bytes as a big-endian number.
fn big_endian_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes of a complete header"))
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

    /// Frames of three messages and of an unknown connection. The first message's header spans two frames.
    fn frames() -> Vec<u8> {
        let (first, second) = (message(1, b"abc"), message(3, &[7; 5000]));
        [
            frame(1, &first[..4]),
            frame(9, b"unknown connection"),
            frame(2, &message(1, b"")),
            frame(1, &[&first[4..], &second[..100]].concat()),
            frame(1, &second[100..]),
        ]
        .concat()
    }

    #[test]
    fn messages_do_not_depend_on_the_sizes_of_reads() {
        let expected = [
            Message { service: Service::Runtime, stream: 1, kind: 1, body: Vec::new() },
            Message { service: Service::Plugin, stream: 1, kind: 1, body: b"abc".to_vec() },
            Message { service: Service::Plugin, stream: 3, kind: 1, body: vec![7; 5000] },
        ];
        for size in [1, 7, 4096, 1 << 20] {
            let mut decoder = Decoder::default();
            let bytes = frames();
            let messages = bytes.chunks(size).map(|part| decoder.decode(part).expect("valid"));
            assert_eq!(messages.collect::<Vec<_>>().concat(), expected, "{size}");
        }
    }

    #[test]
    fn messages_above_the_limit_are_rejected() {
        let largest = message(1, &vec![0; MAX_MESSAGE]);
        let messages = Decoder::default().decode(&frame(1, &largest)).expect("accepted");
        assert_eq!(messages[0].body.len(), MAX_MESSAGE);
        let error = Decoder::default().decode(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(error, Err(ProtocolError::FrameTooLong(0xffff_ffff)));
        let too_long = [0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0];
        let error = Decoder::default().decode(&frame(1, &too_long));
        assert_eq!(error, Err(ProtocolError::MessageTooLong(MAX_MESSAGE + 1)));
    }

    proptest! {
        #[test]
        fn the_decoder_never_panics(bytes: Vec<u8>, size in 1_usize..64) {
            let mut decoder = Decoder::default();
            for part in bytes.chunks(size) {
                if decoder.decode(part).is_err() {
                    break;
                }
            }
        }
    }
}
