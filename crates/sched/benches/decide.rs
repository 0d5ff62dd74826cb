//! Benchmark of a decision in clusters of 1,000, 5,000 and 15,000 nodes with 8 GPUs each, while pods arrive and end.
//!
//! `cargo bench -p windlass-sched --bench decide`. The last column is the ratio to the policy first-fit in the same
//! run, which visits the same nodes and scores none. Exits with 1 if a budget of the 99th percentile is missed. *New*
//! is the first decision for a request shape, after each node has changed.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::{Duration, Instant},
};

use windlass_sched::{
    gpu::{Gpu, ModelSet},
    node::{Node, ResourceUsage},
    policy::Policy,
    random::Random,
    request::{Gpus, Request},
    scheduler::Scheduler,
    view::{Catalog, ClusterView, NodeIndex, Placement},
};

/// Number of nodes, and the budget of the 99th percentile.
const BUDGETS: [(usize, Duration); 3] = [
    (1_000, Duration::from_micros(100)),
    (5_000, Duration::from_micros(300)),
    (15_000, Duration::from_millis(1)),
];
const GPUS: usize = 8;
/// Number of decisions that are timed, once the cluster is full.
const TIMED_DECISIONS: usize = 20_000;

fn main() -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "nodes  policy     p50 us   p99 us   budget us  new us   ratio of p50 to first-fit"
    )?;
    let mut all_within_budget = true;
    for (nodes, budget) in BUDGETS {
        let mut first_fit_p50 = Duration::ZERO;
        for policy in [Policy::FirstFit, Policy::Fgd, Policy::Windlass] {
            let Times { p50, p99, new_shape } = measure(nodes, policy);
            first_fit_p50 = if policy == Policy::FirstFit { p50 } else { first_fit_p50 };
            let is_within_budget = p99 <= budget;
            all_within_budget &= is_within_budget;
            writeln!(
                out,
                "{nodes:<5}  {:<9}  {:>7.1}  {:>7.1}  {:>9}  {:>7.1}  {:>5.2}{}",
                policy.name(),
                p50.as_secs_f64() * 1e6,
                p99.as_secs_f64() * 1e6,
                budget.as_micros(),
                new_shape.as_secs_f64() * 1e6,
                p50.as_secs_f64() / first_fit_p50.as_secs_f64(),
                if is_within_budget { "" } else { "  MISSED" },
            )?;
        }
    }
    Ok(if all_within_budget { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Times of decisions in a full cluster.
struct Times {
    p50: Duration,
    p99: Duration,
    /// Time of the first decision for a shape, after each node has changed.
    new_shape: Duration,
}

/// Times decisions in a full cluster, where each pod that starts replaces one that ends.
fn measure(nodes: usize, policy: Policy) -> Times {
    let mut random = Random::new(7);
    let mut view = cluster(nodes);
    let mut scheduler = Scheduler::learning(policy, 7);
    let mut running: Vec<(Request, Placement)> = Vec::new();
    let mut times = Vec::with_capacity(TIMED_DECISIONS);
    let mut refused = 0;
    while times.len() < TIMED_DECISIONS {
        let request = request(&mut random);
        let is_full = refused > 100;
        if is_full && !running.is_empty() {
            let (request, placement) = running.swap_remove(random.below(running.len()));
            view.release(&request, placement);
        }
        let start = Instant::now();
        scheduler.observe(&view, &request);
        let placement = scheduler.choose_placement(&view, &request);
        let time = start.elapsed();
        if is_full {
            times.push(time);
        }
        match placement {
            Some(placement) => {
                view.allocate(&request, placement).expect("a decision fits its view");
                running.push((request, placement));
            }
            None => refused += 1,
        }
    }
    times.sort_unstable();
    let new_shape = time_new_shape(&mut view, &mut scheduler);
    Times { p50: times[TIMED_DECISIONS / 2], p99: times[TIMED_DECISIONS * 99 / 100], new_shape }
}

fn time_new_shape(view: &mut ClusterView, scheduler: &mut Scheduler) -> Duration {
    for node in (0..).map(NodeIndex).take(view.nodes().len()) {
        view.replace(node, view.node(node).clone());
    }
    let gpus = Gpus::share(100, 0);
    let request = Request { cpu_milli: 1000, memory_mib: 0, gpus, models: ModelSet::ANY };
    let start = Instant::now();
    scheduler.choose_placement(view, &request);
    start.elapsed()
}

fn cluster(nodes: usize) -> ClusterView {
    let mut catalog = Catalog::default();
    let models = ["A", "B", "C"].map(|name| catalog.intern_model(name).expect("three models"));
    let node = |n: usize| Node {
        cpu_milli: ResourceUsage::free(96_000),
        memory_mib: ResourceUsage::free(786_432),
        pods: ResourceUsage::free(110),
        gpus: vec![Gpu::free(models[n % models.len()], 81_920); GPUS],
    };
    ClusterView::new(catalog, (0..nodes).map(node).collect())
}

/// Most pods request one GPU or a share, few request eight. With memory there are about 200 shapes.
fn request(random: &mut Random) -> Request {
    const SHARES: [u16; 6] = [810, 470, 320, 650, 230, 160];
    const CPUS: [u32; 8] = [3_152, 4_000, 8_000, 11_300, 11_908, 12_000, 16_000, 24_000];
    let gpus = match random.below(100) {
        0..13 => Gpus::None,
        13..51 => Gpus::share(SHARES[random.below(SHARES.len())], 0),
        51..98 => Gpus::Whole(1),
        98 => Gpus::Whole(4),
        _ => Gpus::Whole(8),
    };
    let cpu_milli = match gpus {
        Gpus::Whole(count @ 2..) => 8_000 * u32::from(count),
        _ => CPUS[random.below(CPUS.len())],
    };
    Request {
        cpu_milli,
        memory_mib: [8192, 16_384, 65_536][random.below(3)],
        gpus,
        models: ModelSet::ANY,
    }
}
