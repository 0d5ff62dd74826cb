//! GPUs by model, and the labels of each model.

use std::collections::BTreeMap;

use super::{
    Label, Offering,
    device::{Gpu, Instance},
    spelling::{model_in_key, windlass},
};

/// GPUs of one model; never empty.
#[derive(Clone, Debug)]
pub(super) struct Model<'a> {
    /// Product name in label spelling.
    pub(super) name: String,
    gpus: Vec<&'a Gpu<'a>>,
}

pub(super) fn models<'a>(gpus: &'a [Gpu<'a>]) -> Vec<Model<'a>> {
    grouped(gpus, Gpu::model).into_iter().map(|(name, gpus)| Model { name, gpus }).collect()
}

/// Items by key, in order of first appearance.
pub(super) fn grouped<T, K: PartialEq>(items: &[T], key: impl Fn(&T) -> K) -> Vec<(K, Vec<&T>)> {
    let mut groups: Vec<(K, Vec<&T>)> = Vec::new();
    for item in items {
        let key = key(item);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// The most frequent item; among equally frequent items, the first.
pub(super) fn most_frequent<T: PartialEq>(items: &[T]) -> Option<&T> {
    let count = |item: &T| items.iter().filter(|other| *other == item).count();
    // `max_by_key` returns the last maximum.
    items.iter().rev().max_by_key(|item| count(item))
}

/// Labels per model, `windlass.dev/gpu.<model>.count` and so on, for nodes with several models.
///
/// `replicas` is the most frequent value, `shares` the sum over the model's GPUs.
pub(super) fn model_labels(gpus: &[Gpu<'_>], instances: &[Instance<'_>]) -> Vec<Label> {
    let gpu_labels = models(gpus).into_iter().flat_map(|model| model.labels());
    let mut instance_counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for instance in instances {
        *instance_counts
            .entry((model_in_key(&instance.model()), instance.mig_profile()))
            .or_default() += 1;
    }
    let instance_counts = instance_counts.into_iter();
    let instance_counts = instance_counts
        .map(|((model, profile), number)| windlass(format_args!("mig.{model}.{profile}"), number));
    gpu_labels.chain(instance_counts).collect()
}

// === impl Model ===

impl Model<'_> {
    pub(super) fn count(&self) -> usize {
        self.gpus.len()
    }

    /// Number of GPUs without MIG instances.
    pub(super) fn unpartitioned_count(&self) -> usize {
        self.gpus.iter().filter(|gpu| !gpu.is_partitioned).count()
    }

    fn memory_mib(&self) -> Option<u64> {
        self.gpus.iter().find_map(|gpu| gpu.memory_mib())
    }

    fn compute(&self) -> Option<(u32, u32)> {
        self.gpus.iter().find_map(|gpu| gpu.compute())
    }

    /// The most frequent offering.
    pub(super) fn offering(&self) -> Option<Offering> {
        most_frequent(&self.offerings().collect::<Vec<_>>()).copied()
    }

    fn offerings(&self) -> impl Iterator<Item = Offering> {
        self.gpus.iter().filter_map(|gpu| gpu.offering)
    }

    fn labels(&self) -> Vec<Label> {
        let prefix = format!("gpu.{}", model_in_key(&self.name));
        let label = |name: &str, text: String| windlass(format_args!("{prefix}.{name}"), text);
        let offering = self.offering();
        let shares: u64 = self.offerings().map(|offering| u64::from(offering.replicas)).sum();
        let common = [
            label("count", self.count().to_string()),
            label("replicas", offering.map_or(0, |offering| offering.replicas).to_string()),
            label("shares", shares.to_string()),
            label("sharing", offering.map_or("none", Offering::strategy).to_owned()),
        ];
        common.into_iter().chain(self.hardware(label)).collect()
    }

    /// Memory, architecture and compute capability, if known.
    pub(super) fn hardware(&self, label: impl Fn(&str, String) -> Label) -> Vec<Label> {
        let mut labels = Vec::new();
        labels.extend(self.memory_mib().map(|mib| label("memory", mib.to_string())));
        if let Some((major, minor)) = self.compute() {
            labels.push(label("family", architecture(major, minor).to_owned()));
            labels.push(label("compute.major", major.to_string()));
            labels.push(label("compute.minor", minor.to_string()));
        }
        labels
    }
}

/// Architecture name of a compute capability in gpu-feature-discovery.
fn architecture(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, ..5) => "volta",
        (7, _) => "turing",
        (8, ..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        (13, _) => "rubin",
        _ => "undefined",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_wins_and_the_first_of_equals() {
        for (items, expected) in [
            ([1, 2, 2].as_slice(), Some(&2)),
            (&[3, 1, 3, 1, 2], Some(&3)),
            (&[1, 3, 3, 1], Some(&1)),
            (&[], None),
        ] {
            assert_eq!(most_frequent(items), expected, "{items:?}");
        }
    }

    #[test]
    fn families_are_those_of_gpu_feature_discovery() {
        for (capability, expected) in [
            ((3, 7), "kepler"),
            ((7, 0), "volta"),
            ((7, 5), "turing"),
            ((8, 0), "ampere"),
            ((8, 9), "ada-lovelace"),
            ((9, 0), "hopper"),
            ((10, 3), "blackwell"),
            ((11, 0), "undefined"),
            ((12, 0), "blackwell"),
            ((13, 0), "rubin"),
            ((4, 0), "undefined"),
        ] {
            assert_eq!(architecture(capability.0, capability.1), expected, "{capability:?}");
        }
    }
}
