//! Suggestion of a valid fault for a mistyped one.

use strsim::levenshtein as distance;

/// Word of a fault, which precedes its argument and its target.
fn keyword(text: &str) -> &str {
    text.split([':', '@']).next().unwrap_or_default()
}

/// Example whose word has the smallest edit distance to the text's word; the first on a tie.
pub(super) fn nearest(text: &str, examples: impl IntoIterator<Item = String>) -> String {
    let distance_to = |example: &String| distance(keyword(text), keyword(example));
    examples.into_iter().min_by_key(distance_to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_changed_letters() {
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
    fn the_example_with_the_nearest_word_is_suggested() {
        let examples = ["xid:79@3", "ecc@3", "hang@3", "unplug:eth0"].map(str::to_owned);
        for (text, expected) in
            [("xid@3", "xid:79@3"), ("hanged@1", "hang@3"), ("unplugged:eth1", "unplug:eth0")]
        {
            assert_eq!(nearest(text, examples.clone()), expected);
        }
    }
}
