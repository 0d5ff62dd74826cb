//! One probe of a GPU: whether it answers, what is new about it, what the driver asks for. Everything
//! here blocks, and may block for ever.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use windlass_core::device::{Device, DeviceId};
use windlass_nvml::{Gpu, Nvml, NvmlError, RecoveryAction};

use super::{
    connection::NumberedSet,
    describe::{Describe, NO_NODE},
    facts::{DriverFacts, GpuFacts, InstanceFacts, MigFacts, fabric, memory},
};
use crate::host::Host;

/// One probe of a GPU, with everything it needs to run on a thread of its own.
pub(super) struct Probe {
    pub(super) nvml: Nvml,
    pub(super) driver: Arc<DriverFacts>,
    pub(super) host: Host,
    pub(super) now: Timestamp,
    pub(super) index: u32,
    pub(super) known: Option<GpuFacts>,
    /// The set that its events shall be put into, if they are not in it yet.
    pub(super) watch_in: Option<NumberedSet>,
}

/// What a probe that came back brings.
pub(super) struct Probed {
    pub(super) facts: GpuFacts,
    /// The GPU and its instances, if anything about them is new.
    pub(super) described: Option<Vec<Device>>,
    /// Why single instances cannot be used.
    pub(super) obstacles: BTreeMap<DeviceId, String>,
    /// What the driver asks for before the GPU can be trusted.
    pub(super) needs_reset: Option<String>,
    /// The set that its events were put into.
    pub(super) watched_in: Option<u64>,
}

// === impl Probe ===

impl Probe {
    /// Probes the GPU. Facts that cannot change while the driver runs are those known, if that is
    /// the same GPU, cut and linked in the same way; else everything is read.
    pub(super) fn run(self) -> Result<Probed, NvmlError> {
        let gpu = self.nvml.gpu(self.index)?;
        let uuid = gpu.uuid()?;
        let mig = MigFacts::read(&gpu)?;
        memory(&gpu, &mig)?;
        let watched_in = self.watch_in.as_ref().map(|events| events.number);
        if let Some(events) = &self.watch_in
            && !events.set.watch(&gpu)?
        {
            tracing::info!(device = uuid, "the driver reports no events of this GPU; it is polled");
        }
        let needs_reset = needs_reset(&gpu);
        let links = gpu.nvlinks_up()?;
        let same = |known: &GpuFacts| {
            known.uuid == uuid && known.mig == mig && known.gpu == gpu && known.links.up == links
        };
        let fabric = fabric(&gpu);
        let unchanged = self.known.clone().filter(same).filter(|known| known.fabric == fabric);
        let (described, obstacles, facts) = if let Some(facts) = unchanged {
            (None, BTreeMap::new(), facts)
        } else {
            let facts = GpuFacts::read(gpu, mig, links)?;
            let (described, obstacles) = self.describe(&facts);
            (described, obstacles, facts)
        };
        Ok(Probed { facts, described, obstacles, needs_reset, watched_in })
    }

    fn describe(&self, facts: &GpuFacts) -> (Option<Vec<Device>>, BTreeMap<DeviceId, String>) {
        let describe = Describe { host: &self.host, driver: &self.driver, now: self.now };
        let described = describe.gpu(self.index, facts);
        let instances = match &facts.mig {
            MigFacts::Enabled(instances) => instances.as_slice(),
            MigFacts::Unsupported | MigFacts::Disabled => &[],
        };
        let obstacle =
            |part: &InstanceFacts| Some((part.uuid.parse().ok()?, describe.obstacle(facts, part)?));
        let whole = facts.minor.is_none().then(|| facts.uuid.parse().ok()).flatten();
        let whole = whole.map(|id| (id, NO_NODE.to_owned()));
        let obstacles = instances.iter().filter_map(obstacle).chain(whole).collect();
        if described.is_none() {
            tracing::error!(name = facts.uuid, "the driver gives a GPU a name that is none");
        }
        (described, obstacles)
    }
}

/// What the driver asks for, in words; a driver that does not tell asks for nothing.
fn needs_reset(gpu: &Gpu) -> Option<String> {
    if gpu.row_remapping().ok().flatten().is_some_and(|rows| rows.failed) {
        return Some("a bad row of memory could not be mapped out".to_owned());
    }
    match gpu.recovery_action().ok().flatten()? {
        RecoveryAction::None => None,
        RecoveryAction::Reset => Some("the driver asks for a reset of the GPU".to_owned()),
        RecoveryAction::Reboot => Some("the driver asks for a reboot of the node".to_owned()),
        RecoveryAction::Drain => Some("the driver asks for the GPU to be drained".to_owned()),
        RecoveryAction::Other(code) => Some(format!("the driver asks for action {code}")),
    }
}
