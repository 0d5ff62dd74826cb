//! Grouping of candidates into devices: each candidate alone, all candidates together, or one candidate per pattern.
//!
//! Matches of several patterns form a device if they share a bus device, or else the text that the wildcards
//! matched. Then a missing match leaves only its own device incomplete. Without such a common key, the n-th matches
//! of all patterns form a device.
//!
//! An ambiguous group is an unusable device. A group by text is ambiguous if its matches belong to several boards. A
//! grouping by rank is ambiguous if the patterns have different numbers of matches, or if each match has a bus device.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::{DiscoveryRule, Grouping, SourceRule};
use windlass_host::glob::fill_wildcards;

use super::find::{Candidate, natural_sort_key};

/// Candidates that form one device.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) identity: String,
    pub(super) members: Vec<Candidate>,
    /// Expected nodes that are missing.
    pub(super) missing: Vec<String>,
    /// Reason why the grouping is ambiguous. The device is then unusable.
    pub(super) ambiguity: Option<String>,
}

/// Devices of the candidates, in order, and a diagnostic about leftovers.
pub(super) fn groups(
    rule: &SourceRule,
    candidates: Vec<Candidate>,
) -> (Vec<Group>, Option<String>) {
    match (&rule.find, rule.unit) {
        (_, Grouping::Each) => (candidates.into_iter().map(Group::single).collect(), None),
        (_, Grouping::All) if candidates.is_empty() => (Vec::new(), None),
        (_, Grouping::All) => (vec![Group::new(ALL_IDENTITY, candidates)], None),
        (DiscoveryRule::Nodes(patterns), Grouping::Zipped) => {
            group_by_pattern(patterns, candidates)
        }
        // Rejected by the configuration.
        (_, Grouping::Zipped) => (Vec::new(), None),
    }
}

/// Identity of the single device of [`Grouping::All`].
const ALL_IDENTITY: &str = "all";

/// Property that the matches of one device share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey {
    Device(String),
    Wildcards(Vec<String>),
}

/// Matches of one pattern.
type Column = Vec<Candidate>;

/// Devices with one match per pattern.
fn group_by_pattern(
    patterns: &[String],
    candidates: Vec<Candidate>,
) -> (Vec<Group>, Option<String>) {
    let mut columns: Vec<Column> = patterns.iter().map(|_| Column::new()).collect();
    for candidate in candidates {
        columns[candidate.pattern].push(candidate);
    }
    let counts = || columns.iter().map(Vec::len);
    let (min_count, max_count) =
        (counts().min().unwrap_or_default(), counts().max().unwrap_or_default());
    if min_count == 0 {
        let unmatched: usize = counts().sum();
        return (
            Vec::new(),
            (unmatched > 0).then(|| format!("{unmatched} matches have no partner")),
        );
    }
    let by_device = |candidate: &Candidate| candidate.device.clone().map(GroupKey::Device);
    let by_text = |candidate: &Candidate| Some(GroupKey::Wildcards(candidate.wildcards.clone()));
    let by_board =
        |candidate: &Candidate| board(candidate).map(|board| GroupKey::Device(board.to_owned()));
    let all_candidates =
        |predicate: fn(&Candidate) -> bool| columns.iter().flatten().all(predicate);
    // Two incomplete boards may have no key with a match of every pattern. Their boards still distinguish the matches.
    if is_common_key(&columns, by_device) || unique_keys(&columns, by_board).is_some() {
        (group_by_key(patterns, columns, by_device), None)
    } else if is_common_key(&columns, by_text) {
        (group_by_key(patterns, columns, by_text), None)
    } else {
        let is_guess =
            min_count < max_count || all_candidates(|candidate| candidate.device.is_some());
        (group_by_rank(patterns, columns, is_guess), None)
    }
}

/// Keys of each pattern's matches. `None` if a match has no key, or two matches of a pattern have the same key.
fn unique_keys(
    columns: &[Column],
    key: impl Fn(&Candidate) -> Option<GroupKey>,
) -> Option<Vec<BTreeSet<GroupKey>>> {
    let keys = |column: &Column| -> Option<BTreeSet<GroupKey>> {
        let keys = column.iter().map(&key).collect::<Option<BTreeSet<_>>>()?;
        (keys.len() == column.len()).then_some(keys)
    };
    columns.iter().map(keys).collect()
}

/// True if a key identifies every match, and some device has a match of every pattern.
fn is_common_key(columns: &[Column], key: impl Fn(&Candidate) -> Option<GroupKey>) -> bool {
    let common_keys = unique_keys(columns, key)
        .and_then(|keys| keys.into_iter().reduce(|common, others| &common & &others));
    common_keys.is_some_and(|keys| !keys.is_empty())
}

/// PCI function or USB device of a match. `None` on a system on a chip, where each channel is a bus device.
fn board(candidate: &Candidate) -> Option<&str> {
    let is_board = candidate.location.pci.is_some() || candidate.text("usbVendor").is_some();
    candidate.device.as_deref().filter(|_| is_board)
}

