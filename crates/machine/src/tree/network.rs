//! Sysfs entries of network adapters: interfaces, virtual functions and subfunctions.

use std::path::{Path, PathBuf};

use super::{
    ClassDevice, Tree,
    pci::{CLASS_ETHERNET, CLASS_INFINIBAND, Function, sysfs_folder},
};
use crate::{
    card::PcieLink,
    pci::{PciId, PciPath},
    profile::{LinkState, Nic, Sriov, SubFunction, Vdpa, VdpaDriver, VirtualFunction},
    state::Model,
};

/// Index of the first interface; 1 is the loopback.
const FIRST_IFINDEX: usize = 2;

/// Port: the interface and the RDMA device that a driver creates for a function.
pub(super) struct Port<'a> {
    /// Folder of the function.
    pub folder: PathBuf,
    /// Adapter of the port.
    pub nic: &'a Nic,
    /// Name of the interface, if the port has one.
    pub netdev: Option<&'a str>,
    /// Name of the RDMA device, if the port has one.
    pub rdma: Option<&'a str>,
    /// Number of the port in the machine.
    pub number: usize,
}

// === impl Tree ===

impl Tree {
    pub(super) fn adapters(&mut self, model: &Model) {
        for port in ports(model) {
            self.port(&port);
        }
        for nic in &model.nics {
            if model.is_plugged(&nic.netdev) {
                self.nic(model, nic);
            }
        }
        for bond in &model.bonds {
            self.bond(model, bond);
        }
        self.routes(model);
    }

    fn nic(&mut self, model: &Model, nic: &Nic) {
        let driver = model.driver_of(&nic.netdev, Some(&nic.driver));
        self.function(
            model,
            &Function { group: nic.group, ..function(nic, (&nic.path, nic.pci), driver) },
        );
        let folder = sysfs_folder(&nic.path);
        if let Some(sriov) = &nic.sriov {
            self.sriov(&folder, sriov);
        }
        // Interface and RDMA device exist only while the driver is bound.
        if driver != Some(nic.driver.as_str()) {
            return;
        }
        for (index, (path, virtual_function)) in nic.virtual_functions().enumerate() {
            self.virtual_function(model, nic, (index, &path, virtual_function));
        }
        for subfunction in &nic.subfunctions {
            self.subfunction(&folder, subfunction);
        }
    }

    fn sriov(&mut self, folder: &Path, sriov: &Sriov) {
        self.files(
            folder,
            &[
                ("sriov_totalvfs", &sriov.total.to_string()),
                ("sriov_numvfs", &sriov.functions.len().to_string()),
                ("sriov_offset", &sriov.offset.to_string()),
                ("sriov_stride", "1"),
                ("sriov_vf_device", &format!("{:x}", sriov.pci.device)),
                ("sriov_drivers_autoprobe", "1"),
            ],
        );
    }

    fn virtual_function(
        &mut self,
        model: &Model,
        nic: &Nic,
        (index, path, virtual_function): (usize, &PciPath, &VirtualFunction),
    ) {
        let sriov = nic.sriov.as_ref().expect("an adapter with a virtual function has SR-IOV");
        let driver =
            model.driver_of(&path.address().to_string(), virtual_function.driver.as_deref());
        self.function(
            model,
            &Function { group: virtual_function.group, ..function(nic, (path, sriov.pci), driver) },
        );
        let (parent, folder) = (sysfs_folder(&nic.path), sysfs_folder(path));
        self.link(folder.join("physfn"), &parent);
        self.link(parent.join(format!("virtfn{index}")), &folder);
        if let Some(vdpa) = &virtual_function.vdpa
            && driver == Some(nic.driver.as_str())
        {
            self.vdpa(&folder, vdpa);
        }
    }

    /// Adds a function on the auxiliary bus, below the PCI function.
    fn subfunction(&mut self, parent: &Path, subfunction: &SubFunction) {
        let folder = subfunction_folder(parent, subfunction);
        self.file(folder.join("sfnum"), &subfunction.number.to_string());
        self.link_bus(&folder, "auxiliary", Some("mlx5_core.sf"));
    }

    fn vdpa(&mut self, parent: &Path, vdpa: &Vdpa) {
        let folder = parent.join(&vdpa.name);
        let number = vdpa.name.trim_start_matches(|c: char| !c.is_ascii_digit());
        match vdpa.driver {
            VdpaDriver::Vhost => {
                self.link_bus(&folder, "vdpa", Some("vhost_vdpa"));
                let name = format!("vhost-vdpa-{number}");
                // The major number is dynamic; 511 stands for any.
                let device_number = format!("511:{number}");
                let node = Some((device_number.as_str(), Path::new(&name)));
                self.class_device(&folder.join(&name), &ClassDevice { node, ..Default::default() });
            }
            VdpaDriver::Virtio => {
                self.link_bus(&folder, "vdpa", Some("virtio_vdpa"));
                let virtio = folder.join(format!("virtio{number}"));
                self.link_bus(&virtio, "virtio", Some("virtio_net"));
            }
        }
    }

