//! GPU telemetry, read after each passed probe on a thread of its own.
//!
//! Separate from the probe: a failing sensor is no reason to distrust a GPU, and the first device list must
//! not wait for it. A hanging read is not repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::watch, task::JoinSet};
use windlass_core::device::DeviceId;
use windlass_nvml::Gpu;

use super::facts::{GpuFacts, InstanceFacts};
use crate::{
    mig::id_of,
    telemetry::{Sample, Telemetry},
};

/// Telemetry reader and publisher.
pub(super) struct Samples {
    to: watch::Sender<Arc<Telemetry>>,
    /// GPUs that passed a probe and were not read since, by index.
    wanted: BTreeMap<usize, Target>,
    /// Indexes with a running read.
    open: BTreeSet<usize>,
    readings: JoinSet<Reading>,
}

pub(super) struct Reading {
    index: usize,
    samples: Vec<(DeviceId, Sample)>,
}

/// A GPU and its instances by index, valid while their UUIDs agree.
struct Target {
    gpu: Gpu,
    id: DeviceId,
    instances: Vec<InstanceFacts>,
}

/// Probes for which a sample stays valid. One missed probe is chance, three are a driver that hangs.
const LOOKS_VALID: u32 = 3;

// === impl Samples ===

impl Samples {
    pub(super) fn new(to: watch::Sender<Arc<Telemetry>>) -> Self {
        Self { to, wanted: BTreeMap::new(), open: BTreeSet::new(), readings: JoinSet::new() }
    }

    /// Marks a GPU for reading after a passed probe, if anybody receives telemetry.
    pub(super) fn want(&mut self, index: usize, facts: &GpuFacts) {
        if !self.to.is_closed() {
            self.wanted.insert(index, Target::of(facts));
        }
    }

    /// Starts all marked reads, except where one hangs.
    pub(super) fn ask(&mut self, now: Timestamp, probe_interval: Duration) {
        let until = now.saturating_add(probe_interval * LOOKS_VALID).unwrap_or(Timestamp::MAX);
        let frame = Sample { at: now, until, ..Sample::default() };
        let (wanted, open) = (std::mem::take(&mut self.wanted), &mut self.open);
        for (index, target) in wanted.into_iter().filter(|(index, _)| open.insert(*index)) {
            self.readings.spawn_blocking(move || Reading { index, samples: target.read(frame) });
        }
    }

    /// Next finished read; waits forever without a running one.
    pub(super) async fn next(&mut self) -> Reading {
        match self.readings.join_next().await {
            Some(read) => read.expect("reading neither panics nor is cancelled while this lives"),
            None => std::future::pending().await,
        }
    }

    pub(super) fn take(&mut self, reading: Reading, now: Timestamp) {
        self.open.remove(&reading.index);
        self.to.send_modify(|known| {
            let known = Arc::make_mut(known);
            // Drops instances of former layouts.
            known.retain(|_, sample| sample.until >= now);
            known.extend(reading.samples);
        });
    }
}

// === impl Target ===

impl Target {
    fn of(facts: &GpuFacts) -> Self {
        let (gpu, id, instances) = (&facts.gpu, &facts.id, facts.instances());
        Self { gpu: gpu.clone(), id: id.clone(), instances: instances.to_vec() }
    }

    fn read(self, frame: Sample) -> Vec<(DeviceId, Sample)> {
        let whole = (self.id, everything(&self.gpu, frame));
        let parts = self.instances.into_iter().filter_map(|part| {
            let device = self.gpu.mig_device(part.index).ok()?;
            let is_same = id_of(&device).is_ok_and(|id| id == part.id);
            // Instances measure only their memory.
            is_same.then(|| (part.id, memory(&device, frame)))
        });
        std::iter::once(whole).chain(parts).collect()
    }
}

/// All sensors of a GPU. A failing sensor counts as absent.
fn everything(gpu: &Gpu, frame: Sample) -> Sample {
    let busy = gpu.utilization().ok().flatten();
    Sample {
        compute_percent: busy.map(|busy| busy.compute_percent),
        memory_percent: busy.map(|busy| busy.memory_percent),
        temperature_celsius: gpu.temperature_celsius().ok().flatten(),
        power_milliwatts: gpu.power_milliwatts().ok().flatten(),
        energy_millijoules: gpu.energy_millijoules().ok().flatten(),
        ..memory(gpu, frame)
    }
}

fn memory(device: &Gpu, frame: Sample) -> Sample {
    let memory = device.memory().ok().flatten();
    Sample {
        memory_used_bytes: memory.map(|memory| memory.used),
        memory_bytes: memory.map(|memory| memory.total),
        ..frame
    }
}
