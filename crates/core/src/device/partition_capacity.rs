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
    pub fn from_partitions(partitions: &[PossiblePartition]) -> Self {
        let slices =
            partitions.iter().map(|possible| possible.partition.slices().end).max().unwrap_or(0);
        let mut capacity = Self { amounts: Capacities::new(), slices };
        for (name, amount) in partitions.iter().flat_map(|possible| &possible.capacity) {
            if !capacity.amounts.contains_key(name) {
                let largest = in_unit_of(*amount, largest_sum(name, partitions, slices));
                capacity.amounts.insert(name.clone(), largest);
            }
        }
        capacity
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
        let with_needs: Vec<_> =
            partitions.iter().map(|possible| (&possible.partition, self.needs(possible))).collect();
        let mut exclusive = Vec::new();
        for (index, (partition, needs)) in with_needs.iter().enumerate() {
            let later = with_needs.iter().enumerate().skip(index + 1);
            let conflicting = later.filter(|(_, (other, other_needs))| {
                partition.overlaps(other) || !self.fits_both(needs, other_needs)
            });
            exclusive.extend(conflicting.map(|(later_index, _)| [index, later_index]));
        }
        exclusive
    }

    /// Amounts that a partition needs, in the order of `amounts`.
    fn needs(&self, possible: &PossiblePartition) -> Vec<u64> {
        self.amounts.keys().map(|name| possible.amount(name)).collect()
    }

    fn fits_both(&self, one: &[u64], other: &[u64]) -> bool {
        let sums = one.iter().zip(other).map(|(one, other)| one + other);
        sums.zip(self.amounts.values()).all(|(sum, largest)| sum <= amount_of(*largest))
    }
}

/// Largest sum of a capacity over coexisting partitions. Sums leave out `+me` profiles: only one of them fits on a GPU.
fn largest_sum(name: &AttributeName, partitions: &[PossiblePartition], slices: u32) -> u64 {
    let is_plain = |partition: &Partition| !partition.profile.as_str().contains('+');
    let amounts: Vec<_> =
        partitions.iter().map(|possible| (&possible.partition, possible.amount(name))).collect();
    let index = |slice: u32| usize::try_from(slice).expect("a handful of slices");
    // Largest sum of partitions that start at or after each slice.
    let mut from_slice = vec![0; index(slices) + 1];
    for start in (0..slices).rev() {
        let starting =
            amounts.iter().filter(|(partition, _)| partition.start == start && is_plain(partition));
        let sums =
            starting.map(|(partition, amount)| amount + from_slice[index(partition.slices().end)]);
        from_slice[index(start)] = sums.chain([from_slice[index(start) + 1]]).max().unwrap_or(0);
    }
    let single = amounts.iter().map(|(_, amount)| *amount).max().unwrap_or(0);
    from_slice[0].max(single)
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
        capacity: &PartitionCapacity,
        partitions: &[PossiblePartition],
    ) -> bool {
        let find =
            |partition: &Self| partitions.iter().find(|possible| possible.partition == *partition);
        match (find(self), find(other)) {
            (Some(possible), Some(other)) => !capacity.can_coexist(possible, other),
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
        let partitions: Vec<_> =
            small.chain(media).chain([possible("7g", (0, 8), [1, 1])]).collect();
        let capacity = PartitionCapacity::from_partitions(&partitions);
        assert_eq!(capacity.slices, 8);
        assert_eq!(capacity.amounts[&DECODERS], Quantity::Count(7));
        assert_eq!(capacity.amounts[&FLOW], Quantity::Count(1));
        assert!(
            capacity.can_coexist(&partitions[0], &partitions[8]),
            "a plain profile and a media profile"
        );
        assert!(!capacity.can_coexist(&partitions[7], &partitions[8]), "two media profiles");
        assert!(
            !capacity.can_coexist(&partitions[0], &partitions[7]),
            "two profiles at the same slice"
        );
        let pairs = (0..partitions.len())
            .flat_map(|index| (index + 1..partitions.len()).map(move |later| [index, later]));
        let exclusive = pairs
            .filter(|[one, other]| !capacity.can_coexist(&partitions[*one], &partitions[*other]));
        assert_eq!(capacity.exclusions(&partitions), exclusive.collect::<Vec<_>>());
    }
}
