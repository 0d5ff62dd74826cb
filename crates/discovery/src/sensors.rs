//! Telemetry of scanned devices, read from sysfs at the probe interval on a separate thread.
//!
//! Telemetry is separate from the scan: a failing sensor does not make a device unhealthy, and the first device
//! list does not wait for sensors. Firmware answers reads of some files, and may hang. The sensors of a device are
//! not read again while a read hangs.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::Policy;
use windlass_core::{
    device::{Device, DeviceId},
    telemetry::Sample,
};
use windlass_host::{Host, clock::Clock, external::ScanPool};

use crate::{
    SourceSnapshot,
    telemetry::{self, Telemetry, TelemetryReceiver},
};

/// Reads all sensors of a device. May block.
pub(crate) type ReadSensors = fn(&Host, &Device) -> Sample;

/// Telemetry reader of one source's devices.
pub(crate) struct SensorReader {
    read: ReadSensors,
    host: Host,
    clock: Clock,
    devices: watch::Receiver<SourceSnapshot>,
    policies: watch::Receiver<Arc<Policy>>,
    sender: watch::Sender<Arc<Telemetry>>,
    pool: ScanPool<DeviceId, Sample>,
}

// === impl SensorReader ===

impl SensorReader {
    pub(crate) fn new(
        read: ReadSensors,
        host: Host,
        clock: Clock,
        devices: watch::Receiver<SourceSnapshot>,
        policies: watch::Receiver<Arc<Policy>>,
    ) -> Self {
        let (sender, pool) = (watch::Sender::default(), ScanPool::default());
        Self { read, host, clock, devices, policies, sender, pool }
    }

    pub(crate) fn telemetry(&self) -> TelemetryReceiver {
        self.sender.subscribe()
    }

    /// Reads the sensors after each change of the devices and at the probe interval, until stopped or until the last
    /// receiver is dropped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let interval = self.policies.borrow().health.probe_interval;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.sender.closed() => return,
                changed = self.devices.changed() => if changed.is_err() { return },
                () = sleep(interval) => {}
            }
            let devices = self.present_devices();
            if devices.is_empty() {
                continue;
            }
            let handle = spawn_blocking(move || self.take_samples(devices, interval));
            self = tokio::select! {
                () = stop.cancelled() => return,
                result = handle => result.expect("a read neither panics nor is cancelled"),
            };
        }
    }

    /// Devices with sensors to read. Unhealthy ones are included, because their sensors may show the reason.
    /// Partitions are not: they share the sensors of their GPU.
    fn present_devices(&mut self) -> Vec<Device> {
        let has_own_sensors =
            |device: &&Device| device.parent.is_none() && !device.health.has_vanished();
        let snapshot = self.devices.borrow_and_update();
        snapshot.devices.iter().filter(has_own_sensors).cloned().collect()
    }

    fn take_samples(mut self, devices: Vec<Device>, interval: Duration) -> Self {
        let ids: Vec<_> = devices.iter().map(|device| device.id.clone()).collect();
        let samples = devices.into_iter().filter_map(|device| {
            let (read, host, id) = (self.read, self.host.clone(), device.id.clone());
            let read_at = self.clock.now();
            let sample = self.pool.call(id.clone(), move || read(&host, &device)).ok()?;
            let is_empty = sample == Sample::default();
            (!is_empty).then_some((id, Sample { read_at, ..sample }))
        });
        let samples: Vec<_> = samples.collect();
        self.pool.end_scan(|id| ids.contains(id));
        // Hanging devices delay the reads; the samples of the others are valid from the end of all reads.
        let now = self.clock.now();
        let stale_at = telemetry::expires_at(now, interval);
        let samples = samples.into_iter().map(|(id, sample)| (id, Sample { stale_at, ..sample }));
        telemetry::publish(&self.sender, samples.collect(), now);
        self
    }
}
