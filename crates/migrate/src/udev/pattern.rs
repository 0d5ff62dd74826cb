//! What a value of a rule fits, as an expression: alternatives between `|`, with `*`, `?` and `[...]`.

use windlass_core::selector::literal;
use windlass_host::glob;

use super::line::{Case, Operator, Term};
use crate::expression::{has, text};

/// What an attribute that a device lacks fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// Nothing, and it differs from nothing: a file of sysfs.
    IsNothing,
    /// The empty text: a property, a driver.
    IsEmpty,
}

/// The value of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    alternatives: Vec<String>,
    operator: Operator,
    case: Case,
}

// === impl Pattern ===

impl Pattern {
    /// That of a term that asks something.
    pub(super) fn of(term: &Term) -> Result<Self, String> {
        if term.value.contains(['$', '%']) {
            let name = term.name();
            return Err(format!("{name} is compared with what udev fills in, {:?}", term.value));
        }
        if term.value.contains("[:") {
            return Err(format!("{}: write {:?} without [: :], [0-9]", term.name(), term.value));
        }
        let alternatives = term.value.split('|').map(str::to_owned).collect();
        Ok(Self { alternatives, operator: term.operator, case: term.case })
    }

    pub(super) fn alternatives(&self) -> &[String] {
        &self.alternatives
    }

    pub(super) fn operator(&self) -> Operator {
        self.operator
    }

    /// The alternatives, where each stands for itself.
    pub(super) fn literals(&self) -> Option<&[String]> {
        let is_plain = |it: &String| !glob::is_pattern(it);
        let all = self.case == Case::Counts && self.alternatives.iter().all(is_plain);
        all.then_some(&self.alternatives)
    }

