//! The agent dies while it works on what the kubelet asked it for.

use std::time::Duration;

use anyhow::Result;
use tokio::{task::yield_now, time::Instant};
use windlass_kubelet_sim::Kubelet;

use super::{
    super::{
        agent::{CLAIMS, Mounts, state_dir},
        pods::CONTAINER,
        run::Run,
        schedule::Blow,
    },
    remove_if_there,
};

// === impl Run ===

impl Run {
    /// A pod is admitted, and the agent dies meanwhile. Where there is no room the kubelet would not ask it.
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
        self.tally.killed_during_a_call(outcome.is_err());
        self.replace_agent().await?;
        // The kubelet's word counts: what it did not hear, it gives to the next.
        self.came(&uid, outcome).await?;
        Ok(Some(Instant::now()))
    }

    /// A claim is prepared, and the agent dies meanwhile; the next one has to know what it prepared.
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
        self.tally.killed_during_a_call(outcome.is_err());
        self.replace_agent().await?;
        self.answered(&uid, outcome)?;
        Ok(Some(Instant::now()))
    }

    /// The agent dies, and its record of claims with it: the next one reads the kubelet's.
    pub(super) async fn lose_record(&mut self) -> Result<Option<Instant>> {
        if self.rig.agent.mounts() == Mounts::Shipped {
            let why = "without the kubelet's record nothing is given until each claim is released";
            self.tally.left_out.insert(Blow::RecordLost.kind(), why.into());
            return Ok(None);
        }
        self.rig.agent_is_away();
        self.rig.agent.kill().await;
        remove_if_there(&state_dir(self.rig.dir()).join(CLAIMS))?;
        self.replace_agent().await?;
        Ok(Some(Instant::now()))
    }

    /// Kills the agent so long after the kubelet began something for which it calls it, and gives what came of that.
    async fn kill_during<T>(
        &mut self,
        after: Duration,
        work: impl AsyncFnOnce(&Kubelet) -> T,
    ) -> T {
        self.rig.agent_is_away();
        let kill = async {
            // Timers are of whole milliseconds.
            let begun = Instant::now();
            while begun.elapsed() < after {
                yield_now().await;
            }
            self.rig.agent.strike_dead();
        };
        let (outcome, ()) = tokio::join!(work(&self.rig.kubelet), kill);
        self.rig.agent.kill().await;
        outcome
    }
}
