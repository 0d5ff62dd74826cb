//! Probe of a GPU: its answer, its changes since the last probe, its conditions. It blocks, possibly forever.

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::{
    device::{Device, DeviceId, PossiblePartition},
    health::Reason,
    partition::switches_at_once,
};
use windlass_host::Roots;
use windlass_nvml::{Gpu, Nvml, NvmlError};

use super::{
    baseline::Baselines,
    conditions::{Conditions, Moment, Readings},
    connection::NumberedSet,
    describe::{Describe, NO_NODE},
    facts::{DriverFacts, GpuFacts, InstanceFacts, LinkFacts, MigFacts, memory},
    partition::possible,
};
use crate::{graphics, mig::id_of};

/// A probe with all that it needs on its own thread.
pub(super) struct Probe {
    pub(super) nvml: Nvml,
    pub(super) driver: Arc<DriverFacts>,
    pub(super) roots: Roots,
    pub(super) moment: Moment,
    pub(super) index: u32,
    /// Facts of an earlier probe.
    pub(super) known: Option<GpuFacts>,
    /// Baselines of earlier initialisations.
    pub(super) earlier: Arc<Baselines>,
    /// True if every device was usable at the last probe. Otherwise the devices are described again, since an
    /// obstacle may be gone.
    pub(super) settled: bool,
    /// Event set that the GPU is to join; `None` if it is not to join one now.
    pub(super) watch_in: Option<NumberedSet>,
}

/// Devices, if described again, and reasons why single ones are unusable.
type Description = (Option<Vec<Device>>, BTreeMap<DeviceId, String>);

pub(super) struct ProbeReport {
    pub(super) facts: GpuFacts,
    /// The GPU and its instances, if anything changed.
    pub(super) described: Option<Vec<Device>>,
    /// Reasons why single instances are unusable.
    pub(super) obstacles: BTreeMap<DeviceId, String>,
    /// Reason to distrust the GPU although it answers.
    pub(super) failure: Option<(Reason, String)>,
    pub(super) readings: Readings,
    /// Number of the joined event set.
    pub(super) watched_in: Option<u64>,
}

// === impl Probe ===

impl Probe {
    pub(super) fn run(self) -> Result<ProbeReport, NvmlError> {
        let gpu = self.nvml.gpu(self.index)?;
        let id = id_of(&gpu)?;
        let known = self.known.as_ref();
        let mig = MigFacts::read(&gpu, known.map(|known| &known.mig))?;
        memory(&gpu, &mig)?;
        let watched_in = self.watch_in.as_ref().map(|events| events.number);
        if let Some(events) = &self.watch_in
            && !events.set.watch(&gpu)?
        {
            tracing::info!(device = %id, "the driver reports no events of this GPU; it is polled");
        }
        let readings = Readings::read(&gpu);
        let facts = self.facts(gpu, id, mig, readings)?;
        let address = facts.pci_bus_id.as_deref().and_then(|address| address.parse().ok());
        let graphics = address.map(|address| graphics::of_function(&self.roots, address));
        let facts = GpuFacts { graphics: graphics.unwrap_or_default(), ..facts };
        let unchanged = self.settled && known == Some(&facts);
        let (described, obstacles) =
            if unchanged { (None, BTreeMap::new()) } else { self.describe(&facts) };
        let failure = facts.conditions.failure(&facts.links);
        Ok(ProbeReport { facts, described, obstacles, failure, readings, watched_in })
    }

    /// Facts of the GPU. Those of the last probe are reused if the GPU, its MIG instances and its links are the same;
    /// conditions are always current.
    fn facts(
        &self,
        gpu: Gpu,
        id: DeviceId,
        mig: MigFacts,
        readings: Readings,
    ) -> Result<GpuFacts, NvmlError> {
        let known = self.known.as_ref().filter(|known| known.id == id && known.gpu == gpu);
        let earlier = || self.earlier.get(&id).map(|it| (&it.links, &it.conditions));
        let before = known.map(|known| (&known.links, &known.conditions)).or_else(earlier);
        let conditions = before.map(|(_, conditions)| conditions.clone()).unwrap_or_default();
        let conditions = Conditions::read(&gpu, readings, &conditions, self.moment);
        let up = gpu.nvlinks_up()?;
        let same = |known: &&GpuFacts| known.mig == mig && known.links.up == up;
        let partitions = self.partitions(&gpu, &id, &mig);
        if let Some(known) = known.filter(same) {
            return Ok(GpuFacts { partitions, conditions, ..known.clone() });
        }
        let lost = before.map(|(links, _)| links.missing(&up, &mig)).unwrap_or_default();
        let links = LinkFacts::read(&gpu, up, lost.into_iter().collect());
        Ok(GpuFacts { partitions, conditions, ..GpuFacts::read(gpu, id, mig, links)? })
    }

    /// Possible partitions, read once; a failed read is repeated at the next probe. A GPU without known partitions
    /// is offered undivided.
    fn partitions(
        &self,
        gpu: &Gpu,
        id: &DeviceId,
        mig: &MigFacts,
    ) -> Option<Arc<[PossiblePartition]>> {
        let can_have_partitions = match mig {
            MigFacts::Unsupported => false,
            MigFacts::Disabled => switches_at_once(gpu.compute_capability().ok()),
            MigFacts::Enabled(_) => true,
        };
        if !can_have_partitions {
            return None;
        }
        let known = self.known.as_ref().filter(|known| known.id == *id && known.gpu == *gpu);
        if let Some(partitions) = known.and_then(|known| known.partitions.clone()) {
            return Some(partitions);
        }
        let read = possible(gpu, id);
        if let (Err(error), None) = (&read, &self.known) {
            tracing::info!(device = %id, %error, "MIG partitions unknown: the GPU stays undivided");
        }
        read.ok()
    }

    fn describe(&self, facts: &GpuFacts) -> Description {
        let host = &self.roots.host.for_one_scan();
        let describe = Describe { host, driver: &self.driver, now: self.moment.now };
        let obstacle =
            |part: &InstanceFacts| Some((part.id.clone(), describe.obstacle(facts, part)?));
        let whole = facts.minor.is_none().then(|| (facts.id.clone(), NO_NODE.to_owned()));
        let obstacles = facts.instances().iter().filter_map(obstacle).chain(whole).collect();
        (Some(describe.gpu(self.index, facts)), obstacles)
    }
}
