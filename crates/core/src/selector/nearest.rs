//! Spelling suggestions for unknown names.

use strsim::osa_distance;

/// The name nearest to a word within one or two edits, ignoring case.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // More edits would turn a short word into another word.
    let max_distance = if word.len() < 6 { 1 } else { 2 };
    let names = names.into_iter().filter(|name| name.len().abs_diff(word.len()) <= max_distance);
    let word = word.to_ascii_lowercase();
    let with_distance = names.map(|name| (osa_distance(&word, &name.to_ascii_lowercase()), name));
    with_distance.filter(|(distance, _)| *distance <= max_distance).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_is_suggested_and_another_word_is_not() {
        let names = ["pciVendor", "pciDevice", "driver", "port", "name"];
        for (word, expected) in [
            ("pciVendro", Some("pciVendor")),
            ("PCIVendor", Some("pciVendor")),
            ("pciDevices", Some("pciDevice")),
            ("drivr", Some("driver")),
            ("prot", Some("port")),
            ("sort", Some("port")),
            ("node", None),
            ("usbVendor", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), expected, "{word}");
        }
    }
}
