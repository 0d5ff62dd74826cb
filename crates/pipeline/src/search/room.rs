//! Free devices, CPUs and memory of the nodes while a search places stages.

use std::collections::BTreeMap;

use super::Unplaceable;
use crate::{
    capacity::Capacity,
    fleet::{Fleet, FreeDevice, Node},
    pipeline::{Pipeline, Wanted},
    placement::{Placement, Replica},
    prediction::Best,
    quantity::Seconds,
};

/// All that is free. A replica's `device` is here the position of a group of devices of its node.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    nodes: Vec<NodeRoom>,
    /// By stage: where a replica could be if all were free, nodes in their order.
    places: Vec<Vec<Replica>>,
}

#[derive(Clone, Debug)]
struct NodeRoom {
    groups: Vec<Group>,
    free: Capacity,
    taken: Capacity,
    /// Replicas on the node.
    replicas: usize,
    /// Nodes with the same number are alike.
    likeness: usize,
}

/// Devices that serve the same alternatives of the same stages.
#[derive(Clone, Debug)]
struct Group {
    devices: Vec<usize>,
    taken: usize,
}

/// The alternatives that a device serves, as positions of stage and alternative.
type Served = Vec<(usize, usize)>;

// === impl Room ===

impl Room {
    /// All that is free.
    ///
    /// # Errors
    ///
    /// A stage has no place even by itself.
    pub(super) fn of(pipeline: &Pipeline, fleet: &Fleet) -> Result<Self, Unplaceable> {
        let mut places = vec![Vec::new(); pipeline.stages.len()];
        let mut nodes = Vec::with_capacity(fleet.nodes.len());
        let mut likenesses = BTreeMap::new();
        for (position, node) in fleet.nodes.iter().enumerate() {
            let mut groups: BTreeMap<Served, Vec<usize>> = BTreeMap::new();
            let admitted = admitted(pipeline, node);
            for (device, of) in node.devices.iter().enumerate() {
                groups.entry(served(pipeline, &admitted, of)).or_default().push(device);
            }
            groups.remove(&Vec::new());
            add_places(pipeline, position, &admitted, &groups, &mut places);
            let link = (node.link.rate.0.to_bits(), node.link.delay.0.to_bits());
            let sizes = groups.iter().map(|(served, devices)| (served.clone(), devices.len()));
            let free = (node.free.cpus.to_bits(), node.free.memory);
            let likeness = (free, link, admitted, sizes.collect::<Vec<_>>());
            let next = likenesses.len();
            let likeness = *likenesses.entry(likeness).or_insert(next);
            let groups = groups.into_values().map(|devices| Group { devices, taken: 0 }).collect();
            nodes.push(NodeRoom {
                groups,
                free: node.free,
                taken: Capacity::default(),
                replicas: 0,
                likeness,
            });
        }
        let room = Self { nodes, places };
        for stage in 0..pipeline.stages.len() {
            if !room.places[stage].iter().any(|place| room.is_free(pipeline, stage, *place)) {
                return Err(room.reason(pipeline, fleet, stage));
            }
        }
        Ok(room)
    }

    /// Where a replica of a stage could be if all were free.
    pub(super) fn places(&self, stage: usize) -> &[Replica] {
        &self.places[stage]
    }

    /// True if the place is free, and no earlier node is as good.
    pub(super) fn is_worth_trying(
        &self,
        pipeline: &Pipeline,
        stage: usize,
        place: Replica,
    ) -> bool {
        self.is_free(pipeline, stage, place) && !self.is_twin(place.node)
    }

    /// True if the place is free.
    pub(super) fn is_free(&self, pipeline: &Pipeline, stage: usize, place: Replica) -> bool {
        let node = &self.nodes[place.node];
        let has_device = place.device.is_none_or(|group| {
            let group = &node.groups[group];
            group.taken < group.devices.len()
        });
        has_device && node.free.has_room(node.taken, place.alternative(pipeline, stage).request)
    }

    /// True for an untouched node of which an earlier one, as untouched, is the like.
    fn is_twin(&self, position: usize) -> bool {
        let node = &self.nodes[position];
        let is_like = |other: &NodeRoom| other.replicas == 0 && other.likeness == node.likeness;
        node.replicas == 0 && self.nodes[..position].iter().any(is_like)
    }

    pub(super) fn take(&mut self, pipeline: &Pipeline, stage: usize, place: Replica) {
        let node = &mut self.nodes[place.node];
        node.replicas += 1;
        node.taken += place.alternative(pipeline, stage).request;
        if let Some(group) = place.device {
            node.groups[group].taken += 1;
        }
    }

    pub(super) fn give_back(&mut self, pipeline: &Pipeline, stage: usize, place: Replica) {
        let node = &mut self.nodes[place.node];
        node.replicas -= 1;
        node.taken -= place.alternative(pipeline, stage).request;
        if let Some(group) = place.device {
            node.groups[group].taken -= 1;
        }
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self) {
        for node in &mut self.nodes {
            node.replicas = 0;
            node.taken = Capacity::default();
            node.groups.iter_mut().for_each(|group| group.taken = 0);
        }
    }

