//! Sysfs entries and nodes of the kernel's InfiniBand core for an RDMA device.

use std::path::{Path, PathBuf};

use super::{ClassDevice, Tree, network::Port};
use crate::profile::LinkState;

/// First minors of major 231, from the kernel's list of devices.
const FIRST_ISSM: usize = 64;
const FIRST_VERBS: usize = 192;

/// Counters of a port (`Documentation/ABI/stable/sysfs-class-infiniband`); all are zero.
const COUNTERS: &[&str] = &[
    "link_downed",
    "link_error_recovery",
    "port_rcv_data",
    "port_rcv_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "symbol_error",
];

// === impl Tree ===

impl Tree {
    pub(super) fn rdma(&mut self, port: &Port<'_>, name: &str) {
        let folder = port.folder.join("infiniband").join(name);
        let guid = format!("0200:0000:0000:{:04x}", port.number);
        let lines = [("NAME", name)];
        let device = ClassDevice { class: "infiniband", lines: &lines, ..Default::default() };
        self.class_device(&folder, &device);
        self.files(
            &folder,
            &[
                ("node_guid", &guid),
                ("sys_image_guid", &guid),
                ("node_type", "1: CA"),
                ("node_desc", &format!("windlass {name} (simulated)")),
                ("fw_ver", "28.39.1002"),
            ],
        );
        self.rdma_port(&folder.join("ports/1"), port);
        self.rdma_nodes(port, name);
    }

    fn rdma_port(&mut self, folder: &Path, port: &Port<'_>) {
        let nic = port.nic;
        let is_up = nic.link == LinkState::Up;
        self.files(
            folder,
            &[
                ("state", if is_up { "4: ACTIVE" } else { "1: DOWN" }),
                ("phys_state", if is_up { "5: LinkUp" } else { "3: Disabled" }),
                ("rate", &format!("{} Gb/sec (4X)", nic.rate_gbps)),
                ("link_layer", if nic.infiniband { "InfiniBand" } else { "Ethernet" }),
            ],
        );
        for counter in COUNTERS {
            self.file(folder.join("counters").join(counter), "0");
        }
        self.file(
            folder.join("gids/0"),
            &format!("fe80:0000:0000:0000:0200:0000:0000:{:04x}", port.number),
        );
        if let Some(netdev) = port.netdev {
            self.file(folder.join("gid_attrs/ndevs/0"), netdev);
        }
    }

    /// Adds RDMA nodes: verbs for everyone, management datagrams, and on InfiniBand the subnet manager's
    /// node.
    fn rdma_nodes(&mut self, port: &Port<'_>, name: &str) {
        self.rdma_node(port, ("infiniband_verbs", "uverbs", FIRST_VERBS), name);
        let umad = ("umad", 0);
        let issm = port.nic.infiniband.then_some(("issm", FIRST_ISSM));
        for (kind, first_minor) in [umad].into_iter().chain(issm) {
            let folder = self.rdma_node(port, ("infiniband_mad", kind, first_minor), name);
            self.file(folder.join("port"), "1");
        }
        // Real class folders contain files besides links, and code that lists them must skip the files.
        self.file("sys/class/infiniband_verbs/abi_version", "6");
        self.file("sys/class/infiniband_mad/abi_version", "5");
        self.misc("rdma_cm", ("10:122", "infiniband/rdma_cm"));
    }

    fn rdma_node(
        &mut self,
        port: &Port<'_>,
        (class, kind, first_minor): (&str, &str, usize),
        name: &str,
    ) -> PathBuf {
        let node_name = format!("{kind}{}", port.number);
        let folder = port.folder.join(class).join(&node_name);
        let number = format!("231:{}", first_minor + port.number);
        let node = Path::new("infiniband").join(&node_name);
        let node = Some((number.as_str(), node.as_path()));
        self.class_device(&folder, &ClassDevice { class, node, ..Default::default() });
        self.file(folder.join("ibdev"), name);
        folder
    }
}
