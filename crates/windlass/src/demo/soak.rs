//! `windlass demo --soak`: pods come and go while everything around the agent fails, by a seeded schedule.
//!
//! ```text
//!  seed ──> schedule ──> run ──> rig: machine, embedded kubelet, `windlass node` as a process
//!                         │        └──> witness: what the kubelet is told, against what is the case
//!                         └──> tally
//! ```
//!
//! An invariant that does not hold ends it with the seed and the last steps.

mod agent;
mod chance;
mod invariant;
mod pods;
mod rig;
mod run;
mod schedule;
mod strike;
mod tally;
mod tell;

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::{signal::ctrl_c, time::Instant};
use windlass_machine::Profile;

use self::{rig::Rig, run::Run, tell::Told};
use super::tell::Teller;
use crate::exit::Misuse;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Soak {
    pub(super) machine: String,
    pub(super) lasts: Duration,
    /// Another one each time, unless one is to come again.
    pub(super) seed: Option<u64>,
}

/// Seeds that nobody gave are short enough to be typed.
const SEEDS: u128 = 1_000_000;

/// Soaks, and tells what came of it.
pub(super) async fn run(soak: Soak, teller: Teller) -> Result<()> {
    let profile = Profile::load(&soak.machine).map_err(|error| Misuse(error.into()))?;
    let seed = soak.seed.unwrap_or_else(any_seed);
    let rig = Rig::start(&profile).await?;
    if rig.gpus()?.is_empty() {
        rig.clear().await;
        let problem = anyhow!("{} has no whole GPUs of NVIDIA, of which a soak is", profile.name);
        return Err(Misuse(problem).into());
    }
    teller.tell(&Told::SoakStarted {
        machine: profile.name,
        simulated: true,
        seed,
        lasts_s: soak.lasts.as_secs(),
        dir: rig.dir().to_owned(),
    })?;
    let (begun, mut run) = (Instant::now(), Run::new(rig));
    let outcome = tokio::select! {
        outcome = run.soak((seed, soak.lasts), teller) => outcome,
        _ = ctrl_c() => Err(anyhow!("interrupted")),
    };
    let told = match &outcome {
        Ok(()) => Told::SoakFinished {
            seed,
            elapsed_s: begun.elapsed().as_secs(),
            tally: run.tally.clone(),
        },
        Err(error) => Told::Broken {
            why: format!("{error:#}"),
            seed,
            last_steps: run.last_steps.clone(),
            dir: run.rig.dir().to_owned(),
            agent: run.rig.agent.last_words(),
            tally: run.tally.clone(),
        },
    };
    let told = teller.tell(&told);
    if outcome.is_err() {
        run.rig.keep_folder();
    }
    run.rig.clear().await;
    outcome.map_err(|error| error.context(format!("the soak with seed {seed} failed"))).and(told)
}

fn any_seed() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros() % SEEDS).expect("below a million")
}
