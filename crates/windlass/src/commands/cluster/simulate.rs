//! `windlass cluster simulate`: placement policies compared on a recorded cluster.

mod curves;
mod report;
mod trace;

use std::{
    fs,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use windlass_sched::{
    policy::Policy,
    simulation::{Churn, Filling, Load, Settings, churn, fill},
};

use self::report::{ChurnReport, FillingReport};
use crate::{cli::SimulateArgs, commands::answer, exit::Misuse, screen::Progress};

/// The runs of one policy, a seed each.
struct Runs<T> {
    policy: Policy,
    outcomes: Vec<T>,
    /// Time of all runs.
    spent: Duration,
}

pub(super) fn run(args: &SimulateArgs) -> Result<()> {
    let (simulation, pods) = trace::read(&args.trace, args.pods.as_deref()).map_err(Misuse)?;
    match args.departures {
        None => {
            let play = |settings: &Settings| fill(&simulation, settings, args.load);
            let runs: Vec<Runs<Filling>> = play_all(args, play)?;
            let report = FillingReport::new(args, &simulation, &pods, &runs);
            if let Some(path) = &args.svg {
                let drawn = curves::draw(&report);
                fs::write(path, drawn).with_context(|| format!("--svg {}", path.display()))?;
            }
            answer(args.output, &report, || report.print())
        }
        Some(offered) => {
            let load = Load { offered, queues: args.queue };
            let play = |settings: &Settings| churn(&simulation, settings, load);
            let runs: Vec<Runs<Churn>> = play_all(args, play)?;
            let report = ChurnReport::new(args, &simulation, &pods, &runs);
            answer(args.output, &report, || report.print())
        }
    }
}

/// Plays each policy with each seed, on all processors. The results do not depend on their number.
fn play_all<T: Send>(
    args: &SimulateArgs,
    play: impl Fn(&Settings) -> T + Sync,
) -> Result<Vec<Runs<T>>> {
    let chosen: Vec<Policy> = args.policy.iter().copied().map(Policy::from).collect();
    let policies = if chosen.is_empty() { Policy::ALL.to_vec() } else { chosen };
    let foresight = args.knowledge.into();
    let jobs: Vec<Settings> = policies
        .iter()
        .flat_map(|policy| args.seeds.clone().map(|seed| (*policy, seed)))
        .map(|(policy, seed)| Settings { policy, foresight, seed })
        .collect();
    let progress = Mutex::new(Progress::new("runs", jobs.len()));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((job, settings)) = claim(&next, &jobs) {
            let begun = Instant::now();
            done.push((job, play(settings), begun.elapsed()));
            if let Ok(mut progress) = progress.lock() {
                progress.step();
            }
        }
        done
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let mut played = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().ok());
        joined.collect::<Option<Vec<_>>>()
    })
    .context("a run panicked")?
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    played.sort_unstable_by_key(|(job, ..)| *job);
    let mut outcomes = played.drain(..);
    let seeds = jobs.len() / policies.len();
    let of_policy = |policy| {
        let (mut spent, mut all) = (Duration::ZERO, Vec::new());
        for (_, outcome, time) in outcomes.by_ref().take(seeds) {
            spent += time;
            all.push(outcome);
        }
        Runs { policy, outcomes: all, spent }
    };
    Ok(policies.into_iter().map(of_policy).collect())
}

fn claim<'a>(next: &AtomicUsize, jobs: &'a [Settings]) -> Option<(usize, &'a Settings)> {
    let job = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(job).map(|settings| (job, settings))
}
