//! Recognition and replacement of identifying text by its shape: addresses, UUIDs, numbers.

use windlass_core::pci::PciAddress;

/// Minimum length of identifying text, in bytes. Shorter text is too common.
const MIN_LENGTH: usize = 4;

/// Prefixes of systemd's interface names that contain a MAC address, such as `enx0242ac110002`.
const MAC_NAME_PREFIXES: [&str; 3] = ["enx", "wlx", "wwx"];

/// Character of the same class as `c`, selected by `number`: a digit for a digit, a letter for a letter.
pub(super) fn same_class(c: char, hex: bool, number: u64) -> char {
    let pick = |from: &str| {
        let all = from.as_bytes();
        let length = u64::try_from(all.len()).expect("a few");
        char::from(all[usize::try_from(number % length).expect("below the length")])
    };
    match c {
        'A'..='F' if hex => pick("0123456789ABCDEF"),
        '0'..='9' | 'a'..='f' if hex => pick("0123456789abcdef"),
        '0'..='9' => pick("0123456789"),
        'a'..='z' => pick("abcdefghijklmnopqrstuvwxyz"),
        'A'..='Z' => pick("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        other => other,
    }
}

/// Number with as many digits as `text`, at most `u64::MAX`, selected by `number`; `None` if `text` is not a `u64`.
pub(super) fn decimal(text: &str, number: u64) -> Option<String> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    let _: u64 = text.parse().ok()?;
    let min = 10_u64.checked_pow(u32::try_from(text.len()).ok()? - 1)?;
    let range = min.saturating_mul(9).min(u64::MAX - min);
    Some((min + number % range).to_string())
}

/// Length of a word's prefix that identifies nothing, in bytes: the whole length for a word without identifying text.
pub(super) fn public_prefix(word: &str) -> usize {
    let prefixes = MAC_NAME_PREFIXES.iter().filter_map(|prefix| word.strip_prefix(prefix));
    let mut named = prefixes.filter(|rest| rest.len() == 12 && is_hex(rest));
    if let Some(address) = named.next() {
        return word.len() - address.len();
    }
    for prefix in ["GPU-", "MIG-"] {
        if word.strip_prefix(prefix).is_some_and(is_uuid) {
            return prefix.len();
        }
    }
    if is_address(word) { 0 } else { word.len() }
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    is_hex(text) && lengths == [8, 4, 4, 4, 12]
}

/// True for a MAC address of Ethernet or InfiniBand, a GUID or a GID.
fn is_address(word: &str) -> bool {
    let groups: Vec<_> = word.split(':').collect();
    let all_have = |length: usize| groups.iter().all(|group| group.len() == length);
    let fits = match groups.len() {
        6 | 20 => all_have(2),
        4 => all_have(4),
        8 => all_have(2) || all_have(4),
        _ => false,
    };
    fits && is_hex(word)
}

/// True for hexadecimal digits, with or without `:` and `-` between groups.
pub(super) fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '-')
}

/// True for placeholders and PCI addresses, which do not identify a machine.
pub(super) fn is_insignificant(text: &str) -> bool {
    let bare = text.trim_start_matches("0x");
    text.len() < MIN_LENGTH
        || bare.chars().all(|c| "0:-. ".contains(c))
        || bare.chars().all(|c| "fF:-. ".contains(c))
        || text.parse::<PciAddress>().is_ok()
        || ["none", "n/a", "unknown", "(null)"].contains(&text.to_ascii_lowercase().as_str())
}

/// Replaces a word, except next to a letter or a digit.
pub(super) fn replace_word(text: &str, word: &str, by: &str) -> String {
    let mut output = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(word) {
        let end = start + word.len();
        let is_joined = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let is_alone =
            !is_joined(rest[..start].chars().next_back()) && !is_joined(rest[end..].chars().next());
        output.push_str(&rest[..start]);
        output.push_str(if is_alone { by } else { word });
        rest = &rest[end..];
    }
    output + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_unique_ids_are_distinguished_from_pci_addresses_and_versions() {
        for (word, prefix) in [
            ("0c:42:a1:00:11:22", 0),
            ("0c42:a103:0011:2233", 0),
            ("fe80:0000:0000:0000:0e42:a1ff:fe00:1122", 0),
            ("enx0c42a1001122", 3),
            ("GPU-0f5a2c9e-1111-2222-3333-444455556666", 4),
            ("0000:3b:00", 10),
            ("0003:046D:C52B", 14),
            ("12:34:56", 8),
            ("enp3s0f0np0", 11),
            ("28-39-1002", 10),
        ] {
            assert_eq!(public_prefix(word), prefix, "{word}");
        }
    }

    #[test]
    fn a_substitute_number_fits_the_same_type() {
        for text in ["1000", "18446744073709551615", "9999"] {
            let other = decimal(text, u64::MAX).expect("a number");
            assert_eq!(other.len(), text.len());
            assert!(other.parse::<u64>().is_ok(), "{other}");
        }
        assert_eq!(decimal("12a4", 0), None);
    }

    #[test]
    fn a_word_is_replaced_unless_letters_or_digits_adjoin_it() {
        let name = "usb-FTDI_UART_A10K2J3-if00-port0";
        assert_eq!(replace_word(name, "A10K2J3", "B2"), "usb-FTDI_UART_B2-if00-port0");
        assert_eq!(replace_word("XA10K2J3 A10K2J31", "A10K2J3", "B2"), "XA10K2J3 A10K2J31");
    }

    #[test]
    fn placeholders_are_not_identifying() {
        for text in ["00:00:00:00:00:00", "ffffffffffffffff", "0x0000", "N/A", "17", "0000:00:14.0"]
        {
            assert!(is_insignificant(text), "{text}");
        }
        assert!(!is_insignificant("0c42a1"));
    }
}
