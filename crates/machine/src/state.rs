//! Model of a machine: its devices, with live values, active faults and recent events.
//!
//! `state.json` holds the model. [`crate::Machine`] writes the file; the simulated driver reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

pub use events::{Event, EventKind, EventLog};
pub use happened::{DeviceChanges, DriverBinding};

use crate::{
    card::{Card, MigCapability},
    cpus::CpuList,
    memory_limits::{CgroupLimits, LimitFault},
    mig::{GpuInstanceProfile, MigMode},
    pci::{PciAddress, PciDistance, PciPath},
    profile::{Bond, Device, Driver, Fabric, Nic, NumaNode, Switch},
};

mod events;
mod expand;
mod happened;

pub(crate) use expand::hash;

/// State of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Name of the source profile.
    pub profile: String,
    /// Seed of UUIDs and serial numbers.
    pub seed: String,
    /// DMI product name.
    pub product: String,
    /// Versions of NVIDIA's driver, if the machine has the driver.
    pub driver: Option<Driver>,
    /// True while the driver is loaded; otherwise NVML returns `NVML_ERROR_DRIVER_NOT_LOADED`.
    pub driver_loaded: bool,
    /// NUMA nodes, in order.
    pub numa: Vec<NumaNode>,
    /// GPUs in PCI order: the position is the NVML index.
    pub gpus: Vec<Gpu>,
    /// `NVSwitch` chips.
    pub switches: Vec<Switch>,
    /// Fabric of the switches, if the fabric extends beyond the machine.
    pub fabric: Option<Fabric>,
    /// Network adapters.
    pub nics: Vec<Nic>,
    /// Bonded network interfaces.
    #[serde(default)]
    pub bonds: Vec<Bond>,
    /// All other devices.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Changes of adapters and other devices, by name.
    #[serde(default)]
    pub happened: BTreeMap<String, DeviceChanges>,
    /// Number of the next added GPU.
    pub next_number: u32,
    /// Events for NVML event sets.
    pub events: EventLog,
}

/// State of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Sequence number of the GPU in this machine, never reused.
    pub number: u32,
    /// Properties shared by all GPUs of the model.
    pub card: Card,
    /// UUID, `GPU-…`.
    pub uuid: String,
    /// Serial number.
    pub serial: String,
    /// Minor number of the device node.
    pub minor: u32,
    /// Path from the host bridge.
    pub path: PciPath,
    /// Index of the NUMA node, if the firmware reports it.
    pub numa: Option<u32>,
    /// Remote end of each NVLink port; `None` for an unplugged port.
    pub links: Vec<Option<LinkEnd>>,
    /// MIG instances; `None` when MIG is off.
    pub mig: Option<Vec<MigInstance>>,
    /// Requested MIG mode, which takes effect at the next reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_at_reset: Option<MigMode>,
    /// Number of MIG devices created one by one, for unique UUIDs.
    #[serde(default)]
    pub mig_made: u64,
    /// `nvmlComputeMode_t`, set by an administrator.
    pub compute_mode: u32,
    /// Persistence mode: the driver keeps the idle GPU initialised.
    pub persistence: bool,
    /// Memory limits, by the path of the cgroup's folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memory_limits: BTreeMap<String, CgroupLimits>,
    /// Sensors and counters.
    pub live: Telemetry,
    /// Active faults.
    pub faults: Faults,
}

/// Remote end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkEnd {
    /// GPU with this [`Gpu::number`].
    Gpu(u32),
    /// Switch at this position in [`Model::switches`].
    Switch(usize),
}

/// GPU instance, with at most one compute instance that fills it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// Profile name, `1g.5gb`.
    pub profile: String,
    /// Key of the [`GpuInstanceProfile`]: the driver's profile id.
    #[serde(deserialize_with = "valid_profile_id")]
    pub profile_id: u32,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// First memory slice.
    pub start: u32,
    /// Compute instance, once created. A GPU instance with a compute instance is a MIG device.
    #[serde(flatten)]
    pub compute: Option<ComputeInstance>,
}

