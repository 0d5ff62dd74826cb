//! Suggestion for a mistyped fault.

/// Edit distance of two words: insertions, deletions and substitutions.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    let mut row: Vec<_> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut corner = at;
        row[0] = at + 1;
        for (next, theirs) in other.iter().enumerate() {
            let replaced = corner + usize::from(letter != *theirs);
            corner = row[next + 1];
            row[next + 1] = replaced.min(corner + 1).min(row[next] + 1);
        }
    }
    row[other.len()]
}

/// Part of a fault before its argument.
fn word(text: &str) -> &str {
    text.split([':', '@']).next().unwrap_or_default()
}

/// Example with the word nearest to the text's word; the first on a tie.
pub(super) fn nearest(text: &str, examples: impl IntoIterator<Item = String>) -> String {
    let far = |example: &String| distance(word(text), word(example));
    examples.into_iter().min_by_key(far).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted() {
        for (one, other, expected) in [
            ("", "", 0),
            ("lost", "lost", 0),
            ("lost", "los", 1),
            ("xdi", "xid", 2),
            ("", "ecc", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn the_example_of_the_nearest_word_is_told() {
        let examples = ["xid:79@3", "ecc@3", "hang@3", "unplug:eth0"].map(str::to_owned);
        for (text, expected) in
            [("xid@3", "xid:79@3"), ("hanged@1", "hang@3"), ("unplugged:eth1", "unplug:eth0")]
        {
            assert_eq!(nearest(text, examples.clone()), expected);
        }
    }
}
