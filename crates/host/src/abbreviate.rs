//! Abbreviations of names and lists. Short names of different long names stay different.

use std::fmt::Display;

pub use windlass_core::name::checksum;

/// Maximum length of a name in a list, in bytes. Callers may pass names of any length.
const MAX_BYTES: usize = 100;

/// An ASCII name in at most `max_chars` characters. A checksum replaces the end of a longer name.
pub fn shortened(name: &str, max_chars: usize) -> String {
    let suffix = format!("-{:08x}", checksum(name));
    match max_chars.checked_sub(suffix.len()).and_then(|length| name.get(..length)) {
        Some(prefix) if name.len() > max_chars => format!("{prefix}{suffix}"),
        _ => name.to_owned(),
    }
}

/// The first names of a list, and the number of further ones.
pub fn first_few<T: Display>(
    names: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    max_names: usize,
) -> String {
    let names = names.into_iter();
    let hidden = names.len().saturating_sub(max_names);
    let first_names: Vec<_> =
        names.take(max_names).map(|name| truncated(&name.to_string())).collect();
    let hidden = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    first_names.join(", ") + &hidden
}

/// A name, cut to a readable length.
pub fn truncated(name: &str) -> String {
    match prefix(name, MAX_BYTES) {
        full if full == name => name.to_owned(),
        prefix => format!("{prefix}..."),
    }
}

/// The longest prefix with at most `bytes` bytes.
pub fn prefix(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_names_fit_and_stay_distinct() {
        let long = "x".repeat(80);
        let (one, other) = (shortened(&format!("{long}1"), 63), shortened(&format!("{long}2"), 63));
        assert_ne!(one, other);
        assert_eq!((one.len(), other.len()), (63, 63));
        assert_eq!(shortened("short", 63), "short");
        assert_eq!(shortened("no room for a sum", 3), "no room for a sum");
    }

    #[test]
    fn a_long_list_shows_the_first_and_the_number_of_others() {
        assert_eq!(first_few(["a"; 0], 2), "");
        assert_eq!(first_few(["a", "b"], 2), "a, b");
        assert_eq!(first_few(0..100_000, 2), "0, 1 and 99998 more");
        let long = first_few(["é".repeat(5000)], 2);
        assert_eq!(long, "é".repeat(50) + "...");
    }
}
