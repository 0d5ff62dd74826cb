//! Where GPUs and NICs meet: the switches, host bridges and NUMA nodes of a machine, as a tree.
//!
//! A junction is a set of GPUs and NICs of which every GPU is within one level of every NIC. On a PCIe
//! tree "within a level" is an equivalence, so the junctions of one level share no device, and each lies
//! in one of the next farther level. Hence the most pairs that can meet within a level are, for so many
//! devices at each junction, the sum of the lesser numbers; and pairs that are made at the nearest level
//! first are the most at every level.

use crate::{placement::Topology, topology::PcieLevel};

/// The levels within which pairs are counted, the farthest first; beyond is `SYS`.
pub(super) const RUNGS: [PcieLevel; 6] = [
    PcieLevel::Node,
    PcieLevel::Phb,
    PcieLevel::Pxb,
    PcieLevel::Pix,
    PcieLevel::Board,
    PcieLevel::Device,
];

/// The junctions that a device is at, one for each rung from the first on.
pub(super) type Path = Vec<usize>;

/// The junctions of some GPUs and NICs.
#[derive(Debug)]
pub(super) struct Junctions {
    /// The rung of each.
    pub(super) rungs: Vec<usize>,
    /// By position in the topology; empty for a device that is near none of the other kind.
    paths: Vec<Path>,
    /// Whether the levels form a tree. Where a host bridge has devices of several NUMA nodes, or of one
    /// that is told for some only, they may not; then a GPU counts as near fewer NICs than it is.
    pub(super) is_tree: bool,
}

// === impl Junctions ===

impl Junctions {
    pub(super) fn of(topology: &Topology, gpus: &[usize], nics: &[usize]) -> Self {
        let paths = vec![Path::new(); topology.len()];
        let mut junctions = Self { rungs: Vec::new(), paths, is_tree: true };
        junctions.split(topology, 0, (gpus, nics));
        junctions
    }

    /// The junctions of the device at a position.
    pub(super) fn path(&self, at: usize) -> &Path {
        &self.paths[at]
    }

    /// Whether two devices are at one junction of a rung.
    pub(super) fn meet(&self, a: usize, b: usize, rung: usize) -> bool {
        let junction = |at: usize| self.path(at).get(rung);
        junction(a).is_some() && junction(a) == junction(b)
    }

    /// How many of some devices are at each junction.
    pub(super) fn count(&self, positions: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; self.rungs.len()];
        positions.iter().flat_map(|&at| self.path(at)).for_each(|&junction| counts[junction] += 1);
        counts
    }

    /// Makes the junctions of a rung of those that meet within the rung before.
    fn split(&mut self, topology: &Topology, rung: usize, (gpus, nics): (&[usize], &[usize])) {
        let Some(&level) = RUNGS.get(rung) else { return };
        let near = |gpu: usize| -> Vec<usize> {
            let is_near = |nic: &usize| topology.connection(gpu, *nic).pcie <= level;
            nics.iter().copied().filter(is_near).collect()
        };
        let mut gpus: Vec<_> = gpus.iter().map(|&gpu| (near(gpu), gpu)).collect();
        // Where sets overlap the smaller come first: whose gpus have less to choose from.
        gpus.sort_by_cached_key(|(near, gpu)| (near.len(), near.clone(), *gpu));
        for alike in gpus.chunk_by(|(ours, _), (theirs, _)| ours == theirs) {
            let near = &alike[0].0;
            let is_free = |nic: &usize| self.path(*nic).len() == rung;
            let free: Vec<_> = near.iter().copied().filter(is_free).collect();
            self.is_tree &= free.len() == near.len();
            if !free.is_empty() {
                let gpus: Vec<_> = alike.iter().map(|(_, gpu)| *gpu).collect();
                self.join(rung, &gpus, &free);
                self.split(topology, rung + 1, (&gpus, &free));
            }
        }
    }

    fn join(&mut self, rung: usize, gpus: &[usize], nics: &[usize]) {
        let junction = self.rungs.len();
        self.rungs.push(rung);
        gpus.iter().chain(nics).for_each(|&at| self.paths[at].push(junction));
    }
}
