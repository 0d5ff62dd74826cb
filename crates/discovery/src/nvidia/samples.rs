//! GPU telemetry, read after each passed probe on a separate thread.
//!
//! Telemetry is separate from the probe: a failing sensor does not make a GPU unhealthy, and the first device list
//! does not wait for sensors. While a read hangs, its GPU is not read again. Values that the probe has read for health
//! are reused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::{sync::watch, task::JoinSet};
use windlass_core::{
    device::DeviceId,
    telemetry::{NvLinkSample, RemappedRows, Sample, ThrottleReason},
};
use windlass_nvml::{FieldValues, Gpu, NvLinkCounters, RowRemapping, Slowdown, SlowdownCause};

use super::{conditions::ProbeReadings, facts::InstanceFacts, probe::ProbeReport};
use crate::{
    mig::id_of,
    telemetry::{self, Telemetry},
};

/// Telemetry reader and publisher.
pub(super) struct TelemetryReader {
    sender: watch::Sender<Arc<Telemetry>>,
    /// GPUs that answered a probe and have not been read since, by index.
    pending: BTreeMap<usize, ReadTarget>,
    /// Indices of GPUs with a running read.
    running: BTreeSet<usize>,
    running_reads: JoinSet<Reading>,
    /// Last energy counter of each GPU.
    energy: BTreeMap<DeviceId, Energy>,
}

#[derive(Clone, Copy)]
struct Energy {
    millijoules: Option<u64>,
    read_at: Timestamp,
}

pub(super) struct Reading {
    index: usize,
    samples: Vec<(DeviceId, Sample)>,
    energy: (DeviceId, Energy),
}

/// A GPU and its instances to read, with the readings of the probe. An instance is read only if its index still has
/// its UUID.
struct ReadTarget {
    gpu: Gpu,
    id: DeviceId,
    instances: Vec<InstanceFacts>,
    readings: ProbeReadings,
    links: LinkCounts,
    energy: Option<Energy>,
}

/// Number of NVLinks that are up, and of NVLinks that were up and are down.
struct LinkCounts {
    up: usize,
    down: usize,
}

const KIB: u64 = 1024;

/// Minimum age of an energy counter before it is read again. A read takes 3 to 5 ms of CPU, more than all other
/// sensors together (H100, driver 580).
const ENERGY_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

// === impl TelemetryReader ===

impl TelemetryReader {
    pub(super) fn new(sender: watch::Sender<Arc<Telemetry>>) -> Self {
        let (pending, running, running_reads, energy) = Default::default();
        Self { sender, pending, running, running_reads, energy }
    }

    /// Queues a GPU for reading after a probe that it answered, if telemetry has a receiver.
    pub(super) fn enqueue(&mut self, index: usize, report: &ProbeReport) {
        if !self.sender.is_closed() {
            let energy = self.energy.get(&report.facts.id).copied();
            self.pending.insert(index, ReadTarget::from_report(report, energy));
        }
    }

    /// Starts the reads of all queued GPUs, except of GPUs whose last read still runs.
    pub(super) fn start_reads(&mut self, now: Timestamp, probe_interval: Duration) {
        let stale_at = telemetry::expires_at(now, probe_interval);
        let (pending, running) = (std::mem::take(&mut self.pending), &mut self.running);
        for (index, target) in pending.into_iter().filter(|(index, _)| running.insert(*index)) {
            self.running_reads.spawn_blocking(move || target.read(index, now, stale_at));
        }
    }

    /// Next finished read; waits forever without a running one.
    pub(super) async fn next(&mut self) -> Reading {
        match self.running_reads.join_next().await {
            Some(result) => {
                result.expect("a read neither panics nor is cancelled while the reader lives")
            }
            None => std::future::pending().await,
        }
    }

    pub(super) fn apply(&mut self, reading: Reading, now: Timestamp) {
        self.running.remove(&reading.index);
        self.energy.extend([reading.energy]);
        telemetry::publish(&self.sender, reading.samples, now);
    }
}

// === impl ReadTarget ===

impl ReadTarget {
    fn from_report(report: &ProbeReport, energy: Option<Energy>) -> Self {
        let ProbeReport { facts, readings, .. } = report;
        Self {
            gpu: facts.gpu.clone(),
            id: facts.id.clone(),
            instances: facts.instances().to_vec(),
            readings: *readings,
            links: LinkCounts { up: facts.links.up.len(), down: facts.links.lost.len() },
            energy,
        }
    }

