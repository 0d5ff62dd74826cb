//! Expansion of a profile into the machine's initial state: default names, links, MIG instances.

use std::collections::BTreeMap;

use super::{ComputeInstance, EventLog, Faults, Gpu, LinkEnd, MigInstance, Model, Telemetry};
use crate::{
    amd,
    card::{Card, MigCapability},
    mig::{self, MigError},
    pci::PciAddress,
    profile::{GpuSpec, MachineProfile, ValidationError},
};

/// Sensor values of an idle card: its temperature, and the divisor of the power limit.
const IDLE_TEMPERATURE_C: u32 = 34;
const IDLE_POWER_DIVISOR: u32 = 10;

// === impl Model ===

impl Model {
    /// Healthy, idle machine from a profile.
    pub fn new(profile: &MachineProfile) -> Result<Self, ValidationError> {
        profile.validate()?;
        let seed = profile.seed.clone().unwrap_or_else(|| profile.name.clone());
        let gpus = profile.gpus.iter().enumerate();
        Ok(Self {
            profile: profile.name.clone(),
            product: profile.product.clone(),
            driver: profile.driver.clone(),
            driver_loaded: profile.driver.is_some(),
            numa: profile.numa.clone(),
            gpus: gpus.map(|(index, spec)| gpu(profile, &seed, (index, spec))).collect(),
            switches: profile.switches.clone(),
            fabric: profile.fabric.clone(),
            nics: profile.nics.clone(),
            bonds: profile.bonds.clone(),
            devices: amd::devices(profile, &seed)
                .into_iter()
                .chain(profile.devices.clone())
                .collect(),
            happened: BTreeMap::new(),
            next_number: number(profile.gpus.len()),
            events: EventLog::default(),
            seed,
        })
    }

    /// Partitions a GPU into MIG instances; `None` turns MIG off.
    pub fn set_mig(&mut self, gpu: usize, names: Option<&[&str]>) -> Result<(), MigError> {
        let count = self.gpus.len();
        let gpu_state = self.gpus.get_mut(gpu).ok_or(MigError::UnknownGpu { gpu, count })?;
        let mig_unsupported =
            || MigError::MigUnsupported { gpu, card: gpu_state.card.name.clone() };
        let capability = gpu_state.card.mig.ok_or_else(mig_unsupported)?;
        gpu_state.mig =
            names.map(|names| instances(capability, &gpu_state.uuid, names)).transpose()?;
        gpu_state.mig_at_reset = None;
        Ok(())
    }

    /// Copy of the last GPU, at the next free address.
    pub(crate) fn clone_last_gpu(&self) -> Option<Gpu> {
        let last = self.gpus.last()?;
        let number = self.next_number;
        let minors = self.gpus.iter().map(|gpu| gpu.minor);
        Some(Gpu {
            number,
            uuid: uuid("GPU", &self.seed, number),
            serial: serial(&self.seed, number),
            minor: minors.max().map_or(0, |highest| highest + 1),
            path: last.path.with_address(self.free_address_after(last.address())),
            links: self.copy_links(last),
            mig: last.mig.as_ref().map(|_| Vec::new()),
            mig_at_reset: None,
            memory_limits: BTreeMap::new(),
            live: idle_telemetry(&last.card),
            faults: Faults::default(),
            ..last.clone()
        })
    }

    /// Links of a copied GPU. Switch links are copied; ports to GPUs are unplugged.
    fn copy_links(&self, gpu: &Gpu) -> Vec<Option<LinkEnd>> {
        let to_switch = |link: &Option<LinkEnd>| {
            link.filter(|end| matches!(end, LinkEnd::Switch(index) if *index < self.switches.len()))
        };
        gpu.links.iter().map(to_switch).collect()
    }

    /// Next free bus, in the next domain if the current one is full.
    fn free_address_after(&self, mut address: PciAddress) -> PciAddress {
        while self.addresses().any(|used| (used.domain, used.bus) == (address.domain, address.bus))
        {
            let (bus, is_full) = address.bus.overflowing_add(1);
            address = PciAddress { bus, domain: address.domain + u16::from(is_full), ..address };
        }
        address
    }
}

