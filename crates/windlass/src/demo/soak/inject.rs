//! Injection of faults, with a check of the recovery.

mod gpus;
mod kills;
mod notices;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};
use windlass_kubelet_sim::{Faults, PluginStatus, PodSourceFault, RegistrationFault};
use windlass_machine::{self as machine, DeviceEvent};

use super::{
    super::testbed::cdi_dir,
    agent::state_dir,
    invariant::{MaybeUnhealthy, Violation},
    pods::{ADMISSION, ADMISSION_LIMIT},
    rig::{AGENT_POD_UID, GPU_RESOURCE},
    run::SoakRun,
    schedule::{Fault, RegistrationFailure},
    stopwatch::Stopwatch,
};

/// Deadline of a recovery. The agent gives up an unanswered `Register` after 15 seconds, and a hanging driver after
/// ten. A GPU that fails repeatedly waits up to 32 quiet periods (five doublings) of a second.
pub(super) const RECOVERY_LIMIT: Duration = Duration::from_secs(45);

/// Duration of a short fault: a folder is missing, registrations fail.
pub(super) const SHORT_FAULT: Duration = Duration::from_millis(500);

/// Time without the API server, longer than three checks of the agent, ten seconds apart. After those, the agent frees
/// a device that pod resources omit, unless the kubelet's checkpoint lists it.
const ISOLATION_TIME: Duration = Duration::from_secs(40);

/// Time between removal and addition of a NIC.
const FLAP_INTERVAL: Duration = Duration::from_millis(10);

// === impl SoakRun ===

impl SoakRun {
    /// Injects a fault and waits for the recovery. Skips a fault that does not apply, such as the reset of a GPU
    /// while none is broken.
    pub(super) async fn inject(&mut self, fault: &Fault) -> Result<()> {
        // The agent reports recently released devices as unhealthy. Wait for their recovery: it would look like the
        // recovery from the fault.
        let result = self.rig.wait_until_settled(RECOVERY_LIMIT).await;
        result.map_err(Violation::not_recovered("the steps before a fault", RECOVERY_LIMIT))?;
        let since = self.rig.kubelet.events().next_sequence();
        self.rig.set_maybe_unhealthy(fault.maybe_unhealthy());
        let recovery_start = self.apply(fault).await?;
        let outcome = match recovery_start {
            Some(start) => self.wait_for_recovery(fault, since, start).await,
            None => Ok(()),
        };
        self.rig.set_maybe_unhealthy(MaybeUnhealthy::Only(BTreeSet::new()));
        outcome
    }

    /// Waits until kubelet and agent are settled again, and records the duration of the recovery.
    async fn wait_for_recovery(&mut self, fault: &Fault, since: u64, start: Instant) -> Result<()> {
        let remaining = || RECOVERY_LIMIT.saturating_sub(start.elapsed());
        let mut outcome = Ok(());
        if fault.needs_registration() {
            outcome = self.rig.wait_for_registration(since, remaining()).await;
        }
        self.start_waiting().await?;
        if outcome.is_ok() {
            outcome = self.rig.wait_until_settled(remaining()).await;
        }
        let after = start.elapsed();
        outcome.map_err(Violation::not_recovered(fault.kind(), after))?;
        self.tally.record_fault(fault.kind(), after);
        self.baseline.set_if_missing(Instant::now(), self.rig.agent.process.usage());
        Ok(())
    }

    /// Applies the fault; returns the time at which recovery starts, or `None` if it does not apply.
    async fn apply(&mut self, fault: &Fault) -> Result<Option<Instant>> {
        match *fault {
            Fault::AgentKilled => self.replace_agent().await?,
            Fault::AgentKilledAtAdmission { gpus, after } => {
                return self.kill_at_admission(gpus, after).await;
            }
            Fault::AgentKilledAtPrepare { gpus, after } => {
                return self.kill_at_prepare(gpus, after).await;
            }
            Fault::RecordLost => self.lose_record().await?,
            Fault::AgentFrozen { gpus, duration } => self.freeze(gpus, duration).await?,
            Fault::AgentFrozenInCalls { which, delay, gpus, duration } => {
                return self.freeze_in_calls(which, delay, gpus, duration).await;
            }
            Fault::NoticesLost => return self.overflow_inotify().await,
            Fault::KubeletCutOff => self.isolate_kubelet().await?,
            Fault::KubeletRestarts { times } => {
                for _ in 0..times {
                    self.rig.kubelet.restart().await?;
                }
            }
            Fault::PluginFolderRemoved => self.remove_plugin_folder().await?,
            Fault::PluginSocketsDeleted => self.delete_plugin_sockets()?,
            Fault::RegistrationSocketReplaced { times } => {
                self.rig.kubelet.replace_registration_socket(times)?;
            }
            Fault::RegistrationFails { how } => self.fail_registrations(how).await?,
            Fault::StreamCut => self.rig.kubelet.close_plugin_connection(GPU_RESOURCE).await,
            Fault::StateFolderBlocked { gpus } => self.block_state_folder(gpus).await?,
            Fault::DiskFull { gpus } => self.fill_disk(gpus).await?,
            Fault::CdiFolderRemoved => self.remove_documents()?,
            Fault::DriverReplaced => self.replace_driver().await?,
            Fault::GpuBroken { which, how } => return self.break_gpu(which, how),
            Fault::DriverCrashes { which } => return self.crash_driver(which).await,
            Fault::GpuReset { which } => return self.reset_gpu(which),
            Fault::GpuSlow { which, delay } => return self.slow_gpu(which, delay).await,
            Fault::XidStorm { which, bursts, events } => {
                return self.send_xid_storm(which, bursts, events).await;
            }
            Fault::GpuRenumbered { which } => return self.renumber_gpu(which).await,
            Fault::NicFlaps { which, times } => return self.flap_nic(which, times).await,
            Fault::Interference { what, which, gpus } => {
                return self.interfere(what, which, gpus).await;
            }
            Fault::Server { what, gpus } => return self.api_server_fault(what, gpus).await,
        }
        Ok(Some(Instant::now()))
    }

