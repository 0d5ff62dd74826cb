//! Kills of the agent while it serves a call of the kubelet.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use tokio::{task::yield_now, time::Instant};
use windlass_kubelet_sim::Kubelet;

use super::{
    super::{
        agent::{CLAIMS_FILE, state_dir},
        pods::CONTAINER,
        run::SoakRun,
    },
    remove_if_exists,
};

// === impl SoakRun ===

impl SoakRun {
    /// Kills the agent during an admission. Requires enough free GPUs, else the kubelet makes no call.
    pub(super) async fn kill_at_admission(
        &mut self,
        gpus: usize,
        after: Duration,
    ) -> Result<Option<Instant>> {
        if gpus > self.free() {
            return Ok(None);
        }
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        let outcome = self.kill_during(after, async |kubelet| kubelet.admit(pod).await).await;
        self.tally.record_kill(outcome.is_err());
        self.replace_agent().await?;
        // The kubelet's decision counts: an answer that it did not receive allocates nothing.
        self.record_admission(&uid, outcome).await?;
        Ok(Some(Instant::now()))
    }

    /// Kills the agent during a preparation; the next process has to know what was prepared.
    pub(super) async fn kill_at_prepare(
        &mut self,
        gpus: usize,
        after: Duration,
    ) -> Result<Option<Instant>> {
        if self.rig.cluster.is_none() {
            return Ok(None);
        }
        let Some(uid) = self.schedule(gpus).await? else { return Ok(None) };
        let start = async |kubelet: &Kubelet| kubelet.start_container(&uid, CONTAINER).await;
        let outcome = self.kill_during(after, start).await;
        self.tally.record_kill(outcome.is_err());
        self.replace_agent().await?;
        self.record_start(&uid, outcome)?;
        Ok(Some(Instant::now()))
    }

    /// Kills the agent and deletes its record of claims; the next process reads the copy.
    pub(super) async fn lose_record(&mut self) -> Result<()> {
        self.rig.mark_agent_stopped();
        self.rig.agent.process.kill().await;
        remove_if_exists(&state_dir(self.rig.dir()).join(CLAIMS_FILE))?;
        self.replace_agent().await
    }

    /// Kills the agent `after` the start of the kubelet's work, and returns the result of that work.
    async fn kill_during<T>(
        &mut self,
        after: Duration,
        work: impl AsyncFnOnce(&Kubelet) -> T,
    ) -> T {
        self.rig.mark_agent_stopped();
        let kill = async {
            // Timers have a resolution of a millisecond.
            let start = Instant::now();
            while start.elapsed() < after {
                yield_now().await;
            }
            self.rig.agent.process.signal(Signal::KILL);
        };
        let (outcome, ()) = tokio::join!(work(&self.rig.kubelet), kill);
        self.rig.agent.process.kill().await;
        outcome
    }
}
