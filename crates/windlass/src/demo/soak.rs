//! `windlass demo --soak`: pods come and go while everything around the agent fails, by a seeded schedule.
//!
//! ```text
//!  seed ──> schedule ──> run ──> rig: machine, embedded kubelet, `windlass node` as a process; with claims a
//!                         │        │    cluster as well
//!                         │        └──> witness: what the kubelet is told, against what is the case
//!                         └──> tally
//! ```
//!
//! An invariant that does not hold ends it with the seed and the last steps, Ctrl-C or SIGTERM with what was seen so
//! far.

mod agent;
mod chance;
mod claims;
mod cluster;
mod hands;
mod invariant;
mod life;
mod nodes;
mod pods;
mod rig;
mod run;
mod schedule;
mod server;
mod slices;
mod stopwatch;
mod strain;
mod strike;
mod tally;
mod tell;

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::time::Instant;

use self::{
    agent::Mounts,
    cluster::Cluster,
    rig::Rig,
    run::Run,
    tell::{End, Told},
};
use super::tell::Teller;
use crate::{exit::Misuse, simulated, stop::Stop};

pub(super) use self::schedule::Ways;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Soak {
    pub(super) machine: String,
    pub(super) lasts: Duration,
    /// Another one each time, unless one is to come again.
    pub(super) seed: Option<u64>,
    pub(super) ways: Ways,
}

/// Seeds that nobody gave are short enough to be typed.
const SEEDS: u128 = 1_000_000;

/// Soaks, and tells what came of it.
pub(super) async fn run(soak: Soak, (teller, mut stop): (Teller, Stop)) -> Result<()> {
    let profile = simulated::profile(&soak.machine)?;
    let seed = soak.seed.unwrap_or_else(any_seed);
    let cluster = match soak.ways {
        Ways::DevicePlugin => None,
        Ways::Both => Some(Cluster::start()?),
    };
    let rig = Rig::start(&profile, Mounts::of(seed), cluster).await?;
    if rig.gpus()?.is_empty() {
        rig.clear().await;
        let problem = anyhow!("{} has no whole GPUs of NVIDIA, of which a soak is", profile.name);
        return Err(Misuse(problem).into());
    }
    teller.tell(&Told::SoakStarted {
        machine: profile.name,
        simulated: true,
        seed,
        ways: soak.ways,
        mounts: rig.agent.mounts(),
        lasts_s: soak.lasts.as_secs(),
        dir: rig.dir().to_owned(),
    })?;
    let (begun, mut run) = (Instant::now(), Run::new(rig));
    let outcome = tokio::select! {
        outcome = run.soak((seed, soak.lasts), teller) => outcome.map(|()| End::InTime),
        _ = stop.asked() => Ok(End::Early),
    };
    let told = teller.tell(&came_of_it(&outcome, (seed, begun), &run));
    if outcome.is_err() {
        run.rig.keep_folder();
    }
    run.rig.clear().await;
    outcome.with_context(|| format!("the soak with seed {seed} failed"))?;
    told
}

fn came_of_it(outcome: &Result<End>, (seed, begun): (u64, Instant), run: &Run) -> Told {
    let tally = run.tally.clone();
    match outcome {
        Ok(end) => {
            Told::SoakFinished { end: *end, seed, elapsed_s: begun.elapsed().as_secs(), tally }
        }
        Err(error) => Told::Broken {
            why: format!("{error:#}"),
            seed,
            last_steps: run.last_steps.clone(),
            dir: run.rig.dir().to_owned(),
            agent: run.rig.agent.last_words(),
            tally,
        },
    }
}

fn any_seed() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros() % SEEDS).expect("below a million")
}
