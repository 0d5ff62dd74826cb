//! What happens to GPUs, and to their driver.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, interval, sleep};
use windlass_kubelet_sim::NodeStatus;
use windlass_machine::{Fault, Model, state::Gpu};

use super::{
    super::{
        invariant::Broken,
        rig::{Found, RESOURCE},
        run::Run,
        schedule::Break,
    },
    ABSENCE, RECOVERY_LIMIT, one_of,
};

/// How long the events of a storm come.
const STORM_LASTS: Duration = Duration::from_secs(1);

/// "GPU has fallen off the bus".
const FALLEN_OFF: u64 = 79;

/// `NVML_ERROR_IRQ_ISSUE`.
const IRQ_ISSUE: u32 = 11;

// === impl Run ===

impl Run {
    pub(super) async fn replace_driver(&self) -> Result<()> {
        let gpus = self.rig.gpus()?;
        for found in &gpus {
            self.rig.breaks(&found.gpu.uuid);
        }
        self.rig.machine.remove_driver()?;
        self.none_is_healthy().await?;
        for found in gpus.iter().filter(|found| !found.is_broken) {
            self.rig.is_mended(&found.gpu.uuid);
        }
        Ok(self.rig.machine.install_driver()?)
    }

    /// Without a driver no GPU is told to be healthy.
    async fn none_is_healthy(&self) -> Result<()> {
        let is_so = |node: &NodeStatus| {
            let resource = node.resources.get(RESOURCE);
            resource.is_none_or(|it| it.devices.values().all(|device| !device.is_healthy()))
        };
        let seen = self.rig.kubelet.wait_for(is_so, RECOVERY_LIMIT).await;
        let (blow, after, left) = ("driver removed", RECOVERY_LIMIT, "GPUs are told to be healthy");
        seen.map(drop).map_err(|_| Broken::NotBack { blow, after, left: left.to_owned() }.into())
    }

    /// At most half of the GPUs are broken at once: pods need some.
    pub(in super::super) fn break_gpu(&self, which: usize, how: Break) -> Result<Option<Instant>> {
        let gpus = self.rig.gpus()?;
        let broken = gpus.iter().filter(|found| found.is_broken).count();
        let Some(Found { index: gpu, gpu: found, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        if broken >= gpus.len() / 2 {
            return Ok(None);
        }
        self.rig.machine.inject(&match how {
            Break::Lost => Fault::Lost { gpu },
            Break::Hang => Fault::Hang { gpu },
            Break::Error => Fault::Error { gpu, code: IRQ_ISSUE },
            Break::Garbage => Fault::Garbage { gpu },
        })?;
        self.rig.breaks(&found.uuid);
        Ok(Some(Instant::now()))
    }

    /// The agent ends by itself, at the next probe at the latest, and its next process is not ended.
    pub(super) async fn crash(&mut self, which: usize) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        self.rig.agent_is_away();
        self.rig.machine.inject(&Fault::Crash { gpu })?;
        let ended = self.rig.agent.ends_within(RECOVERY_LIMIT).await;
        ended.context("the driver's library did not end the agent")?;
        self.replace_agent().await?;
        Ok(Some(Instant::now()))
    }

    pub(super) fn reset_gpu(&self, which: usize) -> Result<Option<Instant>> {
        let broken = self.rig.gpus()?.into_iter().filter(|found| found.is_broken).collect();
        let Some(found) = one_of(broken, which) else { return Ok(None) };
        self.rig.doubt(&found.gpu.uuid);
        self.rig.is_mended(&found.gpu.uuid);
        self.rig.machine.inject(&Fault::Recover { gpu: found.index })?;
        Ok(Some(Instant::now()))
    }

    /// A GPU that is late is no broken one.
    pub(super) async fn slow_gpu(&self, which: usize, by: Duration) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let millis = u32::try_from(by.as_millis()).unwrap_or(u32::MAX);
        self.rig.machine.inject(&Fault::Slow { gpu, millis })?;
        sleep(ABSENCE).await;
        self.rig.machine.inject(&Fault::Slow { gpu, millis: 0 })?;
        Ok(Some(Instant::now()))
    }

