//! Items on the network ports of the nodes.

use super::Model;
use crate::{fleet::Fleet, placement::Replica, quantity::Bytes};

/// Load of all ports.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// By node, as it sends.
    pub(super) sending: Vec<Port>,
    /// By node, as it receives.
    pub(super) receiving: Vec<Port>,
    shares: Shares,
}

/// One direction of a node's port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    /// Seconds in which the port is busy per item of the pipeline.
    pub(super) busy: f64,
}

/// Bytes that an item has on the wire besides its payload: the message's fields, frames, and headers of TCP and IP.
const OVERHEAD: u64 = 200;
/// Bytes of an Ethernet frame for each byte of payload: 1,448 of a packet of TCP are in 1,514.
pub const FRAMING: f64 = 1514.0 / 1448.0;

/// Time in which an item keeps a node's port busy.
fn port_time(fleet: &Fleet, node: usize, bytes: Bytes) -> f64 {
    fleet.nodes[node].link.rate.time_of(bytes.0 + OVERHEAD) * FRAMING
}

/// Time of transmission between two nodes, and the delay.
pub(super) fn path(fleet: &Fleet, (from, to): (usize, usize), bytes: Bytes) -> (f64, f64) {
    let (from, to) = (&fleet.nodes[from].link, &fleet.nodes[to].link);
    let slower = if from.rate < to.rate { from.rate } else { to.rate };
    (slower.time_of(bytes.0 + OVERHEAD) * FRAMING, from.delay.0 + to.delay.0)
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let idle = vec![Port::default(); model.fleet.nodes.len()];
        let shares = Shares::of(model, replicas);
        let (mut sending, mut receiving) = (idle.clone(), idle);
        for link in &model.pipeline.links {
            for (share, (from, to)) in shares.pairs((link.from, link.to)) {
                sending[from].busy += share * port_time(model.fleet, from, link.bytes);
                receiving[to].busy += share * port_time(model.fleet, to, link.bytes);
            }
        }
        Self { sending, receiving, shares }
    }

    /// Mean time of an item on each link: the wait for both ports, the transmission and the delay. `None` if a port
    /// cannot carry what comes. `variations` has the squared variation of what leaves each stage.
    pub(super) fn link_times(
        &self,
        model: &Model<'_>,
        rate: f64,
        variations: &[f64],
    ) -> Option<Vec<f64>> {
        let mut times = Vec::with_capacity(model.pipeline.links.len());
        for link in &model.pipeline.links {
            let variation = variations[link.from];
            let beside: Vec<_> =
                model.pipeline.links_from(link.from).filter(|other| other.to != link.to).collect();
            let mut time = 0.0;
            for (share, (from, to)) in self.shares.pairs((link.from, link.to)) {
                let (transmission, delay) = path(model.fleet, (from, to), link.bytes);
                let time_at = |node| port_time(model.fleet, node, link.bytes);
                let sent = self.sending[from].wait(rate, variation, time_at(from))?;
                let received = self.receiving[to].wait(rate, variation, time_at(to))?;
                // A split sends on all its links at once, and they share the port by turns.
                let others = beside.iter().map(|other| {
                    let bytes = path(model.fleet, (from, to), other.bytes).0;
                    self.shares.away(other.to, from) * bytes.min(transmission)
                });
                time += share * (sent + received + others.sum::<f64>() + transmission + delay);
            }
            times.push(time);
        }
        Some(times)
    }
}

/// Shares of each stage's items that its nodes take: replicas are given what they can do.
#[derive(Debug)]
struct Shares(Vec<Vec<(usize, f64)>>);

// === impl Shares ===

impl Shares {
    fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let stages = replicas.iter().enumerate().map(|(stage, of)| {
            let total: f64 = of.iter().map(|replica| model.rate(replica, stage)).sum();
            let mut nodes: Vec<(usize, f64)> = Vec::with_capacity(of.len());
            for replica in of {
                let share = model.rate(replica, stage) / total;
                match nodes.iter_mut().find(|(node, _)| *node == replica.node) {
                    Some((_, sum)) => *sum += share,
                    None => nodes.push((replica.node, share)),
                }
            }
            nodes
        });
        Self(stages.collect())
    }

    /// The pairs of different nodes between which a link's items go, each with its share of them.
    fn pairs(
        &self,
        (from, to): (usize, usize),
    ) -> impl Iterator<Item = (f64, (usize, usize))> + '_ {
        self.0[from].iter().flat_map(move |&(sender, sent)| {
            let others = self.0[to].iter().filter(move |(receiver, _)| *receiver != sender);
            others.map(move |&(receiver, received)| (sent * received, (sender, receiver)))
        })
    }

    /// Share of a stage's items that come from another node.
    fn away(&self, stage: usize, node: usize) -> f64 {
        self.0[stage].iter().filter(|(other, _)| *other != node).map(|(_, share)| share).sum()
    }
}

// === impl Port ===

impl Port {
    /// Mean wait of an item whose transmission takes so long; `None` if more comes than the port carries. Flows share the
    /// port by turns, so a small item does not wait for a whole large one: its wait is in proportion to its own size
    /// (processor sharing), and to the variation of what comes.
    fn wait(self, rate: f64, coming: f64, transmission: f64) -> Option<f64> {
        let load = rate * self.busy;
        (load < 1.0).then(|| coming / 2.0 * transmission * load / (1.0 - load))
    }
}
