//! Parser of a client's HTTP/2 bytes that finds and rewrites header blocks.
//!
//! ```text
//!  Preface ─24 bytes─> FrameHeader ─9 bytes─┬─ HEADERS, CONTINUATION ─> Block ─ whole frame ─┐
//!                          ^                └─ other ─> Body ─ payload unchanged ──────┐     │
//!                          └───────────────────────────────────────────────────────────┴─────┘
//! ```
//!
//! The bytes come in parts of any size. A header block may span several frames without other frames in
//! between (RFC 9113 section 4.3). So the rewriter buffers the frames of a block until the last one.

use super::hpack::{self, Replacement};

/// Length of the client connection preface (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;

/// Length of a frame header (RFC 9113 section 4.1).
const FRAME_HEADER_BYTES: usize = 9;

/// Largest payload of a frame that every receiver accepts (RFC 9113 section 4.2).
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// Largest block to buffer. A larger one passes unchanged; the receiver refuses it anyway.
const MAX_BLOCK_BYTES: usize = 1024 * 1024;

const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Length of the stream dependency and weight in front of a header block (RFC 9113 section 6.2).
const PRIORITY_BYTES: usize = 5;

/// Rewrites the client's bytes of one connection, from the first byte on.
#[derive(Debug, Default)]
pub struct Rewriter {
    state: State,
    /// Bytes of an incomplete frame header, or of an incomplete frame of a header block.
    partial: Vec<u8>,
    /// Whole frames of a header block, until the block's last frame.
    frames: Vec<Frame>,
    replacement: Replacement,
}

/// Part of the input that comes next.
#[derive(Debug)]
enum State {
    /// The preface, with the number of its missing bytes.
    Preface(usize),
    /// A frame header.
    FrameHeader,
    /// The payload of a frame that passes unchanged, with the number of its missing bytes.
    Body(usize),
    /// A frame of a header block, with its whole length including the header.
    Block(usize),
}

/// A whole frame, with its header.
#[derive(Debug)]
struct Frame(Vec<u8>);

// === impl State ===

impl Default for State {
    fn default() -> Self {
        Self::Preface(PREFACE_BYTES)
    }
}

// === impl Rewriter ===

impl Rewriter {
    /// Rewriter that replaces the client's `:authority` by this one, which must have the same length.
    pub(super) fn with_authority(authority: &str) -> Self {
        let replacement = Replacement::Fixed(authority.as_bytes().to_vec());
        Self { replacement, ..Self::default() }
    }

    /// Takes the client's next bytes, and appends rewritten bytes to `out`.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Preface(missing) => {
                    let (rest, missing) = copy_unchanged(bytes, missing, out);
                    self.state =
                        if missing == 0 { State::FrameHeader } else { State::Preface(missing) };
                    rest
                }
                State::Body(missing) => {
                    let (rest, missing) = copy_unchanged(bytes, missing, out);
                    self.state =
                        if missing == 0 { State::FrameHeader } else { State::Body(missing) };
                    rest
                }
                State::FrameHeader => {
                    let rest = self.fill_partial(bytes, FRAME_HEADER_BYTES);
                    if self.partial.len() == FRAME_HEADER_BYTES {
                        self.begin_frame(out);
                    }
                    rest
                }
                State::Block(length) => {
                    let rest = self.fill_partial(bytes, length);
                    if self.partial.len() == length {
                        self.end_block_frame(out);
                    }
                    rest
                }
            };
        }
    }

    /// Appends bytes to `partial` until it has this length. Returns the rest.
    fn fill_partial<'a>(&mut self, bytes: &'a [u8], length: usize) -> &'a [u8] {
        let count = bytes.len().min(length - self.partial.len());
        let (head, rest) = bytes.split_at(count);
        self.partial.extend_from_slice(head);
        rest
    }

    /// Handles a complete frame header in `partial`.
    fn begin_frame(&mut self, out: &mut Vec<u8>) {
        let length = payload_length(&self.partial);
        if matches!(self.partial[3], HEADERS | CONTINUATION) {
            self.state = State::Block(FRAME_HEADER_BYTES + length);
            if length == 0 {
                self.end_block_frame(out);
            }
        } else {
            out.append(&mut self.partial);
            self.state = if length == 0 { State::FrameHeader } else { State::Body(length) };
        }
    }

    /// Handles a complete frame of a header block in `partial`. Rewrites the block after its last frame.
    fn end_block_frame(&mut self, out: &mut Vec<u8>) {
        let frame = Frame(std::mem::take(&mut self.partial));
        let is_last = frame.has_flag(END_HEADERS);
        self.frames.push(frame);
        self.state = State::FrameHeader;
        let size: usize = self.frames.iter().map(|frame| frame.0.len()).sum();
        if is_last || size > MAX_BLOCK_BYTES {
            let frames = std::mem::take(&mut self.frames);
            match rewrite_block(&frames, &self.replacement) {
                Some(bytes) => out.extend(bytes),
                None => out.extend(frames.into_iter().flat_map(|frame| frame.0)),
            }
        }
    }
}

// === impl Frame ===

impl Frame {
    fn has_flag(&self, flag: u8) -> bool {
        self.0[4] & flag != 0
    }

    /// Priority fields, and fragment of the header block, without padding. `None` if the frame is malformed.
    fn priority_and_fragment(&self) -> Option<(&[u8], &[u8])> {
        let mut payload = &self.0[FRAME_HEADER_BYTES..];
        let is_headers = self.0[3] == HEADERS;
        if is_headers && self.has_flag(PADDED) {
            let (&padding, rest) = payload.split_first()?;
            payload = rest.get(..rest.len().checked_sub(usize::from(padding))?)?;
        }
        let priority = if is_headers && self.has_flag(PRIORITY) { PRIORITY_BYTES } else { 0 };
        payload.split_at_checked(priority)
    }
}