fn gpu(profile: &MachineProfile, seed: &str, (index, spec): (usize, &GpuSpec)) -> Gpu {
    let card = profile.card_of(spec).expect("validated: the card exists").clone();
    let index_u32 = number(index);
    let uuid = spec.uuid.clone().unwrap_or_else(|| uuid("GPU", seed, index_u32));
    Gpu {
        number: index_u32,
        serial: spec.serial.clone().unwrap_or_else(|| serial(seed, index_u32)),
        minor: spec.minor.unwrap_or(index_u32),
        path: spec.path.clone(),
        numa: spec.numa,
        links: links(profile, &card, spec),
        mig: spec.mig.as_ref().map(|names| {
            let capability = card.mig.expect("validated: the card has MIG profiles");
            instances(capability, &uuid, names).expect("validated: the instances fit")
        }),
        mig_at_reset: None,
        mig_made: 0,
        compute_mode: 0,
        persistence: true,
        memory_limits: BTreeMap::new(),
        live: idle_telemetry(&card),
        faults: Faults::default(),
        uuid,
        card,
    }
}

/// Remote ends of a GPU's ports: direct peers first, or else all ports spread evenly over the switches.
fn links(profile: &MachineProfile, card: &Card, spec: &GpuSpec) -> Vec<Option<LinkEnd>> {
    let ports = card.nvlink.map_or(0, |ports| usize::from(ports.links));
    let peers = spec.peers.iter().flat_map(|(&peer, &count)| {
        std::iter::repeat_n(LinkEnd::Gpu(number(peer)), usize::from(count))
    });
    let mut ends: Vec<_> = peers.map(Some).collect();
    let all_switches = || (0..profile.switches.len()).collect();
    let switches = spec.switches.clone().unwrap_or_else(all_switches);
    if ends.is_empty() && !switches.is_empty() {
        let switch_link =
            |port: usize| Some(LinkEnd::Switch(switches[port * switches.len() / ports]));
        ends = (0..ports).map(switch_link).collect();
    }
    ends.resize(ports, None);
    ends
}

/// Instances of a GPU, with the driver's ids and UUIDs.
fn instances(
    capability: MigCapability,
    gpu_uuid: &str,
    names: &[impl AsRef<str>],
) -> Result<Vec<MigInstance>, MigError> {
    let mut instances: Vec<MigInstance> = Vec::new();
    for (profile, start) in mig::place_by_name(names, capability)? {
        let gpu_instance = mig::free_id(profile, &instances);
        let uuid = uuid("MIG", gpu_uuid, gpu_instance);
        instances.push(MigInstance {
            profile: profile.name(capability),
            profile_id: profile.profile_id,
            gpu_instance,
            start,
            compute: Some(ComputeInstance { id: 0, uuid }),
        });
    }
    Ok(instances)
}

// === impl ComputeInstance ===

impl ComputeInstance {
    /// Compute instance that fills its GPU instance. Its UUID is unique for the GPU and the number.
    pub(crate) fn with_number(gpu_uuid: &str, number: u64) -> Self {
        Self { id: 0, uuid: uuid("MIG", &format!("{gpu_uuid}/made/{number}"), 0) }
    }
}

fn idle_telemetry(card: &Card) -> Telemetry {
    Telemetry {
        temperature_c: IDLE_TEMPERATURE_C,
        power_mw: card.power_limit_w * 1000 / IDLE_POWER_DIVISOR,
        ..Telemetry::default()
    }
}

/// UUID in version 4 form, deterministic in seed and number.
fn uuid(kind: &str, seed: &str, number: u32) -> String {
    let high = hash(&format!("{kind}/{seed}/{number}/high"));
    let low = hash(&format!("{kind}/{seed}/{number}/low"));
    format!(
        "{kind}-{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48) & 0x3fff,
        low & 0xffff_ffff_ffff,
    )
}

/// Serial number of thirteen digits, as on a real board.
fn serial(seed: &str, number: u32) -> String {
    format!("165{:010}", hash(&format!("serial/{seed}/{number}")) % 10_000_000_000)
}

/// FNV-1a over 64 bits: stable across Rust releases, unlike the standard hasher.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("GPUs are fewer than PCI buses")
}
