//! `windlass cluster simulate`: placement policies compared on a recorded cluster.

mod curves;
mod report;
mod trace;

use std::{
    fs::File,
    io::Write as _,
    num::NonZero,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use windlass_sched::{
    policy::Policy,
    simulation::{ChurnResult, FillingResult, Load, Settings, churn, fill},
};

use self::report::{ChurnReport, FillingReport};
use crate::{cli::SimulateArgs, commands::print_output, exit::UsageError, screen::Progress};

/// Runs of one policy, one for each seed.
struct Runs<T> {
    policy: Policy,
    outcomes: Vec<T>,
    /// Total time of the runs.
    spent: Duration,
}

pub(super) fn run(args: &SimulateArgs) -> Result<()> {
    let (simulation, pods) = trace::read(&args.trace, args.pods.as_deref()).map_err(UsageError)?;
    match args.departures {
        None => {
            // Create the file before the runs, so that an unwritable path fails at once.
            let image = args.svg.as_deref().map(create).transpose().map_err(UsageError)?;
            let run = |settings: &Settings| fill(&simulation, settings, args.load);
            let runs: Vec<Runs<FillingResult>> = run_all(args, run);
            let report = FillingReport::new(args, &simulation, &pods, &runs);
            print_output(args.output, &report, || report.print())?;
            if let Some(mut image) = image {
                image.write_all(curves::draw(&report).as_bytes()).context("cannot write --svg")?;
            }
            Ok(())
        }
        Some(offered) => {
            let load = Load { offered, has_queue: args.queue };
            let run = |settings: &Settings| churn(&simulation, settings, load);
            let runs: Vec<Runs<ChurnResult>> = run_all(args, run);
            let report = ChurnReport::new(args, &simulation, &pods, &runs);
            print_output(args.output, &report, || report.print())
        }
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("--svg {}", path.display()))
}

/// Runs each policy with each seed, on all processors. The results do not depend on the number of processors.
fn run_all<T: Send>(args: &SimulateArgs, run: impl Fn(&Settings) -> T + Sync) -> Vec<Runs<T>> {
    let policies = if args.policy.is_empty() { &Policy::ALL[..] } else { &args.policy };
    let knowledge = args.knowledge;
    let jobs: Vec<Settings> = policies
        .iter()
        .flat_map(|policy| args.seeds.clone().map(|seed| (*policy, seed)))
        .map(|(policy, seed)| Settings { policy, forecast_source: knowledge, seed })
        .collect();
    let progress = Progress::new();
    let (next, run_count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut results = Vec::new();
        while let Some((job, settings)) = next_job(&next, &jobs) {
            let start = Instant::now();
            results.push((job, run(settings), start.elapsed()));
            let count = run_count.fetch_add(1, Ordering::Relaxed) + 1;
            progress.show(&format!("{count} of {} runs", jobs.len()));
        }
        results
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let mut results: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |worker: ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    results.sort_unstable_by_key(|(job, ..)| *job);
    let mut results = results.drain(..);
    let seeds = jobs.len() / policies.len();
    let policy_runs = |policy: &Policy| {
        let (mut spent, mut outcomes) = (Duration::ZERO, Vec::new());
        for (_, outcome, time) in results.by_ref().take(seeds) {
            spent += time;
            outcomes.push(outcome);
        }
        Runs { policy: *policy, outcomes, spent }
    };
    policies.iter().map(policy_runs).collect()
}

fn next_job<'a>(next: &AtomicUsize, jobs: &'a [Settings]) -> Option<(usize, &'a Settings)> {
    let job = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(job).map(|settings| (job, settings))
}
