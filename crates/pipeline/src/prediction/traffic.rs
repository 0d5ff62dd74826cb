//! Load that a placement puts on the nodes' network ports, and the time of items on the links.

use super::Model;
use crate::{fleet::Fleet, placement::Replica, quantity::Bytes};

/// Load of all ports.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Egress by node.
    pub(super) egress: Vec<Port>,
    /// Ingress by node.
    pub(super) ingress: Vec<Port>,
    shares: Shares,
}

/// One direction of a node's port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    /// Seconds that the port is busy per item of the pipeline.
    pub(super) busy_seconds: f64,
}

/// Bytes per item in addition to its payload: fields of the message, HTTP/2 frames, TCP and IP headers.
const HEADER_BYTES: u64 = 200;
/// Bytes on Ethernet per byte of TCP payload: a frame of 1,514 bytes carries 1,448.
pub const FRAMING: f64 = 1514.0 / 1448.0;

/// Seconds that one item occupies a node's port.
fn port_time(fleet: &Fleet, node: usize, bytes: Bytes) -> f64 {
    fleet.nodes[node].link.rate.time_of(bytes.0 + HEADER_BYTES) * FRAMING
}

/// Transmission time and delay between two nodes, in seconds. The slower link sets the transmission time.
pub(super) fn path(fleet: &Fleet, (from, to): (usize, usize), bytes: Bytes) -> (f64, f64) {
    let (from, to) = (&fleet.nodes[from].link, &fleet.nodes[to].link);
    let rate = if from.rate < to.rate { from.rate } else { to.rate };
    (rate.time_of(bytes.0 + HEADER_BYTES) * FRAMING, from.delay.0 + to.delay.0)
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let ports = vec![Port::default(); model.fleet.nodes.len()];
        let shares = Shares::of(model, replicas);
        let (mut egress, mut ingress) = (ports.clone(), ports);
        for link in &model.pipeline.links {
            for (share, (from, to)) in shares.pairs((link.from, link.to)) {
                egress[from].busy_seconds += share * port_time(model.fleet, from, link.bytes);
                ingress[to].busy_seconds += share * port_time(model.fleet, to, link.bytes);
            }
        }
        Self { egress, ingress, shares }
    }

    /// Mean time of an item on each link: the wait for both ports, the transmission and the delay. `None` if a port
    /// cannot carry the arrival rate. `departures` has the squared variation of each stage's departures.
    pub(super) fn link_times(
        &self,
        model: &Model<'_>,
        rate: f64,
        departures: &[f64],
    ) -> Option<Vec<f64>> {
        let mut times = Vec::with_capacity(model.pipeline.links.len());
        for link in &model.pipeline.links {
            let variation = departures[link.from];
            let siblings: Vec<_> = model
                .pipeline
                .links_from(link.from)
                .filter(|sibling| sibling.to != link.to)
                .collect();
            let mut time = 0.0;
            for (share, (from, to)) in self.shares.pairs((link.from, link.to)) {
                let (transmission, delay) = path(model.fleet, (from, to), link.bytes);
                let time_at = |node| port_time(model.fleet, node, link.bytes);
                let egress_wait = self.egress[from].wait(rate, variation, time_at(from))?;
                let ingress_wait = self.ingress[to].wait(rate, variation, time_at(to))?;
                // At a split, the stage sends on all its links at once, and the flows share the port.
                let sibling_times = siblings.iter().map(|sibling| {
                    let bytes = path(model.fleet, (from, to), sibling.bytes).0;
                    self.shares.remote_share(sibling.to, from) * bytes.min(transmission)
                });
                time += share
                    * (egress_wait
                        + ingress_wait
                        + sibling_times.sum::<f64>()
                        + transmission
                        + delay);
            }
            times.push(time);
        }
        Some(times)
    }
}

/// By stage: its nodes, each with its share of the stage's items. A replica's share is proportional to its rate.
#[derive(Debug)]
struct Shares(Vec<Vec<(usize, f64)>>);

// === impl Shares ===

impl Shares {
    fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let stages = replicas.iter().enumerate().map(|(stage, stage_replicas)| {
            let total_rate: f64 =
                stage_replicas.iter().map(|replica| model.rate(replica, stage)).sum();
            let mut nodes: Vec<(usize, f64)> = Vec::with_capacity(stage_replicas.len());
            for replica in stage_replicas {
                let share = model.rate(replica, stage) / total_rate;
                match nodes.iter_mut().find(|(node, _)| *node == replica.node) {
                    Some((_, sum)) => *sum += share,
                    None => nodes.push((replica.node, share)),
                }
            }
            nodes
        });
        Self(stages.collect())
    }

    /// Pairs of different nodes (sender, receiver) of a link, each with its share of the link's items.
    fn pairs(
        &self,
        (from, to): (usize, usize),
    ) -> impl Iterator<Item = (f64, (usize, usize))> + '_ {
        self.0[from].iter().flat_map(move |&(sender, sender_share)| {
            let receivers = self.0[to].iter().filter(move |(receiver, _)| *receiver != sender);
            receivers.map(move |&(receiver, receiver_share)| {
                (sender_share * receiver_share, (sender, receiver))
            })
        })
    }

    /// Share of a stage's items that other nodes than `node` get.
    fn remote_share(&self, stage: usize, node: usize) -> f64 {
        self.0[stage]
            .iter()
            .filter(|(share_node, _)| *share_node != node)
            .map(|(_, share)| share)
            .sum()
    }
}

// === impl Port ===

impl Port {
    /// Mean wait in seconds of an item with this transmission time; `None` if the rate exceeds the port's capacity.
    /// Flows share the port (processor sharing): the wait of an item is proportional to its own size, and to the
    /// squared variation of the arrivals.
    fn wait(self, rate: f64, arrivals: f64, transmission: f64) -> Option<f64> {
        let load = rate * self.busy_seconds;
        (load < 1.0).then(|| arrivals / 2.0 * transmission * load / (1.0 - load))
    }
}
