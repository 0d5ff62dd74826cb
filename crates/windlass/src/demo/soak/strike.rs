//! Carries out what a schedule says: each blow falls, ends, and everything must be as it should be again.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};
use windlass_kubelet_sim::{Kubelet, Misbehaviour, NodeStatus, Registration, RegistrationFault};
use windlass_machine::{Fault, Happening, state::Gpu};

use super::{
    agent::{cdi_dir, state_dir},
    invariant::Broken,
    pods::{ADMISSION, ANSWER_LIMIT, CONTAINER},
    rig::{Found, RESOURCE},
    run::Run,
    schedule::{Blow, Break, Hangs},
};

/// How soon after a fault's end all must be as it should be: a `Register` that is not answered is given up
/// after fifteen seconds, a driver that hangs takes ten to be left behind, and a GPU that fails again and again has to
/// be quiet for 32 times as long as at first, which is a second here.
pub(super) const RECOVERY_LIMIT: Duration = Duration::from_secs(45);

/// How long what is away stays so.
const ABSENCE: Duration = Duration::from_millis(500);

/// How long an adapter that comes and goes is there, and is not.
const FLAP: Duration = Duration::from_millis(10);

/// More changes than inotify keeps notices of (`fs.inotify.max_queued_events` is 16,384 by default): each file
/// makes three, and two of them are told of.
const FILES: usize = 10_000;

/// "GPU has fallen off the bus".
const FALLEN_OFF: u64 = 79;

/// `NVML_ERROR_IRQ_ISSUE`.
const IRQ_ISSUE: u32 = 11;

// === impl Run ===

impl Run {
    /// Strikes, and waits for the recovery. What does not fit now, such as the reset of a GPU where none
    /// is broken, is left out.
    pub(super) async fn strike(&mut self, blow: &Blow) -> Result<()> {
        // What a claim let go a moment ago is told to be unhealthy still, which is no word on what breaks now.
        let begun = self.rig.settled(RECOVERY_LIMIT).await;
        let (before_it, after) = ("the steps before a fault", RECOVERY_LIMIT);
        begun.map_err(|left| Broken::NotBack { blow: before_it, after, left })?;
        let since = self.rig.kubelet.calls().now();
        let Some(ended) = self.befall(blow).await? else { return Ok(()) };
        let left = || RECOVERY_LIMIT.saturating_sub(ended.elapsed());
        let mut outcome = Ok(());
        if blow.takes_a_registration() {
            outcome = self.rig.registered_since(since, left()).await;
        }
        self.start_waiting().await?;
        if outcome.is_ok() {
            outcome = self.rig.settled(left()).await;
        }
        let after = ended.elapsed();
        outcome.map_err(|left| Broken::NotBack { blow: blow.kind(), after, left })?;
        self.tally.struck(blow.kind(), after);
        Ok(())
    }

