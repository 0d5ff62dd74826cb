//! Rewriting of one HPACK header block: replaces the value of each literal field named `:authority`.
//!
//! RFC 7541: section 5.1 integers, 5.2 strings, 6 field representations.

/// Index of `:authority` in the static table (RFC 7541 appendix A).
const AUTHORITY_INDEX: usize = 1;

/// Replacement of a client's value, cut to that value's length. Each prefix of `localhost` is a valid host.
const LOCALHOST: &[u8] = b"localhost";

/// Maximum number of continuation bytes of an integer. No length in a valid block needs more.
const MAX_INTEGER_BYTES: usize = 4;

/// Replacement of an `:authority` value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Replacement {
    /// `localhost`, cut to the length of the client's value.
    #[default]
    Localhost,
    /// This value, which has the length of the client's value.
    Fixed(Vec<u8>),
}

/// Replaces every `:authority` value. `None` if the block has none or is malformed.
pub(super) fn rewrite(block: &[u8], replacement: &Replacement) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len());
    let mut found = false;
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let Some(prefix_bits) = literal_prefix(first) else {
            let (_, after) = split_integer(rest, indexed_prefix(first))?;
            out.extend_from_slice(&rest[..rest.len() - after.len()]);
            rest = after;
            continue;
        };
        let (name, mut after) = split_integer(rest, prefix_bits)?;
        if name == 0 {
            after = split_string(after)?.1;
        }
        let (value, end) = split_string(after)?;
        out.extend_from_slice(&rest[..rest.len() - after.len()]);
        if name == AUTHORITY_INDEX {
            found = true;
            replacement.append(value.len(), &mut out);
        } else {
            out.extend_from_slice(&after[..after.len() - end.len()]);
        }
        rest = end;
    }
    found.then_some(out)
}

// === impl Replacement ===

impl Replacement {
    /// Appends the replacement as plain text, for a value that has `coded_length` bytes in the block. A
    /// Huffman-coded value is longer when decoded, so the replacement is not longer than the value.
    fn append(&self, coded_length: usize, out: &mut Vec<u8>) {
        let value = match self {
            Self::Localhost => &LOCALHOST[..coded_length.min(LOCALHOST.len())],
            Self::Fixed(value) => value,
        };
        append_length(value.len(), out);
        out.extend_from_slice(value);
    }
}

/// Appends the length of a string in plain text: an integer with a prefix of 7 bits.
fn append_length(mut length: usize, out: &mut Vec<u8>) {
    const PREFIX: usize = 0x7f;
    if length < PREFIX {
        out.push(length.to_le_bytes()[0]);
        return;
    }
    out.push(0x7f);
    length -= PREFIX;
    while length >= 0x80 {
        out.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    out.push(length.to_le_bytes()[0]);
}

/// Number of prefix bits of a literal field's name index; `None` for another representation. Literals
/// begin with `01` (incremental indexing), `0000` (without indexing) or `0001` (never indexed).
fn literal_prefix(first: u8) -> Option<u32> {
    match first {
        0b0100_0000..=0b0111_1111 => Some(6),
        0b0000_0000..=0b0001_1111 => Some(4),
        _ => None,
    }
}

/// Number of prefix bits of an indexed field (`1`) or of a dynamic table size update (`001`).
fn indexed_prefix(first: u8) -> u32 {
    if first & 0b1000_0000 == 0 { 5 } else { 7 }
}

/// Splits off a string. Returns its coded bytes, and the rest.
fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, after) = split_integer(bytes, 7)?;
    after.split_at_checked(length)
}

/// Splits off an integer. Returns its value, and the rest.
fn split_integer(bytes: &[u8], prefix_bits: u32) -> Option<(usize, &[u8])> {
    let (&first, mut rest) = bytes.split_first()?;
    let mask = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(first) & mask;
    if value < mask {
        return Some((value, rest));
    }
    for position in 0..MAX_INTEGER_BYTES {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        value += usize::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(block: &[u8], expected: Option<&[u8]>) {
        let replaced = rewrite(block, &Replacement::Localhost);
        assert_eq!(replaced.as_deref(), expected, "{block:02x?}");
    }

    #[test]
    fn the_value_is_replaced_in_every_kind_of_literal() {
        for kind in [0x41, 0x01, 0x11] {
            let block = [&[0x82, kind, 11][..], b"/run/k.sock", &[0x84]].concat();
            let expected = [&[0x82, kind, 9][..], b"localhost", &[0x84]].concat();
            check(&block, Some(&expected));
        }
    }

    #[test]
    fn a_huffman_value_becomes_plain_text_that_is_not_longer() {
        let coded = [0x41, 0x8c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        check(&coded, Some(&[&[0x41, 9][..], b"localhost"].concat()));
        let short = [0x41, 0x83, 1, 2, 3];
        check(&short, Some(&[&[0x41, 3][..], b"loc"].concat()));
    }

    #[test]
    fn other_representations_stay_unchanged() {
        let path = [&[0x44, 4][..], b"/a/b"].concat();
        let named = [&[0x40, 1][..], b"x", &[1], b"y"].concat();
        let resized = [&[0x3f, 0xe1, 0x1f][..], &path, &named, &[0xbe]].concat();
        check(&resized, None);
        let with_authority = [&resized[..], &[0x41, 2], b"/s"].concat();
        check(&with_authority, Some(&[&resized[..], &[0x41, 2], b"lo"].concat()));
    }

    #[test]
    fn integers_of_several_bytes_are_skipped() {
        let long = [b'v'; 300];
        let field = [&[0x0f, 0x80, 0x01][..], &[0x7f, 0xad, 0x01], &long].concat();
        let block = [&field[..], &[0x41, 10], b"/too/many/"].concat();
        check(&block, Some(&[&field[..], &[0x41, 9], b"localhost"].concat()));
    }

    #[test]
    fn a_fixed_value_of_any_length_has_its_length_in_front() {
        for (length, coded) in [(5, &[5][..]), (127, &[0x7f, 0]), (400, &[0x7f, 0x91, 0x02])] {
            let value = vec![b'%'; length];
            let replaced = rewrite(&[0x82, 0x41, 1, b'x'], &Replacement::Fixed(value.clone()));
            let expected = [&[0x82, 0x41][..], coded, &value].concat();
            assert_eq!(replaced.as_deref(), Some(&expected[..]), "{length}");
            assert_eq!(split_string(&expected[2..]), Some((&value[..], &[][..])));
        }
    }

    #[test]
    fn a_malformed_block_is_not_rewritten() {
        for block in [&[0x41][..], &[0x41, 5, b'a'], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x40]]
        {
            check(block, None);
        }
    }
}
