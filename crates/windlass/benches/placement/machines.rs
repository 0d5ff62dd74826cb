//! Machines of the placement's benchmarks and tests: profiles as the agent scans them.

use std::{env, path::Path};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use windlass_config::{Config, HostPaths};
use windlass_core::{
    device::{Device, DeviceKind},
    placement::Topology,
    topology::Connection,
};
use windlass_host::clock::Clock;
use windlass_machine::{MachineProfile, find_driver};
use windlass_node::agent;

/// A machine, with a pool: the devices of one resource.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    /// Description of the machine.
    pub(crate) description: String,
    /// All devices, in the order of the inventory.
    pub(crate) devices: Vec<Device>,
    /// Positions of the pool's devices in `devices`, ascending.
    pub(crate) pool: Vec<usize>,
    pub(crate) topology: Topology,
}

/// Specification of a machine.
struct MachineSpec {
    name: &'static str,
    profile: &'static str,
    /// MIG instances of the first GPUs. The other GPUs stay as in the profile.
    mig_instances: &'static [&'static [&'static str]],
    pool: PoolKind,
}

/// Devices of a pool.
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

/// Two GPUs with instances of three sizes, two with two sizes, four with the smallest size.
const MIXED_INSTANCES: [&[&str]; 8] = [THREE, THREE, TWO, TWO, ONE, ONE, ONE, ONE];
const THREE: &[&str] = &["3g.20gb", "2g.10gb", "1g.5gb"];
const TWO: &[&str] = &["2g.10gb", "2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb"];
const ONE: &[&str] = &["1g.5gb"; 7];

/// Folder in memory, since a machine has thousands of small files. Without it, the system's temporary folder is used.
const IN_MEMORY: &str = "/dev/shm";

/// All machines.
pub(crate) async fn all() -> Result<Vec<Machine>> {
    let mut machines = Vec::new();
    for spec in MACHINE_SPECS {
        let name = spec.name;
        machines.push(spec.build().await.with_context(|| format!("machine {name}"))?);
    }
    Ok(machines)
}

// === impl Machine ===

impl Machine {
    /// A machine whose pool has the devices that `is_in_pool` selects.
    pub(crate) fn new(
        name: &'static str,
        description: String,
        devices: Vec<Device>,
        is_in_pool: impl Fn(&Device) -> bool,
    ) -> Self {
        let topology = Topology::from_devices(&devices);
        let pool = devices.iter().enumerate().filter(|(_, device)| is_in_pool(device));
        let pool = pool.map(|(position, _)| position).collect();
        Self { name, description, devices, pool, topology }
    }

    /// The ids of the pool, in the inventory's order.
    pub(crate) fn ids(&self) -> Vec<&str> {
        self.pool.iter().map(|&position| self.devices[position].id.as_str()).collect()
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
            // A pool of partitions has no partitioned GPU.
            devices.retain(|device| !device.partitioned);
        }
        let description = match self.pool {
            PoolKind::Gpus | PoolKind::Partitions => profile.description,
            PoolKind::Instances(size) => {
                format!("{}; requests for MIG instances {size}", profile.description)
            }
        };
        Ok(Machine::new(self.name, description, devices, |device| self.pool.contains(device)))
    }
}

/// The devices as the agent describes them.
async fn survey(profile: &MachineProfile, mig_instances: &[&[&str]]) -> Result<Vec<Device>> {
    let tmpfs = Path::new(IN_MEMORY);
    let parent = if tmpfs.is_dir() { tmpfs.to_owned() } else { env::temp_dir() };
    let folder = tempfile::tempdir_in(parent).context("cannot make a temporary folder")?;
    let machine = windlass_machine::Machine::create(folder.path(), profile, &find_driver()?)?;
    for (gpu, instances) in mig_instances.iter().enumerate() {
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
            Self::Instances(size) => device.mig_profile() == Some(size),
        }
    }
}
