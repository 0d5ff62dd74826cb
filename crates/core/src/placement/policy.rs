//! What makes one set better than another: policies, their terms in the order of weight, scores.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq as _};

/// How devices are chosen. Each policy honours the required devices, and ends with the lowest
/// positions, so that equal questions get equal answers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The best connected set; of equals the one that leaves the most useful rest.
    #[default]
    Aligned,
    /// From the groups with the most in use, so that others stay free.
    Packed,
    /// From the groups with the least in use.
    Distributed,
    /// As `aligned`, on one NUMA node or not at all.
    NumaStrict,
    /// The lowest positions.
    First,
}

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no placement policy: write aligned, packed, distributed, numa-strict or first")]
pub struct UnknownPolicy(String);

/// One thing that sets are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Term {
    /// The worth of the links inside the set, PCIe between devices left out; parts of one device count
    /// as linked.
    Links,
    /// Pairs of a GPU and a NIC that meet nowhere nearer than between NUMA nodes.
    SysPairs,
    /// Those that meet in a NUMA node.
    NodePairs,
    /// Those that meet at a host bridge.
    PhbPairs,
    /// Those with several PCIe switches between them.
    PxbPairs,
    /// Those with one.
    PixPairs,
    /// How near the GPUs and NICs that remain would be, paired one to one.
    RemainingPairs,
    /// The worth of what data travels over inside the set, and to the container's other devices.
    Affinity,
    /// How useful what remains available is for pairs, quads and octets.
    Remaining,
    /// How near each other the devices of the set, and the container's others, sit on PCIe.
    Pcie,
    /// How near each other those that remain sit on PCIe.
    RemainingPcie,
    /// How near the chosen devices are to NICs, which a request without NICs leaves to others.
    NearNics,
    /// The NUMA nodes of the set and of the container's other devices.
    NumaNodes,
    /// Devices in use in the groups that the set is taken from, summed up over the set.
    InUse,
    /// The groups that the set is taken from.
    Groups,
    /// Shares that others have of the chosen devices.
    Shares,
    /// How uneven the groups are filled: the sum of the squares of what is in use, the set included.
    Imbalance,
    /// The positions in the inventory's order.
    Position,
}

/// What a set is worth, term by term.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Score {
    terms: &'static [Term],
    /// In the order of the terms, as numbers of which more is better; 0 beyond.
    values: [i64; MOST_TERMS],
}

/// The longest list of terms.
const MOST_TERMS: usize = 9;

/// What devices that are shared are told apart by where a policy leaves it to the connections.
pub(super) const SHARED: &[Term] =
    &[Term::Affinity, Term::Shares, Term::Remaining, Term::Pcie, Term::NumaNodes];

/// What GPUs and NICs are chosen by that are chosen together.
pub(super) const JOINT: &[Term] = &[
    Term::Links,
    Term::SysPairs,
    Term::NodePairs,
    Term::PhbPairs,
    Term::PxbPairs,
    Term::PixPairs,
    Term::Pcie,
    Term::RemainingPairs,
    Term::Remaining,
];

const ALIGNED: &[Term] = &[
    Term::Affinity,
    Term::Remaining,
    Term::Pcie,
    Term::NearNics,
    Term::NumaNodes,
    Term::RemainingPcie,
    Term::InUse,
    Term::Groups,
];
const PACKED: &[Term] =
    &[Term::InUse, Term::Groups, Term::Affinity, Term::Remaining, Term::Pcie, Term::NumaNodes];
const DISTRIBUTED: &[Term] =
    &[Term::Imbalance, Term::Affinity, Term::Remaining, Term::Pcie, Term::NumaNodes];

// === impl Policy ===

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Aligned, Self::Packed, Self::Distributed, Self::NumaStrict, Self::First];

    /// What sets are compared by, the weightiest first; positions come last for all.
    pub fn terms(self) -> &'static [Term] {
        match self {
            Self::Aligned | Self::NumaStrict => ALIGNED,
            Self::Packed => PACKED,
            Self::Distributed => DISTRIBUTED,
            Self::First => &[],
        }
    }

    /// Its name, as it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Packed => "packed",
            Self::Distributed => "distributed",
            Self::NumaStrict => "numa-strict",
            Self::First => "first",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

// === impl Term ===

impl Term {
    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        matches!(
            self,
            Self::Links
                | Self::Affinity
                | Self::Remaining
                | Self::Pcie
                | Self::RemainingPcie
                | Self::RemainingPairs
                | Self::InUse
        )
    }

    /// What it is called in a table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Links => "links inside the set",
            Self::SysPairs => "pairs over SYS",
            Self::NodePairs => "pairs over NODE",
            Self::PhbPairs => "pairs over PHB",
            Self::PxbPairs => "pairs over PXB",
            Self::PixPairs => "pairs over PIX",
            Self::RemainingPairs => "nearness of the pairs that remain",
            Self::Affinity => "connections inside the set",
            Self::Remaining => "connections of what remains",
            Self::Pcie => "PCIe inside the set",
            Self::RemainingPcie => "PCIe of what remains",
            Self::NearNics => "nearness to NICs, for others",
            Self::NumaNodes => "NUMA nodes",
            Self::InUse => "use of its groups",
            Self::Groups => "groups",
            Self::Shares => "shares in use",
            Self::Imbalance => "imbalance of groups",
            Self::Position => "position",
        }
    }

    /// As a number of which more is better.
    pub(super) fn signed(self, value: i64) -> i64 {
        if self.more_is_better() { value } else { -value }
    }
}

// === impl Score ===

impl Score {
    /// The score that a value of each term makes.
    pub(super) fn new(terms: &'static [Term], mut value: impl FnMut(Term) -> i64) -> Self {
        let mut values = [0; MOST_TERMS];
        for (slot, &term) in values.iter_mut().zip(terms) {
            *slot = term.signed(value(term));
        }
        Self { terms, values }
    }

    /// The terms and what they say, the weightiest first.
    pub fn terms(&self) -> impl Iterator<Item = (Term, i64)> {
        let values = self.values.into_iter();
        self.terms.iter().zip(values).map(|(&term, value)| (term, term.signed(value)))
    }

    /// How a set compares with one of this score, by what each term says of it. Most sets differ by the
    /// first, and of these nothing else is asked.
    pub(super) fn compared_with(&self, mut value: impl FnMut(Term) -> i64) -> Ordering {
        let terms = self.terms.iter().zip(&self.values);
        let mut orders = terms.map(|(&term, theirs)| term.signed(value(term)).cmp(theirs));
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// The first term by which two scores of the same terms differ; `Position` where none does.
    pub fn decided_by(&self, other: &Self) -> Term {
        let pairs = self.values.iter().zip(&other.values);
        let first = self.terms.iter().zip(pairs).find(|(_, (ours, theirs))| ours != theirs);
        first.map_or(Term::Position, |(&term, _)| term)
    }
}

impl Ord for Score {
    /// Greater is better.
    fn cmp(&self, other: &Self) -> Ordering {
        self.values.cmp(&other.values)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.terms()).finish()
    }
}

impl Serialize for Score {
    /// `[{"term": "affinity", "value": 3640}, ...]`, the weightiest first.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry {
            term: Term,
            value: i64,
        }
        let mut sequence = serializer.serialize_seq(Some(self.terms.len()))?;
        for (term, value) in self.terms() {
            sequence.serialize_element(&Entry { term, value })?;
        }
        sequence.end()
    }
}
