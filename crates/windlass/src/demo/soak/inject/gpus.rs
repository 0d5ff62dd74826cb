//! Faults of GPUs and of their driver.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, interval, sleep};
use windlass_kubelet_sim::NodeStatus;
use windlass_machine::{self as machine, Model, state::Gpu};

use super::{
    super::{
        invariant::Violation,
        rig::{GPU_RESOURCE, IndexedGpu},
        run::SoakRun,
        schedule::GpuFailure,
    },
    RECOVERY_LIMIT, SHORT_FAULT, pick,
};

const STORM_DURATION: Duration = Duration::from_secs(1);

/// XID: "GPU has fallen off the bus".
const XID_FALLEN_OFF_BUS: u64 = 79;

/// `NVML_ERROR_IRQ_ISSUE`.
const IRQ_ISSUE: u32 = 11;

// === impl SoakRun ===

impl SoakRun {
    pub(super) async fn replace_driver(&self) -> Result<()> {
        let gpus = self.rig.gpus()?;
        for indexed_gpu in &gpus {
            self.rig.mark_broken(&indexed_gpu.gpu.uuid);
        }
        self.rig.machine.remove_driver()?;
        self.wait_for_no_healthy().await?;
        for indexed_gpu in gpus.iter().filter(|indexed_gpu| !indexed_gpu.is_broken) {
            self.rig.mark_repaired(&indexed_gpu.gpu.uuid);
        }
        Ok(self.rig.machine.install_driver()?)
    }

    /// Waits until no GPU is reported healthy: there is no driver.
    async fn wait_for_no_healthy(&self) -> Result<()> {
        let none_is_healthy = |node: &NodeStatus| {
            let resource = node.resources.get(GPU_RESOURCE);
            resource
                .is_none_or(|resource| resource.devices.values().all(|device| !device.is_healthy()))
        };
        let result = self.rig.kubelet.wait_for(none_is_healthy, RECOVERY_LIMIT).await;
        let result = result.map_err(|_| "GPUs are reported healthy".to_owned());
        result.map_err(Violation::not_recovered("driver removed", RECOVERY_LIMIT))?;
        Ok(())
    }

