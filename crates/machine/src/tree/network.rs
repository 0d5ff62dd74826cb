//! Network adapters: the PCI function, its interface, and its RDMA device with the verbs node.

use std::path::Path;

use super::{
    Tree,
    pci::{CLASS_ETHERNET, CLASS_INFINIBAND, Function, sysfs_folder},
};
use crate::{
    card::PcieLink,
    machine::MachineError,
    profile::{LinkState, Nic},
    state::Model,
};

// === impl Tree ===

impl Tree {
    pub(super) fn write_nic(
        &self,
        model: &Model,
        (index, nic): (usize, &Nic),
    ) -> Result<(), MachineError> {
        self.write_function(
            model,
            &Function {
                path: &nic.path,
                pci: nic.pci,
                subsystem: nic.subsystem,
                class: if nic.infiniband { CLASS_INFINIBAND } else { CLASS_ETHERNET },
                numa: nic.numa,
                link: PcieLink { generation: 4, width: 16 },
                driver: "mlx5_core",
            },
        )?;
        let folder = sysfs_folder(&nic.path);
        self.write_interface(&folder, (index, nic))?;
        match &nic.rdma {
            Some(name) => self.write_rdma(&folder, name, (index, nic)),
            None => Ok(()),
        }
    }

    fn write_interface(
        &self,
        function: &Path,
        (index, nic): (usize, &Nic),
    ) -> Result<(), MachineError> {
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
        )?;
        self.link(folder.join("device"), function)?;
        self.link(Path::new("sys/class/net").join(&nic.netdev), &folder)
    }

    fn write_rdma(
        &self,
        function: &Path,
        name: &str,
        (index, nic): (usize, &Nic),
    ) -> Result<(), MachineError> {
        let folder = function.join("infiniband").join(name);
        let guid = format!("0200:0000:0000:{index:04x}");
        self.files(
            &folder,
            &[("node_guid", &guid), ("node_type", "1: CA"), ("fw_ver", "28.39.1002")],
        )?;
        self.write_port(&folder.join("ports/1"), nic)?;
        self.link(folder.join("device"), function)?;
        self.link(Path::new("sys/class/infiniband").join(name), &folder)?;

        let verbs = format!("uverbs{index}");
        let folder = function.join("infiniband_verbs").join(&verbs);
        self.files(&folder, &[("ibdev", name), ("dev", &format!("231:{}", 192 + index))])?;
        self.link(folder.join("device"), function)?;
        self.link(Path::new("sys/class/infiniband_verbs").join(&verbs), &folder)?;
        self.device(&format!("dev/infiniband/{verbs}"))?;
        self.device("dev/infiniband/rdma_cm")
    }

    fn write_port(&self, folder: &Path, nic: &Nic) -> Result<(), MachineError> {
        let up = nic.link == LinkState::Up;
        self.files(
            folder,
            &[
                ("state", if up { "4: ACTIVE" } else { "1: DOWN" }),
                ("phys_state", if up { "5: LinkUp" } else { "3: Disabled" }),
                ("rate", &format!("{} Gb/sec (4X)", nic.rate_gbps)),
                ("link_layer", if nic.infiniband { "InfiniBand" } else { "Ethernet" }),
            ],
        )
    }
}
