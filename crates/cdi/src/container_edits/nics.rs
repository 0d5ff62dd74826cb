//! Variables for network interfaces: those of the SR-IOV network device plugin, byte for byte (its
//! `pkg/resources/pool_stub.go` and `pkg/infoprovider`), and hints to NCCL and UCX.

use std::collections::BTreeMap;

use windlass_config::NicPolicy;
use windlass_core::{attribute::AttributeName, device::Device};
use windlass_discovery::{AUXILIARY_DEVICE, DRIVER, RDMA_DEVICE, VDPA_TYPE};

use super::{AllocationEdits, AllocationRequest};

/// Facts about one interface, by topic and key, as in the other plugin's JSON.
type NicInfo = BTreeMap<&'static str, BTreeMap<String, String>>;

/// Keys of RDMA nodes in the JSON. Each is a part of the node's path.
const RDMA_NODE_KEYS: [&str; 4] = ["uverbs", "umad", "issm", "rdma_cm"];

/// Key in `info` for every interface.
const ALL_NICS: &str = "*";

// === impl AllocationRequest ===

impl AllocationRequest<'_> {
    pub(super) fn add_nic_variables(&self, edits: &mut AllocationEdits) {
        let is_nic = |device: &&&Device| device.kind.is_network();
        let nics = self.devices.iter().filter(is_nic);
        let nics: Vec<_> = nics.filter_map(|nic| Some((bus_name(nic)?, *nic))).collect();
        if nics.is_empty() {
            return;
        }
        let variable = self.pci_variable();
        let names: Vec<_> = nics.iter().map(|(name, _)| name.as_str()).collect();
        edits.envs.insert(variable.clone(), names.join(","));
        let infos = nics.iter().map(|(name, nic)| (name, info(self.nics, name, nic)));
        let infos: BTreeMap<_, _> = infos.collect();
        let text = serde_json::to_string(&infos).expect("a map of strings serialises");
        edits.envs.insert(format!("{variable}_INFO"), escape_html(&text));
        if self.nics.program_hints && !self.nics.rdma_nodes.is_empty() {
            edits.envs.extend(rdma_variables(nics.iter().map(|(_, nic)| *nic)));
        }
    }

    /// Name of the other plugin's variable, which replaces only dots and slashes. A hyphen stays, although no shell can
    /// read such a variable.
    fn pci_variable(&self) -> String {
        let name = self.resource.as_str().replace(['.', '/'], "_");
        format!("PCIDEVICE_{name}").to_ascii_uppercase()
    }
}

fn bus_name(nic: &Device) -> Option<String> {
    text(nic, &AUXILIARY_DEVICE).or_else(|| Some(nic.place.pci?.to_string()))
}

fn text(nic: &Device, name: &AttributeName) -> Option<String> {
    nic.attributes.get(name).map(ToString::to_string)
}

fn info(policy: &NicPolicy, name: &str, nic: &Device) -> NicInfo {
    let driver = text(nic, &DRIVER).unwrap_or_default();
    let mut info = NicInfo::from([("generic", single_entry("deviceID", name))]);
    if driver.contains("vfio") {
        info.insert("vfio", vfio(nic));
    } else if driver.contains("uio") {
        info.insert("uio", mount(nic, "/dev/uio"));
    }
    info.extend(text(nic, &VDPA_TYPE).map(|_| ("vdpa", mount(nic, "/dev/vhost-vdpa-"))));
    // A container without RDMA nodes gets no RDMA facts.
    let rdma = text(nic, &RDMA_DEVICE).filter(|_| !policy.rdma_nodes.is_empty());
    info.extend(rdma.map(|rdma| ("rdma", self::rdma(nic, &rdma))));
    if node(nic, "/dev/vhost-net").is_some() {
        let paths = [("net-mount", "/dev/vhost-net"), ("tun-mount", "/dev/net/tun")];
        info.insert("vhost", paths.map(|(key, path)| (key.to_owned(), path.to_owned())).into());
    }
    if !policy.info.is_empty() {
        let configured_infos = [ALL_NICS, name].into_iter().filter_map(|key| policy.info.get(key));
        info.insert(
            "extra",
            configured_infos.flatten().map(|(key, text)| (key.clone(), text.clone())).collect(),
        );
    }
    info
}

fn vfio(nic: &Device) -> BTreeMap<String, String> {
    let is_group = |path: &&str| {
        path.strip_prefix("/dev/vfio/")
            .is_some_and(|group| group.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let group = paths(nic).find(is_group);
    let control_node = if group.is_some() { "/dev/vfio/vfio" } else { "/dev/iommu" };
    let device = group.or_else(|| node(nic, "/dev/vfio/devices/"));
    let device = device.map(|path| ("dev-mount".to_owned(), path.to_owned()));
    single_entry("mount", control_node).into_iter().chain(device).collect()
}

fn rdma(nic: &Device, name: &str) -> BTreeMap<String, String> {
    let nodes = paths(nic).filter_map(|path| {
        let key = RDMA_NODE_KEYS.into_iter().find(|key| path.contains(key))?;
        Some((key.to_owned(), path.to_owned()))
    });
    nodes.chain(single_entry("rdma_dev", name)).collect()
}

fn mount(nic: &Device, prefix: &str) -> BTreeMap<String, String> {
    node(nic, prefix).map(|path| single_entry("mount", path)).unwrap_or_default()
}

fn single_entry(key: &str, text: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), text.to_owned())].into()
}

fn paths(nic: &Device) -> impl Iterator<Item = &str> {
    nic.nodes.iter().filter_map(|node| node.container_path().to_str())
}

fn node<'a>(nic: &'a Device, prefix: &str) -> Option<&'a str> {
    paths(nic).find(|path| path.starts_with(prefix))
}

/// Escapes HTML as Go's `encoding/json` does.
fn escape_html(json: &str) -> String {
    let mut text = json.to_owned();
    for letter in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        text = text.replace(letter, &format!("\\u{:04x}", u32::from(letter)));
    }
    text
}

/// Variables that name the container's RDMA devices, since a container also sees the RDMA devices of others in a
/// shared network namespace. For NCCL, `=` selects exact names instead of prefixes.
fn rdma_variables<'a>(nics: impl Iterator<Item = &'a Device>) -> Vec<(String, String)> {
    let rdma: Vec<_> = nics.filter_map(|nic| text(nic, &RDMA_DEVICE)).collect();
    if rdma.is_empty() {
        return Vec::new();
    }
    let ports: Vec<_> = rdma.iter().map(|name| format!("{name}:1")).collect();
    vec![
        ("NCCL_IB_HCA".to_owned(), format!("={}", rdma.join(","))),
        ("UCX_NET_DEVICES".to_owned(), ports.join(",")),
    ]
}
