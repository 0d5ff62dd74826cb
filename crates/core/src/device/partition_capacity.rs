//! Combined capacity of a GPU's MIG partitions, and the pairs that exclude each other.

use super::{Partition, PossiblePartition};
use crate::attribute::{AttributeName, Capacities, Quantity};

/// Combined capacity of a GPU for its partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionCapacity {
    /// Largest sum of each capacity over coexisting partitions.
    pub amounts: Capacities,
    /// Number of memory slices.
    pub slices: u32,
}

// === impl PartitionCapacity ===

impl PartitionCapacity {
    /// The combined capacity of the partitions. Seven small partitions together may have more decoders than the largest
    /// partition.
    pub fn of(partitions: &[PossiblePartition]) -> Self {
        let slices = partitions.iter().map(|it| it.partition.slices().end).max().unwrap_or(0);
        let mut room = Self { amounts: Capacities::new(), slices };
        for (name, amount) in partitions.iter().flat_map(|it| &it.capacity) {
            if !room.amounts.contains_key(name) {
                let most = in_unit_of(*amount, largest_sum(name, partitions, slices));
                room.amounts.insert(name.clone(), most);
            }
        }
        room
    }

    /// True if two different partitions can coexist: separate slices, and engines for both.
    pub fn can_coexist(&self, one: &PossiblePartition, other: &PossiblePartition) -> bool {
        !one.partition.overlaps(&other.partition)
            && (one.partition.gpu != other.partition.gpu
                || self.fits_both(&self.needs(one), &self.needs(other)))
    }

    /// Index pairs of one GPU's partitions that cannot coexist.
    ///
    /// Computes the needs of each partition once: a GPU has hundreds of pairs.
    pub fn exclusions(&self, partitions: &[PossiblePartition]) -> Vec<[usize; 2]> {
        let all: Vec<_> = partitions.iter().map(|it| (&it.partition, self.needs(it))).collect();
        let mut exclusive = Vec::new();
        for (at, (one, needs)) in all.iter().enumerate() {
            let others = all.iter().enumerate().skip(at + 1);
            let conflicting =
                others.filter(|(_, (it, other))| one.overlaps(it) || !self.fits_both(needs, other));
            exclusive.extend(conflicting.map(|(other, _)| [at, other]));
        }
        exclusive
    }

    /// Amounts that a partition needs, in the order of `amounts`.
    fn needs(&self, it: &PossiblePartition) -> Vec<u64> {
        self.amounts.keys().map(|name| it.amount(name)).collect()
    }

    fn fits_both(&self, one: &[u64], other: &[u64]) -> bool {
        let both = one.iter().zip(other).map(|(one, other)| one + other);
        both.zip(self.amounts.values()).all(|(both, most)| both <= amount_of(*most))
    }
}

/// Largest sum of a capacity over coexisting partitions. Only one `+me` profile fits on a GPU, so sums leave
/// these profiles out.
fn largest_sum(name: &AttributeName, partitions: &[PossiblePartition], slices: u32) -> u64 {
    let is_plain = |it: &Partition| !it.profile.as_str().contains('+');
    let amounts: Vec<_> = partitions.iter().map(|it| (&it.partition, it.amount(name))).collect();
    let at = |slice: u32| usize::try_from(slice).expect("a handful of slices");
    // Largest sum of partitions that start at or after each slice.
    let mut from = vec![0; at(slices) + 1];
    for start in (0..slices).rev() {
        let here = amounts.iter().filter(|(it, _)| it.start == start && is_plain(it));
        let sums = here.map(|(it, amount)| amount + from[at(it.slices().end)]);
        from[at(start)] = sums.chain([from[at(start) + 1]]).max().unwrap_or(0);
    }
    let single = amounts.iter().map(|(_, amount)| *amount).max().unwrap_or(0);
    from[0].max(single)
}

fn amount_of(quantity: Quantity) -> u64 {
    match quantity {
        Quantity::Bytes(number) | Quantity::Count(number) => number,
    }
}

fn in_unit_of(quantity: Quantity, number: u64) -> Quantity {
    match quantity {
        Quantity::Bytes(_) => Quantity::Bytes(number),
        Quantity::Count(_) => Quantity::Count(number),
    }
}

// === impl PossiblePartition ===

impl PossiblePartition {
    fn amount(&self, name: &AttributeName) -> u64 {
        self.capacity.get(name).copied().map_or(0, amount_of)
    }
}

// === impl Partition ===

impl Partition {
    /// True if both are the same placement or cannot coexist.
    pub fn conflicts_with(
        &self,
        other: &Self,
        room: &PartitionCapacity,
        all: &[PossiblePartition],
    ) -> bool {
        let find = |partition: &Self| all.iter().find(|it| it.partition == *partition);
        match (find(self), find(other)) {
            (Some(one), Some(other)) => !room.can_coexist(one, other),
            _ => self.overlaps(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODERS: AttributeName = AttributeName::new("nvidia.com", "decoders");
    const FLOW: AttributeName = AttributeName::new("nvidia.com", "ofaEngines");

    fn possible(
        profile: &str,
        (start, size): (u32, u32),
        [decoders, flow]: [u64; 2],
    ) -> PossiblePartition {
        let gpu = "GPU-a".parse().expect("an id");
        let partition = Partition { gpu, profile: profile.into(), profile_id: 0, start, size };
        let amounts = [(DECODERS, Quantity::Count(decoders)), (FLOW, Quantity::Count(flow))];
        PossiblePartition { partition, capacity: amounts.into() }
    }

    #[test]
    fn many_small_partitions_may_have_more_than_the_largest() {
        let small = (0..7).map(|start| possible("1g", (start, 1), [1, 0]));
        let media = (0..7).map(|start| possible("1g+me", (start, 1), [1, 1]));
        let all: Vec<_> = small.chain(media).chain([possible("7g", (0, 8), [1, 1])]).collect();
        let room = PartitionCapacity::of(&all);
        assert_eq!(room.slices, 8);
        assert_eq!(room.amounts[&DECODERS], Quantity::Count(7));
        assert_eq!(room.amounts[&FLOW], Quantity::Count(1));
        assert!(room.can_coexist(&all[0], &all[8]), "a small one beside one with media");
        assert!(!room.can_coexist(&all[7], &all[8]), "two with media");
        assert!(!room.can_coexist(&all[0], &all[7]), "at the same slice");
        let pairs = (0..all.len()).flat_map(|at| (at + 1..all.len()).map(move |it| [at, it]));
        let apart = pairs.filter(|[one, other]| !room.can_coexist(&all[*one], &all[*other]));
        assert_eq!(room.exclusions(&all), apart.collect::<Vec<_>>());
    }
}
