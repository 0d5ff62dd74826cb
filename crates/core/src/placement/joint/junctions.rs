//! Junctions: the switches, host bridges and NUMA nodes where GPUs and NICs meet, as a tree.
//!
//! A junction is a set of GPUs and NICs in which every GPU is within one PCIe level of every NIC. On a PCIe tree
//! "within a level" is an equivalence: junctions of one level share no device, and each lies in one junction of the
//! next farther level. So a junction allows as many pairs as it has devices of the less numerous kind, and a level
//! allows the sum over its junctions. Pairing at the nearest level first gives the most pairs at every level.

use crate::{placement::Topology, topology::PcieLevel};

/// Levels at which pairs are counted, farthest first; `SYS` is beyond.
pub(super) const LEVELS: [PcieLevel; 6] = [
    PcieLevel::Node,
    PcieLevel::Phb,
    PcieLevel::Pxb,
    PcieLevel::Pix,
    PcieLevel::Board,
    PcieLevel::Device,
];

/// Junctions of a device, one per level, farthest first.
pub(super) type JunctionPath = Vec<usize>;

/// All junctions of some GPUs and NICs.
#[derive(Debug)]
pub(super) struct Junctions {
    /// Level of each junction, as an index into [`LEVELS`].
    pub(super) levels: Vec<usize>,
    /// Junctions by topology position; empty for a device without a near partner.
    paths: Vec<JunctionPath>,
    /// True if the levels form a tree. They may not if a host bridge has devices of several or unknown NUMA nodes.
    /// Then some NICs near a GPU do not count as near.
    pub(super) is_tree: bool,
}

// === impl Junctions ===

impl Junctions {
    pub(super) fn of(topology: &Topology, gpus: &[usize], nics: &[usize]) -> Self {
        let paths = vec![JunctionPath::new(); topology.len()];
        let mut junctions = Self { levels: Vec::new(), paths, is_tree: true };
        junctions.split(topology, 0, gpus, nics);
        junctions
    }

    /// Junctions of the device at a position.
    pub(super) fn path(&self, position: usize) -> &JunctionPath {
        &self.paths[position]
    }

    /// True if two devices share a junction of a level.
    pub(super) fn share_junction(&self, a: usize, b: usize, level: usize) -> bool {
        let junction = |position: usize| self.path(position).get(level);
        junction(a).is_some() && junction(a) == junction(b)
    }

    /// Number of these devices at each junction.
    pub(super) fn count(&self, positions: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; self.levels.len()];
        positions
            .iter()
            .flat_map(|&position| self.path(position))
            .for_each(|&junction| counts[junction] += 1);
        counts
    }

    /// Makes the junctions of a level among devices of one junction of the next farther level.
    fn split(&mut self, topology: &Topology, level: usize, gpus: &[usize], nics: &[usize]) {
        let Some(&max_distance) = LEVELS.get(level) else { return };
        let near_nics = |gpu: usize| -> Vec<usize> {
            let is_near = |nic: &usize| topology.connection(gpu, *nic).pcie <= max_distance;
            nics.iter().copied().filter(is_near).collect()
        };
        let mut gpus: Vec<_> = gpus.iter().map(|&gpu| (near_nics(gpu), gpu)).collect();
        // Smaller sets first: their GPUs have fewer NICs to choose from.
        gpus.sort_by_cached_key(|(near_nics, gpu)| (near_nics.len(), near_nics.clone(), *gpu));
        for group in
            gpus.chunk_by(|(near_nics, _), (other_near_nics, _)| near_nics == other_near_nics)
        {
            let near_nics = &group[0].0;
            let is_free = |nic: &usize| self.path(*nic).len() == level;
            let free_nics: Vec<_> = near_nics.iter().copied().filter(is_free).collect();
            self.is_tree &= free_nics.len() == near_nics.len();
            if !free_nics.is_empty() {
                let gpus: Vec<_> = group.iter().map(|(_, gpu)| *gpu).collect();
                self.add_junction(level, &gpus, &free_nics);
                self.split(topology, level + 1, &gpus, &free_nics);
            }
        }
    }

    fn add_junction(&mut self, level: usize, gpus: &[usize], nics: &[usize]) {
        let junction = self.levels.len();
        self.levels.push(level);
        gpus.iter().chain(nics).for_each(|&position| self.paths[position].push(junction));
    }
}
