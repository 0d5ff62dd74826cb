//! Lists of virtual functions by parent and number: `ens1f0#0,2-7`.

use windlass_config::document::{Diagnostics, Spanned};

use crate::expression::{Conditions, any_of, integer_or_default};

/// Maximum length of a range whose numbers are listed one by one in the expression.
const MAX_LISTED: u32 = 64;

/// Functions of a parent, by ranges of numbers; without a range, all functions.
#[derive(Debug, PartialEq, Eq)]
struct Functions {
    parent: String,
    /// The parent's name as written, if it has capitals: the plugin accepts both spellings.
    written: Option<String>,
    ranges: Vec<(u32, u32)>,
}

/// Requires that a function is in the list: its parent by one attribute, its number by the attribute `index`.
pub(super) fn add(
    attribute: &str,
    index: &str,
    list: Option<&Spanned<Vec<String>>>,
    conditions: &mut Conditions,
    diagnostics: &mut Diagnostics,
) {
    let Some(list) = list.filter(|list| !list.value.is_empty()) else { return };
    let functions = parsed(list, diagnostics);
    let (unrestricted, ranged): (Vec<_>, Vec<_>) =
        functions.iter().partition(|it| it.ranges.is_empty());
    let mut alternatives: Vec<_> = ranged.iter().map(|it| it.condition(attribute, index)).collect();
    if !unrestricted.is_empty() {
        let parents: Vec<_> = unrestricted.iter().flat_map(|it| it.spellings()).collect();
        let mut any_parent = Conditions::default();
        any_parent.one_of(attribute, &parents);
        alternatives.insert(0, any_parent.text());
    }
    if !alternatives.is_empty() {
        conditions.and(any_of(&alternatives));
    }
}

fn parsed(list: &Spanned<Vec<String>>, diagnostics: &mut Diagnostics) -> Vec<Functions> {
    let mut all: Vec<Functions> = Vec::new();
    for entry in &list.value {
        let Some(functions) = Functions::read(entry) else {
            let problem = format!("{entry:?}: write a parent, or numbers after it as in p0#0,2-7");
            diagnostics.error(list.line, problem);
            continue;
        };
        if all.iter().any(|earlier| earlier.parent == functions.parent) {
            let parent = &functions.parent;
            let text =
                format!("{parent} appears twice: both apply here; that plugin uses the first only");
            diagnostics.warn(list.line, text);
        }
        all.push(functions);
    }
    all
}

// === impl Functions ===

impl Functions {
    fn read(text: &str) -> Option<Self> {
        let (parent, numbers) = match text.split_once('#') {
            Some((parent, numbers)) => (parent, Some(numbers)),
            None => (text, None),
        };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges: Option<Vec<_>> =
            numbers.map_or(Some(Vec::new()), |numbers| numbers.split(',').map(range).collect());
        let ranges = ranges.filter(|_| !parent.is_empty())?;
        let lower = parent.to_ascii_lowercase();
        // The name of an interface may have capitals; a PCI address is in lower case.
        let written = Some(parent.to_owned()).filter(|it| *it != lower && !it.contains(':'));
        Some(Self { parent: lower, written, ranges })
    }

    fn spellings(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.parent.clone()).chain(self.written.clone())
    }

    fn condition(&self, attribute: &str, index: &str) -> String {
        let mut conditions = Conditions::default();
        conditions.one_of(attribute, &self.spellings().collect::<Vec<_>>());
        conditions.and(self.numbers(index));
        conditions.text()
    }

    fn numbers(&self, index: &str) -> String {
        let index = integer_or_default(index);
        let is_short = |(first, last): &&(u32, u32)| last.saturating_sub(*first) < MAX_LISTED;
        let (short, long): (Vec<_>, Vec<_>) = self.ranges.iter().partition(is_short);
        let listed: Vec<_> = short.iter().flat_map(|(first, last)| *first..=*last).collect();
        let compared =
            long.iter().map(|(first, last)| format!("{index} >= {first} && {index} <= {last}"));
        let mut numbers: Vec<_> = compared.collect();
        match listed[..] {
            [] => {}
            [only] => numbers.push(format!("{index} == {only}")),
            _ => numbers.push(format!("{index} in {listed:?}")),
        }
        // Ranges that end before they begin contain no number.
        if numbers.is_empty() { "false".to_owned() } else { any_of(&numbers) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_parent() {
        let read = |text: &str| Functions::read(text).map(|it| (it.parent, it.ranges));
        for (text, expected) in [
            ("ens1f0", Some(("ens1f0", vec![]))),
            ("ens1f0#3", Some(("ens1f0", vec![(3, 3)]))),
            ("ens1f0#0,2-7,9", Some(("ens1f0", vec![(0, 0), (2, 7), (9, 9)]))),
            ("LAN1", Some(("lan1", vec![]))),
            ("0000:AF:00.0#1-2", Some(("0000:af:00.0", vec![(1, 2)]))),
            ("ens1f0#", None),
            ("#1", None),
            ("ens1f0#1-", None),
            ("ens1f0#1-2-3", None),
            ("ens1f0#-1", None),
            ("ens1f0#1#2", None),
        ] {
            let expected = expected.map(|(parent, ranges)| (parent.to_owned(), ranges));
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_parents_name_matches_in_both_spellings() {
        let functions = |text: &str| Functions::read(text).expect("valid");
        let condition = |text: &str| functions(text).condition("pfName", "vfIndex");
        assert!(condition("LAN1#0").contains(r#" in ["lan1", "LAN1"] && "#));
        assert!(condition("0000:AF:00.0#0").contains(r#" == "0000:af:00.0" && "#));
    }

    #[test]
    fn few_numbers_are_listed_and_many_are_compared() {
        let numbers = |text: &str| {
            let functions = Functions::read(text).expect("valid");
            functions.numbers("vfIndex").replace(&integer_or_default("vfIndex"), "n")
        };
        for (text, expected) in [
            ("p0#4", "n == 4"),
            ("p0#0,2-4", "n in [0, 2, 3, 4]"),
            ("p0#0-255,300", "(n >= 0 && n <= 255) || n == 300"),
            ("p0#7-3", "false"),
        ] {
            assert_eq!(numbers(text), expected, "{text}");
        }
    }
}