    /// The same with other alternatives.
    pub(super) fn mapped(
        &self,
        map: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Self, String> {
        let alternatives = self.alternatives.iter().map(|it| map(it)).collect::<Result<_, _>>()?;
        Ok(Self { alternatives, ..self.clone() })
    }

    /// Another value that has to fit alone.
    pub(super) fn with(&self, alternative: String) -> Self {
        Self { alternatives: vec![alternative], operator: Operator::Fits, case: self.case }
    }

    /// What it answers for a text that is known.
    pub(super) fn answer(&self, text: &str) -> bool {
        let in_case = |it: &str| match self.case {
            Case::Counts => it.to_owned(),
            Case::Ignored => it.to_lowercase(),
        };
        let text = in_case(text);
        let mut fitting = self.alternatives.iter().filter(|it| glob::fits(&in_case(it), &text));
        fitting.next().is_some() == (self.operator == Operator::Fits)
    }

    /// The question as an expression.
    pub(super) fn asked(&self, attribute: &str, absent: Absent) -> String {
        let is_anything = self.alternatives.iter().any(|it| it == "*" || it == "?*");
        let present = if is_anything {
            has(attribute)
        } else if let Some(values) = self.literals() {
            equal(attribute, values)
        } else {
            format!("{}.matches({})", text(attribute), literal(&format!("^{}$", self.regex("."))))
        };
        let fits_nothing = self.alternatives.iter().any(|it| glob::fits(it, ""));
        match (self.operator, absent) {
            (Operator::Fits, Absent::IsEmpty) if fits_nothing && is_anything => "true".to_owned(),
            (Operator::Fits, Absent::IsNothing) if fits_nothing && !is_anything => {
                format!("{} && {present}", has(attribute))
            }
            (Operator::Fits, _) => present,
            (_, Absent::IsEmpty) if is_anything && fits_nothing => "false".to_owned(),
            (_, Absent::IsEmpty) => not(&present),
            (_, Absent::IsNothing) => format!("{} && {}", has(attribute), not(&present)),
        }
    }

    /// The question of a list of words, of which one has to fit.
    pub(super) fn asked_of_words(&self, attribute: &str) -> String {
        let regex = format!("(^| ){}( |$)", self.regex("[^ ]"));
        format!("{}.matches({})", text(attribute), literal(&regex))
    }

    /// The question of what stands behind a beginning.
    /// As of what fits.
    pub(super) fn asked_behind(&self, attribute: &str, beginning: &str) -> String {
        let regex = format!("^{beginning}{}$", self.regex("."));
        format!("{}.matches({})", text(attribute), literal(&regex))
    }

    fn regex(&self, letter: &str) -> String {
        let all: Vec<_> = self.alternatives.iter().map(|it| regex(it, letter)).collect();
        let all = if let [only] = &all[..] { only.clone() } else { format!("({})", all.join("|")) };
        match self.case {
            Case::Counts => all,
            Case::Ignored => format!("(?i){all}"),
        }
    }
}

fn equal(attribute: &str, values: &[String]) -> String {
    match values {
        [value] => format!("{} == {}", text(attribute), literal(value)),
        values => {
            let values: Vec<_> = values.iter().map(|value| literal(value)).collect();
            format!("{} in [{}]", text(attribute), values.join(", "))
        }
    }
}

fn not(expression: &str) -> String {
    match expression.split_once(" == ") {
        Some((left, right)) if !right.contains(" && ") => format!("{left} != {right}"),
        _ => format!("!({expression})"),
    }
}

/// A pattern as a regular expression for the whole of a text; `letter` is what `?` stands for.
fn regex(pattern: &str, letter: &str) -> String {
    let (mut found, mut rest) = (String::new(), pattern.chars());
    let is_pattern = glob::is_pattern(pattern);
    while let Some(next) = rest.next() {
        match next {
            '*' => found.extend([letter, "*"]),
            '?' => found.push_str(letter),
            '[' => match class(rest.as_str()) {
                Some((class, behind)) => {
                    found.push_str(&class);
                    rest = behind.chars();
                }
                None => found.push_str("\\["),
            },
            '\\' if is_pattern => rest.next().into_iter().for_each(|next| escape(next, &mut found)),
            next => escape(next, &mut found),
        }
    }
    found
}

/// What is in brackets, and what comes behind them; a `]` that comes first is meant itself.
fn class(behind: &str) -> Option<(String, &str)> {
    let inside = behind.strip_prefix(['!', '^']);
    let rest = inside.unwrap_or(behind);
    let first = rest.chars().next()?.len_utf8();
    let end = first + rest[first..].find(']')?;
    let ranges = ranges(&rest[..end]);
    let class = match (ranges.is_empty(), inside) {
        (true, None) => NO_LETTER.to_owned(),
        (true, Some(_)) => ".".to_owned(),
        (false, None) => format!("[{ranges}]"),
        (false, Some(_)) => format!("[^{ranges}]"),
    };
    Some((class, &rest[end + 1..]))
}

/// What no letter fits.
const NO_LETTER: &str = r"[^\s\S]";

/// Letters and ranges as a regular expression has them. A range that ends before it begins has no letter there,
/// and is a mistake here.
fn ranges(class: &str) -> String {
    let (letters, mut found): (Vec<char>, String) = (class.chars().collect(), String::new());
    let mut rest = &letters[..];
    while let [first, behind @ ..] = rest {
        rest = behind;
        let mut last = first;
        if let ['-', end, behind @ ..] = rest {
            (last, rest) = (end, behind);
        }
        if first <= last {
            escape(*first, &mut found);
        }
        if first < last {
            found.push('-');
            escape(*last, &mut found);
        }
    }
    found
}

/// Letters that mean something else in a regular expression, in brackets or out of them.
const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~";

fn escape(letter: char, into: &mut String) {
    if SPECIAL.contains(letter) {
        into.push('\\');
    }
    into.push(letter);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_becomes_a_regular_expression() {
        for (pattern, expected) in [
            ("ttyUSB*", "ttyUSB.*"),
            ("video[0-9]", "video[0-9]"),
            ("a?[!b-d]", "a.[^b-d]"),
            ("a.b+c", "a\\.b\\+c"),
            ("a[b", "a\\[b"),
            ("[]x]y", "[\\]x]y"),
            ("\\*x*", "\\*x.*"),
            ("a\\b", "a\\\\b"),
            ("[z-a]", r"[^\s\S]"),
            ("[!z-a][a-]", r".[a\-]"),
        ] {
            assert_eq!(regex(pattern, "."), expected, "{pattern}");
        }
    }
}
