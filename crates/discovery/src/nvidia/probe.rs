//! Probe of a GPU: its answer, its changes since the last probe, its conditions. It blocks, possibly forever.

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::{
    device::{Device, DeviceId, PossiblePartition},
    health::Reason,
    partition::switches_mig_without_reset,
};
use windlass_host::{Roots, drm_nodes};
use windlass_nvml::{Gpu, Nvml, NvmlError};

use super::{
    baseline::Baselines,
    conditions::{Conditions, ProbeReadings, ProbeTime},
    connection::NumberedEventSet,
    describe::{Describer, NO_NODE},
    facts::{DriverFacts, GpuFacts, InstanceFacts, LinkFacts, MigFacts, memory},
    partition::possible_partitions,
};
use crate::mig::id_of;

/// Probe of one GPU, with the data that its thread needs.
pub(super) struct Probe {
    pub(super) nvml: Nvml,
    pub(super) driver: Arc<DriverFacts>,
    pub(super) roots: Roots,
    pub(super) time: ProbeTime,
    pub(super) index: u32,
    /// True if MIG is turned on for claims.
    pub(super) switches_mig: bool,
    /// Facts of an earlier probe.
    pub(super) last_facts: Option<GpuFacts>,
    /// Baselines of earlier initialisations.
    pub(super) earlier_baselines: Arc<Baselines>,
    /// True if every device was usable at the last probe. Otherwise the devices are described again, since the obstacle
    /// may no longer exist.
    pub(super) had_no_obstacles: bool,
    /// Event set that the GPU is to join; `None` if it is not to join one now.
    pub(super) event_set_to_join: Option<NumberedEventSet>,
}

/// Devices, if described again, and reasons why some of them are unusable.
type Description = (Option<Vec<Device>>, BTreeMap<DeviceId, String>);

pub(super) struct ProbeReport {
    pub(super) facts: GpuFacts,
    /// The GPU and its instances, if anything changed.
    pub(super) devices: Option<Vec<Device>>,
    /// Reasons why single instances are unusable.
    pub(super) obstacles: BTreeMap<DeviceId, String>,
    /// Failure of the GPU, although it answers.
    pub(super) failure: Option<(Reason, String)>,
    pub(super) readings: ProbeReadings,
    /// Number of the joined event set.
    pub(super) event_set_number: Option<u64>,
}

// === impl Probe ===

impl Probe {
    pub(super) fn run(self) -> Result<ProbeReport, NvmlError> {
        let gpu = self.nvml.gpu(self.index)?;
        let id = id_of(&gpu)?;
        let last_facts = self.last_facts.as_ref();
        let mig = MigFacts::read(&gpu, last_facts.map(|last_facts| &last_facts.mig))?;
        memory(&gpu, &mig)?;
        let event_set_number = self.event_set_to_join.as_ref().map(|event_set| event_set.number);
        if let Some(event_set) = &self.event_set_to_join
            && !event_set.set.watch(&gpu)?
        {
            tracing::info!(device = %id, "the driver reports no events of this GPU; it is polled");
        }
        let readings = ProbeReadings::read(&gpu);
        let facts = self.facts(gpu, id, mig, readings)?;
        let address = facts.pci_bus_id.as_deref().and_then(|address| address.parse().ok());
        let graphics = address.map(|address| drm_nodes::edits_of_function(&self.roots, address));
        let facts = GpuFacts { graphics: graphics.unwrap_or_default(), ..facts };
        let is_unchanged = self.had_no_obstacles && last_facts == Some(&facts);
        let (devices, obstacles) =
            if is_unchanged { (None, BTreeMap::new()) } else { self.describe(&facts) };
        let failure = facts.conditions.failure(&facts.links);
        Ok(ProbeReport { facts, devices, obstacles, failure, readings, event_set_number })
    }

    /// Facts of the GPU. Facts of the last probe are reused if the GPU, its MIG instances and its links are the same.
    /// Conditions are read at each probe.
    fn facts(
        &self,
        gpu: Gpu,
        id: DeviceId,
        mig: MigFacts,
        readings: ProbeReadings,
    ) -> Result<GpuFacts, NvmlError> {
        let last_facts = self
            .last_facts
            .as_ref()
            .filter(|last_facts| last_facts.id == id && last_facts.gpu == gpu);
        let earlier_baseline = || {
            self.earlier_baselines.get(&id).map(|baseline| (&baseline.links, &baseline.conditions))
        };
        let earlier = last_facts
            .map(|last_facts| (&last_facts.links, &last_facts.conditions))
            .or_else(earlier_baseline);
        let conditions = earlier.map(|(_, conditions)| conditions.clone()).unwrap_or_default();
        let conditions = Conditions::read(&gpu, readings, &conditions, self.time);
        let up_links = gpu.nvlinks_up()?;
        let is_same =
            |last_facts: &&GpuFacts| last_facts.mig == mig && last_facts.links.up == up_links;
        let partitions = self.partitions(&gpu, &id, &mig);
        if let Some(last_facts) = last_facts.filter(is_same) {
            return Ok(GpuFacts { partitions, conditions, ..last_facts.clone() });
        }
        let lost = earlier.map(|(links, _)| links.missing(&up_links, &mig)).unwrap_or_default();
        let links = LinkFacts::read(&gpu, up_links, lost.into_iter().collect());
        Ok(GpuFacts { partitions, conditions, ..GpuFacts::read(gpu, id, mig, links)? })
    }

    /// Possible partitions, read once; a failed read is repeated at the next probe. A GPU whose partitions are unknown
    /// is offered as a whole.
    fn partitions(
        &self,
        gpu: &Gpu,
        id: &DeviceId,
        mig: &MigFacts,
    ) -> Option<Arc<[PossiblePartition]>> {
        let can_have_partitions = match mig {
            MigFacts::Unsupported => false,
            MigFacts::Disabled => {
                self.switches_mig && switches_mig_without_reset(gpu.compute_capability().ok())
            }
            MigFacts::Enabled(_) => true,
        };
        if !can_have_partitions {
            return None;
        }
        let last_facts = self
            .last_facts
            .as_ref()
            .filter(|last_facts| last_facts.id == *id && last_facts.gpu == *gpu);
        if let Some(partitions) = last_facts.and_then(|last_facts| last_facts.partitions.clone()) {
            return Some(partitions);
        }
        let result = possible_partitions(gpu, id);
        if let (Err(error), None) = (&result, &self.last_facts) {
            tracing::info!(device = %id, %error, "MIG partitions unknown: the GPU stays undivided");
        }
        result.ok()
    }

    fn describe(&self, facts: &GpuFacts) -> Description {
        let host = &self.roots.host.for_one_scan();
        let describer = Describer { host, driver: &self.driver, now: self.time.now };
        let obstacle = |instance: &InstanceFacts| {
            Some((instance.id.clone(), describer.obstacle(facts, instance)?))
        };
        let gpu_obstacle = facts.minor.is_none().then(|| (facts.id.clone(), NO_NODE.to_owned()));
        let obstacles = facts.instances().iter().filter_map(obstacle).chain(gpu_obstacle).collect();
        (Some(describer.gpu(self.index, facts)), obstacles)
    }
}
