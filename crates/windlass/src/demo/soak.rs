//! `windlass demo --soak`: random pods and faults from a seeded schedule, with invariants checked after each step.
//!
//! ```text
//!  seed ──> schedule ──> run ──> rig: machine, embedded kubelet, `windlass node` as a process, with claims
//!                         │        │    also a cluster
//!                         │        └──> monitor: compares the kubelet's device lists with the ground truth
//!                         └──> tally
//! ```
//!
//! A violated invariant ends the soak with its seed and the last steps. Ctrl-C and SIGTERM end it with the results so
//! far.

mod agent;
mod api_server;
mod baseline;
mod claims;
mod cluster;
mod inject;
mod interference;
mod invariant;
mod nodes;
mod owners;
mod pods;
mod report;
mod rig;
mod rng;
mod run;
mod schedule;
mod slices;
mod stopwatch;
mod tally;

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::time::Instant;

use self::{
    agent::Mounts,
    cluster::SoakCluster,
    report::{SoakEnd, SoakEvent},
    rig::Rig,
    run::SoakRun,
};
use super::report::Reporter;
use crate::{exit::UsageError, simulated, stop::StopSignals};

pub(super) use self::schedule::AllocationApis;

#[derive(Clone, Debug)]
pub(super) struct SoakConfig {
    pub(super) machine: String,
    pub(super) duration: Duration,
    /// Seed to repeat; `None` chooses a new one.
    pub(super) seed: Option<u64>,
    pub(super) apis: AllocationApis,
}

/// Exclusive limit of random seeds, which keeps them short enough to type.
const SEEDS: u128 = 1_000_000;

pub(super) async fn run(
    config: SoakConfig,
    reporter: Reporter,
    mut signals: StopSignals,
) -> Result<()> {
    let profile = simulated::load_profile(&config.machine)?;
    let seed = config.seed.unwrap_or_else(random_seed);
    let cluster = match config.apis {
        AllocationApis::DevicePlugin => None,
        AllocationApis::Both => Some(SoakCluster::start()?),
    };
    let rig = Rig::start(&profile, Mounts::from_seed(seed), cluster).await?;
    if rig.gpus()?.is_empty() {
        rig.shut_down().await;
        let problem = anyhow!("{} has no whole NVIDIA GPUs, which a soak needs", profile.name);
        return Err(UsageError(problem).into());
    }
    reporter.report(&SoakEvent::SoakStarted {
        machine: profile.name,
        simulated: true,
        seed,
        ways: config.apis,
        mounts: rig.agent.mounts,
        lasts_s: config.duration.as_secs(),
        dir: rig.dir().to_owned(),
    })?;
    let (start, mut run) = (Instant::now(), SoakRun::new(rig));
    let outcome = tokio::select! {
        outcome = run.soak(seed, config.duration, &reporter) => outcome.map(|()| SoakEnd::InTime),
        _ = signals.recv() => Ok(SoakEnd::Early),
    };
    let report_result = reporter.report(&result_event(&outcome, seed, start, &run));
    if outcome.is_err() {
        run.rig.folder.disable_cleanup(true);
    }
    run.rig.shut_down().await;
    outcome.with_context(|| format!("the soak with seed {seed} failed"))?;
    report_result
}

fn result_event(outcome: &Result<SoakEnd>, seed: u64, start: Instant, run: &SoakRun) -> SoakEvent {
    let tally = run.tally.clone();
    match outcome {
        Ok(end) => {
            SoakEvent::SoakFinished { end: *end, seed, elapsed_s: start.elapsed().as_secs(), tally }
        }
        Err(error) => SoakEvent::Violation {
            why: format!("{error:#}"),
            seed,
            last_steps: run.last_steps.clone(),
            dir: run.rig.dir().to_owned(),
            agent: run.rig.agent.log_tail(),
            tally,
        },
    }
}

fn random_seed() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros() % SEEDS).expect("the remainder is below SEEDS")
}