    /// The moment from which things can only become better.
    async fn befall(&mut self, blow: &Blow) -> Result<Option<Instant>> {
        match *blow {
            Blow::AgentKilled => self.replace_agent().await?,
            Blow::AgentKilledAtWrite { gpus, after } => self.kill_at_write(gpus, after).await?,
            Blow::AgentKilledAtPrepare { gpus, after } => self.kill_at_prepare(gpus, after).await?,
            Blow::AgentFrozen { gpus, lasts } => self.freeze(gpus, lasts).await?,
            Blow::NoticesLost => self.lose_notices().await?,
            Blow::KubeletRestarts { times } => {
                for _ in 0..times {
                    self.rig.kubelet.restart().await?;
                }
            }
            Blow::PluginFolderRemoved => self.remove_plugin_folder().await?,
            Blow::PluginSocketsDeleted => self.delete_plugin_sockets()?,
            Blow::RegistrationSocketReplaced { times } => {
                self.rig.kubelet.replace_registration_socket(times)?;
            }
            Blow::RegistrationFails { hangs } => self.fail_registrations(hangs).await?,
            Blow::StreamCut => self.rig.kubelet.cancel_stream(RESOURCE).await,
            Blow::StateFolderBlocked { gpus } => self.block_state(gpus).await?,
            Blow::DiskFull { gpus } => self.fill_disk(gpus).await?,
            Blow::CdiFolderRemoved => self.remove_documents()?,
            Blow::DriverReplaced => self.replace_driver().await?,
            Blow::GpuBroken { which, how } => return self.break_gpu(which, how),
            Blow::DriverCrashes { which } => return self.crash(which).await,
            Blow::GpuReset { which } => return self.reset_gpu(which),
            Blow::GpuSlow { which, by } => return self.slow_gpu(which, by).await,
            Blow::XidStorm { which, events } => return self.storm(which, events).await,
            Blow::GpuRenumbered { which } => return self.renumber(which).await,
            Blow::NicFlaps { which, times } => return self.flap(which, times).await,
            Blow::Server { what, gpus } => return self.mischief(what, gpus).await,
        }
        Ok(Some(Instant::now()))
    }

    async fn replace_agent(&mut self) -> Result<()> {
        self.rig.agent_is_away();
        self.rig.agent.replace().await?;
        self.tally.agent_restarts += 1;
        self.rig.agent_runs();
        Ok(())
    }

    /// A pod is admitted, and the agent dies while it writes down what it needs to.
    async fn kill_at_write(&mut self, gpus: usize, after: Duration) -> Result<()> {
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        let outcome = self.kill_during(after, async |kubelet| kubelet.admit(pod).await).await;
        self.replace_agent().await?;
        // The kubelet's word counts: what it did not hear, it gives to the next.
        self.came(&uid, outcome).await
    }

    /// A claim is prepared, and the agent dies meanwhile; the next one has to know what it prepared.
    async fn kill_at_prepare(&mut self, gpus: usize, after: Duration) -> Result<()> {
        let Some(uid) = self.schedule(gpus).await? else { return self.replace_agent().await };
        let start = async |kubelet: &Kubelet| kubelet.start_container(&uid, CONTAINER).await;
        let outcome = self.kill_during(after, start).await;
        self.replace_agent().await?;
        self.answered(&uid, outcome)
    }

    /// Kills the agent so long after the first write to its folders during something that the kubelet does, and
    /// gives what came of that.
    async fn kill_during<T>(
        &mut self,
        after: Duration,
        work: impl AsyncFnOnce(&Kubelet) -> T,
    ) -> T {
        let before = written(self.rig.dir());
        let mut work = Box::pin(work(&self.rig.kubelet));
        let writes = async {
            while written(self.rig.dir()) == before {
                yield_now().await;
            }
            sleep(after).await;
        };
        let early = tokio::select! {
            outcome = &mut work => Some(outcome),
            () = writes => None,
        };
        self.rig.agent_is_away();
        self.rig.agent.kill().await;
        match early {
            Some(outcome) => outcome,
            None => work.await,
        }
    }

    async fn freeze(&mut self, gpus: usize, lasts: Duration) -> Result<()> {
        self.rig.agent_is_away();
        self.rig.agent.freeze();
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        let begun = Instant::now();
        let thaw = async {
            sleep(lasts).await;
            self.rig.agent.thaw();
        };
        let (outcome, ()) = tokio::join!(self.rig.kubelet.admit(pod), thaw);
        self.rig.agent_runs();
        super::invariant::in_time(ADMISSION, begun.elapsed(), lasts + ANSWER_LIMIT)?;
        self.came(&uid, outcome).await
    }

    async fn lose_notices(&mut self) -> Result<()> {
        self.rig.agent_is_away();
        self.rig.agent.freeze();
        let dir = self.rig.plugin_dir();
        let noise = crowd(&dir);
        let restarted = self.rig.kubelet.restart().await;
        self.rig.agent.thaw();
        self.rig.agent_runs();
        noise.context("cannot make files in the plugin folder")?;
        Ok(restarted?)
    }

