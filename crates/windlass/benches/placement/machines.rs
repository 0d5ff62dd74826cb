//! The machines that placement is proved on: profiles as the agent surveys them.

use std::{env, path::Path};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use windlass_config::{Config, HostPaths};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    device::{Device, DeviceKind},
    placement::Topology,
    topology::Connection,
};
use windlass_host::clock::Clock;
use windlass_machine::{MachineProfile, find_driver};
use windlass_node::agent;

/// A machine, and which of its devices are one resource.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    /// Description of the machine.
    pub(crate) description: String,
    /// Everything it has, in the inventory's order.
    pub(crate) devices: Vec<Device>,
    /// Those that are asked for, by their places in the list above, ascending.
    pub(crate) pool: Vec<usize>,
    pub(crate) topology: Topology,
}

/// A machine after a profile.
struct MachineSpec {
    name: &'static str,
    profile: &'static str,
    /// The MIG instances of GPUs, from the first one on; whole GPUs stay as the profile has them.
    mig_instances: &'static [&'static [&'static str]],
    pool: PoolKind,
}

/// The resource that is asked for.
#[derive(Clone, Copy, PartialEq)]
enum PoolKind {
    Gpus,
    /// MIG instances of a profile.
    Instances(&'static str),
    /// Partitions of AMD's GPUs.
    Partitions,
}

const MACHINE_SPECS: [MachineSpec; 10] = [
    MachineSpec::of_whole_gpus("dgx-1"),
    MachineSpec::of_whole_gpus("dgx-a100"),
    MachineSpec::of_whole_gpus("dgx-h100"),
    MachineSpec::of_whole_gpus("16-gpu"),
    MachineSpec::of_whole_gpus("l40s-pcie"),
    MachineSpec::of_whole_gpus("mixed-models"),
    MachineSpec { pool: SMALLEST_INSTANCE, ..MachineSpec::of_whole_gpus("mig-a100") },
    MachineSpec {
        name: "mig-mix",
        profile: "dgx-a100",
        mig_instances: &MIXED_INSTANCES,
        pool: SMALLEST_INSTANCE,
    },
    MachineSpec::of_whole_gpus("mi300x"),
    MachineSpec { pool: PoolKind::Partitions, ..MachineSpec::of_whole_gpus("mi300x-cpx") },
];

/// The smallest instance of an A100 with 40 GB.
const SMALLEST_INSTANCE: PoolKind = PoolKind::Instances("1g.5gb");

/// Two GPUs for jobs of three sizes, two for those of two, four for small ones only.
const MIXED_INSTANCES: [&[&str]; 8] = [THREE, THREE, TWO, TWO, ONE, ONE, ONE, ONE];
const THREE: &[&str] = &["3g.20gb", "2g.10gb", "1g.5gb"];
const TWO: &[&str] = &["2g.10gb", "2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb"];
const ONE: &[&str] = &["1g.5gb"; 7];

/// Where there is such a file system: a machine is thousands of small files.
const IN_MEMORY: &str = "/dev/shm";

const MIG_PROFILE: AttributeName = AttributeName::new("nvidia.com", "profile");

/// All of them.
pub(crate) async fn all() -> Result<Vec<Machine>> {
    let mut machines = Vec::new();
    for recipe in MACHINE_SPECS {
        let name = recipe.name;
        machines.push(recipe.build().await.with_context(|| format!("machine {name}"))?);
    }
    Ok(machines)
}

// === impl Machine ===

impl Machine {
    /// A machine of which the devices that `is_asked_for` picks are one resource.
    pub(crate) fn new(
        name: &'static str,
        description: String,
        devices: Vec<Device>,
        is_asked_for: impl Fn(&Device) -> bool,
    ) -> Self {
        let topology = Topology::from_devices(&devices);
        let pool = devices.iter().enumerate().filter(|(_, device)| is_asked_for(device));
        let pool = pool.map(|(place, _)| place).collect();
        Self { name, description, devices, pool, topology }
    }

    /// The ids of the pool, in the inventory's order.
    pub(crate) fn ids(&self) -> Vec<&str> {
        self.pool.iter().map(|&place| self.devices[place].id.as_str()).collect()
    }

    /// Connection of two devices in the pool.
    pub(crate) fn connection(&self, a: usize, b: usize) -> Connection {
        self.topology.connection(self.pool[a], self.pool[b])
    }
}

// === impl MachineSpec ===

impl MachineSpec {
    const fn of_whole_gpus(profile: &'static str) -> Self {
        Self { name: profile, profile, mig_instances: &[], pool: PoolKind::Gpus }
    }

    async fn build(self) -> Result<Machine> {
        let profile = MachineProfile::named(self.profile)?;
        let mut devices = survey(&profile, self.mig_instances).await?;
        if self.pool == PoolKind::Partitions {
            // A range of parts has no whole in it.
            devices.retain(|device| !device.partitioned);
        }
        let about = match self.pool {
            PoolKind::Gpus | PoolKind::Partitions => profile.description,
            PoolKind::Instances(size) => {
                format!("{}; asked for are MIG instances {size}", profile.description)
            }
        };
        Ok(Machine::new(self.name, about, devices, |device| self.pool.contains(device)))
    }
}

/// The devices as the agent describes them.
async fn survey(profile: &MachineProfile, cut: &[&[&str]]) -> Result<Vec<Device>> {
    let memory = Path::new(IN_MEMORY);
    let parent = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
    let folder = tempfile::tempdir_in(parent).context("cannot make a temporary folder")?;
    let machine = windlass_machine::Machine::create(folder.path(), profile, &find_driver()?)?;
    for (gpu, instances) in cut.iter().enumerate() {
        machine.set_mig(gpu, Some(instances))?;
    }
    let nvml_library = Some(machine.nvml_library());
    let places = HostPaths { host_root: machine.host_root(), nvml_library, ..HostPaths::default() };
    let config = Config { places, ..Config::default() };
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    Ok(agent::scan_host(&config, clock).await.inventory.devices)
}

// === impl PoolKind ===

impl PoolKind {
    fn contains(self, device: &Device) -> bool {
        match self {
            Self::Gpus => device.kind == DeviceKind::Gpu && !device.partitioned,
            Self::Partitions => device.parent.is_some(),
            Self::Instances(size) => {
                let profile = device.attributes.get(&MIG_PROFILE);
                profile == Some(&AttributeValue::String(size.to_owned()))
            }
        }
    }
}