    /// Breaks a GPU, unless half of them are broken: pods need the others.
    pub(in super::super) fn break_gpu(
        &self,
        which: usize,
        how: GpuFailure,
    ) -> Result<Option<Instant>> {
        let gpus = self.rig.gpus()?;
        let broken = gpus.iter().filter(|indexed_gpu| indexed_gpu.is_broken).count();
        let Some(IndexedGpu { index, gpu, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        if broken >= gpus.len() / 2 {
            return Ok(None);
        }
        self.rig.machine.inject(&match how {
            GpuFailure::Lost => machine::Fault::Lost { gpu: index },
            GpuFailure::Hang => machine::Fault::Hang { gpu: index },
            GpuFailure::Error => machine::Fault::Error { gpu: index, code: IRQ_ISSUE },
            GpuFailure::Garbage => machine::Fault::Garbage { gpu: index },
        })?;
        self.rig.mark_broken(&gpu.uuid);
        Ok(Some(Instant::now()))
    }

    /// Makes the driver crash the agent at its next call, and starts a new process.
    pub(super) async fn crash_driver(&mut self, which: usize) -> Result<Option<Instant>> {
        let Some(IndexedGpu { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        self.rig.mark_agent_stopped();
        self.rig.machine.inject(&machine::Fault::Crash { gpu })?;
        let exit = self.rig.agent.process.wait_for_exit(RECOVERY_LIMIT).await;
        exit.context("the driver's library did not end the agent")?;
        self.replace_agent().await?;
        Ok(Some(Instant::now()))
    }

    pub(super) fn reset_gpu(&self, which: usize) -> Result<Option<Instant>> {
        let broken =
            self.rig.gpus()?.into_iter().filter(|indexed_gpu| indexed_gpu.is_broken).collect();
        let Some(indexed_gpu) = pick(broken, which) else { return Ok(None) };
        self.rig.add_maybe_unhealthy(&indexed_gpu.gpu.uuid);
        self.rig.mark_repaired(&indexed_gpu.gpu.uuid);
        self.rig.machine.inject(&machine::Fault::Recover { gpu: indexed_gpu.index })?;
        Ok(Some(Instant::now()))
    }

    /// Slows a GPU down; a slow GPU is healthy.
    pub(super) async fn slow_gpu(&self, which: usize, delay: Duration) -> Result<Option<Instant>> {
        let Some(IndexedGpu { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let millis = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
        self.rig.machine.inject(&machine::Fault::Slow { gpu, millis })?;
        sleep(SHORT_FAULT).await;
        self.rig.machine.inject(&machine::Fault::Slow { gpu, millis: 0 })?;
        Ok(Some(Instant::now()))
    }

    /// Stops the agent for longer than the call deadline, while a probe waits for a slow GPU. The GPU has to stay
    /// healthy, because the agent did not run in that time.
    pub(super) async fn freeze_in_calls(
        &mut self,
        which: usize,
        delay: Duration,
        gpus: usize,
        duration: Duration,
    ) -> Result<Option<Instant>> {
        let Some(IndexedGpu { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let millis = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
        self.rig.machine.inject(&machine::Fault::Slow { gpu, millis })?;
        // Within this time a probe starts and makes several calls.
        sleep(SHORT_FAULT).await;
        self.rig.mark_agent_stopped();
        self.rig.agent.freeze();
        self.rig.machine.inject(&machine::Fault::Slow { gpu, millis: 0 })?;
        self.freeze(gpus, duration).await?;
        Ok(Some(Instant::now()))
    }

    /// Sends bursts of XIDs. The GPU has to become unhealthy at once and to recover some time after the last event.
    pub(super) async fn send_xid_storm(
        &self,
        which: usize,
        bursts: u32,
        events: usize,
    ) -> Result<Option<Instant>> {
        let Some(IndexedGpu { index, gpu, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        // While NVML is initialised again for a broken GPU, events are lost.
        if self.has_broken_gpu()? {
            return Ok(None);
        }
        let xid = machine::Fault::Xid { gpu: index, code: XID_FALLEN_OFF_BUS };
        self.rig.add_maybe_unhealthy(&gpu.uuid);
        self.rig.mark_broken(&gpu.uuid);
        let mut ticks = interval(STORM_DURATION / bursts);
        for _ in 0..bursts {
            ticks.tick().await;
            let mut outcome = Ok(());
            let add = |model: &mut Model| outcome = (0..events).try_for_each(|_| model.apply(&xid));
            self.rig.machine.update(add)?;
            outcome.context("cannot add XID events")?;
        }
        let storm_end = Instant::now();
        self.wait_for_unhealthy(&gpu.uuid).await?;
        self.rig.mark_repaired(&gpu.uuid);
        Ok(Some(storm_end))
    }

    pub(super) async fn renumber_gpu(&self, which: usize) -> Result<Option<Instant>> {
        let Some(IndexedGpu { index, gpu, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        // While a call hangs, NVML cannot be initialised again and keeps its old list.
        if self.has_broken_gpu()? {
            return Ok(None);
        }
        self.rig.mark_broken(&gpu.uuid);
        self.rig.machine.update(|model| _ = model.gpus.remove(index))?;
        let result = self.rig.wait_until_settled(RECOVERY_LIMIT).await;
        result.map_err(Violation::not_recovered("GPU vanished", RECOVERY_LIMIT))?;
        self.rig.mark_repaired(&gpu.uuid);
        self.rig.machine.update(|model| {
            let highest = model.gpus.iter().map(|other| other.minor).max().unwrap_or(0);
            let minor = highest.max(gpu.minor) + 1;
            // NVML orders GPUs by PCI address; the kernel module's list names them by it.
            model.gpus.insert(index, Gpu { minor, ..gpu.clone() });
        })?;
        Ok(Some(Instant::now()))
    }

    /// True if a GPU is broken. Callers then skip faults whose combination is a gap in docs/reliability.md.
    fn has_broken_gpu(&self) -> Result<bool> {
        Ok(self.rig.gpus()?.iter().any(|indexed_gpu| indexed_gpu.is_broken))
    }

    pub(in super::super) fn usable_gpu(&self, which: usize) -> Result<Option<IndexedGpu>> {
        let usable =
            self.rig.gpus()?.into_iter().filter(|indexed_gpu| !indexed_gpu.is_broken).collect();
        Ok(pick(usable, which))
    }
}