    /// Replaces each group by one of its devices.
    pub(super) fn with_devices(&self, chosen: &[Vec<Replica>]) -> Placement {
        let mut used = BTreeMap::new();
        let mut one_of = |replica: &Replica| {
            let device = replica.device.map(|group| {
                let next: &mut usize = used.entry((replica.node, group)).or_default();
                *next += 1;
                self.nodes[replica.node].groups[group].devices[*next - 1]
            });
            Replica { device, ..*replica }
        };
        let replicas = chosen.iter().map(|stage| stage.iter().map(&mut one_of).collect());
        Placement { replicas: replicas.collect() }
    }

    /// The best of each stage by itself: the fastest free places up to its number of replicas.
    pub(super) fn best_of_stages(&self, pipeline: &Pipeline, step: Seconds) -> Vec<Best> {
        let stages = pipeline.stages.iter().enumerate();
        stages
            .map(|(stage, of)| {
                let mut rates: Vec<f64> = Vec::new();
                let mut time = f64::INFINITY;
                for place in &self.places[stage] {
                    let alternative = place.alternative(pipeline, stage);
                    time = time.min(alternative.time.0 + alternative.batch_time.0);
                    let node = &self.nodes[place.node];
                    let devices = place.device.map(|group| node.groups[group].devices.len());
                    let most =
                        node.free.parts(alternative.request).min(devices.unwrap_or(usize::MAX));
                    let most = most.min(of.max_replicas as usize);
                    rates.extend(std::iter::repeat_n(alternative.rate(of.batch, step), most));
                }
                rates.sort_by(|a, b| b.total_cmp(a));
                let rate = rates.iter().take(of.max_replicas as usize).sum();
                Best { rate, time }
            })
            .collect()
    }

    /// Why a stage has no place.
    fn reason(&self, pipeline: &Pipeline, fleet: &Fleet, stage: usize) -> Unplaceable {
        let of = &pipeline.stages[stage];
        let admitting: Vec<_> = fleet.nodes.iter().filter(|node| node.admits(of)).collect();
        let reason = if admitting.is_empty() {
            "no node admits it; label one for its nodeSelector, or add tolerations for the taints of one".to_owned()
        } else if self.places[stage].is_empty() {
            let wanted: Vec<_> = of.alternatives.iter().map(|one| one.device.to_string()).collect();
            let nodes = admitting.len();
            format!(
                "no device of {nodes} nodes serves {}; add another alternative below on, or such a device",
                wanted.join(" or ")
            )
        } else {
            let least = |a: Capacity, b: Capacity| {
                if (b.cpus, b.memory) < (a.cpus, a.memory) { b } else { a }
            };
            let requests = of.alternatives.iter().map(|one| one.request);
            let Capacity { cpus, memory } = requests.reduce(least).unwrap_or_default();
            let memory =
                if memory.0 > 0 { format!(" and {memory} of free memory") } else { String::new() };
            format!("no node with its device has {cpus} free CPUs{memory}")
        };
        Unplaceable::stage(&of.name, reason)
    }

    /// The stages fit one by one, and not all together.
    pub(super) fn no_room(pipeline: &Pipeline, is_cut_short: bool) -> Unplaceable {
        let last = pipeline.stages.last().map_or("", |stage| &stage.name);
        let reason = if is_cut_short {
            "no way was found to place all stages; add an alternative below on, or a node"
        } else {
            "the stages before it need all free devices, CPUs or memory; add an alternative below on, or a node"
        };
        Unplaceable::stage(last, reason)
    }
}

/// The stages whose pods may run on the node.
fn admitted(pipeline: &Pipeline, node: &Node) -> Vec<usize> {
    let stages = pipeline.stages.iter().enumerate();
    stages.filter(|(_, stage)| node.admits(stage)).map(|(position, _)| position).collect()
}

fn served(pipeline: &Pipeline, admitted: &[usize], device: &FreeDevice) -> Served {
    let mut served = Vec::new();
    for &stage in admitted {
        let of = &pipeline.stages[stage];
        for (alternative, one) in of.alternatives.iter().enumerate() {
            // A device for which the expression has no answer is not selected, as in DRA.
            if device.serves(&one.device).unwrap_or(false) {
                served.push((stage, alternative));
            }
        }
    }
    served
}

fn add_places(
    pipeline: &Pipeline,
    node: usize,
    admitted: &[usize],
    groups: &BTreeMap<Served, Vec<usize>>,
    places: &mut [Vec<Replica>],
) {
    for &stage in admitted {
        let of = &pipeline.stages[stage];
        for (alternative, one) in of.alternatives.iter().enumerate() {
            if one.device == Wanted::Cpu {
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
