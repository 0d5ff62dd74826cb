//! Kubernetes names: DNS labels, DNS subdomains, and label keys and values.

/// Longest label, in characters.
pub const MAX_LABEL: usize = 63;

/// Longest subdomain, in characters.
pub const MAX_SUBDOMAIN: usize = 253;

/// True for a DNS label (RFC 1123) of at most 63 characters.
pub fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_part(text)
}

/// True for a DNS subdomain (RFC 1123) of at most 253 characters. Kubernetes permits parts longer than a DNS
/// label.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_part)
}

/// True for a label value, or a label key without its domain: at most 63 letters, digits, `-`, `_` and `.`,
/// alphanumeric at both ends.
pub fn is_label_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= MAX_LABEL && is_framed(text, |byte| byte.is_ascii_alphanumeric(), is_inner)
}

/// FNV-1a hash in 32 bits, to keep names distinct. Stable across versions; not collision-resistant.
pub fn checksum(text: &str) -> u32 {
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

/// FNV-1a hash in 64 bits.
pub fn digest(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Lower-case letters, digits and inner dashes, of any length.
fn is_part(text: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    is_framed(text, is_end, |byte| is_end(byte) || byte == b'-')
}

/// True for text with valid first and last bytes, and valid bytes between.
fn is_framed(text: &str, is_end: impl Fn(u8) -> bool, is_inner: impl Fn(u8) -> bool) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.into_iter().all(|end| end.is_some_and(&is_end)) && text.bytes().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_and_in_lower_case() {
        for good in ["a", "0", "gpu-0", &"x".repeat(63)] {
            assert!(is_label(good), "{good:?}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "\u{e4}", &"x".repeat(64)] {
            assert!(!is_label(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_subdomain_is_made_of_parts() {
        for good in ["a", "n1.example.com", &"x".repeat(253)] {
            assert!(is_subdomain(good), "{good:?}");
        }
        for bad in ["", ".", "a..b", "a.-b", "a.b-", "A.b", "a/b", &"x".repeat(254)] {
            assert!(!is_subdomain(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_name_in_a_label_may_have_capitals_and_inner_dots() {
        for good in ["a", "A_b.C-d", "1", &"x".repeat(63)] {
            assert!(is_label_name(good), "{good:?}");
        }
        for bad in ["", "_a", "a.", "a/b", "a b", &"x".repeat(64)] {
            assert!(!is_label_name(bad), "{bad:?}");
        }
    }
}
