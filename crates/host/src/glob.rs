//! File name patterns: `*` matches any text, `?` any character, `[0-9]` a set. Paths match component by component,
//! so `*` never spans `/`.

/// Element of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Letter(char),
    AnyLetter,
    AnyText,
    OneOf { ranges: Vec<(char, char)>, must_contain: bool },
}

/// True if the text contains wildcards.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// True if the whole path matches, component by component.
pub fn path_matches(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut names) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), names.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if name_matches(pattern, name) => {}
            _ => return false,
        }
    }
}

/// True if the whole name matches.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let (pieces, name) = (pieces(pattern), name.chars().collect::<Vec<_>>());
    let (mut piece_index, mut name_index) = (0, 0);
    // Index of the last `*`, and the position at which the name is assumed to continue after it.
    let mut last_star: Option<(usize, usize)> = None;
    while name_index < name.len() {
        match pieces.get(piece_index) {
            Some(Piece::AnyText) => {
                last_star = Some((piece_index, name_index));
                piece_index += 1;
            }
            Some(other) if other.accepts(name[name_index]) => {
                (piece_index, name_index) = (piece_index + 1, name_index + 1);
            }
            _ => match &mut last_star {
                Some((star, position)) => {
                    *position += 1;
                    (piece_index, name_index) = (*star + 1, *position);
                }
                None => return false,
            },
        }
    }
    pieces[piece_index..].iter().all(|piece| *piece == Piece::AnyText)
}

/// For each component of the pattern that has a wildcard: the text that matches between the fixed prefix and suffix of
/// the component.
pub fn wildcard_texts(pattern: &str, path: &str) -> Vec<String> {
    let components = pattern.split('/').zip(path.split('/'));
    let texts =
        components.filter(|(component, _)| is_pattern(component)).map(|(component, name)| {
            let (prefix, suffix) = fixed(component);
            name.strip_prefix(prefix)
                .and_then(|tail| tail.strip_suffix(suffix))
                .unwrap_or(name)
                .to_owned()
        });
    texts.collect()
}

/// The path of a pattern with these texts in place of its wildcards: the inverse of [`wildcard_texts`].
pub fn fill_wildcards(pattern: &str, texts: &[String]) -> String {
    let mut texts = texts.iter();
    let mut fill = |component: &str| {
        let (prefix, suffix) = fixed(component);
        let text = if is_pattern(component) { texts.next() } else { None };
        text.map_or_else(|| component.to_owned(), |text| format!("{prefix}{text}{suffix}"))
    };
    pattern.split('/').map(&mut fill).collect::<Vec<_>>().join("/")
}

/// Fixed prefix and suffix of a component.
fn fixed(component: &str) -> (&str, &str) {
    let prefix_end = component.find(['*', '?', '[']).unwrap_or(component.len());
    let suffix_start = component.rfind(['*', '?', ']']).map_or(component.len(), |last| last + 1);
    (&component[..prefix_end], &component[suffix_start.max(prefix_end)..])
}

/// A pattern that matches only this text.
pub fn escaped(text: &str) -> String {
    let escape = |letter: char| match letter {
        '*' | '?' | '[' => format!("[{letter}]"),
        other => other.to_string(),
    };
    text.chars().map(escape).collect()
}

fn pieces(pattern: &str) -> Vec<Piece> {
    let (mut pieces, mut rest) = (Vec::new(), pattern);
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        let (piece, remaining) = match letter {
            '*' => (Piece::AnyText, after),
            '?' => (Piece::AnyLetter, after),
            // An unclosed bracket is literal, as in shells.
            '[' => one_of(after).unwrap_or((Piece::Letter('['), after)),
            other => (Piece::Letter(other), after),
        };
        pieces.push(piece);
        rest = remaining;
    }
    pieces
}

/// Parses a set after `[`. Returns the set and the text after it. A leading `]` is literal.
fn one_of(text: &str) -> Option<(Piece, &str)> {
    let (must_contain, text) = match text.strip_prefix(['!', '^']) {
        Some(set) => (false, set),
        None => (true, text),
    };
    let first = text.chars().next()?.len_utf8();
    let end = first + text.get(first..)?.find(']')?;
    let characters: Vec<_> = text[..end].chars().collect();
    let (mut ranges, mut index) = (Vec::new(), 0);
    while index < characters.len() {
        let range_end =
            characters.get(index + 2).filter(|_| characters.get(index + 1) == Some(&'-'));
        ranges.push((characters[index], *range_end.unwrap_or(&characters[index])));
        index += if range_end.is_some() { 3 } else { 1 };
    }
    Some((Piece::OneOf { ranges, must_contain }, &text[end + 1..]))
}

// === impl Piece ===

impl Piece {
    fn accepts(&self, character: char) -> bool {
        match self {
            Self::Letter(expected) => *expected == character,
            Self::AnyLetter | Self::AnyText => true,
            Self::OneOf { ranges, must_contain } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&character)) == *must_contain
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_match_as_in_a_shell() {
        for (pattern, matching, other) in [
            ("video*", "video", "vide"),
            ("video?", "video0", "video10"),
            ("tty[A-Z]*[0-9]", "ttyUSB0", "tty0"),
            ("[!a]b", "cb", "ab"),
            ("*a*b", "xaab", "xaa"),
            ("[]a]", "]", "b"),
            ("a[b", "a[b", "ab"),
            ("é?", "éü", "é"),
        ] {
            assert!(name_matches(pattern, matching), "{pattern} {matching}");
            assert!(!name_matches(pattern, other), "{pattern} {other}");
        }
    }

    #[test]
    fn a_star_ends_at_a_slash() {
        assert!(path_matches("/dev/*", "/dev/mem"));
        assert!(!path_matches("/dev/*", "/dev/snd/timer"));
        assert!(path_matches("/dev/*/timer", "/dev/snd/timer"));
    }

    #[test]
    fn texts_of_wildcards_are_extracted_and_inserted() {
        for (pattern, path, texts) in [
            ("/dev/dma_tx*", "/dev/dma_tx12", vec!["12"]),
            ("/dev/dvb/adapter*/frontend0", "/dev/dvb/adapter3/frontend0", vec!["3"]),
            ("/dev/[a-c]?/x*y", "/dev/b1/xzy", vec!["b1", "z"]),
            ("/dev/kvm", "/dev/kvm", vec![]),
            ("/dev/tx*", "/dev/tx", vec![""]),
        ] {
            assert_eq!(wildcard_texts(pattern, path), texts, "{pattern}");
            assert_eq!(fill_wildcards(pattern, &wildcard_texts(pattern, path)), path);
        }
    }

    proptest! {
        #[test]
        fn a_literal_pattern_matches_only_its_text(text in ".{0,20}", other in ".{0,20}") {
            prop_assert!(name_matches(&escaped(&text), &text));
            prop_assert_eq!(name_matches(&escaped(&text), &other), text == other);
        }

        #[test]
        fn any_pattern_terminates(pattern in "[*?a\\[\\]!-]{0,24}", name in "[ab\\[\\]-]{0,24}") {
            let _ = name_matches(&pattern, &name);
        }
    }
}
