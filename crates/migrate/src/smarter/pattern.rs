//! Conversion of a regular expression for names below `/dev` into a path pattern that matches at least the same names,
//! and into an exact CEL expression.

use regex_syntax::ast::{AssertionKind, Ast, GroupKind, parse::Parser};
use windlass_core::selector::literal;

use crate::expression::string_or_empty;

/// Nodes that one alternative of a regular expression matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodePattern {
    /// Path pattern of the nodes.
    pub(super) path: String,
    /// Condition on the found nodes, if the pattern may also match other nodes.
    pub(super) expression: Option<String>,
    /// Name of the node, if the alternative matches exactly one name.
    pub(super) name: Option<String>,
}

/// An alternative of an expression, without its anchors.
struct Alternative<'a> {
    parts: &'a [Ast],
    /// True if the expression is anchored by `^`.
    is_start_anchored: bool,
    /// True if the expression is anchored by `$`.
    is_end_anchored: bool,
}

pub(super) fn parse(regex: &str) -> Result<Ast, String> {
    Parser::new().parse(regex).map_err(|error| format!("{regex:?}: {}", error.kind()))
}

/// Converts each alternative of a regular expression.
pub(super) fn read(regex: &str, ast: &Ast) -> Result<Vec<NodePattern>, String> {
    if let Some(flag) = flag(ast) {
        return Err(format!("{regex:?}: flags such as {flag:?} are not supported"));
    }
    alternatives(ast, false, false).iter().map(|it| it.nodes(regex)).collect()
}

/// Finds a flag such as `(?i)`, which changes the meaning of characters.
fn flag(ast: &Ast) -> Option<String> {
    match ast {
        Ast::Flags(_) => Some(ast.to_string()),
        Ast::Group(group) => match &group.kind {
            GroupKind::NonCapturing(flags) if !flags.items.is_empty() => Some(ast.to_string()),
            _ => flag(&group.ast),
        },
        Ast::Repetition(repetition) => flag(&repetition.ast),
        Ast::Concat(concat) => concat.asts.iter().find_map(flag),
        Ast::Alternation(alternation) => alternation.asts.iter().find_map(flag),
        _ => None,
    }
}

/// Splits an expression into alternatives without their anchors: `^(a|b)$` and `(^a$)|(^b$)` each have two.
fn alternatives(ast: &Ast, is_start_anchored: bool, is_end_anchored: bool) -> Vec<Alternative<'_>> {
    let parts = match ast {
        Ast::Empty(_) => &[],
        Ast::Group(group) => return alternatives(&group.ast, is_start_anchored, is_end_anchored),
        Ast::Alternation(alternation) => {
            let each = alternation.asts.iter();
            return each
                .flat_map(|ast| alternatives(ast, is_start_anchored, is_end_anchored))
                .collect();
        }
        Ast::Concat(concat) => concat.asts.as_slice(),
        _ => std::slice::from_ref(ast),
    };
    let (is_start_anchored, parts) = match parts {
        [Ast::Assertion(it), rest @ ..] if it.kind == AssertionKind::StartLine => (true, rest),
        _ => (is_start_anchored, parts),
    };
    let (is_end_anchored, parts) = match parts {
        [rest @ .., Ast::Assertion(it)] if it.kind == AssertionKind::EndLine => (true, rest),
        _ => (is_end_anchored, parts),
    };
    match parts {
        [group @ Ast::Group(_)] => alternatives(group, is_start_anchored, is_end_anchored),
        _ => vec![Alternative { parts, is_start_anchored, is_end_anchored }],
    }
}

// === impl Alternative ===

impl Alternative<'_> {
    fn nodes(&self, regex: &str) -> Result<NodePattern, String> {
        let exact_name: Option<String> = self.parts.iter().map(literal_char).collect();
        let exact_name = exact_name
            .filter(|name| self.is_start_anchored && self.is_end_anchored && !name.is_empty());
        if let Some(name) = exact_name {
            return Ok(NodePattern {
                path: format!("/dev/{name}"),
                expression: None,
                name: Some(name),
            });
        }
        let body = match self.parts {
            [] => "",
            [first, ..] => {
                let last = self.parts.last().unwrap_or(first);
                &regex[first.span().start.offset..last.span().end.offset]
            }
        };
        let glob = self.glob();
        if !glob.contains(|letter: char| letter.is_ascii_alphanumeric()) {
            return Err(format!(
                "{body:?} matches nodes of all kinds: begin it with letters of a name"
            ));
        }
        let start = if self.is_start_anchored { "" } else { ".*" };
        let end = if self.is_end_anchored { "$" } else { "" };
        let exact = literal(&format!("^/dev/{start}(?:{body}){end}"));
        let expression = Some(format!("{}.matches({exact})", string_or_empty("path")));
        Ok(NodePattern { path: format!("/dev/{glob}"), expression, name: None })
    }

    /// Pattern that matches at least the same names.
    fn glob(&self) -> String {
        let wildcard = |ast: &Ast| match literal_char(ast) {
            None => '*',
            // These characters have a special meaning in path patterns.
            Some('*' | '?' | '[' | ']') => '?',
            Some(letter) => letter,
        };
        let mut glob: Vec<_> = Some('*').filter(|_| !self.is_start_anchored).into_iter().collect();
        glob.extend(self.parts.iter().map(wildcard));
        glob.extend(Some('*').filter(|_| !self.is_end_anchored));
        glob.dedup_by(|next, last| [*next, *last] == ['*', '*']);
        glob.into_iter().collect()
    }
}

/// The character, if the part is a single literal character.
fn literal_char(ast: &Ast) -> Option<char> {
    if let Ast::Literal(literal) = ast { Some(literal.c) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(regex: &str) -> Result<Vec<NodePattern>, String> {
        super::read(regex, &parse(regex)?)
    }

    #[test]
    fn a_regular_expression_becomes_patterns_that_match_at_least_as_much() {
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
            let paths: Vec<_> = read.iter().map(|nodes| nodes.path.as_str()).collect();
            assert_eq!(paths, expected, "{regex}");
        }
        for regex in ["", ".*", "^[a-z]+$", "^$", "^(video0|.*)$", "(?i)^video0$"] {
            assert!(read(regex).is_err(), "{regex}");
        }
        let flag = "\"(?i)^video0$\": flags such as \"(?i)\" are not supported";
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