    /// The agent is frozen while a probe waits for a GPU, for longer than it would wait for one that hangs: the GPU is
    /// not told to be unhealthy, which was never asked for that long by an agent that ran.
    pub(super) async fn freeze_in_calls(
        &mut self,
        which: usize,
        by: Duration,
        (gpus, lasts): (usize, Duration),
    ) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let millis = u32::try_from(by.as_millis()).unwrap_or(u32::MAX);
        self.rig.machine.inject(&Fault::Slow { gpu, millis })?;
        // A probe begins within this time, and makes several calls.
        sleep(ABSENCE).await;
        self.rig.agent_is_away();
        self.rig.agent.freeze();
        self.rig.machine.inject(&Fault::Slow { gpu, millis: 0 })?;
        self.freeze(gpus, lasts).await?;
        Ok(Some(Instant::now()))
    }

    /// The GPU is to be set aside at once, not to be trusted while events come, and to be trusted again some time
    /// after the last one.
    pub(super) async fn storm(
        &self,
        which: usize,
        (bursts, events): (u32, usize),
    ) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, gpu: found, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        // While NVML is initialised again for a broken GPU nobody hears events.
        if self.is_any_broken()? {
            return Ok(None);
        }
        let xid = Fault::Xid { gpu, code: FALLEN_OFF };
        self.rig.doubt(&found.uuid);
        self.rig.breaks(&found.uuid);
        let mut ticks = interval(STORM_LASTS / bursts);
        for _ in 0..bursts {
            ticks.tick().await;
            let mut told = Ok(());
            let tell = |model: &mut Model| told = (0..events).try_for_each(|_| model.apply(&xid));
            self.rig.machine.update(tell)?;
            told.context("cannot tell of errors")?;
        }
        let ended = Instant::now();
        let is_told = |node: &NodeStatus| {
            let resource = node.resources.get(RESOURCE);
            let device = resource.and_then(|resource| resource.devices.get(&found.uuid));
            device.is_some_and(|device| !device.is_healthy())
        };
        let seen = self.rig.kubelet.wait_for(is_told, RECOVERY_LIMIT).await;
        let (device, after) = (found.uuid.clone(), ended.elapsed());
        seen.map_err(|_| Broken::Unnoticed { device, after })?;
        self.rig.is_mended(&found.uuid);
        Ok(Some(ended))
    }

    pub(super) async fn renumber(&self, which: usize) -> Result<Option<Instant>> {
        let Some(Found { index, gpu: found, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        // NVML cannot be initialised anew under a call that hangs, and lists what was there before.
        if self.is_any_broken()? {
            return Ok(None);
        }
        self.rig.breaks(&found.uuid);
        self.rig.machine.update(|model| _ = model.gpus.remove(index))?;
        let gone = self.rig.settled(RECOVERY_LIMIT).await;
        let after = RECOVERY_LIMIT;
        gone.map_err(|left| Broken::NotBack { blow: "GPU vanished", after, left })?;
        self.rig.is_mended(&found.uuid);
        self.rig.machine.update(|model| {
            let highest = model.gpus.iter().map(|gpu| gpu.minor).max().unwrap_or(0);
            let minor = highest.max(found.minor) + 1;
            // NVML's order is that of PCI addresses, of which the kernel module's list makes names for the nameless.
            model.gpus.insert(index, Gpu { minor, ..found.clone() });
        })?;
        Ok(Some(Instant::now()))
    }

    /// Two faults at once that the agent does not survive as it should are kept apart: the gaps of
    /// docs/reliability.md.
    fn is_any_broken(&self) -> Result<bool> {
        Ok(self.rig.gpus()?.iter().any(|found| found.is_broken))
    }

    pub(in super::super) fn usable_gpu(&self, which: usize) -> Result<Option<Found>> {
        let usable = self.rig.gpus()?.into_iter().filter(|found| !found.is_broken).collect();
        Ok(one_of(usable, which))
    }
}
