//! Network interfaces of a function.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use windlass_host::{Host, entry_limits::EntryLimits};

use super::function::MAX_LISTED;

/// A network interface in the host's namespace; those of containers are invisible.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) mac: Option<String>,
    pub(super) mtu: Option<i64>,
    pub(super) operstate: Option<String>,
    /// Frame format, as iproute2 names it.
    pub(super) encapsulation: Option<&'static str>,
    /// True if the interface is administratively up.
    pub(super) is_up: bool,
    /// Link detection; unknown while the interface is down.
    pub(super) carrier: Option<bool>,
}

/// `IFF_UP` of linux/if.h.
const IFF_UP: u32 = 1;

/// Interfaces of a device, without representors. A virtio interface is in the folder of a child device.
pub(super) fn read_interfaces(
    host: &Host,
    limits: &mut EntryLimits,
    folder: &Path,
) -> Vec<Interface> {
    let folders = net_folders(host, folder);
    let read = |net: &PathBuf| {
        let names = limits.entry_names(host, net, MAX_LISTED).into_iter();
        let interface_names = names.filter(|name| !is_representor(host, &net.join(name)));
        interface_names.map(|name| Interface::read(host, net, name)).collect::<Vec<_>>()
    };
    folders.iter().flat_map(read).collect()
}

/// Names of representors by index of their virtual function.
pub(super) fn representors(host: &Host, folder: &Path) -> BTreeMap<u32, String> {
    let net = folder.join("net");
    // `read_interfaces` reports a folder with too many entries.
    let names = host.try_entry_names(&net, MAX_LISTED).unwrap_or_default().into_iter();
    names.filter_map(|name| Some((representor_index(host, &net.join(&name))?, name))).collect()
}

/// True for a representor. `pf0vf3` represents virtual function 3, `pf0sf88` and `c1pf0sf88` subfunctions,
/// `pf0hpf` a whole function. The uplink port is `p0` or `p0s1` (`__devlink_port_phys_port_name_get` in the
/// kernel).
fn is_representor(host: &Host, folder: &Path) -> bool {
    host.read_text(folder.join("phys_port_name")).is_some_and(|port| port.contains("pf"))
}

fn representor_index(host: &Host, folder: &Path) -> Option<u32> {
    let port = host.read_text(folder.join("phys_port_name"))?;
    let (physical, index) = port.rsplit_once("vf")?;
    index.parse().ok().filter(|_| physical.contains("pf"))
}

fn net_folders(host: &Host, folder: &Path) -> Vec<PathBuf> {
    let children_of = |folder: &Path, prefix: &'static str| {
        let folder = folder.to_owned();
        let children = host.subfolders(&folder).into_iter();
        let has_prefix =
            move |name: &PathBuf| name.to_str().is_some_and(|name| name.starts_with(prefix));
        children.filter(has_prefix).map(move |name| folder.join(name)).collect::<Vec<_>>()
    };
    let vdpa =
        children_of(folder, "vdpa").into_iter().flat_map(|vdpa| children_of(&vdpa, "virtio"));
    let virtio = children_of(folder, "virtio").into_iter().chain(vdpa);
    let devices = [folder.to_owned()].into_iter().chain(virtio);
    devices.map(|device| device.join("net")).collect()
}

// === impl Interface ===

impl Interface {
    fn read(host: &Host, net: &Path, name: String) -> Self {
        let text = |file: &str| host.read_text(net.join(&name).join(file));
        let flags = text("flags")
            .and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
        Self {
            mac: text("address").filter(|mac| !mac.is_empty()),
            mtu: text("mtu").and_then(|mtu| mtu.parse().ok()),
            operstate: text("operstate"),
            // ARPHRD_ETHER and ARPHRD_INFINIBAND of linux/if_arp.h.
            encapsulation: text("type").and_then(|kind| match kind.as_str() {
                "1" => Some("ether"),
                "32" => Some("infiniband"),
                _ => None,
            }),
            is_up: flags.is_none_or(|flags| flags & IFF_UP != 0),
            carrier: text("carrier").map(|carrier| carrier == "1"),
            name,
        }
    }
}