/// Reason why a group of matches with common text is ambiguous: the matches belong to several boards.
fn board_ambiguity(members: &[Candidate]) -> Option<String> {
    let boards = members.iter().map(board).collect::<Option<BTreeSet<_>>>()?;
    let boards = Vec::from_iter(boards);
    (boards.len() > 1).then(|| {
        let boards = boards.join(" and ");
        format!("its nodes belong to {boards}: their grouping is ambiguous")
    })
}

/// Devices of the matches that share a key.
fn group_by_key(
    patterns: &[String],
    columns: Vec<Column>,
    key: impl Fn(&Candidate) -> Option<GroupKey>,
) -> Vec<Group> {
    let mut rows: BTreeMap<GroupKey, Vec<Candidate>> = BTreeMap::new();
    for candidate in columns.into_iter().flatten() {
        rows.entry(key(&candidate).expect("the caller checked that every match has a key"))
            .or_default()
            .push(candidate);
    }
    let group = |(key, members): (GroupKey, Vec<Candidate>)| {
        let is_missing = |index: &usize| !members.iter().any(|member| member.pattern == *index);
        let missing =
            (0..patterns.len()).filter(is_missing).map(|index| key.expected_node(&patterns[index]));
        let missing = missing.collect();
        let identity = key.identity(&patterns[0], &members);
        let ambiguity = board_ambiguity(&members);
        Group { missing, ambiguity, ..Group::new(&identity, members) }
    };
    let mut groups: Vec<_> = rows.into_iter().map(group).collect();
    groups.sort_by_cached_key(|group| natural_sort_key(&group.identity));
    groups
}

/// Devices by rank: the n-th matches of all patterns.
fn group_by_rank(patterns: &[String], columns: Vec<Column>, is_guess: bool) -> Vec<Group> {
    let counts = columns.iter().map(|column| column.len().to_string()).collect::<Vec<_>>();
    let (patterns, counts) = (patterns.join(", "), counts.join(", "));
    let ambiguity = || format!("{patterns} match {counts} nodes: their grouping is ambiguous");
    let rows = columns.iter().map(Vec::len).max().unwrap_or_default();
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let group = |_| {
        let members: Vec<_> = columns.iter_mut().filter_map(Iterator::next).collect();
        let identity = members.first().map(|first| first.identity.clone()).unwrap_or_default();
        Group { ambiguity: is_guess.then(ambiguity), ..Group::new(&identity, members) }
    };
    (0..rows).map(group).collect()
}

// === impl Group ===

impl Group {
    fn single(candidate: Candidate) -> Self {
        Self::new(&candidate.identity.clone(), vec![candidate])
    }

    fn new(identity: &str, members: Vec<Candidate>) -> Self {
        Self { identity: identity.to_owned(), members, ..Self::default() }
    }
}

// === impl GroupKey ===

impl GroupKey {
    /// Identity of the device: that of the bus device, or that of the first pattern's match, even if the match is
    /// missing.
    fn identity(&self, first_pattern: &str, members: &[Candidate]) -> String {
        let first_match = members.iter().find(|member| member.pattern == 0);
        match (self, first_match) {
            (Self::Device(device), _) => device.clone(),
            (Self::Wildcards(_), Some(first)) => first.identity.clone(),
            (Self::Wildcards(parts), None) => {
                fill_wildcards(first_pattern, parts).trim_start_matches("/dev/").to_owned()
            }
        }
    }

