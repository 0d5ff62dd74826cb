//! Execution of a soak: steps, with all invariants checked after each.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use anyhow::{Error, Result};
use tokio::time::{Instant, sleep};
use windlass_machine as machine;

use super::{
    baseline::Baseline,
    claims::{ClaimPod, WAIT_LIMIT},
    inject::RECOVERY_LIMIT,
    invariant::{self, MaybeUnhealthy, Violation},
    owners,
    pods::Allocation,
    report::SoakEvent,
    rig::{POLL_INTERVAL, Rig},
    schedule::{Schedule, Step},
    tally::Tally,
};
use crate::demo::report::Reporter;

/// State of a running soak.
#[derive(Debug)]
pub(super) struct SoakRun {
    pub(super) rig: Rig,
    pub(super) tally: Tally,
    /// Allocations of pods by the device plugin, by UID.
    pub(super) allocations: BTreeMap<String, Allocation>,
    /// Pods with prepared claims, by UID.
    pub(super) claims: BTreeMap<String, ClaimPod>,
    /// Pods that wait for their claims, by UID.
    pub(super) waiting_pods: BTreeMap<String, ClaimPod>,
    /// Reason of the latest failed start.
    pub(super) last_refusal: String,
    /// Times at which device plugin pods released devices, by published name.
    pub(super) released_at: BTreeMap<String, Instant>,
    /// Number of created pods, including refused ones.
    pub(super) created: usize,
    pub(super) last_steps: VecDeque<String>,
    pub(super) baseline: Baseline,
}

/// Deadline for the first settled state.
const START_LIMIT: Duration = Duration::from_secs(15);

/// Minimum number of steps, whatever the duration: a short soak tests the same on a busy machine as on an idle one.
const MIN_STEPS: usize = 10;

/// Number of steps that are shown with a violation.
const SHOWN_STEPS: usize = 20;

/// Time in which the agent releases resources of clients that have disconnected.
const RELEASE_TIME: Duration = Duration::from_secs(10);

/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Time in which the kernel ends a killed process that has closed its sockets.
const EXIT_TIME: Duration = Duration::from_millis(200);

// === impl SoakRun ===

impl SoakRun {
    pub(super) fn new(rig: Rig) -> Self {
        Self {
            rig,
            tally: Tally::default(),
            allocations: BTreeMap::new(),
            claims: BTreeMap::new(),
            waiting_pods: BTreeMap::new(),
            last_refusal: String::new(),
            released_at: BTreeMap::new(),
            created: 0,
            last_steps: VecDeque::new(),
            baseline: Baseline::default(),
        }
    }

    /// Runs until the duration has passed or an invariant is violated.
    pub(super) async fn soak(
        &mut self,
        seed: u64,
        duration: Duration,
        reporter: &Reporter,
    ) -> Result<()> {
        let first_violation = self.rig.first_violation();
        tokio::select! {
            violation = first_violation => Err(violation.into()),
            outcome = self.run_steps(seed, duration, reporter) => outcome,
        }
    }

    async fn run_steps(
        &mut self,
        seed: u64,
        duration: Duration,
        reporter: &Reporter,
    ) -> Result<()> {
        self.settle_at_start().await?;
        let start = Instant::now();
        let mut last_report = start;
        for step in Schedule::new(seed, self.rig.apis()) {
            let is_past = |time| self.tally.steps >= MIN_STEPS && start.elapsed() >= time;
            if is_past(duration) {
                break;
            }
            if is_past(duration * 3 / 4)
                && matches!(&step, Step::Inject(fault) if fault.ends_agent())
            {
                // No fault ends the agent in the last quarter, so that a longer soak observes a process for longer.
                continue;
            }
            self.run_step(&step).await?;
            if last_report.elapsed() >= PROGRESS_INTERVAL {
                last_report = Instant::now();
                reporter.report(&SoakEvent::progress(start.elapsed(), &self.tally))?;
            }
        }
        self.finish(duration).await
    }

