//! Which devices a rule is reached by: `GOTO` and `LABEL`.
//!
//! A way to a rule is what has to hold of a device that gets there. `SUBSYSTEM!="usb", GOTO="end"` leaves one
//! way to what follows, `SUBSYSTEM=="usb"`; behind `LABEL="end"` it is rejoined by the other, and both
//! together ask nothing.

use std::collections::BTreeMap;

use windlass_config::document::Remarks;

use super::line::{Rule, Term};

/// What holds of the devices that come one way.
pub(super) type Way = Vec<Term>;

/// The ways, rule by rule.
#[derive(Debug)]
pub(super) struct Flow {
    /// Those to the rule that is next; `None` where there are too many.
    here: Option<Vec<Way>>,
    /// Those that wait for a label.
    ahead: BTreeMap<String, Option<Vec<Way>>>,
    /// The last line of each label: nobody goes back.
    labels: BTreeMap<String, u64>,
}

/// Ways that are followed to one rule. A file of one guard for each vendor has as many to its end.
const MOST_WAYS: usize = 64;

/// Things that have to hold on one way; each costs time at each guard.
const MOST_TERMS: usize = 256;

// === impl Flow ===

impl Flow {
    pub(super) fn through(rules: &[Rule]) -> Self {
        let labels = rules.iter().flat_map(|rule| values(rule, "LABEL").map(|it| (it, rule.line)));
        Self { here: Some(vec![Way::new()]), ahead: BTreeMap::new(), labels: labels.collect() }
    }

    /// The ways to a rule; an error where there are more than are followed.
    pub(super) fn to(&mut self, rule: &Rule) -> Result<&[Way], String> {
        for label in values(rule, "LABEL") {
            if let Some(ahead) = self.ahead.remove(&label) {
                self.here = joined(self.here.take(), ahead);
            }
        }
        self.here.as_deref().ok_or_else(|| TANGLED.to_owned())
    }

    /// Goes on behind a rule: those that fit it may leave for a label.
    pub(super) fn behind(&mut self, rule: &Rule, remarks: &mut Remarks) {
        let Some(label) = values(rule, "GOTO").next() else { return };
        if self.labels.get(&label).is_none_or(|line| *line <= rule.line) {
            remarks.warn(rule.line, format!("GOTO={label:?}: no LABEL below has that name"));
            return;
        }
        let Some(asked) = when_plugged_in(rule) else { return };
        let here = self.here.take();
        let gone =
            here.as_ref().map(|ways| ways.iter().filter_map(|way| with(way, &asked)).collect());
        let ahead = self.ahead.remove(&label).unwrap_or_else(|| Some(Vec::new()));
        self.ahead.insert(label, joined(ahead, gone));
        self.here = here.and_then(|ways| few(ways.iter().flat_map(|way| without(way, &asked))));
    }
}

fn values(rule: &Rule, key: &str) -> impl Iterator<Item = String> {
    let of_key = rule.terms.iter().filter(move |term| term.key == key);
    of_key.map(|term| term.value.clone())
}

/// What a rule asks of a device that is plugged in; `None` where it asks for another event.
fn when_plugged_in(rule: &Rule) -> Option<Way> {
    let (actions, asked): (Vec<_>, Vec<_>) =
        rule.terms.iter().filter(|term| term.is_asked()).partition(|term| term.key == "ACTION");
    let is_meant = actions.iter().all(|term| super::is_of_event(term, &["add"]));
    is_meant.then(|| asked.into_iter().cloned().collect())
}

/// A way on which something more holds, unless that cannot be.
fn with(way: &Way, more: &[Term]) -> Option<Way> {
    let mut way = way.clone();
    for term in more {
        if way.iter().any(|held| held.is_opposite(term)) {
            return None;
        }
        if !way.iter().any(|held| held.is_like(term)) {
            way.push(term.clone());
        }
    }
    Some(way)
}

/// The ways of those of whom not all of it holds: each fails at one thing, and at none before.
fn without(way: &Way, asked: &[Term]) -> impl Iterator<Item = Way> {
    asked.iter().enumerate().filter_map(move |(nth, failed)| {
        let held = with(way, &asked[..nth])?;
        with(&held, &[failed.negated()])
    })
}

fn few(ways: impl Iterator<Item = Way>) -> Option<Vec<Way>> {
    let ways: Vec<_> = ways.take(MOST_WAYS + 1).collect();
    let is_short = ways.iter().all(|way| way.len() <= MOST_TERMS);
    (is_short && ways.len() <= MOST_WAYS).then_some(ways)
}

