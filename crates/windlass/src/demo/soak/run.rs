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
pub(super) struct Run {
    pub(super) rig: Rig,
    pub(super) tally: Tally,
    /// Allocations of pods by the device plugin, by UID.
    pub(super) given: BTreeMap<String, Allocation>,
    /// Pods with prepared claims, by UID.
    pub(super) claims: BTreeMap<String, ClaimPod>,
    /// Pods that wait for their claims, by UID.
    pub(super) waiting: BTreeMap<String, ClaimPod>,
    /// Reason of the latest failed start.
    pub(super) refusal: String,
    /// Times at which device plugin pods released devices, by published name.
    pub(super) let_go: BTreeMap<String, Instant>,
    /// Number of created pods, including refused ones.
    pub(super) begun: usize,
    pub(super) last_steps: VecDeque<String>,
    pub(super) baseline: Baseline,
}

/// Deadline of the first complete offer.
const START_LIMIT: Duration = Duration::from_secs(15);

/// Minimum number of steps, independent of the duration: a short soak on a busy machine tests as much as on an idle
/// one.
const MIN_STEPS: usize = 10;

/// Number of steps that are shown with a violation.
const SHOWN_STEPS: usize = 20;

/// Time in which the agent may keep resources of clients that are gone.
const GIVEN_BACK: Duration = Duration::from_secs(10);

/// Interval of progress reports.
const PROGRESS: Duration = Duration::from_secs(10);

/// Time in which the kernel ends a killed process that has closed its sockets.
const EXIT_TIME: Duration = Duration::from_millis(200);

// === impl Run ===

impl Run {
    pub(super) fn new(rig: Rig) -> Self {
        Self {
            rig,
            tally: Tally::default(),
            given: BTreeMap::new(),
            claims: BTreeMap::new(),
            waiting: BTreeMap::new(),
            refusal: String::new(),
            let_go: BTreeMap::new(),
            begun: 0,
            last_steps: VecDeque::new(),
            baseline: Baseline::default(),
        }
    }

    /// Runs until the duration has passed or an invariant is violated.
    pub(super) async fn soak(
        &mut self,
        seed: u64,
        lasts: Duration,
        reporter: &Reporter,
    ) -> Result<()> {
        let watched = self.rig.watched();
        tokio::select! {
            broken = watched => Err(broken.into()),
            outcome = self.steps(seed, lasts, reporter) => outcome,
        }
    }

    async fn steps(&mut self, seed: u64, lasts: Duration, reporter: &Reporter) -> Result<()> {
        self.begins().await?;
        let begun = Instant::now();
        let mut told = begun;
        for step in Schedule::new(seed, self.rig.ways()) {
            let is_past = |time| self.tally.steps >= MIN_STEPS && begun.elapsed() >= time;
            if is_past(lasts) {
                break;
            }
            if is_past(lasts * 3 / 4)
                && matches!(&step, Step::Inject(fault) if fault.ends_the_agent())
            {
                // The last quarter spares the process, so that longer soaks observe longer lives.
                continue;
            }
            self.step(&step).await?;
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                reporter.tell(&SoakEvent::progress(begun.elapsed(), &self.tally))?;
            }
        }
        self.ends(lasts).await
    }

    async fn begins(&mut self) -> Result<()> {
        let settled = self.rig.settled(START_LIMIT).await;
        let fault = "the start";
        settled.map_err(|left| Violation::NotBack { fault, after: START_LIMIT, left })?;
        self.rig.record_others(START_LIMIT).await?;
        self.rig.set_maybe_unhealthy(MaybeUnhealthy::These(BTreeSet::new()));
        let start = self.rig.agent.process.usage();
        self.baseline.set_if_missing(Instant::now(), start);
        self.tally.at_start = start;
        self.tally.measure(start);
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        if self.last_steps.len() == SHOWN_STEPS {
            self.last_steps.pop_front();
        }
        self.tally.steps += 1;
        self.last_steps.push_back(format!("{}: {step:?}", self.tally.steps));
        let outcome = match step {
            Step::Admit { gpus } => self.admit(*gpus).await,
            Step::Claim { gpus } => self.claim(*gpus).await,
            Step::Delete { which } => self.delete(*which).await,
            Step::Count => self.count().await,
            Step::Inject(fault) => self.inject(fault).await,
        };
        if outcome.is_err()
            && let Some(how) = self.rig.agent.process.end_within(EXIT_TIME).await
        {
            // Every other failure follows from the agent's end.
            return Err(Violation::Ended(how.to_string()).into());
        }
        outcome?;
        self.check().await
    }

    async fn check(&mut self) -> Result<()> {
        if let Some(how) = self.rig.agent.process.ended() {
            return Err(Violation::Ended(how.to_string()).into());
        }
        self.rig.exclusive()?;
        self.nothing_is_lost()?;
        self.nodes_are_right().await?;
        if let Some(cluster) = &self.rig.cluster {
            cluster.plane.objects().clear_log();
        }
        self.is_bounded().await?;
        self.tally.longest_life_s = self.baseline.longest().as_secs();
        Ok(())
    }

    /// Checks the agent's resource usage. It releases resources of clients that are gone, such as connections, when it
    /// notices.
    async fn is_bounded(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let usage = self.rig.agent.process.usage();
            self.tally.measure(usage);
            let seen = self.baseline.observe(Instant::now(), usage);
            if seen.is_ok() || begun.elapsed() >= GIVEN_BACK {
                return Ok(seen?);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Checks that all pods have their original devices.
    fn nothing_is_lost(&self) -> Result<()> {
        let node = self.rig.kubelet.node();
        let given = self.given.iter().map(|(uid, given)| (uid.clone(), given.held.clone()));
        invariant::nothing_lost(&given.collect(), &node)?;
        let record = self.rig.record().map_err(Error::msg)?;
        let claims = self.claims.values();
        let claims = claims.map(|it| (it.claim.clone(), it.devices.clone())).collect();
        Ok(owners::nothing_lost(&claims, &node, &record)?)
    }

    /// Deletes all pods and repairs all GPUs; everything has to be as at the start.
    async fn ends(&mut self, lasts: Duration) -> Result<()> {
        while !(self.given.is_empty() && self.claims.is_empty()) {
            self.delete(0).await?;
        }
        for found in self.rig.gpus()?.into_iter().filter(|found| found.is_broken) {
            self.rig.add_maybe_unhealthy(&found.gpu.uuid);
            self.rig.is_mended(&found.gpu.uuid);
            self.rig.machine.inject(&machine::Fault::Recover { gpu: found.index })?;
        }
        let settled = self.rig.settled(RECOVERY_LIMIT).await;
        let fault = "the end";
        settled.map_err(|left| Violation::NotBack { fault, after: RECOVERY_LIMIT, left })?;
        self.no_claim_is_left().await?;
        // Short soaks have no time for this.
        if lasts >= WAIT_LIMIT {
            self.no_gpu_is_withheld().await?;
            self.claim_all().await?;
        }
        self.check().await
    }
}