    async fn settle_at_start(&mut self) -> Result<()> {
        let result = self.rig.wait_until_settled(START_LIMIT).await;
        result.map_err(Violation::not_recovered("the start", START_LIMIT))?;
        self.rig.record_other_devices(START_LIMIT).await?;
        self.rig.set_maybe_unhealthy(MaybeUnhealthy::Only(BTreeSet::new()));
        let usage = self.rig.agent.process.usage();
        self.baseline.set_if_missing(Instant::now(), usage);
        self.tally.at_start = usage;
        self.tally.record_usage(usage);
        Ok(())
    }

    async fn run_step(&mut self, step: &Step) -> Result<()> {
        if self.last_steps.len() == SHOWN_STEPS {
            self.last_steps.pop_front();
        }
        self.tally.steps += 1;
        self.last_steps.push_back(format!("{}: {step:?}", self.tally.steps));
        let outcome = match step {
            Step::Admit { gpus } => self.admit(*gpus).await,
            Step::Claim { gpus } => self.start_claim_pod(*gpus).await,
            Step::Delete { which } => self.delete(*which).await,
            Step::Count => self.compare_holders().await,
            Step::Inject(fault) => self.inject(fault).await,
        };
        if outcome.is_err()
            && let Some(status) = self.rig.agent.process.wait_for_exit(EXIT_TIME).await
        {
            // Every other failure follows from the agent's end.
            return Err(Violation::AgentExited(status.to_string()).into());
        }
        outcome?;
        self.check_invariants().await
    }

    async fn check_invariants(&mut self) -> Result<()> {
        if let Some(status) = self.rig.agent.process.try_wait() {
            return Err(Violation::AgentExited(status.to_string()).into());
        }
        self.rig.check_exclusive()?;
        self.check_allocations()?;
        self.check_nodes_with_retry().await?;
        if let Some(cluster) = &self.rig.cluster {
            cluster.fixture.objects().clear_log();
        }
        self.check_usage().await?;
        self.tally.longest_life_s = self.baseline.longest().as_secs();
        Ok(())
    }

    /// Checks the agent's resource usage. Retries, because the agent releases connections of disconnected clients late.
    async fn check_usage(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let usage = self.rig.agent.process.usage();
            self.tally.record_usage(usage);
            let result = self.baseline.observe(Instant::now(), usage);
            if result.is_ok() || start.elapsed() >= RELEASE_TIME {
                return Ok(result?);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Checks that all pods have their original devices.
    fn check_allocations(&self) -> Result<()> {
        let node = self.rig.kubelet.status();
        let allocated =
            self.allocations.iter().map(|(uid, allocation)| (uid.clone(), allocation.held.clone()));
        invariant::check_allocations_unchanged(&allocated.collect(), &node)?;
        let record = self.rig.record().map_err(Error::msg)?;
        let claims = self.claims.values();
        let claims =
            claims.map(|claim_pod| (claim_pod.claim.clone(), claim_pod.devices.clone())).collect();
        Ok(owners::check_allocations_unchanged(&claims, &node, &record)?)
    }

    /// Deletes all pods and repairs all GPUs. The state then has to be as at the start.
    async fn finish(&mut self, duration: Duration) -> Result<()> {
        while !(self.allocations.is_empty() && self.claims.is_empty()) {
            self.delete(0).await?;
        }
        for indexed_gpu in self.rig.gpus()?.into_iter().filter(|indexed_gpu| indexed_gpu.is_broken)
        {
            self.rig.add_maybe_unhealthy(&indexed_gpu.gpu.uuid);
            self.rig.mark_repaired(&indexed_gpu.gpu.uuid);
            self.rig.machine.inject(&machine::Fault::Recover { gpu: indexed_gpu.index })?;
        }
        let result = self.rig.wait_until_settled(RECOVERY_LIMIT).await;
        result.map_err(Violation::not_recovered("the end", RECOVERY_LIMIT))?;
        self.wait_for_no_claims().await?;
        // These checks take too long for a short soak.
        if duration >= WAIT_LIMIT {
            self.wait_for_claimable_gpus().await?;
            self.claim_all_gpus().await?;
        }
        self.check_invariants().await
    }
}
