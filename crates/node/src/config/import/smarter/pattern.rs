//! A regular expression over names below `/dev`, as a pattern of paths that fits at least as much, and
//! an expression that is exact.

use windlass_core::selector::literal;

use crate::config::import::{expression::text, generic};

/// Nodes that one alternative of an expression means.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    /// Patterns of paths.
    pub(super) paths: Vec<String>,
    /// Which of those are meant, where the pattern says too little.
    pub(super) expression: Option<String>,
    /// The name, where only one is meant.
    pub(super) name: Option<String>,
    /// Whether the name is a folder's: all in it is one device.
    pub(super) is_folder: bool,
}

/// The alternatives of a regular expression, each with its nodes.
pub(super) fn read(regex: &str) -> Result<Vec<Nodes>, String> {
    alternatives(regex).into_iter().map(nodes).collect()
}

/// What `|` separates outside of brackets.
fn alternatives(regex: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut escaped) = (Vec::new(), 0, 0_i32, false);
    for (at, letter) in regex.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '|' if depth == 0 => {
                found.push(&regex[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&regex[start..]);
    found
}

fn nodes(regex: &str) -> Result<Nodes, String> {
    let (body, from_start) = match regex.strip_prefix('^') {
        Some(body) => (body, true),
        None => (regex, false),
    };
    let (body, to_end) = match body.strip_suffix('$').filter(|body| !body.ends_with('\\')) {
        Some(body) => (body, true),
        None => (body, false),
    };
    let pieces = pieces(body);
    let letter = |piece: &Piece| if let Piece::Letter(it) = piece { Some(*it) } else { None };
    let plain: Option<String> = pieces.iter().map(letter).collect();
    if let Some(name) = plain.filter(|name| from_start && to_end && !name.is_empty()) {
        let path = format!("/dev/{name}");
        let folder = generic::all_in_folder(&path);
        let is_folder = folder.is_some();
        let paths = vec![folder.unwrap_or(path)];
        return Ok(Nodes { paths, expression: None, name: Some(name), is_folder });
    }
    let open = |is_open| if is_open { "*" } else { "" };
    let glob = format!("{}{}{}", open(!from_start), glob(&pieces), open(!to_end));
    let glob = collapsed(&glob);
    if !glob.contains(|letter: char| letter.is_ascii_alphanumeric()) {
        return Err(format!("{regex:?} fits nodes of all sorts: begin it with letters of a name"));
    }
    let start = if from_start { "" } else { ".*" };
    let end = if to_end { "$" } else { "" };
    let exact = literal(&format!("^/dev/{start}(?:{body}){end}"));
    let expression = Some(format!("{}.matches({exact})", text("path")));
    let paths = vec![format!("/dev/{glob}")];
    Ok(Nodes { paths, expression, name: None, is_folder: false })
}

/// What a name is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// A letter that stands for itself.
    Letter(char),
    /// Anything.
    Any,
}

fn pieces(body: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = body.chars();
    while let Some(letter) = rest.next() {
        match letter {
            // An escaped letter is a class; any other character that is escaped is itself.
            '\\' => pieces.push(match rest.next() {
                Some(it) if !it.is_ascii_alphanumeric() => Piece::Letter(it),
                _ => Piece::Any,
            }),
            '[' | '(' => {
                skip_brackets(letter, &mut rest);
                pieces.push(Piece::Any);
            }
            '.' | '^' | '$' => pieces.push(Piece::Any),
            // What may be repeated or absent can be anything.
            '*' | '+' | '?' => repeat(&mut pieces),
            '{' => {
                rest.by_ref().find(|letter| *letter == '}');
                repeat(&mut pieces);
            }
            _ => pieces.push(Piece::Letter(letter)),
        }
    }
    pieces
}

fn repeat(pieces: &mut [Piece]) {
    if let Some(last) = pieces.last_mut() {
        *last = Piece::Any;
    }
}

/// Goes behind the bracket that closes an open one.
fn skip_brackets(open: char, rest: &mut std::str::Chars<'_>) {
    let close = if open == '[' { ']' } else { ')' };
    let mut depth = 1_u32;
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => drop(rest.next()),
            _ if letter == close => depth -= 1,
            '(' if open == '(' => depth += 1,
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

fn glob(pieces: &[Piece]) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Any => '*',
        // A letter that a pattern of paths has another meaning for.
        Piece::Letter('*' | '?' | '[' | ']') => '?',
        Piece::Letter(letter) => *letter,
    };
    pieces.iter().map(text).collect()
}

fn collapsed(glob: &str) -> String {
    let mut text = String::new();
    for letter in glob.chars() {
        if letter != '*' || !text.ends_with('*') {
            text.push(letter);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_expression_becomes_patterns_that_fit_no_less() {
        for (regex, expected) in [
            ("^video[0-9]*$", &["/dev/video*"][..]),
            ("^rtc0$", &["/dev/rtc0"]),
            ("^snd$", &["/dev/snd/*"]),
            ("^vcsm.*$", &["/dev/vcsm*"]),
            ("^i2c-[0-9]+$", &["/dev/i2c-*"]),
            ("^snd/controlC\\d+$", &["/dev/snd/controlC*"]),
            ("video", &["/dev/*video*"]),
            ("^tty(USB|ACM)[0-9]{1,3}$", &["/dev/tty*"]),
            ("^ttyUSB0$|^ttyACM0$", &["/dev/ttyUSB0", "/dev/ttyACM0"]),
            ("^a\\.b$", &["/dev/a.b"]),
            ("^gpiochip0?$", &["/dev/gpiochip*"]),
        ] {
            let read = read(regex).unwrap_or_else(|problem| panic!("{regex}: {problem}"));
            let paths: Vec<_> = read.iter().flat_map(|nodes| nodes.paths.clone()).collect();
            assert_eq!(paths, expected, "{regex}");
        }
        for regex in ["", ".*", "^[a-z]+$", "^$"] {
            assert!(read(regex).is_err(), "{regex}");
        }
    }

    #[test]
    fn what_a_pattern_cannot_say_is_asked_of_the_path() {
        let expression = |regex: &str| read(regex).expect("valid").remove(0).expression;
        assert_eq!(expression("^rtc0$"), None);
        let path = r#"device.attributes["windlass.dev"].?path.orValue("")"#;
        let expected = format!(r#"{path}.matches("^/dev/(?:video[0-9]*)$")"#);
        assert_eq!(expression("^video[0-9]*$"), Some(expected));
        assert_eq!(expression("tty"), Some(format!(r#"{path}.matches("^/dev/.*(?:tty)")"#)));
    }
}