    async fn replace_agent(&mut self) -> Result<()> {
        self.rig.mark_agent_stopped();
        self.rig.agent.replace().await?;
        self.tally.agent_restarts += 1;
        self.baseline.clear();
        self.rig.mark_agent_started();
        Ok(())
    }

    pub(super) async fn freeze(&mut self, gpus: usize, duration: Duration) -> Result<()> {
        self.rig.mark_agent_stopped();
        self.rig.agent.freeze();
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        let stopwatch = Stopwatch::start(self.rig.agent.process.id());
        let thaw = async {
            sleep(duration).await;
            self.rig.agent.thaw();
        };
        let (outcome, ()) = tokio::join!(self.rig.kubelet.admit(pod), thaw);
        self.rig.mark_agent_started();
        super::invariant::check_deadline(
            ADMISSION,
            stopwatch.elapsed(),
            duration + ADMISSION_LIMIT,
        )?;
        self.record_admission(&uid, outcome).await
    }

    /// Restarts the kubelet without its API server. Its pod resources API then omits pods, whose devices must stay
    /// allocated.
    async fn isolate_kubelet(&self) -> Result<()> {
        let pods = PodSourceFault::Only([AGENT_POD_UID.to_owned()].into());
        self.rig.kubelet.set_faults(Faults { pods, ..Faults::default() });
        self.rig.kubelet.restart().await?;
        sleep(ISOLATION_TIME).await;
        let result = self.rig.wait_until_settled(RECOVERY_LIMIT).await;
        self.rig.kubelet.reach_api_server().await;
        let fault = "kubelet restarted without its API server";
        Ok(result.map_err(Violation::not_recovered(fault, RECOVERY_LIMIT))?)
    }

    async fn remove_plugin_folder(&self) -> Result<()> {
        let dir = self.rig.plugin_dir();
        // The kubelet's checkpoint is in this folder and has to survive.
        let moved_path = self.rig.move_away(&dir)?;
        sleep(SHORT_FAULT).await;
        fs::rename(moved_path, &dir).context("cannot put the plugin folder back")?;
        Ok(self.rig.kubelet.restart().await?)
    }

    fn delete_plugin_sockets(&self) -> Result<()> {
        let node = self.rig.kubelet.status();
        let endpoints = node.plugins.values().filter_map(|registration| match registration {
            PluginStatus::Connected { endpoint, .. } => Some(endpoint),
            PluginStatus::Stopped { .. } => None,
        });
        for endpoint in endpoints {
            fs::remove_file(endpoint)
                .with_context(|| format!("cannot delete {}", endpoint.display()))?;
        }
        Ok(())
    }

    async fn fail_registrations(&self, how: RegistrationFailure) -> Result<()> {
        let registration = match how {
            RegistrationFailure::Refused => RegistrationFault::Refuse("not now".to_owned()),
            RegistrationFailure::Unanswered => RegistrationFault::Hang,
        };
        self.rig.kubelet.set_faults(Faults { registration, ..Faults::default() });
        self.rig.kubelet.restart().await?;
        sleep(SHORT_FAULT).await;
        self.rig.kubelet.set_faults(Faults::default());
        Ok(())
    }

    async fn block_state_folder(&mut self, gpus: usize) -> Result<()> {
        let dir = state_dir(self.rig.dir());
        let moved_path = self.rig.move_away(&dir)?;
        File::create(&dir).context("cannot block the state folder")?;
        let outcome = self.try_both_apis(gpus).await;
        fs::remove_file(&dir).context("cannot unblock the state folder")?;
        fs::rename(moved_path, &dir).context("cannot put the state folder back")?;
        outcome
    }

    async fn fill_disk(&mut self, gpus: usize) -> Result<()> {
        self.rig.agent.limit_file_size(Some(0)).context("cannot limit the agent's files")?;
        let outcome = self.try_both_apis(gpus).await;
        self.rig
            .agent
            .limit_file_size(None)
            .context("cannot remove the limit of the agent's files")?;
        outcome
    }

    /// Starts a pod of the device plugin and one with a claim, while the agent cannot write.
    async fn try_both_apis(&mut self, gpus: usize) -> Result<()> {
        self.try_admit_and_record(gpus).await?;
        self.try_start_claim_pod(gpus).await.map(drop)
    }

    fn remove_documents(&self) -> Result<()> {
        match fs::remove_dir_all(cdi_dir(self.rig.dir())) {
            // The agent has written a new document during the removal.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => outcome.context("cannot remove the CDI folder"),
        }
    }

    /// Removes and adds a NIC while the agent scans sysfs.
    async fn flap_nic(&self, which: usize, times: usize) -> Result<Option<Instant>> {
        let nics = self.rig.machine.model()?.nics;
        let Some(nic) = pick(nics, which) else { return Ok(None) };
        let name = nic.path.address().to_string();
        for _ in 0..times {
            for event in [DeviceEvent::Unplug, DeviceEvent::Plug] {
                self.rig.machine.inject(&machine::Fault::Device { name: name.clone(), event })?;
                sleep(FLAP_INTERVAL).await;
            }
        }
        Ok(Some(Instant::now()))
    }
}

/// Removes a file that may be gone.
pub(super) fn remove_if_exists(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.with_context(|| format!("cannot remove {}", path.display())),
    }
}

fn pick<T>(mut items: Vec<T>, which: usize) -> Option<T> {
    (!items.is_empty()).then(|| items.swap_remove(which % items.len()))
}
