//! Carries out what a schedule says: each blow falls, ends, and everything must be as it should be again.

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
use windlass_kubelet_sim::{Misbehaviour, Registration, RegistrationFault};
use windlass_machine::{Fault, Happening};

use super::{
    agent::{cdi_dir, state_dir},
    invariant::{Broken, Doubted},
    pods::{ADMISSION, ANSWER_LIMIT},
    rig::RESOURCE,
    run::Run,
    schedule::{Blow, Hangs},
    stopwatch::Stopwatch,
};

/// How soon after a fault's end all must be as it should be: a `Register` that is not answered is given up
/// after fifteen seconds, a driver that hangs takes ten to be left behind, and a GPU that fails again and again has to
/// be quiet for 32 times as long as at first, which is a second here.
pub(super) const RECOVERY_LIMIT: Duration = Duration::from_secs(45);

/// How long what is away stays so.
pub(super) const ABSENCE: Duration = Duration::from_millis(500);

/// How long an adapter that comes and goes is there, and is not.
const FLAP: Duration = Duration::from_millis(10);

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
        self.rig.doubts(blow.doubts());
        let ended = self.befall(blow).await?;
        let recovered = match ended {
            Some(ended) => self.recovers(blow, (since, ended)).await,
            None => Ok(()),
        };
        self.rig.doubts(Doubted::These(BTreeSet::new()));
        recovered
    }

    /// Waits until all is as it should be.
    async fn recovers(&mut self, blow: &Blow, (since, ended): (u64, Instant)) -> Result<()> {
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
        self.life.begins(Instant::now(), self.rig.agent.usage());
        Ok(())
    }

    /// The moment from which things can only become better.
    async fn befall(&mut self, blow: &Blow) -> Result<Option<Instant>> {
        match *blow {
            Blow::AgentKilled => self.replace_agent().await?,
            Blow::AgentKilledAtAdmission { gpus, after } => {
                return self.kill_at_admission(gpus, after).await;
            }
            Blow::AgentKilledAtPrepare { gpus, after } => {
                return self.kill_at_prepare(gpus, after).await;
            }
            Blow::RecordLost => return self.lose_record().await,
            Blow::AgentFrozen { gpus, lasts } => self.freeze(gpus, lasts).await?,
            Blow::AgentFrozenInCalls { which, by, gpus, lasts } => {
                return self.freeze_in_calls(which, by, (gpus, lasts)).await;
            }
            Blow::NoticesLost => return self.lose_notices().await,
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
            Blow::XidStorm { which, bursts, events } => {
                return self.storm(which, (bursts, events)).await;
            }
            Blow::GpuRenumbered { which } => return self.renumber(which).await,
            Blow::NicFlaps { which, times } => return self.flap(which, times).await,
            Blow::Strained { what, which, gpus } => {
                return self.strain(what, (which, gpus)).await;
            }
            Blow::Server { what, gpus } => return self.mischief(what, gpus).await,
        }
        Ok(Some(Instant::now()))
    }

    async fn replace_agent(&mut self) -> Result<()> {
        self.rig.agent_is_away();
        self.rig.agent.replace().await?;
        self.tally.agent_restarts += 1;
        self.life.ends();
        self.rig.agent_runs();
        Ok(())
    }

    pub(super) async fn freeze(&mut self, gpus: usize, lasts: Duration) -> Result<()> {
        self.rig.agent_is_away();
        self.rig.agent.freeze();
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        let watch = Stopwatch::start(self.rig.agent.id());
        let thaw = async {
            sleep(lasts).await;
            self.rig.agent.thaw();
        };
        let (outcome, ()) = tokio::join!(self.rig.kubelet.admit(pod), thaw);
        self.rig.agent_runs();
        super::invariant::in_time(ADMISSION, watch.elapsed(), lasts + ANSWER_LIMIT)?;
        self.came(&uid, outcome).await
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
}

/// Removes a file that may have gone by itself.
pub(super) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", path.display())),
    }
}

fn one_of<T>(mut all: Vec<T>, which: usize) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(which % all.len()))
}
