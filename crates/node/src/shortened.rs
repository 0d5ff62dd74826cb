//! Names that must be cut to fit, and stay apart from others that begin the same.

/// A name of ASCII letters with no more than so many; a checksum stands for what is cut off.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    let sum = format!("-{:08x}", checksum(name));
    match most.checked_sub(sum.len()).and_then(|kept| name.get(..kept)) {
        Some(kept) if name.len() > most => format!("{kept}{sum}"),
        _ => name.to_owned(),
    }
}

/// FNV-1a.
pub(crate) fn checksum(text: &str) -> u32 {
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_fits_and_stays_apart() {
        let long = "x".repeat(80);
        let (one, other) = (shortened(&format!("{long}1"), 63), shortened(&format!("{long}2"), 63));
        assert_ne!(one, other);
        assert_eq!((one.len(), other.len()), (63, 63));
        assert_eq!(shortened("short", 63), "short");
        assert_eq!(shortened("no room for a sum", 3), "no room for a sum");
    }
}
