//! Lines of udev rules as they are written: keys, operators and values in quotes.

use windlass_config::Remark;

/// A rule: a line, or several that end with `\`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Its first line.
    pub(super) line: u64,
    pub(super) terms: Vec<Term>,
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Term {
    /// The line of its rule.
    pub(super) line: u64,
    pub(super) key: String,
    /// What stands in braces behind the key.
    pub(super) of: Option<String>,
    pub(super) operator: Operator,
    pub(super) value: String,
    /// Whether capitals count: they do not in `i"..."`.
    pub(super) case: Case,
}

/// What a term does with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operator {
    /// Asks whether it fits.
    Fits,
    /// Asks whether it does not.
    Differs,
    /// Sets, adds or takes away.
    Assigns,
}

/// Whether capitals count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Case {
    Counts,
    Ignored,
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Fits),
    ("!=", Operator::Differs),
    ("+=", Operator::Assigns),
    ("-=", Operator::Assigns),
    (":=", Operator::Assigns),
    ("=", Operator::Assigns),
];

/// All rules of a file; a line that is none is a mistake, and the others are read.
pub(super) fn rules(text: &str) -> (Vec<Rule>, Vec<Remark>) {
    let (mut rules, mut wrong) = (Vec::new(), Vec::new());
    for (line, text) in joined(text) {
        match terms(line, &text) {
            Ok(terms) if terms.is_empty() => {}
            Ok(terms) => rules.push(Rule { line, terms }),
            Err(problem) => wrong.push(Remark::new(line, problem)),
        }
    }
    (rules, wrong)
}

/// The first key of a line with its operator, where it begins as a rule does.
pub(super) fn begins_rule(line: &str) -> bool {
    head(line.trim_start()).is_ok()
}

/// Lines with those that continue them, by the number of the first. A comment is none of them, wherever it
/// stands.
fn joined(text: &str) -> Vec<(u64, String)> {
    let (mut lines, mut open): (Vec<(u64, String)>, bool) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let (part, goes_on) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match lines.last_mut().filter(|_| open) {
            Some((_, whole)) => whole.push_str(part),
            None => lines.push((number, part.to_owned())),
        }
        open = goes_on;
    }
    lines
}

fn terms(line: u64, text: &str) -> Result<Vec<Term>, String> {
    let between = |letter: char| letter.is_whitespace() || letter == ',';
    let (mut terms, mut rest) = (Vec::new(), text.trim_start_matches(between));
    while !rest.is_empty() {
        let (key, of, operator, behind) = head(rest)?;
        let (value, case, behind) = value(behind).map_err(|problem| format!("{key}: {problem}"))?;
        let (key, of) = (key.to_owned(), of.map(str::to_owned));
        terms.push(Term { line, key, of, operator, value, case });
        rest = behind.trim_start_matches(between);
    }
    Ok(terms)
}

/// What stands before a value: the key, what is in its braces, the operator; and what comes behind.
type Head<'t> = (&'t str, Option<&'t str>, Operator, &'t str);

fn head(text: &str) -> Result<Head<'_>, String> {
    let end = text.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
    let (key, rest) = text.split_at(end.unwrap_or(text.len()));
    if key.is_empty() {
        let found: String = text.chars().take(SHOWN_CHARS).collect();
        return Err(format!(
            "{found:?} is no key: write KEY==\"value\", and comments on lines of their own"
        ));
    }
    let (of, rest) = match rest.strip_prefix('{').map(|rest| rest.split_once('}')) {
        Some(Some((of, rest))) => (Some(of), rest),
        Some(None) => return Err(format!("{key}: the brace is not closed")),
        None => (None, rest),
    };
    let rest = rest.trim_start();
    let found = OPERATORS.into_iter().find_map(|(sign, it)| Some((it, rest.strip_prefix(sign)?)));
    let (operator, rest) = found.ok_or_else(|| format!("{key} has no operator: write == or !="))?;
    Ok((key, of, operator, rest.trim_start()))
}

/// How much is shown of what is no key.
const SHOWN_CHARS: usize = 20;

/// A value in quotes, and what comes behind it. `e` before it gives `\n` and its like a meaning, `i` makes
/// capitals count no more.
fn value(text: &str) -> Result<(String, Case, &str), String> {
    let (prefix, rest) = text.split_once('"').ok_or("its value has no quotes")?;
    let (escapes, case) = match prefix {
        "" => (Escapes::Quotes, Case::Counts),
        "e" => (Escapes::AsInC, Case::Counts),
        "i" => (Escapes::Quotes, Case::Ignored),
        "ei" | "ie" => (Escapes::AsInC, Case::Ignored),
        other => return Err(format!("{other:?} before the quotes: write e, i or nothing")),
    };
    let (mut value, mut letters) = (String::new(), rest.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return Ok((value, case, letters.as_str())),
            '\\' => escapes.read(&mut letters, &mut value)?,
            letter => value.push(letter),
        }
    }
    Err("the quotes are not closed".to_owned())
}

/// What a `\` means.
#[derive(Clone, Copy)]
enum Escapes {
    /// Itself, unless before quotes.
    Quotes,
    /// What it means in C.
    AsInC,
}

// === impl Operator ===

