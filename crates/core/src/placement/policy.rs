//! Placement policies, their ordered terms, and scores.

use std::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};

/// Objective of a placement. Under every policy the answer contains the required devices, and the lowest positions
/// break ties, so that equal requests get equal answers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The best connected set; among equal sets, the one with the most useful remainder.
    #[default]
    Aligned,
    /// Devices of the groups with the most devices in use, so that other groups stay free.
    Packed,
    /// Devices of the groups with the fewest devices in use.
    Distributed,
    /// Like `aligned`, but on one NUMA node.
    NumaStrict,
    /// The lowest positions.
    First,
}

/// Text that is not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a placement policy: write aligned, packed, distributed, numa-strict or first"
)]
pub struct UnknownPolicy(String);

/// One term of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Term {
    /// Affinity by links alone inside the set. Parts of one device count as linked.
    Links,
    /// Pairs of GPU and NIC on different NUMA nodes.
    SysPairs,
    /// Pairs whose nearest common component is a NUMA node.
    NodePairs,
    /// Pairs whose nearest common component is a host bridge.
    PhbPairs,
    /// Pairs with several PCIe switches between them.
    PxbPairs,
    /// Pairs with one PCIe switch between them.
    PixPairs,
    /// Nearness of the remaining GPUs and NICs, paired one to one.
    RemainingPairs,
    /// Affinity inside the set and to the container's other devices.
    Affinity,
    /// Affinity among the remaining devices in pairs, quads and octets.
    Remaining,
    /// PCIe affinity inside the set and to the container's other devices.
    Pcie,
    /// PCIe affinity among the remaining devices.
    RemainingPcie,
    /// Nearness of the set to NICs; less is better, since this request needs no NIC and others may.
    NearNics,
    /// NUMA nodes of the set and of the container's other devices.
    NumaNodes,
    /// Devices in use in the groups of the set, summed up over the set.
    InUse,
    /// Groups of the set.
    Groups,
    /// Shares of the chosen devices that others hold.
    Shares,
    /// Unevenness of the groups: sum of squares of devices in use, the set included.
    Imbalance,
    /// Positions in the inventory's order.
    Position,
}

/// Values of a set, term by term.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Score {
    terms: &'static [Term],
    /// Values in the order of the terms, signed so that more is better; 0 after the last term.
    values: [i64; MAX_TERMS],
}

/// Length of the longest list of terms.
const MAX_TERMS: usize = 9;

/// Terms for the devices of replicas.
pub(super) const SHARED_TERMS: &[Term] =
    &[Term::Affinity, Term::Shares, Term::Remaining, Term::Pcie, Term::NumaNodes];

/// Terms for a joint choice of GPUs and NICs.
pub(super) const JOINT_TERMS: &[Term] = &[
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
    /// Every policy.
    pub const ALL: [Self; 5] =
        [Self::Aligned, Self::Packed, Self::Distributed, Self::NumaStrict, Self::First];

    /// Terms in order of weight; positions come last for all policies.
    pub fn terms(self) -> &'static [Term] {
        match self {
            Self::Aligned | Self::NumaStrict => ALIGNED,
            Self::Packed => PACKED,
            Self::Distributed => DISTRIBUTED,
            Self::First => &[],
        }
    }

    /// Name in the configuration.
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
        let policy = Self::ALL.into_iter().find(|policy| policy.name() == text);
        policy.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

// === impl Term ===

impl Term {
    /// True if a greater value is better.
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

    /// Title in tables.
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

    /// The value, negated if less is better.
    pub(super) fn oriented(self, value: i64) -> i64 {
        if self.more_is_better() { value } else { -value }
    }
}

// === impl Score ===

impl Score {
    pub(super) fn new(terms: &'static [Term], mut value: impl FnMut(Term) -> i64) -> Self {
        let mut values = [0; MAX_TERMS];
        for (slot, &term) in values.iter_mut().zip(terms) {
            *slot = term.oriented(value(term));
        }
        Self { terms, values }
    }

    /// Terms with their values, in order of weight.
    pub fn terms(&self) -> impl Iterator<Item = (Term, i64)> {
        let values = self.values.into_iter();
        self.terms.iter().zip(values).map(|(&term, value)| (term, term.oriented(value)))
    }

    /// Compares a set with this score. Evaluates terms only up to the first difference.
    pub(super) fn compared_with(&self, mut value: impl FnMut(Term) -> i64) -> Ordering {
        let terms = self.terms.iter().zip(&self.values);
        let mut orders = terms.map(|(&term, own_value)| term.oriented(value(term)).cmp(own_value));
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// The first term in which two scores differ; `Position` if none does.
    pub fn first_difference(&self, other: &Self) -> Term {
        let pairs = self.values.iter().zip(&other.values);
        let difference =
            self.terms.iter().zip(pairs).find(|(_, (value, other_value))| value != other_value);
        difference.map_or(Term::Position, |(&term, _)| term)
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
    /// `[{"term": "affinity", "value": 3640}, ...]`, in order of weight.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry {
            term: Term,
            value: i64,
        }
        serializer.collect_seq(self.terms().map(|(term, value)| Entry { term, value }))
    }
}
