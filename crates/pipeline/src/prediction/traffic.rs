//! Items on the network ports of the nodes.

use super::Model;
use crate::{fleet::Fleet, placement::Replica, quantity::Bytes};

/// Load of all ports.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// By node, as it sends.
    pub(super) sending: Vec<Port>,
    /// By node, as it receives.
    pub(super) receiving: Vec<Port>,
}

/// One direction of a node's port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    /// Seconds in which the port is busy per item of the pipeline.
    pub(super) busy: f64,
    /// Transmissions per item of the pipeline.
    transmissions: f64,
}

/// Bytes that an item has on the wire besides its payload: the message's fields, frames, and headers of TCP and IP.
const OVERHEAD: u64 = 200;
/// Bytes of payload in a packet, of 1,514 in an Ethernet frame, thus so many more on the wire.
const FRAMING: f64 = 1514.0 / 1448.0;

/// Time of transmission between two nodes, and the delay.
pub(super) fn path(fleet: &Fleet, (from, to): (usize, usize), bytes: Bytes) -> (f64, f64) {
    let (from, to) = (&fleet.nodes[from].link, &fleet.nodes[to].link);
    let slower = if from.rate < to.rate { from.rate } else { to.rate };
    (slower.time_of(bytes.0 + OVERHEAD) * FRAMING, from.delay.0 + to.delay.0)
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let nodes = model.fleet.nodes.len();
        let mut traffic =
            Self { sending: vec![Port::default(); nodes], receiving: vec![Port::default(); nodes] };
        for link in &model.pipeline.links {
            let wire = link.bytes.0 + OVERHEAD;
            for_pairs(model, replicas, (link.from, link.to), |share, (from, to)| {
                let time = |node: usize| model.fleet.nodes[node].link.rate.time_of(wire) * FRAMING;
                traffic.sending[from].add(share, time(from));
                traffic.receiving[to].add(share, time(to));
            });
        }
        traffic
    }

    /// Mean time of an item on each link: the wait for both ports, the transmission and the delay. `None` if a port
    /// cannot carry what comes. `variations` has the squared variation of what leaves each stage.
    pub(super) fn link_times(
        &self,
        model: &Model<'_>,
        replicas: &[Vec<Replica>],
        rate: f64,
        variations: &[f64],
    ) -> Option<Vec<f64>> {
        let mut times = Vec::with_capacity(model.pipeline.links.len());
        for link in &model.pipeline.links {
            let variation = variations[link.from];
            let beside: Vec<_> =
                model.pipeline.links_from(link.from).filter(|other| other.to != link.to).collect();
            let mut time = 0.0;
            let mut is_too_much = false;
            for_pairs(model, replicas, (link.from, link.to), |share, (from, to)| {
                let (transmission, delay) = path(model.fleet, (from, to), link.bytes);
                let waits = [&self.sending[from], &self.receiving[to]]
                    .map(|port| port.wait(rate, variation));
                let [Some(sent), Some(received)] = waits else {
                    is_too_much = true;
                    return;
                };
                // A split sends on all its links at once, and they share the port by turns.
                let split: f64 = beside
                    .iter()
                    .map(|other| {
                        let away = share_away(model, replicas, (other.from, other.to), from);
                        away * path(model.fleet, (from, to), other.bytes).0.min(transmission)
                    })
                    .sum();
                time += share * (sent + received + split + transmission + delay);
            });
            if is_too_much {
                return None;
            }
            times.push(time);
        }
        Some(times)
    }
}

/// Calls `each` with the share of a link's items that go between two different nodes.
fn for_pairs(
    model: &Model<'_>,
    replicas: &[Vec<Replica>],
    (from, to): (usize, usize),
    mut each: impl FnMut(f64, (usize, usize)),
) {
    for sender in &replicas[from] {
        for receiver in &replicas[to] {
            if sender.node != receiver.node {
                let share = share_of(model, replicas, from, sender)
                    * share_of(model, replicas, to, receiver);
                each(share, (sender.node, receiver.node));
            }
        }
    }
}

/// Share of a link's items that leave a node, of those that start there.
fn share_away(
    model: &Model<'_>,
    replicas: &[Vec<Replica>],
    (_, to): (usize, usize),
    node: usize,
) -> f64 {
    let away = replicas[to].iter().filter(|receiver| receiver.node != node);
    away.map(|receiver| share_of(model, replicas, to, receiver)).sum()
}

/// Share of a stage's items that a replica takes: replicas are given what they can do.
fn share_of(model: &Model<'_>, replicas: &[Vec<Replica>], stage: usize, replica: &Replica) -> f64 {
    if replicas[stage].len() == 1 {
        return 1.0;
    }
    model.rate(replica, stage) / model.stage_rate(replicas, stage)
}

// === impl Port ===

impl Port {
    fn add(&mut self, share: f64, time: f64) {
        self.busy += share * time;
        self.transmissions += share;
    }

    /// Mean wait for the port; `None` if more comes than it carries. Flows take turns, so a small item does not wait for a
    /// whole large one: only the variation of what comes counts.
    fn wait(&self, rate: f64, coming: f64) -> Option<f64> {
        let load = rate * self.busy;
        if load >= 1.0 {
            return None;
        }
        let mean = self.busy / self.transmissions;
        Some(coming / 2.0 * mean * load / (1.0 - load))
    }
}