    fn read(self, index: usize, read_at: Timestamp, stale_at: Timestamp) -> Reading {
        let energy = self.energy(read_at);
        let gpu_sample = Sample { energy_millijoules: energy.millijoules, ..self.sample() };
        let gpu_sample = (self.id.clone(), gpu_sample);
        let instance_samples = self.instances.into_iter().filter_map(|instance| {
            let device = self.gpu.mig_device(instance.index).ok()?;
            let is_same = id_of(&device).is_ok_and(|id| id == instance.id);
            // Instances measure only their memory.
            is_same.then(|| (instance.id, memory(&device)))
        });
        let device_samples = std::iter::once(gpu_sample).chain(instance_samples);
        let samples = device_samples
            .map(|(id, sample)| (id, Sample { read_at, stale_at, ..sample }))
            .collect();
        Reading { index, samples, energy: (self.id, energy) }
    }

    /// The energy counter, read again if it is old.
    fn energy(&self, now: Timestamp) -> Energy {
        let is_current = |energy: &Energy| now.duration_since(energy.read_at) < ENERGY_INTERVAL;
        self.energy.filter(is_current).unwrap_or_else(|| Energy {
            millijoules: self.gpu.energy_millijoules().ok().flatten(),
            read_at: now,
        })
    }

    /// All sensors of the GPU but the energy counter. A failing sensor counts as absent.
    fn sample(&self) -> Sample {
        let (gpu, ProbeReadings { uncorrected_errors, rows, slowdown }) =
            (&self.gpu, self.readings);
        let utilization = gpu.utilization().ok().flatten();
        let link = gpu.pcie_link().ok().flatten();
        let FieldValues { memory_celsius, corrected_errors, pcie_replays, nvlink } =
            gpu.field_values().unwrap_or_default();
        Sample {
            compute_percent: utilization.map(|utilization| utilization.compute_percent),
            memory_percent: utilization.map(|utilization| utilization.memory_percent),
            temperature_celsius: gpu.temperature_celsius().ok().flatten(),
            memory_temperature_celsius: memory_celsius,
            power_milliwatts: gpu.power_milliwatts().ok().flatten().map(u64::from),
            power_limit_milliwatts: gpu.power_limit_milliwatts().ok().flatten().map(u64::from),
            compute_clock_hertz: gpu.compute_clock_mhz().ok().flatten().map(hertz),
            memory_clock_hertz: gpu.memory_clock_mhz().ok().flatten().map(hertz),
            throttled: slowdown.map(throttle_reasons),
            pcie_generation: link.map(|link| link.generation),
            pcie_width: link.map(|link| link.width),
            pcie_replays,
            // A GPU without ECC reports 0 corrected errors under some drivers.
            corrected_errors: corrected_errors.filter(|_| uncorrected_errors.is_some()),
            uncorrected_errors,
            remapped_rows: rows.map(remapped_rows),
            nvlinks: self.links.to_sample(nvlink),
            ..memory(gpu)
        }
    }
}

// === impl LinkCounts ===

impl LinkCounts {
    /// Sample of the links; `None` if no link was ever up, as without NVLink or in MIG mode.
    fn to_sample(&self, counters: NvLinkCounters) -> Option<NvLinkSample> {
        let bytes = |kib: u64| kib.saturating_mul(KIB);
        (self.up + self.down > 0).then_some(NvLinkSample {
            up: self.up,
            down: self.down,
            sent_bytes: counters.sent_kib.map(bytes),
            received_bytes: counters.received_kib.map(bytes),
            crc_flit_errors: counters.crc_flit_errors,
            crc_data_errors: counters.crc_data_errors,
            replays: counters.replays,
            recoveries: counters.recoveries,
        })
    }
}

fn memory(device: &Gpu) -> Sample {
    let memory = device.memory().ok().flatten();
    Sample {
        memory_used_bytes: memory.map(|memory| memory.used),
        memory_bytes: memory.map(|memory| memory.total),
        ..Sample::default()
    }
}

fn hertz(megahertz: u32) -> u64 {
    u64::from(megahertz) * 1_000_000
}

fn throttle_reasons(slowdown: Slowdown) -> BTreeSet<ThrottleReason> {
    let reasons = [
        (SlowdownCause::Hardware, ThrottleReason::HwSlowdown),
        (SlowdownCause::HardwareThermal, ThrottleReason::HwThermal),
        (SlowdownCause::SoftwareThermal, ThrottleReason::SwThermal),
        (SlowdownCause::PowerCap, ThrottleReason::PowerCap),
        (SlowdownCause::PowerBrake, ThrottleReason::PowerBrake),
    ];
    reasons
        .into_iter()
        .filter(|(cause, _)| slowdown.is_by(*cause))
        .map(|(_, reason)| reason)
        .collect()
}

fn remapped_rows(rows: RowRemapping) -> RemappedRows {
    let RowRemapping { corrected, uncorrected, pending, failed } = rows;
    RemappedRows { corrected, uncorrected, pending, failed }
}
