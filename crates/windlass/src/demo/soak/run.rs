//! A soak under way: step after step, with the invariants checked after each.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use anyhow::{Error, Result};
use tokio::time::{Instant, sleep};
use windlass_machine::Fault;

use super::{
    claims::{Claimant, WAIT_LIMIT},
    hands,
    invariant::{self, Broken, Doubted},
    life::Life,
    pods::Given,
    rig::{GLANCE, Rig},
    schedule::{Schedule, Step},
    strike::RECOVERY_LIMIT,
    tally::Tally,
    tell::Told,
};
use crate::demo::tell::Teller;

/// What runs, and what is known of it.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) rig: Rig,
    pub(super) tally: Tally,
    /// What pods were given when they came, by UID.
    pub(super) given: BTreeMap<String, Given>,
    /// Pods whose claims are prepared, by UID.
    pub(super) claims: BTreeMap<String, Claimant>,
    /// Pods whose containers wait for their claims, by UID.
    pub(super) waiting: BTreeMap<String, Claimant>,
    /// Why a container had to wait when it was last tried.
    pub(super) refusal: String,
    /// When pods of the device plugin let go of which devices, by the names that claims know them by.
    pub(super) let_go: BTreeMap<String, Instant>,
    /// How many pods have come so far, refused ones too.
    pub(super) begun: usize,
    pub(super) last_steps: VecDeque<String>,
    pub(super) life: Life,
}

/// How long the agent may take until it offers everything for the first time.
const START_LIMIT: Duration = Duration::from_secs(15);

/// So many steps are made even if the time is over before: on a machine that is busy with something else a short soak
/// says as much as on an idle one.
const LEAST_STEPS: usize = 10;

/// How many of the last steps are told when an invariant is broken.
const KEPT_STEPS: usize = 20;

/// How long the agent may keep what it has for somebody who is gone.
const GIVEN_BACK: Duration = Duration::from_secs(10);

/// How often it is told how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

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
            life: Life::default(),
        }
    }

    /// Goes on until the time is over, or something is not as it must be.
    pub(super) async fn soak(
        &mut self,
        (seed, lasts): (u64, Duration),
        teller: Teller,
    ) -> Result<()> {
        let watched = self.rig.watched();
        tokio::select! {
            broken = watched => Err(broken.into()),
            outcome = self.steps((seed, lasts), teller) => outcome,
        }
    }

    async fn steps(&mut self, (seed, lasts): (u64, Duration), teller: Teller) -> Result<()> {
        self.begins().await?;
        let begun = Instant::now();
        let mut told = begun;
        for step in Schedule::new(seed, self.rig.ways()) {
            let is_past = |time| self.tally.steps >= LEAST_STEPS && begun.elapsed() >= time;
            if is_past(lasts) {
                break;
            }
            if is_past(lasts * 3 / 4)
                && matches!(&step, Step::Strike(blow) if blow.ends_the_agent())
            {
                // So that a longer soak has longer lives too.
                continue;
            }
            self.step(&step).await?;
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                teller.tell(&Told::progress(begun.elapsed(), &self.tally))?;
            }
        }
        self.ends(lasts).await
    }

    async fn begins(&mut self) -> Result<()> {
        let settled = self.rig.settled(START_LIMIT).await;
        let blow = "the start";
        settled.map_err(|left| Broken::NotBack { blow, after: START_LIMIT, left })?;
        self.rig.remember_others(START_LIMIT).await?;
        self.rig.doubts(Doubted::These(BTreeSet::new()));
        let start = self.rig.agent.usage();
        self.life.begins(Instant::now(), start);
        self.tally.at_start = start.into();
        self.tally.measure(start);
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        if self.last_steps.len() == KEPT_STEPS {
            self.last_steps.pop_front();
        }
        self.tally.steps += 1;
        self.last_steps.push_back(format!("{}: {step:?}", self.tally.steps));
        let outcome = match step {
            Step::Admit { gpus } => self.admit(*gpus).await,
            Step::Claim { gpus } => self.claim(*gpus).await,
            Step::Delete { which } => self.delete(*which).await,
            Step::Count => self.count().await,
            Step::Strike(blow) => self.strike(blow).await,
        };
        if outcome.is_err()
            && let Some(how) = self.rig.agent.ends_soon().await
        {
            // All else follows from it.
            return Err(Broken::Ended(how).into());
        }
        outcome?;
        self.check().await
    }

    async fn check(&mut self) -> Result<()> {
        if let Some(how) = self.rig.agent.ended() {
            return Err(Broken::Ended(how).into());
        }
        self.rig.in_one_hand()?;
        self.nothing_is_lost()?;
        self.nodes_are_right().await?;
        if let Some(cluster) = &self.rig.cluster {
            cluster.objects().clear_log();
        }
        self.is_bounded().await?;
        self.tally.longest_life_s = self.life.longest().as_secs();
        Ok(())
    }

    /// The agent takes about what it took. What it has for others who are gone, such as connections, it gives back when
    /// it notices.
    async fn is_bounded(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let usage = self.rig.agent.usage();
            self.tally.measure(usage);
            let seen = self.life.look(Instant::now(), usage);
            if seen.is_ok() || begun.elapsed() >= GIVEN_BACK {
                return Ok(seen?);
            }
            sleep(GLANCE).await;
        }
    }

    /// Pods have what they were given when they came, whichever way.
    fn nothing_is_lost(&self) -> Result<()> {
        let node = self.rig.kubelet.node();
        let given = self.given.iter().map(|(uid, given)| (uid.clone(), given.held.clone()));
        invariant::nothing_lost(&given.collect(), &node)?;
        let record = self.rig.record().map_err(Error::msg)?;
        let claims = self.claims.values();
        let claims = claims.map(|it| (it.claim.clone(), it.devices.clone())).collect();
        Ok(hands::nothing_lost(&claims, (&node, &record))?)
    }

    /// All pods go and all GPUs are mended: everything is as at the start.
    async fn ends(&mut self, lasts: Duration) -> Result<()> {
        while !(self.given.is_empty() && self.claims.is_empty()) {
            self.delete(0).await?;
        }
        for found in self.rig.gpus()?.into_iter().filter(|found| found.is_broken) {
            self.rig.doubt(&found.gpu.uuid);
            self.rig.is_mended(&found.gpu.uuid);
            self.rig.machine.inject(&Fault::Recover { gpu: found.index })?;
        }
        let settled = self.rig.settled(RECOVERY_LIMIT).await;
        let blow = "the end";
        settled.map_err(|left| Broken::NotBack { blow, after: RECOVERY_LIMIT, left })?;
        self.no_claim_is_left().await?;
        // Which takes time that a short soak does not have.
        if lasts >= WAIT_LIMIT {
            self.no_gpu_is_withheld().await?;
            self.claim_all().await?;
        }
        self.check().await
    }
}
