//! Free devices, CPUs and memory of the nodes while a search places stages.

use std::collections::BTreeMap;

use super::Unplaceable;
use crate::{
    capacity::Capacity,
    fleet::{Fleet, FreeDevice, Node},
    pipeline::{DeviceRequirement, Pipeline},
    placement::{Placement, Replica},
    prediction::StageBound,
    quantity::Seconds,
};

/// Free resources of all nodes. Here, [`Replica::device`] is the index of a [`Group`] of the node, not of a device.
#[derive(Clone, Debug)]
pub(crate) struct FreeResources {
    nodes: Vec<FreeNode>,
    /// By stage: every place of a replica on empty nodes, in the order of the nodes.
    places: Vec<Vec<Replica>>,
}

#[derive(Clone, Debug)]
struct FreeNode {
    groups: Vec<Group>,
    allocatable: Capacity,
    requested: Capacity,
    /// Number of replicas on the node.
    replicas: usize,
    /// Number of the node's equivalence class: nodes of a class have equal capacity, link, stages and devices.
    class: usize,
}

/// Interchangeable devices of a node: each serves the same alternatives of the same stages.
#[derive(Clone, Debug)]
struct Group {
    /// Indices into the node's devices.
    devices: Vec<usize>,
    /// Number of allocated devices.
    allocated: usize,
}

/// Alternatives that a device serves, as pairs of stage and alternative.
type Served = Vec<(usize, usize)>;

// === impl FreeResources ===

impl FreeResources {
    /// The resources of the fleet before any stage is placed.
    ///
    /// # Errors
    ///
    /// A stage fits on no empty node.
    pub(super) fn of(pipeline: &Pipeline, fleet: &Fleet) -> Result<Self, Unplaceable> {
        let mut places = vec![Vec::new(); pipeline.stages.len()];
        let mut nodes = Vec::with_capacity(fleet.nodes.len());
        let mut classes = BTreeMap::new();
        for (position, node) in fleet.nodes.iter().enumerate() {
            let mut groups: BTreeMap<Served, Vec<usize>> = BTreeMap::new();
            let admitted = admitted(pipeline, node);
            for (device, free_device) in node.devices.iter().enumerate() {
                groups.entry(served(pipeline, &admitted, free_device)).or_default().push(device);
            }
            groups.remove(&Vec::new());
            add_places(pipeline, position, &admitted, &groups, &mut places);
            let link = (node.link.rate.0.to_bits(), node.link.delay.0.to_bits());
            let sizes = groups.iter().map(|(served, devices)| (served.clone(), devices.len()));
            let free_capacity = (node.free.cpus.to_bits(), node.free.memory);
            let class = (free_capacity, link, admitted, sizes.collect::<Vec<_>>());
            let next_class = classes.len();
            let class = *classes.entry(class).or_insert(next_class);
            let groups =
                groups.into_values().map(|devices| Group { devices, allocated: 0 }).collect();
            nodes.push(FreeNode {
                groups,
                allocatable: node.free,
                requested: Capacity::default(),
                replicas: 0,
                class,
            });
        }
        let resources = Self { nodes, places };
        for stage in 0..pipeline.stages.len() {
            if !resources.places[stage]
                .iter()
                .any(|place| resources.is_free(pipeline, stage, *place))
            {
                return Err(resources.reason(pipeline, fleet, stage));
            }
        }
        Ok(resources)
    }

    /// All places of a replica of the stage, free or not.
    pub(super) fn places(&self, stage: usize) -> &[Replica] {
        &self.places[stage]
    }

    /// True if the place is free, and its node is not a duplicate of an earlier one.
    pub(super) fn is_candidate(&self, pipeline: &Pipeline, stage: usize, place: Replica) -> bool {
        self.is_free(pipeline, stage, place) && !self.is_duplicate(place.node)
    }

    /// True if the node has the device, CPUs and memory for one more replica.
    pub(super) fn is_free(&self, pipeline: &Pipeline, stage: usize, place: Replica) -> bool {
        let node = &self.nodes[place.node];
        let has_device = place.device.is_none_or(|group| {
            let group = &node.groups[group];
            group.allocated < group.devices.len()
        });
        has_device
            && node
                .allocatable
                .fits_both(node.requested, place.alternative(pipeline, stage).request)
    }

    /// True for an empty node if an earlier node of the same class is empty too.
    fn is_duplicate(&self, position: usize) -> bool {
        let node = &self.nodes[position];
        let is_equivalent = |other: &FreeNode| other.replicas == 0 && other.class == node.class;
        node.replicas == 0 && self.nodes[..position].iter().any(is_equivalent)
    }

    pub(super) fn allocate(&mut self, pipeline: &Pipeline, stage: usize, place: Replica) {
        let node = &mut self.nodes[place.node];
        node.replicas += 1;
        node.requested += place.alternative(pipeline, stage).request;
        if let Some(group) = place.device {
            node.groups[group].allocated += 1;
        }
    }

    pub(super) fn release(&mut self, pipeline: &Pipeline, stage: usize, place: Replica) {
        let node = &mut self.nodes[place.node];
        node.replicas -= 1;
        node.requested -= place.alternative(pipeline, stage).request;
        if let Some(group) = place.device {
            node.groups[group].allocated -= 1;
        }
    }

    /// Releases everything.
    pub(super) fn clear(&mut self) {
        for node in &mut self.nodes {
            node.replicas = 0;
            node.requested = Capacity::default();
            node.groups.iter_mut().for_each(|group| group.allocated = 0);
        }
    }

