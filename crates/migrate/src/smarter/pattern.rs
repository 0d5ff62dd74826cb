//! A regular expression over names below `/dev`, converted to a path pattern that matches at least the same names,
//! and an exact expression.

use std::str::Chars;

use windlass_core::selector::literal;

use crate::expression::text;

/// Nodes that one alternative of an expression means.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) paths: Vec<String>,
    /// Condition on the found nodes, if the pattern is too wide.
    pub(super) expression: Option<String>,
    /// The name, if only one matches.
    pub(super) name: Option<String>,
}

/// The alternatives of a regular expression, each with its nodes.
pub(super) fn read(regex: &str) -> Result<Vec<Nodes>, String> {
    if let Some(flag) = flag(regex) {
        return Err(format!("{regex:?}: what begins with {flag:?} is not read here"));
    }
    alternatives(regex, MAX_NESTED).iter().map(|regex| nodes(regex)).collect()
}

/// Start of a group with flags: `(?i)` changes the meaning of characters.
fn flag(regex: &str) -> Option<String> {
    let mut rest = regex.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => drop(rest.next()),
            '[' => drop(skip_class(&mut rest)),
            '(' if rest.as_str().starts_with('?') && !rest.as_str().starts_with("?:") => {
                return Some(std::iter::once('(').chain(rest.take(FLAG_CHARS)).collect());
            }
            _ => {}
        }
    }
    None
}

/// The alternatives, each with what stands for the ends; `^(a|b)$` has two, and so has `(^a$)|(^b$)`.
fn alternatives(regex: &str, nested: u32) -> Vec<String> {
    let separated = separated(regex);
    let unfolded = |regex: &str| match grouped(regex).filter(|_| nested > 0) {
        None => vec![regex.to_owned()],
        Some((start, body, end)) => {
            let inner = alternatives(body, nested - 1).into_iter();
            inner.map(|body| format!("{start}{body}{end}")).collect()
        }
    };
    separated.into_iter().flat_map(unfolded).collect()
}

/// The texts before a group, in it, and after it, if there is nothing else but the anchors.
fn grouped(regex: &str) -> Option<(&str, &str, &str)> {
    let start = if regex.starts_with('^') { "^" } else { "" };
    let rest = &regex[start.len()..];
    let opened = rest.strip_prefix("(?:").or_else(|| rest.strip_prefix('('))?;
    let close = opened.len() - rest_behind(opened)?.len();
    let (body, end) = (&opened[..close - 1], &opened[close..]);
    ["", "$"].contains(&end).then_some((start, body, end))
}

/// The text behind the bracket that closes a group.
fn rest_behind(opened: &str) -> Option<&str> {
    let mut rest = opened.chars();
    skip_brackets('(', &mut rest).then_some(rest.as_str())
}

/// The alternatives of `|` outside of brackets.
fn separated(regex: &str) -> Vec<&str> {
    let (mut found, mut start, mut rest) = (Vec::new(), 0, regex.chars());
    while let Some(letter) = rest.next() {
        let at = regex.len() - rest.as_str().len();
        match letter {
            '\\' => drop(rest.next()),
            '(' | '[' => drop(skip_brackets(letter, &mut rest)),
            '|' => {
                found.push(&regex[start..at - 1]);
                start = at;
            }
            _ => {}
        }
    }
    found.push(&regex[start..]);
    found
}

/// Most groups within groups that are taken apart; nobody writes more.
const MAX_NESTED: u32 = 8;

/// Length of the unread text in a message, behind its bracket.
const FLAG_CHARS: usize = 3;

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
        let paths = vec![format!("/dev/{name}")];
        return Ok(Nodes { paths, expression: None, name: Some(name) });
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
    Ok(Nodes { paths, expression, name: None })
}

/// The parts of a name.
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
                let _ = skip_brackets(letter, &mut rest);
                pieces.push(Piece::Any);
            }
            '.' | '^' | '$' => pieces.push(Piece::Any),
            // A repeated or optional part can be anything.
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

/// Skips to after the bracket that closes the open one. Returns false if there is none.
fn skip_brackets(open: char, rest: &mut Chars<'_>) -> bool {
    if open == '[' {
        return skip_class(rest);
    }
    let mut depth = 1_u32;
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => drop(rest.next()),
            '[' => drop(skip_class(rest)),
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return true;
        }
    }
    false
}

/// Skips to after a class. In a class `[` opens only a named class such as `[:alpha:]`, and a leading `]` is
/// literal.
fn skip_class(rest: &mut Chars<'_>) -> bool {
    let text = rest.as_str();
    let text = text.strip_prefix('^').unwrap_or(text);
    *rest = text.strip_prefix(']').unwrap_or(text).chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => drop(rest.next()),
            '[' if rest.as_str().starts_with(':') => {
                let end = rest.as_str().find(":]").map_or(rest.as_str().len(), |at| at + 2);
                *rest = rest.as_str()[end..].chars();
            }
            ']' => return true,
            _ => {}
        }
    }
    false
}

fn glob(pieces: &[Piece]) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Any => '*',
        // A character with another meaning in path patterns.
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
            ("^snd$", &["/dev/snd"]),
            ("^vcsm.*$", &["/dev/vcsm*"]),
            ("^i2c-[0-9]+$", &["/dev/i2c-*"]),
            ("^snd/controlC\\d+$", &["/dev/snd/controlC*"]),
            ("video", &["/dev/*video*"]),
            ("^tty(USB|ACM)[0-9]{1,3}$", &["/dev/tty*"]),
            ("^ttyUSB0$|^ttyACM0$", &["/dev/ttyUSB0", "/dev/ttyACM0"]),
            ("^a\\.b$", &["/dev/a.b"]),
            ("^gpiochip0?$", &["/dev/gpiochip*"]),
            ("(^video[0-9]+$)|(^i2c-[0-9]+$)", &["/dev/video*", "/dev/i2c-*"]),
            ("^(snd|hci0)$", &["/dev/snd", "/dev/hci0"]),
            ("(?:^(?:(a)|b1)$)", &["/dev/a", "/dev/b1"]),
            ("^x[(|]y$|^z$", &["/dev/x*y", "/dev/z"]),
            ("^tty[[:digit:]]+$", &["/dev/tty*"]),
            ("^tty[]0]$", &["/dev/tty*"]),
            ("^a\\(?$", &["/dev/a*"]),
        ] {
            let read = read(regex).unwrap_or_else(|problem| panic!("{regex}: {problem}"));
            let paths: Vec<_> = read.iter().flat_map(|nodes| nodes.paths.clone()).collect();
            assert_eq!(paths, expected, "{regex}");
        }
        for regex in ["", ".*", "^[a-z]+$", "^$", "^(video0|.*)$", "(?i)^video0$"] {
            assert!(read(regex).is_err(), "{regex}");
        }
        let flag = "\"(?i)^video0$\": what begins with \"(?i)\" is not read here";
        assert_eq!(read("(?i)^video0$").expect_err("a flag"), flag);
    }

    #[test]
    fn conditions_beyond_a_pattern_become_conditions_on_the_path() {
        let expression = |regex: &str| read(regex).expect("valid").remove(0).expression;
        assert_eq!(expression("^rtc0$"), None);
        let path = r#"device.attributes["windlass.dev"].?path.orValue("")"#;
        let expected = format!(r#"{path}.matches("^/dev/(?:video[0-9]*)$")"#);
        assert_eq!(expression("^video[0-9]*$"), Some(expected));
        assert_eq!(expression("tty"), Some(format!(r#"{path}.matches("^/dev/.*(?:tty)")"#)));
    }
}
