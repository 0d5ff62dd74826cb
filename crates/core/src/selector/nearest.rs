//! Spelling suggestions for unknown names.

/// The name nearest to a word within one or two edits, ignoring case.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // More edits would turn a short word into another word.
    let most = if word.len() < 6 { 1 } else { 2 };
    let near = names.into_iter().map(|name| (distance(word, name, most + 1), name));
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, name)| name)
}

/// Optimal string alignment distance: insertions, deletions, substitutions and swaps, capped at `most`.
fn distance(one: &str, other: &str, most: usize) -> usize {
    let [one, other] = [one, other].map(|it| it.to_ascii_lowercase().into_bytes());
    if one.len().abs_diff(other.len()) >= most {
        return most;
    }
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let least = (rows[i][j + 1] + 1).min(row[j] + 1).min(rows[i][j] + usize::from(a != b));
            let is_swap = i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b;
            row.push(if is_swap { least.min(rows[i - 1][j - 1] + 1) } else { least });
        }
        rows.push(row);
    }
    rows[one.len()][other.len()].min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_understood_and_another_word_is_not() {
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