/// The ways of both, fewer where two differ in nothing but whether one thing holds.
fn joined(one: Option<Vec<Way>>, other: Option<Vec<Way>>) -> Option<Vec<Way>> {
    let mut ways: Vec<Way> = few(one?.into_iter().chain(other?))?;
    while let Some((first, second, way)) = rejoining(&ways) {
        ways.remove(second);
        ways[first] = way;
    }
    Some(ways)
}

/// Two ways that are one, and that one.
fn rejoining(ways: &[Way]) -> Option<(usize, usize, Way)> {
    let pairs = (0..ways.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    pairs.into_iter().find_map(|(first, second)| {
        let way = rejoined(&ways[first], &ways[second])?;
        Some((first, second, way))
    })
}

fn rejoined(one: &Way, other: &Way) -> Option<Way> {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let is_in = |term: &Term, way: &Way| way.iter().any(|held| held.is_like(term));
    let mut differing = short.iter().filter(|term| !is_in(term, long));
    match (differing.next(), differing.next()) {
        (None, _) => Some(short.clone()),
        (Some(term), None) if short.len() == long.len() => {
            let is_opposed = long.iter().any(|held| held.is_opposite(term));
            let is_same = |held: &&Term| !held.is_like(term);
            is_opposed.then(|| short.iter().filter(is_same).cloned().collect())
        }
        _ => None,
    }
}

const TANGLED: &str =
    "more ways lead here by GOTO than are followed: write what it matches into the rule";

#[cfg(test)]
mod tests {
    use super::{super::line::rules, *};

    /// The ways to the line that assigns `NAME="here"`.
    fn ways(text: &str) -> Vec<Vec<String>> {
        let (rules, wrong) = rules(text);
        assert!(wrong.is_empty(), "{wrong:?}");
        let (mut flow, mut remarks) = (Flow::through(&rules), Remarks::default());
        for rule in &rules {
            let ways = flow.to(rule).expect("few").to_vec();
            if values(rule, "NAME").next().is_some() {
                let text =
                    |term: &Term| format!("{}{:?}{}", term.name(), term.operator, term.value);
                return ways.iter().map(|way| way.iter().map(text).collect()).collect();
            }
            flow.behind(rule, &mut remarks);
        }
        panic!("no rule is meant");
    }

    #[test]
    fn a_rule_is_reached_by_those_whom_no_guard_sent_away() {
        let end = "\nNAME=\"here\"\nLABEL=\"e\"";
        let to_end = |guards: &str| ways(&format!("{guards}{end}"));
        for (guards, expected) in [
            ("", &[&[][..]][..]),
            ("A!=\"1\", GOTO=\"e\"", &[&["AFits1"]]),
            ("ACTION==\"remove\", GOTO=\"e\"", &[&[]]),
            ("ACTION!=\"add|change\", GOTO=\"e\"", &[&[]]),
            ("ACTION==\"add\", A!=\"1\", GOTO=\"e\"", &[&["AFits1"]]),
            ("A==\"1\", B==\"2\", GOTO=\"e\"", &[&["ADiffers1"], &["AFits1", "BDiffers2"]]),
            ("A!=\"1\", GOTO=\"x\"\nLABEL=\"x\"", &[&[]]),
            ("A!=\"1\", GOTO=\"x\"\nB!=\"1\", GOTO=\"x\"\nLABEL=\"x\"", &[&[]]),
            ("A==\"1\", GOTO=\"e\"\nA==\"1\", GOTO=\"e\"", &[&["ADiffers1"]]),
            ("A==\"1\", GOTO=\"x\"\nGOTO=\"e\"\nLABEL=\"x\"", &[&["AFits1"]]),
            ("GOTO=\"e\"", &[]),
            ("A==\"1\", GOTO=\"nowhere\"", &[&[]]),
        ] {
            assert_eq!(to_end(guards), expected, "{guards}");
        }
    }

    #[test]
    fn more_ways_than_are_followed_are_told_of() {
        let guard = |nth: u32| format!("A==\"{nth}\", B==\"{nth}\", C==\"{nth}\", GOTO=\"e\"\n");
        let text: String = (0..9).map(guard).collect();
        let (rules, _) = rules(&format!("{text}NAME=\"here\"\nLABEL=\"e\""));
        let (mut flow, mut remarks) = (Flow::through(&rules), Remarks::default());
        rules[..9].iter().for_each(|rule| flow.behind(rule, &mut remarks));
        assert_eq!(flow.to(&rules[9]), Err(TANGLED.to_owned()));
    }
}
