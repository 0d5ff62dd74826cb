//! The labels of a resource, `nvidia.com/gpu.product` and the like, as gpu-feature-discovery has them.
//!
//! They keep the usual name of the resource, also where pods know it by another.

use super::{
    InstanceNames, Label, Offering,
    device::{Gpu, Instance},
    model::{Model, family, models, most_frequent},
    spelling::{nvidia, product},
};

/// The resource of whole GPUs.
const GPU: &str = "gpu";

/// Labels of whole GPUs. Of several models the most frequent is described, of equals the first; models
/// that are all cut into instances only where there is no other.
pub(super) fn gpus(gpus: &[Gpu<'_>]) -> Vec<Label> {
    // `max_by_key` takes the last of equals.
    let models = models(gpus);
    let Some(model) = models.iter().rev().max_by_key(|model| rank(model)) else {
        return Vec::new();
    };
    let base = base(GPU, model.count(), model.offering(), (&model.name, ""));
    let memory = model.memory_mib().map(|mib| label(GPU, "memory", mib));
    let compute = model.compute().map(|(major, minor)| {
        [
            label(GPU, "family", family(major, minor)),
            label(GPU, "compute.major", major),
            label(GPU, "compute.minor", minor),
        ]
    });
    base.into_iter().chain(memory).chain(compute.into_iter().flatten()).collect()
}

fn rank(model: &Model<'_>) -> (usize, usize) {
    (model.whole(), model.count())
}

/// Labels of MIG instances.
pub(super) fn instances(
    names: InstanceNames,
    gpus: &[Gpu<'_>],
    instances: &[Instance<'_>],
) -> Vec<Label> {
    let (strategy, labels) = match names {
        InstanceNames::None => return Vec::new(),
        InstanceNames::Single => ("single", single(gpus, instances)),
        InstanceNames::Mixed => ("mixed", mixed(instances)),
    };
    std::iter::once(nvidia("mig.strategy", strategy)).chain(labels).collect()
}

/// Instances take the place of whole GPUs: that needs all GPUs cut, and all instances alike.
fn single(gpus: &[Gpu<'_>], instances: &[Instance<'_>]) -> Vec<Label> {
    let Some(cut) = gpus.iter().find(|gpu| gpu.is_cut) else { return Vec::new() };
    let has_parts = |gpu: &Gpu<'_>| gpu.is_cut && gpu.has_instances(instances);
    match by_profile(instances).as_slice() {
        [(_, alike)] if gpus.iter().all(has_parts) => of_profile(GPU, alike),
        _ => vec![
            label(GPU, "product", product(&cut.model(), "-MIG-INVALID")),
            label(GPU, "count", 0),
            label(GPU, "replicas", 0),
            label(GPU, "sharing-strategy", ""),
            label(GPU, "memory", 0),
        ],
    }
}

fn mixed(instances: &[Instance<'_>]) -> Vec<Label> {
    let profiles = by_profile(instances).into_iter();
    profiles.flat_map(|(profile, alike)| of_profile(&format!("mig-{profile}"), &alike)).collect()
}

/// Instances by profile, in the order of their first ones.
fn by_profile<'a>(instances: &'a [Instance<'a>]) -> Vec<(String, Vec<&'a Instance<'a>>)> {
    let mut profiles: Vec<(String, Vec<&Instance<'_>>)> = Vec::new();
    for instance in instances {
        let profile = instance.profile();
        match profiles.iter_mut().find(|(known, _)| *known == profile) {
            Some((_, alike)) => alike.push(instance),
            None => profiles.push((profile, vec![instance])),
        }
    }
    profiles
}

/// Labels of instances that are alike; the first speaks for what only one can say.
fn of_profile(resource: &str, alike: &[&Instance<'_>]) -> Vec<Label> {
    let Some(first) = alike.first() else { return Vec::new() };
    let offerings: Vec<_> = alike.iter().filter_map(|instance| instance.offering).collect();
    let offering = most_frequent(&offerings).copied();
    let suffix = format!("-MIG-{}", first.profile());
    let base = base(resource, alike.len(), offering, (&first.model(), &suffix));
    let amounts = first.amounts().into_iter().map(|(name, amount)| label(resource, name, amount));
    base.into_iter().chain(amounts).collect()
}

/// What every resource has. Devices that are not offered as this resource have no replicas, as GPUs that
/// are cut into instances.
fn base(
    resource: &str,
    count: usize,
    offering: Option<Offering>,
    (model, suffix): (&str, &str),
) -> [Label; 4] {
    let shared = offering.is_some_and(|offering| offering.is_shared() && !offering.renamed);
    let suffix = if shared { format!("{suffix}-SHARED") } else { suffix.to_owned() };
    [
        label(resource, "product", product(model, &suffix)),
        label(resource, "count", count),
        label(resource, "replicas", offering.map_or(0, |offering| offering.replicas)),
        label(resource, "sharing-strategy", offering.map_or("none", Offering::strategy)),
    ]
}

fn label(resource: &str, name: &str, text: impl std::fmt::Display) -> Label {
    nvidia(format_args!("{resource}.{name}"), text)
}