    /// Converts groups to devices: each replica gets a different device of its group.
    pub(super) fn with_devices(&self, replicas: &[Vec<Replica>]) -> Placement {
        let mut used_counts = BTreeMap::new();
        let mut with_device = |replica: &Replica| {
            let device = replica.device.map(|group| {
                let used_count: &mut usize = used_counts.entry((replica.node, group)).or_default();
                *used_count += 1;
                self.nodes[replica.node].groups[group].devices[*used_count - 1]
            });
            Replica { device, ..*replica }
        };
        let replicas = replicas.iter().map(|stage| stage.iter().map(&mut with_device).collect());
        Placement { replicas: replicas.collect() }
    }

    /// Bounds of each stage by itself on an empty fleet: the sum of the fastest places up to the maximum of replicas.
    pub(super) fn stage_bounds(&self, pipeline: &Pipeline, batch_gap: Seconds) -> Vec<StageBound> {
        let stages = pipeline.stages.iter().enumerate();
        stages
            .map(|(stage, spec)| {
                let mut rates: Vec<f64> = Vec::new();
                let mut time = f64::INFINITY;
                for place in &self.places[stage] {
                    let alternative = place.alternative(pipeline, stage);
                    time = time.min(alternative.time.0 + alternative.batch_time.0);
                    let node = &self.nodes[place.node];
                    let devices = place.device.map(|group| node.groups[group].devices.len());
                    let count = node
                        .allocatable
                        .fit_count(alternative.request)
                        .min(devices.unwrap_or(usize::MAX));
                    let count = count.min(spec.max_replicas as usize);
                    rates.extend(std::iter::repeat_n(
                        alternative.rate(spec.batch, batch_gap),
                        count,
                    ));
                }
                rates.sort_by(|a, b| b.total_cmp(a));
                let rate = rates.iter().take(spec.max_replicas as usize).sum();
                StageBound { rate, time }
            })
            .collect()
    }

    /// The reason that a stage fits on no empty node, with a remedy where there is one.
    fn reason(&self, pipeline: &Pipeline, fleet: &Fleet, stage: usize) -> Unplaceable {
        let spec = &pipeline.stages[stage];
        let admitting_nodes: Vec<_> = fleet.nodes.iter().filter(|node| node.admits(spec)).collect();
        let reason = if admitting_nodes.is_empty() {
            "no node admits it; label a node for its nodeSelector, or add tolerations for a node's taints".to_owned()
        } else if self.places[stage].is_empty() {
            let requirements: Vec<_> =
                spec.alternatives.iter().map(|option| option.device.to_string()).collect();
            let nodes = admitting_nodes.len();
            format!(
                "{nodes} nodes admit it, but none has {}; add an alternative under `on`, or such a device",
                requirements.join(" or ")
            )
        } else {
            let smaller = |a: Capacity, b: Capacity| {
                if (b.cpus, b.memory) < (a.cpus, a.memory) { b } else { a }
            };
            let requests = spec.alternatives.iter().map(|option| option.request);
            let Capacity { cpus, memory } = requests.reduce(smaller).unwrap_or_default();
            let memory =
                if memory.0 > 0 { format!(" and {memory} of free memory") } else { String::new() };
            format!("no node with a suitable device has {cpus} free CPUs{memory}")
        };
        Unplaceable::stage(&spec.name, reason)
    }

    /// Error for stages that fit one by one, but not together. Names the last stage.
    pub(super) fn no_combination(pipeline: &Pipeline, is_out_of_steps: bool) -> Unplaceable {
        let last_stage = pipeline.stages.last().map_or("", |stage| &stage.name);
        let reason = if is_out_of_steps {
            "the search found no placement of all stages; add an alternative under `on`, or a node"
        } else {
            "earlier stages need all free devices, CPUs or memory; add an alternative under `on`, or a node"
        };
        Unplaceable::stage(last_stage, reason)
    }
}

/// The stages whose pods may run on the node.
fn admitted(pipeline: &Pipeline, node: &Node) -> Vec<usize> {
    let stages = pipeline.stages.iter().enumerate();
    stages.filter(|(_, stage)| node.admits(stage)).map(|(position, _)| position).collect()
}

/// Alternatives of the admitted stages that the device serves.
fn served(pipeline: &Pipeline, admitted: &[usize], device: &FreeDevice) -> Served {
    let mut served = Vec::new();
    for &stage in admitted {
        let spec = &pipeline.stages[stage];
        for (alternative, option) in spec.alternatives.iter().enumerate() {
            // A device whose expression cannot be evaluated is not selected, as in DRA.
            if device.serves(&option.device).unwrap_or(false) {
                served.push((stage, alternative));
            }
        }
    }
    served
}

/// Adds all places on one node to `places`, by stage.
fn add_places(
    pipeline: &Pipeline,
    node: usize,
    admitted: &[usize],
    groups: &BTreeMap<Served, Vec<usize>>,
    places: &mut [Vec<Replica>],
) {
    for &stage in admitted {
        let spec = &pipeline.stages[stage];
        for (alternative, option) in spec.alternatives.iter().enumerate() {
            if option.device == DeviceRequirement::CpuOnly {
                places[stage].push(Replica { node, alternative, device: None });
            }
            for (group, served) in groups.keys().enumerate() {
                if served.contains(&(stage, alternative)) {
                    places[stage].push(Replica { node, alternative, device: Some(group) });
                }
            }
        }
    }
}
