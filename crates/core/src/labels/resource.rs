//! Labels of a resource by gpu-feature-discovery's names: `nvidia.com/gpu.product` and so on.
//!
//! Keys contain the default name of the resource, even if the configuration renames it.

use super::{
    InstanceNames, Label, Offering,
    device::{Gpu, Instance},
    model::{Model, grouped, models, most_frequent},
    spelling::{nvidia, product},
};

/// Resource name of whole GPUs.
const GPU: &str = "gpu";

/// Labels of whole GPUs, for the model with the most GPUs outside MIG mode; the first model wins a tie.
pub(super) fn gpu_labels(gpus: &[Gpu<'_>]) -> Vec<Label> {
    // `max_by_key` returns the last maximum.
    let models = models(gpus);
    let Some(model) = models.iter().rev().max_by_key(|model| rank(model)) else {
        return Vec::new();
    };
    let base = base(GPU, model.count(), model.offering(), &model.name, "");
    base.into_iter().chain(model.hardware(|name, text| label(GPU, name, text))).collect()
}

fn rank(model: &Model<'_>) -> (usize, usize) {
    (model.unpartitioned_count(), model.count())
}

pub(super) fn instance_labels(
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

/// Instances take the name of whole GPUs only if all GPUs are partitioned and all instances have one profile.
fn single(gpus: &[Gpu<'_>], instances: &[Instance<'_>]) -> Vec<Label> {
    let Some(partitioned) = gpus.iter().find(|gpu| gpu.is_partitioned) else { return Vec::new() };
    let has_parts = |gpu: &Gpu<'_>| gpu.is_partitioned && gpu.has_instances(instances);
    match grouped(instances, Instance::mig_profile).as_slice() {
        [(_, group)] if gpus.iter().all(has_parts) => mig_profile_labels(GPU, group),
        _ => vec![
            label(GPU, "product", product(&partitioned.model(), "-MIG-INVALID")),
            label(GPU, "count", 0),
            label(GPU, "replicas", 0),
            label(GPU, "sharing-strategy", ""),
            label(GPU, "memory", 0),
        ],
    }
}

fn mixed(instances: &[Instance<'_>]) -> Vec<Label> {
    let profiles = grouped(instances, Instance::mig_profile).into_iter();
    profiles
        .flat_map(|(profile, group)| mig_profile_labels(&format!("mig-{profile}"), &group))
        .collect()
}

/// Labels of the instances of one profile, with the values of the first instance.
fn mig_profile_labels(resource: &str, group: &[&Instance<'_>]) -> Vec<Label> {
    let Some(first) = group.first() else { return Vec::new() };
    let offerings: Vec<_> = group.iter().filter_map(|instance| instance.offering).collect();
    let offering = most_frequent(&offerings).copied();
    let suffix = format!("-MIG-{}", first.mig_profile());
    let base = base(resource, group.len(), offering, &first.model(), &suffix);
    let amounts = first.amounts().into_iter().map(|(name, amount)| label(resource, name, amount));
    base.into_iter().chain(amounts).collect()
}

/// Labels of every resource. Devices outside the resource, such as partitioned GPUs, have zero replicas.
fn base(
    resource: &str,
    count: usize,
    offering: Option<Offering>,
    model: &str,
    suffix: &str,
) -> [Label; 4] {
    let is_shared = offering.is_some_and(|offering| offering.is_shared() && !offering.renamed);
    let shared_suffix = if is_shared { "-SHARED" } else { "" };
    [
        label(resource, "product", product(model, &format!("{suffix}{shared_suffix}"))),
        label(resource, "count", count),
        label(resource, "replicas", offering.map_or(0, |offering| offering.replicas)),
        label(resource, "sharing-strategy", offering.map_or("none", Offering::strategy)),
    ]
}

fn label(resource: &str, name: &str, text: impl std::fmt::Display) -> Label {
    nvidia(format_args!("{resource}.{name}"), text)
}
