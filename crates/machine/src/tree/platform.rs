//! Entries that do not belong to a device: DMI, NUMA nodes, shared memory.

use std::path::Path;

use super::{Entry, Tree};
use crate::{profile::NumaNode, state::Model};

/// NUMA distances in firmware tables: to the node itself, and to another node.
const LOCAL_DISTANCE: &str = "10";
const REMOTE_DISTANCE: &str = "21";

// === impl Tree ===

impl Tree {
    pub(super) fn platform(&mut self, model: &Model) {
        self.file("sys/class/dmi/id/product_name", &model.product);
        self.file("sys/class/dmi/id/sys_vendor", "Windlass (simulated)");
        let nodes = Path::new("sys/devices/system/node");
        let online = match model.numa.len() {
            0 | 1 => "0".to_owned(),
            count => format!("0-{}", count - 1),
        };
        for list in ["online", "possible", "has_cpu", "has_memory"] {
            self.file(nodes.join(list), &online);
        }
        let all_cpus = model.local_cpus(None);
        self.file("sys/devices/system/cpu/online", &all_cpus.to_string());
        let indices = 0..model.numa.len();
        for (index, node) in model.numa.iter().enumerate() {
            let distances = indices
                .clone()
                .map(|other| if other == index { LOCAL_DISTANCE } else { REMOTE_DISTANCE });
            let distances = distances.collect::<Vec<_>>().join(" ");
            self.node(&nodes.join(format!("node{index}")), (index, node), &distances);
        }
    }

    /// Links `/dev/shm` to that of this host, because programs of the simulated machine are processes of this host.
    pub(super) fn shared_memory(&mut self) {
        self.entries.insert("dev/shm".into(), Entry::Link("/dev/shm".into()));
    }

    fn node(&mut self, folder: &Path, (index, node): (usize, &NumaNode), distances: &str) {
        let kib = node.memory_gib * 1024 * 1024;
        let meminfo = format!(
            "Node {index} MemTotal:       {kib} kB\n\
             Node {index} MemFree:        {kib} kB\n\
             Node {index} MemUsed:        0 kB"
        );
        self.files(
            folder,
            &[("cpulist", &node.cpus.to_string()), ("distance", distances), ("meminfo", &meminfo)],
        );
    }
}
