//! Random pods of the device plugin and with claims, side by side, under random faults of the node. No device ever has
//! two owners, and nothing is left at the end.

mod faults;
mod pods;

use std::time::Instant;

use windlass_config::{DraOffer, DraPolicy};

use self::pods::{Living, MAX, put_templates};
use crate::claims::{
    rng::{Chance, Length, seed},
    world::{Mounts, World, show_what_is_mounted},
};

/// Number of occurrences of each event.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    claims: usize,
    refused_claims: usize,
    plugin_pods: usize,
    refused_pods: usize,
    given_up: usize,
    kubelet_restarts: usize,
    agent_kills: usize,
    killed_in_the_middle: usize,
    deletions: usize,
    lost_records: usize,
    api_away: usize,
}

struct Run {
    world: World,
    mounts: Mounts,
    chance: Chance,
    living: Vec<Living>,
    begun: usize,
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
            Mounts::Whole => World::of(dra).await,
            Mounts::Shipped => World::with(dra, show_what_is_mounted).await,
        };
        put_templates(&world);
        let (living, tally, recent) = Default::default();
        Self { world, mounts, chance: Chance::new(seed), living, begun: 0, tally, recent }
    }

    async fn step(&mut self) {
        self.tally.steps += 1;
        match self.chance.below(200) {
            0..60 if self.living.len() < MAX => self.begin_claim().await,
            60..120 if self.living.len() < MAX => self.begin_plugin().await,
            120..140 if self.living.len() < MAX => self.begin_both().await,
            140..144 if self.living.len() < MAX => self.give_up().await,
            188..200 => self.strike().await,
            _ => self.end_one().await,
        }
        self.check();
    }

    fn check(&self) {
        if let Err(why) = self.world.check_one_owner() {
            panic!("{why} after {} steps, the last of them {:#?}", self.tally.steps, self.recent);
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
        self.world.nothing_is_left().await;
        self.start_both().await;
        self.end_all().await;
        self.world.nothing_is_left().await;
        assert!(self.world.left().is_empty(), "{:?} is left", self.world.left());
        self.tally
    }

    async fn end_all(&mut self) {
        while !self.living.is_empty() {
            self.end_one().await;
            self.world.check();
        }
        self.world.all_is_released().await;
    }
}

#[expect(clippy::print_stdout, reason = "the result of a long walk is for whoever took it")]
async fn walk(mounts: Mounts) {
    let (length, seed) = (Length::or(STEPS), seed());
    let (mut run, begun) = (Run::new(mounts, seed).await, Instant::now());
    while !length.is_reached(begun, run.tally.steps) {
        run.step().await;
    }
    let (tally, taken) = (run.end().await, begun.elapsed());
    println!(
        "seed {seed}, {mounts:?} mounts, {taken:.0?}: 0 devices in two hands, 0 left; {tally:#?}"
    );
}

#[tokio::test]
async fn no_device_ever_has_two_owners() {
    Box::pin(walk(Mounts::Whole)).await;
}

#[tokio::test]
async fn no_device_ever_has_two_owners_if_the_kubelets_record_is_hidden() {
    Box::pin(walk(Mounts::Shipped)).await;
}