impl Operator {
    /// What holds where the rule does not go on. A program that ran well is asked for with `=` too.
    fn opposite(self) -> Self {
        match self {
            Self::Fits => Self::Differs,
            Self::Differs | Self::Assigns => Self::Fits,
        }
    }

    fn is_opposite(self, other: Self) -> bool {
        self.opposite() == other || other.opposite() == self
    }
}

// === impl Escapes ===

impl Escapes {
    fn read(self, letters: &mut std::str::Chars<'_>, value: &mut String) -> Result<(), String> {
        let next = letters.next();
        match (self, next) {
            (_, None) => value.push('\\'),
            (_, Some('"')) => value.push('"'),
            (Self::Quotes, Some(letter)) => value.extend(['\\', letter]),
            (Self::AsInC, Some(letter)) => {
                let meant = in_c(letter, letters);
                value.push(meant.ok_or_else(|| format!("\\{letter} means nothing"))?);
            }
        }
        Ok(())
    }
}

fn in_c(letter: char, behind: &mut std::str::Chars<'_>) -> Option<char> {
    let mut number = |digits: usize, radix: u32| {
        let text = behind.as_str().get(..digits)?;
        *behind = behind.as_str()[digits..].chars();
        u8::from_str_radix(text, radix).ok().filter(|it| it.is_ascii() && *it != 0).map(char::from)
    };
    Some(match letter {
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        's' => ' ',
        '\\' | '\'' => letter,
        'x' => number(2, 16)?,
        _ => return None,
    })
}

// === impl Term ===

impl Term {
    /// The key with what is in its braces, as it was written.
    pub(super) fn name(&self) -> String {
        match &self.of {
            Some(of) => format!("{}{{{of}}}", self.key),
            None => self.key.clone(),
        }
    }

    /// Whether it asks something of a device, or of the rules before it, rather than setting something.
    pub(super) fn is_asked(&self) -> bool {
        self.operator != Operator::Assigns || ["PROGRAM", "IMPORT"].contains(&self.key.as_str())
    }

    /// What is asked the other way.
    pub(super) fn negated(&self) -> Self {
        Self { operator: self.operator.opposite(), ..self.clone() }
    }

    /// Whether it asks the very opposite, wherever either was written.
    pub(super) fn is_opposite(&self, other: &Self) -> bool {
        self.operator.is_opposite(other.operator) && self.has_like_value(other)
    }

    /// Whether it asks the same, wherever either was written.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.operator == other.operator && self.has_like_value(other)
    }

    fn has_like_value(&self, other: &Self) -> bool {
        (&self.key, &self.of, &self.value, self.case)
            == (&other.key, &other.of, &other.value, other.case)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Operator::{Assigns, Differs, Fits},
        *,
    };

    fn read(text: &str) -> Result<Vec<(String, Operator, String)>, String> {
        let terms = terms(1, text)?.into_iter();
        Ok(terms.map(|term| (term.name(), term.operator, term.value)).collect())
    }

    #[test]
    fn keys_operators_and_values_are_told_apart() {
        let term =
            |name: &str, operator, value: &str| (name.to_owned(), operator, value.to_owned());
        for (text, expected) in [
            (
                r#"KERNEL=="a", SYMLINK+="b""#,
                vec![term("KERNEL", Fits, "a"), term("SYMLINK", Assigns, "b")],
            ),
            (
                r#" ATTR{a/b} != "x" ,, GOTO="e","#,
                vec![term("ATTR{a/b}", Differs, "x"), term("GOTO", Assigns, "e")],
            ),
            (r#"A=="1"B=="2""#, vec![term("A", Fits, "1"), term("B", Fits, "2")]),
            (r#"A=="a\"b\d""#, vec![term("A", Fits, r#"a"b\d"#)]),
            (r#"A==e"a\tb\x41\\""#, vec![term("A", Fits, "a\tbA\\")]),
            (r#"A:="x", B-="y""#, vec![term("A", Assigns, "x"), term("B", Assigns, "y")]),
            ("", vec![]),
        ] {
            assert_eq!(read(text).expect(text), expected, "{text}");
        }
        for (text, expected) in [
            (r#"KERNEL=="a"#, "KERNEL: the quotes are not closed"),
            ("KERNEL==a", "KERNEL: its value has no quotes"),
            (r#"KERNEL "a""#, "KERNEL has no operator: write == or !="),
            (r#"ATTR{a=="b""#, "ATTR: the brace is not closed"),
            (r#"A==x"b""#, "A: \"x\" before the quotes: write e, i or nothing"),
            (r#"A==e"\q""#, "A: \\q means nothing"),
            (
                r#"A=="b" # c"#,
                "\"# c\" is no key: write KEY==\"value\", and comments on lines of their own",
            ),
        ] {
            assert_eq!(read(text).expect_err(text), expected);
        }
    }

    #[test]
    fn a_rule_over_several_lines_has_the_number_of_its_first() {
        let text = "# a\n\nA==\"1\", \\\n# between\n  B==\"2\"\nC==\"3\n";
        let (rules, wrong) = rules(text);
        let found: Vec<_> = rules.iter().map(|rule| (rule.line, rule.terms.len())).collect();
        assert_eq!(found, [(3, 2)]);
        assert_eq!(wrong, [Remark::new(6, "C: the quotes are not closed")]);
    }
}