    async fn remove_plugin_folder(&self) -> Result<()> {
        let dir = self.rig.plugin_dir();
        // The kubelet's record lies there too, and is not the agent's to lose: it comes back.
        let away = self.rig.move_away(&dir)?;
        sleep(ABSENCE).await;
        fs::rename(away, &dir).context("cannot put the plugin folder back")?;
        Ok(self.rig.kubelet.restart().await?)
    }

    fn delete_plugin_sockets(&self) -> Result<()> {
        let node = self.rig.kubelet.node();
        let endpoints = node.registrations.values().filter_map(|registration| match registration {
            Registration::Connected { endpoint, .. } => Some(endpoint),
            Registration::Stopped { .. } => None,
        });
        for endpoint in endpoints {
            fs::remove_file(endpoint)
                .with_context(|| format!("cannot delete {}", endpoint.display()))?;
        }
        Ok(())
    }

    async fn fail_registrations(&self, hangs: Hangs) -> Result<()> {
        let registration = match hangs {
            Hangs::No => RegistrationFault::Refuse("not now".to_owned()),
            Hangs::Yes => RegistrationFault::Hang,
        };
        self.rig.kubelet.misbehave(Misbehaviour { registration, ..Misbehaviour::default() });
        self.rig.kubelet.restart().await?;
        sleep(ABSENCE).await;
        self.rig.kubelet.misbehave(Misbehaviour::default());
        Ok(())
    }

    async fn block_state(&mut self, gpus: usize) -> Result<()> {
        let dir = state_dir(self.rig.dir());
        let away = self.rig.move_away(&dir)?;
        File::create(&dir).context("cannot block the state folder")?;
        let tried = self.try_both(gpus).await;
        fs::remove_file(&dir).context("cannot clear the way to the state folder")?;
        fs::rename(away, &dir).context("cannot put the state folder back")?;
        tried
    }

    async fn fill_disk(&mut self, gpus: usize) -> Result<()> {
        self.rig.agent.let_files_grow_to(Some(0)).context("cannot limit the agent's files")?;
        let tried = self.try_both(gpus).await;
        self.rig.agent.let_files_grow_to(None).context("cannot free the agent's files")?;
        tried
    }

    /// A pod of each sort comes while the agent cannot write.
    async fn try_both(&mut self, gpus: usize) -> Result<()> {
        self.try_one(gpus).await?;
        self.try_claim(gpus).await.map(drop)
    }

    fn remove_documents(&self) -> Result<()> {
        match fs::remove_dir_all(cdi_dir(self.rig.dir())) {
            // The agent was quicker.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => outcome.context("cannot remove the CDI folder"),
        }
    }

    async fn replace_driver(&self) -> Result<()> {
        let gpus = self.rig.gpus()?;
        for found in &gpus {
            self.rig.breaks(&found.gpu.uuid);
        }
        self.rig.machine.remove_driver()?;
        sleep(ABSENCE).await;
        for found in gpus.iter().filter(|found| !found.is_broken) {
            self.rig.is_mended(&found.gpu.uuid);
        }
        Ok(self.rig.machine.install_driver()?)
    }

    /// At most half of the GPUs are broken at once: pods need some.
    fn break_gpu(&self, which: usize, how: Break) -> Result<Option<Instant>> {
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
    async fn crash(&mut self, which: usize) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        self.rig.agent_is_away();
        self.rig.machine.inject(&Fault::Crash { gpu })?;
        let ended = self.rig.agent.ends_within(RECOVERY_LIMIT).await;
        ended.context("the driver's library did not end the agent")?;
        self.replace_agent().await?;
        Ok(Some(Instant::now()))
    }

