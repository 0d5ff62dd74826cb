//! Random pods of the device plugin and with claims, side by side, under random faults of the node. No device ever has
//! two owners, and nothing is left at the end.

mod faults;
mod pods;

use std::time::Instant;

use windlass_config::{DraOffer, DraPolicy};

use self::pods::{MAX_PODS, StartedPod, put_templates};
use crate::claims::{
    rng::{Length, Rng, seed},
    world::{Mounts, World, use_shipped_mounts},
};

/// Number of occurrences of each event.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    claims: usize,
    refused_claims: usize,
    plugin_pods: usize,
    refused_pods: usize,
    cancelled: usize,
    kubelet_restarts: usize,
    agent_kills: usize,
    killed_during_prepare: usize,
    deletions: usize,
    lost_records: usize,
    api_outages: usize,
}

struct Run {
    world: World,
    mounts: Mounts,
    rng: Rng,
    started: Vec<StartedPod>,
    created: usize,
    tally: Tally,
    /// Latest events in order.
    recent: Vec<String>,
}

/// Default number of steps of a walk; some seconds.
const STEPS: u64 = 40;

/// Number of events that a failure shows.
const RECENT: usize = 200;

// === impl Run ===

impl Run {
    async fn new(mounts: Mounts, seed: u64) -> Self {
        let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
        let world = match mounts {
            Mounts::Whole => World::with_policy(dra).await,
            Mounts::Shipped => World::with(dra, use_shipped_mounts).await,
        };
        put_templates(&world);
        let (started, tally, recent) = Default::default();
        Self { world, mounts, rng: Rng::new(seed), started, created: 0, tally, recent }
    }

    async fn step(&mut self) {
        self.tally.steps += 1;
        match self.rng.below(200) {
            0..60 if self.started.len() < MAX_PODS => self.start_claim_pod().await,
            60..120 if self.started.len() < MAX_PODS => self.start_plugin_pod().await,
            120..140 if self.started.len() < MAX_PODS => self.start_both_at_once().await,
            140..144 if self.started.len() < MAX_PODS => self.cancel_prepare().await,
            188..200 => self.cause_fault().await,
            _ => self.end_random_pod().await,
        }
        self.check();
    }

    fn check(&self) {
        if let Err(error) = self.world.check_one_owner() {
            panic!("{error} after {} steps, the last of them {:#?}", self.tally.steps, self.recent);
        }
        self.world.check();
    }

    fn log(&mut self, event: String) {
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push(event);
    }

    /// Ends all pods, and checks that every device is free through both APIs.
    async fn end(mut self) -> Tally {
        self.end_all().await;
        self.kill_agent().await;
        self.check();
        self.world.until_all_free().await;
        self.start_both().await;
        self.end_all().await;
        self.world.until_all_free().await;
        assert!(self.world.remains().is_empty(), "{:?} is left", self.world.remains());
        self.tally
    }

    async fn end_all(&mut self) {
        while !self.started.is_empty() {
            self.end_random_pod().await;
            self.world.check();
        }
        self.world.until_released().await;
    }
}

#[expect(clippy::print_stdout, reason = "the result of a long walk is printed")]
async fn walk(mounts: Mounts) {
    let (length, seed) = (Length::from_env_or(STEPS), seed());
    let (mut run, start) = (Run::new(mounts, seed).await, Instant::now());
    while !length.is_reached(start, run.tally.steps) {
        run.step().await;
    }
    let (tally, elapsed) = (run.end().await, start.elapsed());
    println!(
        "seed {seed}, {mounts:?} mounts, {elapsed:.0?}: each device has one owner, then none; {tally:#?}"
    );
}

#[tokio::test]
async fn no_device_ever_has_two_owners() {
    Box::pin(walk(Mounts::Whole)).await;
}

#[tokio::test]
async fn no_device_ever_has_two_owners_if_the_kubelets_checkpoint_is_hidden() {
    Box::pin(walk(Mounts::Shipped)).await;
}
