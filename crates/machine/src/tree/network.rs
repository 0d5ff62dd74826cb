//! Network adapters: the PCI function, its interface, and its RDMA device with the verbs node.

use std::path::Path;

use super::{
    Tree,
    pci::{CLASS_ETHERNET, CLASS_INFINIBAND, Function, sysfs_folder},
};
use crate::{
    card::PcieLink,
    profile::{LinkState, Nic},
    state::Model,
};

// === impl Tree ===

impl Tree {
    pub(super) fn nic(&mut self, model: &Model, (index, nic): (usize, &Nic)) {
        self.function(
            model,
            &Function {
                path: &nic.path,
                pci: nic.pci,
                subsystem: nic.subsystem,
                class: if nic.infiniband { CLASS_INFINIBAND } else { CLASS_ETHERNET },
                numa: nic.numa,
                link: PcieLink { generation: 4, width: 16 },
                driver: Some("mlx5_core"),
            },
        );
        let folder = sysfs_folder(&nic.path);
        self.interface(&folder, (index, nic));
        if let Some(name) = &nic.rdma {
            self.rdma(&folder, name, (index, nic));
        }
    }

    fn interface(&mut self, function: &Path, (index, nic): (usize, &Nic)) {
        let folder = function.join("net").join(&nic.netdev);
        let up = nic.link == LinkState::Up;
        self.files(
            &folder,
            &[
                ("operstate", if up { "up" } else { "down" }),
                ("carrier", if up { "1" } else { "0" }),
                ("address", &format!("02:00:00:00:00:{index:02x}")),
                ("mtu", if nic.infiniband { "2044" } else { "9000" }),
                ("speed", &(nic.rate_gbps * 1000).to_string()),
                // ARPHRD_INFINIBAND and ARPHRD_ETHER of linux/if_arp.h.
                ("type", if nic.infiniband { "32" } else { "1" }),
            ],
        );
        self.link(folder.join("device"), function);
        self.link(Path::new("sys/class/net").join(&nic.netdev), &folder);
    }

    fn rdma(&mut self, function: &Path, name: &str, (index, nic): (usize, &Nic)) {
        let folder = function.join("infiniband").join(name);
        let guid = format!("0200:0000:0000:{index:04x}");
        self.files(
            &folder,
            &[("node_guid", &guid), ("node_type", "1: CA"), ("fw_ver", "28.39.1002")],
        );
        self.port(&folder.join("ports/1"), nic);
        self.link(folder.join("device"), function);
        self.link(Path::new("sys/class/infiniband").join(name), &folder);

        let verbs = format!("uverbs{index}");
        let folder = function.join("infiniband_verbs").join(&verbs);
        self.files(&folder, &[("ibdev", name), ("dev", &format!("231:{}", 192 + index))]);
        self.link(folder.join("device"), function);
        self.link(Path::new("sys/class/infiniband_verbs").join(&verbs), &folder);
        self.device(&format!("dev/infiniband/{verbs}"));
        self.device("dev/infiniband/rdma_cm");
    }

    fn port(&mut self, folder: &Path, nic: &Nic) {
        let up = nic.link == LinkState::Up;
        self.files(
            folder,
            &[
                ("state", if up { "4: ACTIVE" } else { "1: DOWN" }),
                ("phys_state", if up { "5: LinkUp" } else { "3: Disabled" }),
                ("rate", &format!("{} Gb/sec (4X)", nic.rate_gbps)),
                ("link_layer", if nic.infiniband { "InfiniBand" } else { "Ethernet" }),
            ],
        );
    }
}
