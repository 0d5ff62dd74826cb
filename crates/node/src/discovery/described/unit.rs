//! What one device is made of: each candidate, all of them, or one of every pattern.

use super::find::Candidate;
use crate::config::{Find, SourceRule, Unit};

/// Candidates that are one device together.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) identity: String,
    pub(super) members: Vec<Candidate>,
}

/// The devices that candidates make, in their order; and what is left over.
pub(super) fn groups(
    rule: &SourceRule,
    candidates: Vec<Candidate>,
) -> (Vec<Group>, Option<String>) {
    match rule.unit {
        Unit::Each => (candidates.into_iter().map(Group::alone).collect(), None),
        Unit::All if candidates.is_empty() => (Vec::new(), None),
        Unit::All => (vec![Group { identity: ALL.to_owned(), members: candidates }], None),
        Unit::Zipped => zipped(rule, candidates),
    }
}

/// The identity of everything together: whatever it is today, it is all there is.
const ALL: &str = "all";

/// The n-th match of each pattern makes the n-th device, as many as the scarcest pattern has.
fn zipped(rule: &SourceRule, candidates: Vec<Candidate>) -> (Vec<Group>, Option<String>) {
    let Find::Nodes(patterns) = &rule.find else { return (Vec::new(), None) };
    let mut columns: Vec<Vec<Candidate>> = patterns.iter().map(|_| Vec::new()).collect();
    for candidate in candidates {
        columns[candidate.pattern].push(candidate);
    }
    let fewest = columns.iter().map(Vec::len).min().unwrap_or_default();
    let left: usize = columns.iter().map(|column| column.len() - fewest).sum();
    let left = (left > 0).then(|| format!("{left} matches have no partner"));
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let row = |_| {
        let members: Vec<_> = columns.iter_mut().filter_map(Iterator::next).collect();
        let identity = members.first().map(|first| first.identity.clone()).unwrap_or_default();
        Group { identity, members }
    };
    ((0..fewest).map(row).collect(), left)
}

// === impl Group ===

impl Group {
    fn alone(candidate: Candidate) -> Self {
        Self { identity: candidate.identity.clone(), members: vec![candidate] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(unit: Unit) -> SourceRule {
        let find = Find::Nodes(vec!["/dev/tx*".to_owned(), "/dev/rx*".to_owned()]);
        SourceRule { unit, ..SourceRule::new("dma".parse().expect("valid"), find) }
    }

    fn candidates(names: &[(&str, usize)]) -> Vec<Candidate> {
        let candidate = |(name, pattern): &(&str, usize)| Candidate {
            identity: (*name).to_owned(),
            pattern: *pattern,
            ..Candidate::default()
        };
        names.iter().map(candidate).collect()
    }

    #[test]
    fn the_nth_matches_of_all_patterns_are_one_device() {
        let found = candidates(&[("tx0", 0), ("tx1", 0), ("tx2", 0), ("rx0", 1), ("rx1", 1)]);
        let (devices, left) = groups(&rule(Unit::Zipped), found);
        let names = |group: &Group| {
            group.members.iter().map(|it| it.identity.clone()).collect::<Vec<_>>().join("+")
        };
        assert_eq!(devices.iter().map(names).collect::<Vec<_>>(), ["tx0+rx0", "tx1+rx1"]);
        assert_eq!(left.as_deref(), Some("1 matches have no partner"));
    }

    #[test]
    fn all_of_nothing_is_nothing() {
        assert!(groups(&rule(Unit::All), Vec::new()).0.is_empty());
        let (devices, _) = groups(&rule(Unit::All), candidates(&[("tx0", 0), ("rx0", 1)]));
        assert_eq!((devices.len(), devices[0].members.len()), (1, 2));
    }
}