/// Compute instance that fills its GPU instance: a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Compute instance id within the GPU instance.
    #[serde(rename = "compute_instance")]
    pub id: u32,
    /// UUID, `MIG-…`.
    pub uuid: String,
}

/// Sensors and counters of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Core temperature.
    pub temperature_c: u32,
    /// Power draw.
    pub power_mw: u32,
    /// Share of time with a running kernel, in percent.
    pub utilization_percent: u32,
    /// Share of time with memory reads or writes, in percent.
    pub memory_utilization_percent: u32,
    /// Used frame buffer that belongs to no process.
    pub memory_used_mib: u64,
    /// ECC errors since the driver was loaded.
    pub ecc_volatile: EccCounts,
    /// ECC errors over the card's lifetime.
    pub ecc_aggregate: EccCounts,
    /// Remapped memory rows.
    pub remapped: RemappedRows,
    /// PCIe packets that were sent again.
    #[serde(default)]
    pub pcie_replays: u32,
    /// Traffic and errors of all NVLinks.
    #[serde(default)]
    pub nvlink: NvLinkCounts,
    /// Compute processes on the GPU.
    pub processes: Vec<Process>,
}

/// Errors detected by ECC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Corrected single-bit errors.
    pub corrected: u64,
    /// Uncorrected double-bit errors.
    pub uncorrected: u64,
}

/// Traffic and errors of all NVLinks of a GPU since the driver was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinkCounts {
    /// Data sent.
    pub sent_kib: u64,
    /// Data received.
    pub received_kib: u64,
    /// Checksum errors of flow control units.
    pub crc_flit_errors: u64,
    /// Checksum errors of data.
    pub crc_data_errors: u64,
    /// Packets sent again.
    pub replays: u64,
    /// Links trained again.
    pub recoveries: u64,
}

/// Memory rows remapped to spare rows; on cards before Ampere, retired pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Rows remapped after corrected errors.
    pub corrected: u32,
    /// Rows remapped after uncorrected errors.
    pub uncorrected: u32,
    /// True if a row waits for the next reset.
    pub pending: bool,
    /// True if remapping of a row failed.
    pub failed: bool,
}

/// Compute process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Frame buffer memory that the process has allocated.
    pub memory_mib: u64,
    /// GPU instance of the process.
    #[serde(default)]
    pub gpu_instance: Option<u32>,
    /// Time in which its kernels ran on the multiprocessors, in percent.
    #[serde(default)]
    pub sm_percent: u32,
}

/// Active faults of a GPU, until recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// The GPU is off the bus: calls return `NVML_ERROR_GPU_IS_LOST`.
    pub lost: bool,
    /// Calls return this `nvmlReturn_t`.
    pub error: Option<u32>,
    /// Additional time of each call.
    pub slow_ms: u32,
    /// Calls block.
    pub hang: bool,
    /// Active defect of the driver's library.
    #[serde(default)]
    pub defect: Option<LibraryDefect>,
    /// The fabric manager failed to add the GPU to the fabric.
    pub fabric: bool,
    /// NVLinks that are down, as a bit mask of ports.
    pub links_down: u32,
    /// Reasons for reduced clocks.
    pub slowed: ThrottleReasons,
    /// Creation of a compute instance returns this `nvmlReturn_t`.
    #[serde(default)]
    pub compute_instance_error: Option<u32>,
    /// CUDA failure, while NVML still answers.
    #[serde(default)]
    pub cuda: Option<CudaFault>,
    /// Failure of calls that set a memory limit.
    #[serde(default)]
    pub limit: Option<LimitFault>,
}

/// Failure mode of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaFault {
    /// Context creation returns this `CUresult`.
    Error(u32),
    /// Calls block.
    Hang,
    /// Writes have no effect on memory.
    Stale,
}

/// Defect of the driver's library in calls to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LibraryDefect {
    /// Calls write garbage.
    Garbage,
    /// The next call ends its process.
    Crash,
}

