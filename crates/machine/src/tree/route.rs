//! Bonds, and the routing tables of the machine.

use std::path::{Path, PathBuf};

use super::Tree;
use crate::{
    profile::{Bond, LinkState},
    state::Model,
};

/// Header lines of /proc/net/route.
const ROUTE_HEADER: &str =
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";

// === impl Tree ===

impl Tree {
    pub(super) fn bond(&mut self, model: &Model, bond: &Bond) {
        let folder = Path::new("sys/devices/virtual/net").join(&bond.name);
        let is_up = model
            .nics
            .iter()
            .any(|nic| bond.interfaces.contains(&nic.netdev) && nic.link == LinkState::Up);
        let lines = [("DEVTYPE", "bond"), ("INTERFACE", bond.name.as_str())];
        self.net_device(&folder, &lines, is_up);
        self.files(
            &folder,
            &[
                ("mtu", "9000"),
                ("type", "1"),
                ("bonding/mode", bond.mode.sysfs_text()),
                ("bonding/slaves", &bond.interfaces.join(" ")),
            ],
        );
        for name in &bond.interfaces {
            self.add_member(&folder, name);
        }
        let names: Vec<_> = model.bonds.iter().map(|bond| bond.name.as_str()).collect();
        self.file("sys/class/net/bonding_masters", &names.join(" "));
    }

    /// Adds the links between a bond and a member interface, while the interface exists.
    fn add_member(&mut self, bond: &Path, name: &str) {
        let Some(folder) = self.interface_folder(name) else { return };
        let bond_name = bond.file_name().expect("a bond has a name").display().to_string();
        self.link(folder.join("master"), bond);
        self.link(folder.join(format!("upper_{bond_name}")), bond);
        self.link(bond.join(format!("lower_{name}")), &folder);
        self.file(folder.join("bonding_slave/state"), "active");
    }

    fn interface_folder(&self, name: &str) -> Option<PathBuf> {
        let suffix = Path::new("net").join(name).join("operstate");
        let mut paths = self.entries.keys().filter(|path| path.ends_with(&suffix));
        paths.next().and_then(|path| path.parent()).map(Path::to_owned)
    }

    /// Adds the routing tables of the host's network namespace, which is that of process 1.
    pub(super) fn routes(&mut self, model: &Model) {
        let nics = model.nics.iter().filter(|nic| nic.default_route).map(|nic| &nic.netdev);
        let bonds = model.bonds.iter().filter(|bond| bond.default_route).map(|bond| &bond.name);
        let names: Vec<_> =
            nics.chain(bonds).filter(|name| self.interface_folder(name).is_some()).collect();
        let (mut v4, mut v6) = (vec![ROUTE_HEADER.to_owned()], Vec::new());
        for name in names {
            // IPv4: 0.0.0.0/0 via 192.168.0.1 with RTF_UP and RTF_GATEWAY. IPv6: ::/0 via fe80::1 with the
            // same flags.
            v4.push(format!("{name}\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"));
            v4.push(format!("{name}\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0"));
            let (zeros, gateway) = ("0".repeat(32), format!("fe80{}1", "0".repeat(27)));
            v6.push(format!(
                "{zeros} 00 {zeros} 00 {gateway} 00000400 00000001 00000000 00000003 {name:>8}"
            ));
        }
        v6.push(format!(
            "{0} 00 {0} 00 {0} ffffffff 00000001 00000000 00200200       lo",
            "0".repeat(32)
        ));
        self.file("proc/1/net/route", &v4.join("\n"));
        self.file("proc/1/net/ipv6_route", &v6.join("\n"));
        self.link_literal("proc/self", "1");
        self.link_literal("proc/net", "self/net");
    }
}
