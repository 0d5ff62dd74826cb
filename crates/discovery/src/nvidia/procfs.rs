//! NVIDIA's kernel module in `/proc/driver`, without NVML.

use windlass_core::{
    device::{DeviceId, ExtraEdits},
    pci::PciAddress,
};
use windlass_host::{Host, PciFunction, Roots, drm_nodes};

/// A GPU as the kernel module lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedGpu {
    pub(super) function: PciFunction,
    /// UUID; `None` for a lost GPU, whose UUID the module prints as question marks.
    pub(super) id: Option<DeviceId>,
    pub(super) minor: Option<u32>,
    pub(super) graphics: ExtraEdits,
}

/// Fingerprint of driver and GPUs. It changes when a driver is loaded, removed or replaced, or when a GPU appears or
/// vanishes: NVML must then be initialised again. A read is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    version: Option<String>,
    gpus: Vec<String>,
}

const VERSION: &str = "/proc/driver/nvidia/version";
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// One line per capability: `gpu0/gi7/ci0/access 67`.
const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";

/// Reads the fingerprint. The kernel module answers the read, and may hang.
pub(super) fn fingerprint(host: &Host) -> Fingerprint {
    Fingerprint { version: host.read_text(VERSION), gpus: host.entry_names(GPUS) }
}

/// GPUs that the kernel module lists, sorted by address as in NVML.
///
/// The module accesses the GPU for each read, so the reads may hang.
pub(super) fn gpus(roots: &Roots) -> Vec<ListedGpu> {
    let names = roots.host.entry_names(GPUS);
    let mut gpus: Vec<_> = names.iter().filter_map(|name| gpu(roots, name)).collect();
    gpus.sort_by_key(|gpu| gpu.function.address);
    gpus
}

fn gpu(roots: &Roots, name: &str) -> Option<ListedGpu> {
    let information =
        roots.host.read_text(format!("{GPUS}/{name}/information")).unwrap_or_default();
    let field = |key: &str| {
        let line = information.lines().find_map(|line| line.strip_prefix(key));
        line.map(|value| value.trim().to_owned())
    };
    let address: PciAddress = name.parse().ok()?;
    Some(ListedGpu {
        function: roots.host.pci_function(address),
        id: field("GPU UUID:").and_then(|uuid| uuid.parse().ok()),
        minor: field("Device Minor:").and_then(|minor| minor.parse().ok()),
        graphics: drm_nodes::edits_of_function(roots, address),
    })
}

/// Minor N of a capability's node `/dev/nvidia-caps/nvidia-capN`.
pub(super) fn mig_minor(host: &Host, capability: &str) -> Option<u32> {
    let table = host.read_text(MIG_MINORS)?;
    let line = table.lines().find_map(|line| line.strip_prefix(capability)?.strip_prefix(' '));
    line?.trim().parse().ok()
}
