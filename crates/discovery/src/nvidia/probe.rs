//! One probe of a GPU: whether it answers, what is new about it, in what condition it is. Everything
//! here blocks, and may block for ever.

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::{
    device::{Device, DeviceId, PossiblePartition},
    health::Reason,
    partition::switches_at_once,
};
use windlass_host::Roots;
use windlass_nvml::{Gpu, Nvml, NvmlError};

use super::{
    conditions::{Conditions, Moment},
    connection::NumberedSet,
    describe::{Describe, NO_NODE},
    facts::{DriverFacts, GpuFacts, InstanceFacts, LinkFacts, MigFacts, memory},
    partition::possible,
};
use crate::{graphics, mig::id_of};

/// One probe of a GPU, with everything it needs to run on a thread of its own.
pub(super) struct Probe {
    pub(super) nvml: Nvml,
    pub(super) driver: Arc<DriverFacts>,
    pub(super) roots: Roots,
    pub(super) moment: Moment,
    pub(super) index: u32,
    /// What an earlier probe of this initialisation found.
    pub(super) known: Option<GpuFacts>,
    /// Whether that was all there is to describe: what stands in the way of a device may be gone.
    pub(super) settled: bool,
    /// The set that its events shall be put into, if they are not in it yet.
    pub(super) watch_in: Option<NumberedSet>,
}

/// The devices of a GPU, if they are described anew, and why single ones cannot be used.
type Description = (Option<Vec<Device>>, BTreeMap<DeviceId, String>);

/// What a probe that came back brings.
pub(super) struct Probed {
    pub(super) facts: GpuFacts,
    /// The GPU and its instances, if anything about them is new.
    pub(super) described: Option<Vec<Device>>,
    /// Why single instances cannot be used.
    pub(super) obstacles: BTreeMap<DeviceId, String>,
    /// Why the GPU cannot be trusted though it answers.
    pub(super) trouble: Option<(Reason, String)>,
    /// How many memory errors ECC could not correct since the driver was loaded.
    pub(super) uncorrected_errors: Option<u64>,
    /// The set that its events were put into.
    pub(super) watched_in: Option<u64>,
}

// === impl Probe ===

impl Probe {
    /// Probes the GPU.
    pub(super) fn run(self) -> Result<Probed, NvmlError> {
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
        let uncorrected_errors = gpu.uncorrected_errors().ok().flatten();
        let facts = self.facts(gpu, id, mig)?;
        let address = facts.pci_bus_id.as_deref().and_then(|address| address.parse().ok());
        let graphics = address.map(|address| graphics::of_function(&self.roots, address));
        let facts = GpuFacts { graphics: graphics.unwrap_or_default(), ..facts };
        let unchanged = self.settled && known == Some(&facts);
        let (described, obstacles) =
            if unchanged { (None, BTreeMap::new()) } else { self.describe(&facts) };
        let trouble = facts.conditions.trouble(&facts.links);
        Ok(Probed { facts, described, obstacles, trouble, uncorrected_errors, watched_in })
    }

    /// The facts that are known, if that is the same GPU, cut and linked in the same way, or new
    /// ones; and its conditions as they are now.
    fn facts(&self, gpu: Gpu, id: DeviceId, mig: MigFacts) -> Result<GpuFacts, NvmlError> {
        let known = self.known.as_ref().filter(|known| known.id == id && known.gpu == gpu);
        let before = known.map(|known| known.conditions.clone()).unwrap_or_default();
        let conditions = Conditions::read(&gpu, &before, self.moment);
        let up = gpu.nvlinks_up()?;
        let same = |known: &&GpuFacts| known.mig == mig && known.links.up == up;
        let partitions = self.partitions(&gpu, &id, &mig);
        if let Some(known) = known.filter(same) {
            return Ok(GpuFacts { partitions, conditions, ..known.clone() });
        }
        let lost = known.map(|known| known.links.missing(&up, &mig)).unwrap_or_default();
        let links = LinkFacts::read(&gpu, up, lost.into_iter().collect());
        Ok(GpuFacts { partitions, conditions, ..GpuFacts::read(gpu, id, mig, links)? })
    }

    /// What the GPU could be cut to, which is read once; what cannot be read is tried again. A driver that tells
    /// nothing while MIG is off leaves the GPU whole until MIG is on.
    fn partitions(
        &self,
        gpu: &Gpu,
        id: &DeviceId,
        mig: &MigFacts,
    ) -> Option<Arc<[PossiblePartition]>> {
        let is_cuttable = match mig {
            MigFacts::Unsupported => false,
            MigFacts::Disabled => switches_at_once(gpu.compute_capability().ok()),
            MigFacts::Enabled(_) => true,
        };
        if !is_cuttable {
            return None;
        }
        let known = self.known.as_ref().filter(|known| known.id == *id && known.gpu == *gpu);
        if let Some(partitions) = known.and_then(|known| known.partitions.clone()) {
            return Some(partitions);
        }
        let read = possible(gpu, id);
        if let (Err(error), None) = (&read, &self.known) {
            tracing::info!(device = %id, %error, "the driver does not tell what the GPU can be cut to");
        }
        read.ok()
    }

    fn describe(&self, facts: &GpuFacts) -> Description {
        let host = &self.roots.host.for_one_look();
        let describe = Describe { host, driver: &self.driver, now: self.moment.now };
        let obstacle =
            |part: &InstanceFacts| Some((part.id.clone(), describe.obstacle(facts, part)?));
        let whole = facts.minor.is_none().then(|| (facts.id.clone(), NO_NODE.to_owned()));
        let obstacles = facts.instances().iter().filter_map(obstacle).chain(whole).collect();
        (Some(describe.gpu(self.index, facts)), obstacles)
    }
}
