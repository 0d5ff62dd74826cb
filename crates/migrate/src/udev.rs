//! Rules of udev: each that names devices, or says who may open them, becomes a source.
//!
//! A source finds no more than its rule fits. What a rule asks that nobody but udev knows makes it no source,
//! with its line and the reason. What a rule sets is udev's own business, but for names and `MODE`.

mod flow;
mod line;
mod parent;
mod pattern;
mod place;
mod proposal;
mod query;
mod sysfs;

use std::path::Path;

use windlass_config::document::Remarks;

use self::{
    flow::{Flow, Way},
    line::{Rule, Term},
    pattern::Pattern,
    proposal::{Proposal, Proposals},
    query::Asked,
};
use super::Imported;

/// Why there is no source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// No device can fit all that is asked.
    Never,
    /// Something cannot be asked here.
    Because(String),
}

/// How such files are called.
const EXTENSION: &str = "rules";

/// Keys that name a device or say who may open it: a rule that sets others alone is about something else.
const NAMING: [&str; 7] = ["NAME", "SYMLINK", "TAG", "MODE", "GROUP", "OWNER", "SECLABEL"];

/// Keys that are read here though they set something.
const READ: [&str; 6] = ["NAME", "SYMLINK", "TAG", "MODE", "GOTO", "LABEL"];

/// Whether a file has rules of udev, by its name or by its first line that says something.
pub(crate) fn is_rules(path: &Path, text: &str) -> bool {
    let says_nothing = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let first = text.lines().find(|line| !says_nothing(line));
    path.extension().is_some_and(|it| it == EXTENSION) || first.is_some_and(line::begins_rule)
}

pub(super) fn read(text: &str, remarks: &mut Remarks) -> Imported {
    let (rules, wrong) = line::rules(text);
    remarks.wrong.extend(wrong);
    let (mut flow, mut proposals) = (Flow::through(&rules), Proposals::default());
    for rule in &rules {
        match flow.to(rule) {
            Ok(ways) if is_meant(rule, ways) => take(rule, ways, &mut proposals, remarks),
            Ok(ways) => tell(rule, ways, remarks),
            Err(why) if names(rule) => remarks.warn(rule.line, left_out(&why)),
            Err(_) => {}
        }
        flow.behind(rule, remarks);
    }
    let sources = proposals.into_sources(remarks);
    remarks.warn(1, if sources.is_empty() { NOTHING } else { DOMAIN_NOTE });
    Imported { sources, ..Imported::default() }
}

/// Whether a rule names devices: all that it fits. One that sets nothing is a search, as Akri has them.
fn is_meant(rule: &Rule, ways: &[Way]) -> bool {
    let asks = |terms: &[Term]| terms.iter().any(|term| term.is_asked() && term.key != "ACTION");
    let is_asked = asks(&rule.terms) || ways.iter().any(|way| asks(way));
    let is_search = rule.terms.iter().all(|term| term.is_asked() || term.key == "LABEL");
    is_asked && (names(rule) || is_search)
}

fn names(rule: &Rule) -> bool {
    rule.terms.iter().any(|term| !term.is_asked() && NAMING.contains(&term.key.as_str()))
}

/// Says what becomes of a rule that is no source, unless it only leads to others.
fn tell(rule: &Rule, ways: &[Way], remarks: &mut Remarks) {
    let set = set_by(rule, &[]);
    if names(rule) && !ways.is_empty() {
        remarks.warn(rule.line, left_out("it fits every device"));
    } else if !set.is_empty() {
        let text = format!("{} names no device", set.join(", "));
        remarks.warn(rule.line, left_out(&text));
    }
}

/// The keys that a rule sets, but for those that lead elsewhere.
fn set_by(rule: &Rule, read: &[&str]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for term in rule.terms.iter().filter(|term| term.key == "IMPORT" || !term.is_asked()) {
        let is_told = ["GOTO", "LABEL"].contains(&term.key.as_str());
        let name = term.name();
        if !is_told && !read.contains(&term.key.as_str()) && !keys.contains(&name) {
            keys.push(name);
        }
    }
    keys
}

/// Makes sources of a rule, one for each place and way that devices come.
fn take(rule: &Rule, ways: &[Way], proposals: &mut Proposals, remarks: &mut Remarks) {
    let mut problems: Vec<String> = Vec::new();
    let mut found = false;
    for way in ways {
        let terms: Vec<&Term> = way.iter().chain(&rule.terms).filter(|it| it.is_asked()).collect();
        for asked in asked(&terms) {
            match asked {
                Ok(asked) => {
                    for note in &asked.notes {
                        remarks.warn(rule.line, *note);
                    }
                    proposals.add(Proposal::of(rule, asked), remarks);
                    found = true;
                }
                Err(Left::Because(why)) if !problems.contains(&why) => problems.push(why),
                Err(_) => {}
            }
        }
    }
    if !found && problems.is_empty() {
        problems.push("no device that is plugged in gets here and fits".to_owned());
    }
    for why in &problems {
        remarks.warn(rule.line, left_out(why));
    }
    let set = set_by(rule, &READ);
    if found && !set.is_empty() {
        remarks.warn(rule.line, format!("{} {OWN_BUSINESS}", set.join(", ")));
    }
}

/// What is asked in each place where such devices may be.
fn asked(terms: &[&Term]) -> Vec<Result<Asked, Left>> {
    let events = ["add", "change", "bind", "online"];
    let (actions, terms): (Vec<&Term>, Vec<&Term>) =
        terms.iter().copied().partition(|term| term.key == "ACTION");
    if !actions.iter().all(|term| is_of_event(term, &events)) {
        return vec![Err(Left::Because("it is about devices that are removed".to_owned()))];
    }
    match place::places(&terms) {
        Ok(places) => places.into_iter().map(|place| query::ask(place, &terms)).collect(),
        Err(left) => vec![Err(left)],
    }
}

/// Whether a rule is asked at one of these events, as far as `ACTION` says.
fn is_of_event(action: &Term, events: &[&str]) -> bool {
    Pattern::of(action).is_ok_and(|pattern| events.iter().any(|event| pattern.answer(event)))
}

fn left_out(why: &str) -> String {
    format!("{why}; this rule is left out")
}

const OWN_BUSINESS: &str = "is udev's own business, and says nothing here";

const NOTHING: &str = "no rule becomes a source";

const DOMAIN_NOTE: &str = "rules name no resources: what pods ask for is windlass.dev/<name> here. Write a \
    domain of your own in its place";

#[cfg(test)]
mod tests;