    /// Expected node for a pattern.
    fn expected_node(&self, pattern: &str) -> String {
        match self {
            Self::Device(_) => pattern.to_owned(),
            Self::Wildcards(parts) => fill_wildcards(pattern, parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(unit: Grouping) -> SourceRule {
        let find = DiscoveryRule::Nodes(vec!["/dev/tx*".to_owned(), "/dev/rx*".to_owned()]);
        SourceRule { unit, ..SourceRule::new("dma".parse().expect("valid"), find) }
    }

    /// Candidates by name and bus device. A wildcard matches the digits of a name; a capital letter is a USB device.
    fn candidates(names: &[(&str, &str)]) -> Vec<Candidate> {
        let candidate = |(name, device): &(&str, &str)| {
            let mut candidate = Candidate {
                identity: (*name).to_owned(),
                device: (!device.is_empty()).then(|| (*device).to_owned()),
                pattern: usize::from(name.starts_with("rx")),
                wildcards: vec![name[2..].to_owned()],
                ..Candidate::default()
            };
            let is_usb = device.starts_with(|first: char| first.is_ascii_uppercase());
            candidate.add_text("usbVendor", is_usb.then_some("0403"));
            candidate
        };
        names.iter().map(candidate).collect()
    }

    fn describe_groups(matches: &[(&str, &str)]) -> Vec<String> {
        let (devices, _) = groups(&rule(Grouping::Zipped), candidates(matches));
        let describe = |group: Group| {
            let names =
                group.members.iter().map(|member| member.identity.clone()).collect::<Vec<_>>();
            let missing = group.missing.iter().map(|node| format!(", lacks {node}"));
            let ambiguity = group.ambiguity.iter().map(|ambiguity| format!(", {ambiguity}"));
            let problems = missing.chain(ambiguity).collect::<String>();
            format!("{}: {}{problems}", group.identity, names.join("+"))
        };
        devices.into_iter().map(describe).collect()
    }

    #[test]
    fn matches_of_one_bus_device_group_and_a_missing_node_affects_only_its_device() {
        let matches = [("tx0", "b"), ("tx1", "a"), ("tx2", "c"), ("rx0", "a"), ("rx1", "b")];
        assert_eq!(
            describe_groups(&matches),
            ["a: tx1+rx0", "b: tx0+rx1", "c: tx2, lacks /dev/rx*"]
        );
    }

    #[test]
    fn a_device_keeps_its_identity_when_a_node_is_missing() {
        let matches = [("tx0", "a"), ("tx1", "b"), ("rx0", "a"), ("rx1", "b")];
        let complete_devices = ["a: tx0+rx0", "b: tx1+rx1"];
        assert_eq!(describe_groups(&matches), complete_devices);
        assert_eq!(describe_groups(&matches[1..]), ["a: rx0, lacks /dev/tx*", "b: tx1+rx1"]);
        assert_eq!(describe_groups(&matches[..3]), ["a: tx0+rx0", "b: tx1, lacks /dev/rx*"]);
    }

    #[test]
    fn two_boards_that_each_lack_another_node_stay_two_incomplete_devices() {
        let lacking = ["A: rx0, lacks /dev/tx*", "B: tx1, lacks /dev/rx*"];
        assert_eq!(describe_groups(&[("tx1", "B"), ("rx0", "A")]), lacking);
        let appearing = ["A: rx0, lacks /dev/tx*", "B: tx0, lacks /dev/rx*"];
        assert_eq!(describe_groups(&[("tx0", "B"), ("rx0", "A")]), appearing);
    }

    #[test]
    fn equal_numbers_on_two_boards_are_ambiguous() {
        let matches = [("tx0", "A"), ("tx1", "A"), ("rx0", "A"), ("rx1", "B")];
        let ambiguity = "its nodes belong to A and B: their grouping is ambiguous";
        assert_eq!(
            describe_groups(&matches),
            ["tx0: tx0+rx0".to_owned(), format!("tx1: tx1+rx1, {ambiguity}")]
        );
        let channels = [("tx0", "a"), ("tx1", "b"), ("rx0", "c"), ("rx1", "d")];
        assert_eq!(
            describe_groups(&channels),
            ["tx0: tx0+rx0", "tx1: tx1+rx1"],
            "each is a device"
        );
    }

    #[test]
    fn matches_with_different_bus_devices_are_ambiguous_by_rank() {
        let matches = [("tx4", "a"), ("tx5", "b"), ("rx0", "c"), ("rx1", "d")];
        let ambiguity = "/dev/tx*, /dev/rx* match 2, 2 nodes: their grouping is ambiguous";
        let expected = [format!("tx4: tx4+rx0, {ambiguity}"), format!("tx5: tx5+rx1, {ambiguity}")];
        assert_eq!(describe_groups(&matches), expected);
    }

    #[test]
    fn matches_group_by_number_without_bus_devices_or_within_one() {
        let matches = [("tx0", ""), ("tx1", ""), ("tx10", ""), ("rx1", ""), ("rx10", "")];
        let expected = ["tx0: tx0, lacks /dev/rx0", "tx1: tx1+rx1", "tx10: tx10+rx10"];
        assert_eq!(describe_groups(&matches), expected);
        let matches = [("tx0", "a"), ("tx1", "a"), ("rx1", "a")];
        assert_eq!(describe_groups(&matches), ["tx0: tx0, lacks /dev/rx0", "tx1: tx1+rx1"]);
        let matches = [("tx0", ""), ("rx0", ""), ("rx1", "")];
        assert_eq!(describe_groups(&matches)[1], "tx1: rx1, lacks /dev/tx1", "it keeps its name");
    }

    #[test]
    fn matches_with_nothing_in_common_group_by_rank_if_none_is_missing() {
        let matches = [("tx4", ""), ("tx5", ""), ("rx0", ""), ("rx1", "")];
        assert_eq!(describe_groups(&matches), ["tx4: tx4+rx0", "tx5: tx5+rx1"]);
        let ambiguity = "/dev/tx*, /dev/rx* match 2, 1 nodes: their grouping is ambiguous";
        let expected = [format!("tx4: tx4+rx0, {ambiguity}"), format!("tx5: tx5, {ambiguity}")];
        assert_eq!(describe_groups(&matches[..3]), expected);
    }

    #[test]
    fn a_pattern_without_a_match_makes_no_device() {
        let (devices, leftover) =
            groups(&rule(Grouping::Zipped), candidates(&[("tx0", ""), ("tx1", "")]));
        assert!(devices.is_empty());
        assert_eq!(leftover.as_deref(), Some("2 matches have no partner"));
    }

    #[test]
    fn unit_all_of_no_candidates_makes_no_device() {
        assert!(groups(&rule(Grouping::All), Vec::new()).0.is_empty());
        let (devices, _) = groups(&rule(Grouping::All), candidates(&[("tx0", ""), ("rx0", "")]));
        assert_eq!((devices.len(), devices[0].members.len()), (1, 2));
    }
}