/// Frames of the block with another `:authority`; `None` if the block has none or is malformed.
fn rewrite_block(frames: &[Frame], replacement: &Replacement) -> Option<Vec<u8>> {
    let first = frames.first().filter(|frame| frame.0[3] == HEADERS)?;
    let mut block = first.priority_and_fragment()?.0.to_vec();
    let mut fields = Vec::new();
    for frame in frames {
        fields.extend_from_slice(frame.priority_and_fragment()?.1);
    }
    block.extend(hpack::rewrite(&fields, replacement)?);

    let flags = first.0[4] & !(PADDED | END_HEADERS);
    let stream = &first.0[5..FRAME_HEADER_BYTES];
    let chunks = block.chunks(MAX_FRAME_BYTES);
    let last = chunks.len() - 1;
    let mut out = Vec::with_capacity(block.len() + FRAME_HEADER_BYTES);
    for (position, chunk) in chunks.enumerate() {
        let (kind, flags) = if position == 0 { (HEADERS, flags) } else { (CONTINUATION, 0) };
        let flags = if position == last { flags | END_HEADERS } else { flags };
        let length = u32::try_from(chunk.len()).expect("a chunk is a frame at most");
        out.extend_from_slice(&length.to_be_bytes()[1..]);
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(stream);
        out.extend_from_slice(chunk);
    }
    Some(out)
}

/// Copies up to `missing` bytes to `out`. Returns the rest of the bytes, and the number still missing.
fn copy_unchanged<'a>(bytes: &'a [u8], missing: usize, out: &mut Vec<u8>) -> (&'a [u8], usize) {
    let count = bytes.len().min(missing);
    let (head, rest) = bytes.split_at(count);
    out.extend_from_slice(head);
    (rest, missing - count)
}

fn payload_length(header: &[u8]) -> usize {
    header[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Header block of a Go client: `:authority` is a literal with the socket's path.
    fn block() -> Vec<u8> {
        [&[0x83, 0x86, 0x41, 18][..], b"/var/lib/k/k.sock!", &[0x5f, 2], b"te"].concat()
    }

    fn expected_block() -> Vec<u8> {
        [&[0x83, 0x86, 0x41, 9][..], b"localhost", &[0x5f, 2], b"te"].concat()
    }

    /// Pushes the bytes one by one, and in two parts for each possible cut.
    fn check(input: &[u8], expected: &[u8]) {
        let input = [PREFACE, input].concat();
        let expected = [PREFACE, expected].concat();
        let rewrite = |parts: &mut dyn Iterator<Item = &[u8]>| {
            let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
            parts.for_each(|part| rewriter.push(part, &mut out));
            out
        };
        assert_eq!(rewrite(&mut input.chunks(1)), expected);
        for cut in 0..=input.len() {
            let (head, tail) = input.split_at(cut);
            assert_eq!(rewrite(&mut [head, tail].into_iter()), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_header_block_is_rewritten_and_its_frame_shortened() {
        let settings = frame(4, 0, &[]);
        let data = frame(0, 1, b"payload");
        let input = [&settings[..], &frame(HEADERS, 0x5, &block()), &data].concat();
        let expected = [&settings[..], &frame(HEADERS, 0x5, &expected_block()), &data].concat();
        check(&input, &expected);
    }

    #[test]
    fn padding_is_dropped_and_priority_kept() {
        let priority = [0x80, 0, 0, 0, 7];
        let payload = [&[3][..], &priority, &block(), &[0; 3]].concat();
        let input = frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &payload);
        let expected = [&priority[..], &expected_block()].concat();
        check(&input, &frame(HEADERS, END_HEADERS | PRIORITY, &expected));
    }

    #[test]
    fn a_value_split_over_continuation_frames_is_replaced() {
        let block = block();
        let input = [
            frame(HEADERS, 0x1, &block[..9]),
            frame(CONTINUATION, 0, &block[9..12]),
            frame(CONTINUATION, 0, &[]),
            frame(CONTINUATION, END_HEADERS, &block[12..]),
        ]
        .concat();
        check(&input, &frame(HEADERS, 0x5, &expected_block()));
    }

    #[test]
    fn frames_without_authority_and_malformed_ones_pass_unchanged() {
        for unchanged in [
            frame(HEADERS, END_HEADERS, &[0x82, 0xbe]),
            frame(HEADERS, END_HEADERS, &[0x41, 0x7f]),
            frame(HEADERS, END_HEADERS | PADDED, &[200, 0x82]),
            frame(CONTINUATION, END_HEADERS, &block()),
            frame(HEADERS, END_HEADERS, &[]),
            frame(0, 0, &[0x41; 100]),
        ] {
            check(&unchanged, &unchanged);
        }
    }

    #[test]
    fn a_large_block_is_split_into_frames_again() {
        let mut fields = block();
        for _ in 0..300 {
            fields.extend([&[0x00, 1][..], b"k", &[100], &[b'v'; 100]].concat());
        }
        let (head, tail) = fields.split_at(MAX_FRAME_BYTES);
        let mut rewriter = Rewriter::default();
        let mut out = Vec::new();
        let input =
            [PREFACE, &frame(HEADERS, 0, head), &frame(CONTINUATION, END_HEADERS, tail)].concat();
        rewriter.push(&input, &mut out);
        let first = &out[PREFACE_BYTES..];
        assert_eq!(payload_length(first), MAX_FRAME_BYTES);
        let second = &first[FRAME_HEADER_BYTES + MAX_FRAME_BYTES..];
        assert_eq!((second[3], second[4]), (CONTINUATION, END_HEADERS));
        assert_eq!(out.len(), input.len() - 9, "`localhost` is nine bytes shorter");
    }
}
