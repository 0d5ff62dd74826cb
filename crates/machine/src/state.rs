//! The machine at one moment: every GPU with its live values, the faults in force, recent events.
//!
//! This is what `state.json` holds. [`crate::Machine`] writes it, the simulated driver reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

pub use events::{Event, EventKind, EventLog};
pub use happened::{Bound, Happened};

use crate::{
    card::{Card, MigCapability},
    cpus::CpuList,
    mig::{MigMode, Shape},
    pci::{PciAddress, PciDistance, PciPath},
    profile::{Bond, Device, Driver, Fabric, Nic, NumaNode, Switch},
};

mod events;
mod expand;
mod happened;

pub(crate) use expand::hash;

/// A machine at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Name of the profile that it was made from.
    pub profile: String,
    /// What UUIDs and serial numbers are made from.
    pub seed: String,
    /// DMI product name.
    pub product: String,
    /// Versions of NVIDIA's driver, if the machine has it.
    pub driver: Option<Driver>,
    /// Whether the driver is loaded; without it NVML answers `NVML_ERROR_DRIVER_NOT_LOADED`.
    pub driver_loaded: bool,
    /// NUMA nodes, in order.
    pub numa: Vec<NumaNode>,
    /// GPUs in PCI order: the position is the NVML index.
    pub gpus: Vec<Gpu>,
    /// `NVSwitch` chips.
    pub switches: Vec<Switch>,
    /// The fabric that they are part of, if that reaches beyond the machine.
    pub fabric: Option<Fabric>,
    /// Network adapters.
    pub nics: Vec<Nic>,
    /// Network interfaces that act as one.
    #[serde(default)]
    pub bonds: Vec<Bond>,
    /// Devices of any other sort.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// What has happened to adapters and other devices, by name.
    #[serde(default)]
    pub happened: BTreeMap<String, Happened>,
    /// The number of the next GPU that is added.
    pub next_number: u32,
    /// What NVML event sets are told.
    pub events: EventLog,
}

/// A GPU at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Counts GPUs in the order they came to this machine, and is never given twice.
    pub number: u32,
    /// What it has in common with others of its model.
    pub card: Card,
    /// `GPU-…`.
    pub uuid: String,
    /// Serial number.
    pub serial: String,
    /// Minor number of its device node.
    pub minor: u32,
    /// The way from the host bridge.
    pub path: PciPath,
    /// Index of its NUMA node, if firmware says.
    pub numa: Option<u32>,
    /// Its NVLink ports: where each leads, `None` where nothing is plugged.
    pub links: Vec<Option<LinkEnd>>,
    /// MIG instances; `None` when MIG is off.
    pub mig: Option<Vec<MigInstance>>,
    /// The mode of MIG that was asked for and takes a reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_at_reset: Option<MigMode>,
    /// How many MIG devices were made of it one by one: no two have the same UUID.
    #[serde(default)]
    pub mig_made: u64,
    /// `nvmlComputeMode_t`, as an administrator set it.
    pub compute_mode: u32,
    /// Whether the driver stays on it when no one uses it.
    pub persistence: bool,
    /// Sensors and counters.
    pub live: Live,
    /// Faults in force.
    pub faults: Faults,
}

/// The far end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkEnd {
    /// The GPU with this [`Gpu::number`].
    Gpu(u32),
    /// The switch with this position in [`Model::switches`].
    Switch(usize),
}

/// A GPU instance, and the one compute instance that fills it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// `1g.5gb`.
    pub profile: String,
    /// Key of its [`Shape`], the driver's id of the profile.
    #[serde(deserialize_with = "known_profile_id")]
    pub profile_id: u32,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// First memory slice.
    pub start: u32,
    /// What makes a MIG device of it, once it is made.
    #[serde(flatten)]
    pub compute: Option<ComputeInstance>,
}

/// A compute instance that fills its GPU instance: a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Its id within the GPU instance.
    #[serde(rename = "compute_instance")]
    pub id: u32,
    /// `MIG-…`.
    pub uuid: String,
}

/// Sensors and counters of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Core temperature.
    pub temperature_c: u32,
    /// Power draw.
    pub power_mw: u32,
    /// Share of time that a kernel ran, in percent.
    pub utilization_percent: u32,
    /// Share of time that memory was read or written, in percent.
    pub memory_utilization_percent: u32,
    /// Frame buffer in use.
    pub memory_used_mib: u64,
    /// ECC errors since the driver loaded.
    pub ecc_volatile: EccCounts,
    /// ECC errors since the card was made.
    pub ecc_aggregate: EccCounts,
    /// Memory rows replaced.
    pub remapped: RemappedRows,
    /// Who computes on it.
    pub processes: Vec<Process>,
}

/// Errors that ECC noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Repaired, one bit.
    pub corrected: u64,
    /// Not repaired, two bits.
    pub uncorrected: u64,
}

/// Memory rows that the GPU replaced by spare ones; on cards before Ampere, pages that it retired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After corrected errors.
    pub corrected: u32,
    /// After uncorrected errors.
    pub uncorrected: u32,
    /// A row waits for the next reset.
    pub pending: bool,
    /// A row could not be replaced.
    pub failed: bool,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Frame buffer that it holds.
    pub memory_mib: u64,
    /// The GPU instance that it runs in.
    #[serde(default)]
    pub gpu_instance: Option<u32>,
}