    fn reset_gpu(&self, which: usize) -> Result<Option<Instant>> {
        let broken = self.rig.gpus()?.into_iter().filter(|found| found.is_broken).collect();
        let Some(found) = one_of(broken, which) else { return Ok(None) };
        self.rig.is_mended(&found.gpu.uuid);
        self.rig.machine.inject(&Fault::Recover { gpu: found.index })?;
        Ok(Some(Instant::now()))
    }

    /// A GPU that is late is no broken one.
    async fn slow_gpu(&self, which: usize, by: Duration) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let millis = u32::try_from(by.as_millis()).unwrap_or(u32::MAX);
        self.rig.machine.inject(&Fault::Slow { gpu, millis })?;
        sleep(ABSENCE).await;
        self.rig.machine.inject(&Fault::Slow { gpu, millis: 0 })?;
        Ok(Some(Instant::now()))
    }

    /// The GPU is to be set aside at once, and to be trusted again some time after the last event.
    async fn storm(&self, which: usize, events: usize) -> Result<Option<Instant>> {
        let Some(Found { index: gpu, gpu: found, .. }) = self.usable_gpu(which)? else {
            return Ok(None);
        };
        // While NVML is initialised again for a broken GPU nobody hears events.
        if self.is_any_broken()? {
            return Ok(None);
        }
        let xid = Fault::Xid { gpu, code: FALLEN_OFF };
        let mut told = Ok(());
        self.rig.machine.update(|model| told = (0..events).try_for_each(|_| model.apply(&xid)))?;
        told.context("cannot tell of errors")?;
        let ended = Instant::now();
        let is_told = |node: &NodeStatus| {
            let resource = node.resources.get(RESOURCE);
            let device = resource.and_then(|resource| resource.devices.get(&found.uuid));
            device.is_some_and(|device| !device.is_healthy())
        };
        let seen = self.rig.kubelet.wait_for(is_told, RECOVERY_LIMIT).await;
        let (device, after) = (found.uuid.clone(), ended.elapsed());
        seen.map_err(|_| Broken::Unnoticed { device, after })?;
        Ok(Some(ended))
    }

    async fn renumber(&self, which: usize) -> Result<Option<Instant>> {
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

    /// An adapter comes and goes while the agent walks sysfs, so that it sees half of it.
    async fn flap(&self, which: usize, times: usize) -> Result<Option<Instant>> {
        let nics = self.rig.machine.model()?.nics;
        let Some(nic) = one_of(nics, which) else { return Ok(None) };
        let name = nic.path.address().to_string();
        for _ in 0..times {
            for what in [Happening::Unplug, Happening::Plug] {
                self.rig.machine.inject(&Fault::ToDevice { name: name.clone(), what })?;
                sleep(FLAP).await;
            }
        }
        Ok(Some(Instant::now()))
    }

    /// Two faults at once that the agent does not survive as it should are kept apart: the gaps of
    /// docs/reliability.md.
    fn is_any_broken(&self) -> Result<bool> {
        Ok(self.rig.gpus()?.iter().any(|found| found.is_broken))
    }

    fn usable_gpu(&self, which: usize) -> Result<Option<Found>> {
        let usable = self.rig.gpus()?.into_iter().filter(|found| !found.is_broken).collect();
        Ok(one_of(usable, which))
    }
}

fn one_of<T>(mut all: Vec<T>, which: usize) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(which % all.len()))
}

/// When something was last written in the agent's folders.
fn written(folder: &Path) -> Vec<Option<SystemTime>> {
    let changed = |dir: &Path| fs::metadata(dir).and_then(|data| data.modified()).ok();
    [cdi_dir(folder), state_dir(folder)].iter().map(|dir| changed(dir)).collect()
}

/// Many files come and go.
fn crowd(dir: &Path) -> io::Result<()> {
    let file = dir.join("crowd");
    for _ in 0..FILES {
        File::create(&file)?;
        fs::remove_file(&file)?;
    }
    Ok(())
}