/// Reasons for reduced clocks of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottleReasons {
    /// The GPU is too hot.
    pub thermal: bool,
    /// The GPU lacks power.
    pub power: bool,
}

// === impl Model ===

impl Model {
    /// GPU with this [`Gpu::number`].
    pub fn gpu(&self, number: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.number == number)
    }

    /// CPUs of a NUMA node; all CPUs if the node is unknown.
    pub fn local_cpus(&self, node: Option<u32>) -> CpuList {
        match node.and_then(|node| self.numa.get(node as usize)) {
            Some(node) => node.cpus.clone(),
            None => CpuList::union(self.numa.iter().map(|node| &node.cpus)),
        }
    }

    /// NVIDIA's driver, while loaded.
    pub fn loaded_driver(&self) -> Option<&Driver> {
        self.driver.as_ref().filter(|_| self.driver_loaded)
    }

    /// Addresses of all PCI functions, without bridges.
    pub fn addresses(&self) -> impl Iterator<Item = PciAddress> {
        let gpus = self.gpus.iter().map(|gpu| &gpu.path);
        let switches = self.switches.iter().filter_map(|switch| switch.path.as_ref());
        let nics = self.nics.iter().map(|nic| &nic.path);
        let virtual_functions =
            self.nics.iter().flat_map(|nic| nic.virtual_functions().map(|(path, _)| path));
        let others = self.devices.iter().filter_map(|device| Some(&device.pci.as_ref()?.path));
        let addresses = gpus.chain(switches).chain(nics).chain(others).map(PciPath::address);
        addresses.chain(virtual_functions.map(|path| path.address()))
    }
}

// === impl Gpu ===

impl Gpu {
    /// PCI address of the GPU.
    pub fn address(&self) -> PciAddress {
        self.path.address()
    }

    /// PCI distance to another GPU.
    pub fn distance(&self, other: &Self) -> PciDistance {
        self.path.distance(&other.path)
    }

    /// VBIOS version of the GPU's generation.
    pub fn vbios(&self) -> String {
        format!("{}.41.00.01", self.card.architecture.vbios_prefix()).to_uppercase()
    }

    /// True if the GPU needs a reset: `NVML_GPU_RECOVERY_ACTION_GPU_RESET`. A row with only corrected
    /// errors can wait for the next reset.
    pub fn needs_reset(&self) -> bool {
        let has_broken_row = self.live.remapped.pending && self.live.ecc_volatile.uncorrected > 0;
        self.faults.lost || has_broken_row
    }

    /// Current remote end of an NVLink; `None` for a down or unplugged link.
    pub fn link(&self, port: usize) -> Option<LinkEnd> {
        let end = self.links.get(port).copied().flatten()?;
        let is_down = self.faults.links_down >> port & 1 == 1;
        (!is_down).then_some(end)
    }

    /// True if a fabric manager registers the GPU: a Hopper or newer GPU with switch links.
    pub fn is_on_fabric(&self) -> bool {
        let has_switch_link =
            self.links.iter().any(|link| matches!(link, Some(LinkEnd::Switch(_))));
        self.card.architecture.has_fabric() && has_switch_link
    }

    /// MIG devices: GPU instances with their compute instance.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&MigInstance, &ComputeInstance)> {
        self.mig
            .iter()
            .flatten()
            .filter_map(|instance| Some((instance, instance.compute.as_ref()?)))
    }
}

// === impl MigInstance ===

impl MigInstance {
    /// Profile of the instance, if the card supports the profile.
    pub fn gpu_instance_profile(&self, capability: MigCapability) -> Option<GpuInstanceProfile> {
        GpuInstanceProfile::with_profile_id(self.profile_id, capability)
    }
}

/// Rejects unknown profile ids, which the state file of another version may contain.
fn valid_profile_id<'a, D: Deserializer<'a>>(deserializer: D) -> Result<u32, D::Error> {
    let id = u32::deserialize(deserializer)?;
    let valid_id = GpuInstanceProfile::is_profile_id(id).then_some(id);
    valid_id.ok_or_else(|| D::Error::custom("unknown MIG profile id"))
}