    fn port(&mut self, port: &Port<'_>) {
        if let Some(name) = port.netdev {
            self.interface(port, name);
        }
        if let Some(name) = port.rdma {
            self.rdma(port, name);
        }
    }

    fn interface(&mut self, port: &Port<'_>, name: &str) {
        let folder = port.folder.join("net").join(name);
        let (nic, is_up) = (port.nic, port.nic.link == LinkState::Up);
        let index = (port.number + FIRST_IFINDEX).to_string();
        self.net_device(&folder, &[("INTERFACE", name), ("IFINDEX", &index)], is_up);
        self.files(
            &folder,
            &[
                (
                    "address",
                    &format!("02:00:00:00:{:02x}:{:02x}", port.number >> 8, port.number & 0xff),
                ),
                ("ifindex", &index),
                ("mtu", if nic.infiniband { "2044" } else { "9000" }),
                (
                    "speed",
                    &if is_up { (nic.rate_gbps * 1000).to_string() } else { "-1".to_owned() },
                ),
                ("duplex", if is_up { "full" } else { "unknown" }),
                ("dev_port", "0"),
                ("dev_id", "0x0"),
                // ARPHRD_INFINIBAND and ARPHRD_ETHER of linux/if_arp.h.
                ("type", if nic.infiniband { "32" } else { "1" }),
            ],
        );
    }

    /// Adds an interface with its link state.
    pub(super) fn net_device(&mut self, folder: &Path, lines: &[(&str, &str)], is_up: bool) {
        self.class_device(folder, &ClassDevice { class: "net", lines, ..Default::default() });
        self.file(folder.join("operstate"), if is_up { "up" } else { "down" });
        self.file(folder.join("carrier"), if is_up { "1" } else { "0" });
    }
}

/// Ports of bound drivers, in numbering order: adapters first.
fn ports(model: &Model) -> Vec<Port<'_>> {
    let (mut adapter_ports, mut function_ports) = (Vec::new(), Vec::new());
    for nic in &model.nics {
        let is_bound = is_driver_bound(model, nic);
        let folder = sysfs_folder(&nic.path);
        // Ports get their numbers below.
        let port = |folder, netdev, rdma| Port { folder, nic, netdev, rdma, number: 0 };
        let (netdev, rdma) = (Some(nic.netdev.as_str()), nic.rdma.as_deref());
        adapter_ports.push((is_bound, port(folder.clone(), netdev, rdma)));
        for (path, virtual_function) in nic.virtual_functions() {
            let driver =
                model.driver_of(&path.address().to_string(), virtual_function.driver.as_deref());
            let is_bound = is_bound && driver == Some(nic.driver.as_str());
            let (netdev, rdma) =
                (virtual_function.netdev.as_deref(), virtual_function.rdma.as_deref());
            function_ports.push((is_bound, port(sysfs_folder(&path), netdev, rdma)));
        }
        for subfunction in &nic.subfunctions {
            let folder = subfunction_folder(&folder, subfunction);
            let (netdev, rdma) = (Some(subfunction.netdev.as_str()), subfunction.rdma.as_deref());
            function_ports.push((is_bound, port(folder, netdev, rdma)));
        }
    }
    let ports = adapter_ports.into_iter().chain(function_ports).enumerate();
    // Absent ports keep their numbers, so that a change leaves the numbers of other ports unchanged.
    ports
        .filter_map(|(number, (is_bound, port))| is_bound.then_some(Port { number, ..port }))
        .collect()
}

fn is_driver_bound(model: &Model, nic: &Nic) -> bool {
    let driver = model.driver_of(&nic.netdev, Some(&nic.driver));
    model.is_plugged(&nic.netdev) && driver == Some(nic.driver.as_str())
}

fn subfunction_folder(parent: &Path, subfunction: &SubFunction) -> PathBuf {
    parent.join(format!("mlx5_core.sf.{}", subfunction.index))
}

fn function<'a>(
    nic: &Nic,
    (path, pci): (&'a PciPath, PciId),
    driver: Option<&'a str>,
) -> Function<'a> {
    Function {
        path,
        pci,
        subsystem: nic.subsystem,
        class: if nic.infiniband { CLASS_INFINIBAND } else { CLASS_ETHERNET },
        numa: nic.numa,
        link: PcieLink { generation: 4, width: 16 },
        driver,
        group: None,
    }
}