/// What is wrong with a GPU, until it recovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Fallen off the bus: calls return `NVML_ERROR_GPU_IS_LOST`.
    pub lost: bool,
    /// Calls return this `nvmlReturn_t`.
    pub error: Option<u32>,
    /// Calls take this much longer.
    pub slow_ms: u32,
    /// Calls do not return.
    pub hang: bool,
    /// What the driver's library does wrong.
    #[serde(default)]
    pub defect: Option<Defect>,
    /// The fabric manager could not put it into the fabric.
    pub fabric: bool,
    /// NVLinks that are down, a bit for each.
    pub links_down: u32,
    /// Clocks are held back.
    pub slowed: Slowed,
    /// Making a compute instance returns this `nvmlReturn_t`.
    #[serde(default)]
    pub compute_instance_error: Option<u32>,
    /// What is wrong for programs that compute, while NVML answers.
    #[serde(default)]
    pub cuda: Option<CudaFault>,
}

/// What CUDA does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaFault {
    /// No context is made: this `CUresult`.
    Error(u32),
    /// Calls do not return.
    Hang,
    /// Memory keeps what was in it, whatever is written.
    Stale,
}

/// What the driver's library does wrong in calls to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Defect {
    /// What they write is garbage.
    Garbage,
    /// The next one ends its process.
    Crash,
}

/// Why a GPU's clocks are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slowed {
    /// It is too hot.
    pub thermal: bool,
    /// It gets too little power.
    pub power: bool,
}

// === impl Model ===

impl Model {
    /// The GPU with a number that [`Gpu::number`] gave.
    pub fn gpu(&self, number: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.number == number)
    }

    /// CPUs near a NUMA node; all of them where the node is unknown.
    pub fn cpus_near(&self, node: Option<u32>) -> CpuList {
        match node.and_then(|node| self.numa.get(node as usize)) {
            Some(node) => node.cpus.clone(),
            None => CpuList::union(self.numa.iter().map(|node| &node.cpus)),
        }
    }

    /// NVIDIA's driver, while it is loaded.
    pub fn loaded_driver(&self) -> Option<&Driver> {
        self.driver.as_ref().filter(|_| self.driver_loaded)
    }

    /// The address of every PCI function, bridges on the way not counted.
    pub fn addresses(&self) -> impl Iterator<Item = PciAddress> {
        let gpus = self.gpus.iter().map(|gpu| &gpu.path);
        let switches = self.switches.iter().filter_map(|switch| switch.path.as_ref());
        let nics = self.nics.iter().map(|nic| &nic.path);
        let parts = self.nics.iter().flat_map(|nic| nic.virtual_functions().map(|(path, _)| path));
        let others = self.devices.iter().filter_map(|device| Some(&device.pci.as_ref()?.path));
        let whole = gpus.chain(switches).chain(nics).chain(others).map(PciPath::address);
        whole.chain(parts.map(|path| path.address()))
    }
}

// === impl Gpu ===

impl Gpu {
    /// Where it sits.
    pub fn address(&self) -> PciAddress {
        self.path.address()
    }

    /// How far it is from another GPU over PCI.
    pub fn distance(&self, other: &Self) -> PciDistance {
        self.path.distance(&other.path)
    }

    /// The VBIOS version of its generation.
    pub fn vbios(&self) -> String {
        format!("{}.41.00.01", self.card.architecture.vbios_prefix()).to_uppercase()
    }

    /// Whether only a reset makes it good again: `NVML_GPU_RECOVERY_ACTION_GPU_RESET`. A row that
    /// ECC still repairs can wait for the next one.
    pub fn needs_reset(&self) -> bool {
        let broken = self.live.remapped.pending && self.live.ecc_volatile.uncorrected > 0;
        self.faults.lost || broken
    }

    /// Where an NVLink ends now; `None` for one that is down or not plugged.
    pub fn link(&self, port: usize) -> Option<LinkEnd> {
        let end = self.links.get(port).copied().flatten()?;
        let down = self.faults.links_down >> port & 1 == 1;
        (!down).then_some(end)
    }

    /// Whether a fabric manager registers it: on switches, since Hopper.
    pub fn is_on_fabric(&self) -> bool {
        let on_switch = self.links.iter().any(|link| matches!(link, Some(LinkEnd::Switch(_))));
        self.card.architecture.has_fabric() && on_switch
    }

    /// The MIG devices: instances that a compute instance fills.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&MigInstance, &ComputeInstance)> {
        self.mig.iter().flatten().filter_map(|one| Some((one, one.compute.as_ref()?)))
    }
}

// === impl MigInstance ===

impl MigInstance {
    /// The shape that it was cut to, on a card that has such.
    pub fn shape(&self, capability: MigCapability) -> Option<Shape> {
        Shape::with_profile_id(self.profile_id, capability)
    }
}

/// A state that another version wrote may know shapes that this one does not.
fn known_profile_id<'a, D: Deserializer<'a>>(from: D) -> Result<u32, D::Error> {
    let id = u32::deserialize(from)?;
    let known = Shape::is_profile_id(id).then_some(id);
    known.ok_or_else(|| D::Error::custom("unknown MIG profile id"))
}
