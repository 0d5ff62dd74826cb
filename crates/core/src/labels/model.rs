//! GPUs of one model, and the labels that each model has for itself.

use std::collections::BTreeMap;

use super::{
    Label, Offering,
    device::{Gpu, Instance},
    spelling::{model_in_key, ours},
};

/// GPUs of one model: at least one.
#[derive(Clone, Debug)]
pub(super) struct Model<'a> {
    /// The product's name as labels spell it.
    pub(super) name: String,
    gpus: Vec<&'a Gpu<'a>>,
}

/// The models of a node, in the order of their first GPUs.
pub(super) fn models<'a>(gpus: &'a [Gpu<'a>]) -> Vec<Model<'a>> {
    let mut models: Vec<Model<'a>> = Vec::new();
    for gpu in gpus {
        let name = gpu.model();
        match models.iter_mut().find(|model| model.name == name) {
            Some(model) => model.gpus.push(gpu),
            None => models.push(Model { name, gpus: vec![gpu] }),
        }
    }
    models
}

/// The item that there is most of; of those that are as frequent, the first.
pub(super) fn most_frequent<T: PartialEq>(items: &[T]) -> Option<&T> {
    let count = |item: &T| items.iter().filter(|other| *other == item).count();
    // `max_by_key` takes the last of equals.
    items.iter().rev().max_by_key(|item| count(item))
}

/// `windlass.dev/gpu.<model>.count` and the like: what the labels of a node with several models cannot
/// say. `replicas` is that of most of its GPUs; `shares` is the sum over all of them.
pub(super) fn each(gpus: &[Gpu<'_>], instances: &[Instance<'_>]) -> Vec<Label> {
    let whole = models(gpus).into_iter().flat_map(|model| model.labels());
    let mut parts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for part in instances {
        *parts.entry((model_in_key(&part.model()), part.profile())).or_default() += 1;
    }
    let parts = parts.into_iter();
    let parts = parts.map(|((model, profile), n)| ours(format_args!("mig.{model}.{profile}"), n));
    whole.chain(parts).collect()
}

// === impl Model ===

impl Model<'_> {
    pub(super) fn count(&self) -> usize {
        self.gpus.len()
    }

    /// How many are not cut into instances.
    pub(super) fn whole(&self) -> usize {
        self.gpus.iter().filter(|gpu| !gpu.is_cut).count()
    }

    pub(super) fn memory_mib(&self) -> Option<u64> {
        self.gpus.iter().find_map(|gpu| gpu.memory_mib())
    }

    pub(super) fn compute(&self) -> Option<(u32, u32)> {
        self.gpus.iter().find_map(|gpu| gpu.compute())
    }

    /// How most of those that are offered are offered.
    pub(super) fn offering(&self) -> Option<Offering> {
        most_frequent(&self.offerings().collect::<Vec<_>>()).copied()
    }

    fn offerings(&self) -> impl Iterator<Item = Offering> {
        self.gpus.iter().filter_map(|gpu| gpu.offering)
    }

    fn labels(&self) -> Vec<Label> {
        let prefix = format!("gpu.{}", model_in_key(&self.name));
        let label = |name: &str, text: String| ours(format_args!("{prefix}.{name}"), text);
        let offering = self.offering();
        let shares: u64 = self.offerings().map(|offering| u64::from(offering.replicas)).sum();
        let always = [
            label("count", self.count().to_string()),
            label("replicas", offering.map_or(0, |offering| offering.replicas).to_string()),
            label("shares", shares.to_string()),
            label("sharing", offering.map_or("none", Offering::strategy).to_owned()),
        ];
        let memory = self.memory_mib().map(|mib| label("memory", mib.to_string()));
        let compute = self.compute().map(|(major, minor)| {
            [
                label("family", family(major, minor).to_owned()),
                label("compute.major", major.to_string()),
                label("compute.minor", minor.to_string()),
            ]
        });
        always.into_iter().chain(memory).chain(compute.into_iter().flatten()).collect()
    }
}

/// What gpu-feature-discovery calls the generation of a compute capability.
pub(super) fn family(major: u32, minor: u32) -> &'static str {
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
            assert_eq!(family(capability.0, capability.1), expected, "{capability:?}");
        }
    }
}
