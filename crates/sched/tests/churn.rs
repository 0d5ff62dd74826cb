//! Simulated churn, compared with a second simulation of one node.

use std::{cmp::Reverse, collections::BinaryHeap};

use windlass_sched::{
    gpu::{Gpu, ModelId},
    policy::Policy,
    random::Random,
    request::{Gpus, Request, SizeClass},
    simulation::{ChurnResult, ForecastSource, Load, Settings, Simulation, churn},
    view::ClusterView,
};

use crate::world::{catalog, large_node, request};

/// Mean lifetime of a pod, end of the warm-up, and end of the run, in ticks.
const MEAN_LIFETIME: f64 = 1e6;
const WARM_UP: u64 = 2_000_000;
const END: u64 = 6_000_000;

fn cluster(nodes: usize, gpus: usize) -> ClusterView {
    ClusterView::new(catalog(), vec![large_node(vec![Gpu::free(ModelId(2), 15_360); gpus]); nodes])
}

fn settings(policy: Policy, seed: u64) -> Settings {
    Settings { policy, forecast_source: ForecastSource::History, seed }
}

#[test]
fn no_pod_is_refused_or_waits_at_low_load() {
    let pods = vec![request(Gpus::Whole(1)), request(Gpus::share(500, 0))];
    let simulation = Simulation::new(cluster(10, 8), pods).expect("GPUs and demand");
    for (policy, has_queue) in
        [(Policy::Windlass, false), (Policy::Windlass, true), (Policy::Random, true)]
    {
        let load = Load { offered: 0.1, has_queue };
        let run = churn(&simulation, &settings(policy, 5), load);
        let counts = SizeClass::ALL.map(|class| run.classes.of(class));
        assert!(counts.iter().map(|count| count.arrived).sum::<u64>() > 10);
        assert!(counts.iter().all(|count| count.refused == 0), "{counts:?}");
        assert!(run.waits.iter().flatten().all(|wait| *wait == 0.0));
        assert!((5.0..15.0).contains(&run.allocated), "{}", run.allocated);
    }
}

#[test]
fn a_pod_that_fits_no_node_is_refused_at_any_load() {
    let pods = vec![request(Gpus::Whole(1)), request(Gpus::Whole(9))];
    let simulation = Simulation::new(cluster(2, 8), pods).expect("GPUs and demand");
    let run =
        churn(&simulation, &settings(Policy::Fgd, 5), Load { offered: 0.5, has_queue: false });
    let (one, nine) = (run.classes.of(SizeClass::OneGpu), run.classes.of(SizeClass::EightOrMore));
    assert!(nine.arrived > 0 && nine.refused == nine.arrived, "{nine:?}");
    assert!(one.arrived > 0 && one.refused == 0, "{one:?}");
    assert_eq!(nine.refused_milli, nine.arrived * 9000);
}

// === A second simulation ===

/// A pod of the second simulation. Times are in ticks.
struct Pod {
    gpus: u8,
    arrived: u64,
    lifetime: u64,
    started: Option<u64>,
}

/// Simulates one node whose only scarce resource is its GPUs. At each event the waiting pods that fit start, in the
/// order of their arrival.
fn second_simulation(node_gpus: u8, sizes: &[u8], offered: f64, seed: u64) -> Vec<Pod> {
    let mut random = Random::new(seed);
    let mean = sizes.iter().map(|gpus| f64::from(*gpus)).sum::<f64>()
        / f64::from(u8::try_from(sizes.len()).expect("a small number"));
    let spacing = mean / (offered * f64::from(node_gpus));
    let (mut pods, mut now): (Vec<Pod>, f64) = (Vec::new(), 0.0);
    loop {
        now += random.exponential(spacing);
        let arrived = ticks(now);
        if arrived > END {
            break;
        }
        let gpus = sizes[random.below(sizes.len())];
        let lifetime = ticks(random.exponential(1.0));
        pods.push(Pod { gpus, arrived, lifetime, started: None });
    }
    let events = pods.iter().enumerate().map(|(pod, it)| Reverse((it.arrived, pod, false)));
    let mut events: BinaryHeap<_> = events.collect();
    let (mut free, mut arrivals) = (node_gpus, 0);
    while let Some(Reverse((now, pod, is_end))) = events.pop().filter(|it| it.0.0 <= END) {
        if is_end {
            free += pods[pod].gpus;
        } else {
            arrivals = pod + 1;
        }
        for (waiting, pod) in pods[..arrivals].iter_mut().enumerate() {
            if pod.started.is_none() && pod.gpus <= free {
                free -= pod.gpus;
                pod.started = Some(now);
                events.push(Reverse((now + pod.lifetime, waiting, true)));
            }
        }
    }
    pods
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few mean lifetimes")]
fn ticks(lifetimes: f64) -> u64 {
    (lifetimes * MEAN_LIFETIME).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "some million ticks")]
fn lifetimes(ticks: u64) -> f64 {
    ticks as f64 / MEAN_LIFETIME
}

fn waits(pods: &[Pod], is_selected: impl Fn(u8) -> bool) -> Vec<f64> {
    let measured = pods.iter().filter(|pod| pod.arrived >= WARM_UP && is_selected(pod.gpus));
    let mut waits: Vec<_> =
        measured.map(|pod| lifetimes(pod.started.unwrap_or(END) - pod.arrived)).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

/// Mean percentage of allocated GPUs after the warm-up.
fn allocated(pods: &[Pod], node_gpus: u8) -> f64 {
    let gpu_lifetimes = |pod: &Pod| {
        let Some(started) = pod.started else { return 0.0 };
        let ended = (started + pod.lifetime).clamp(WARM_UP, END);
        f64::from(pod.gpus) * lifetimes(ended - started.clamp(WARM_UP, END))
    };
    100.0 * pods.iter().map(gpu_lifetimes).sum::<f64>()
        / f64::from(node_gpus)
        / lifetimes(END - WARM_UP)
}

#[test]
fn waiting_pods_start_in_order_of_arrival_except_those_that_do_not_fit_yet() {
    let check = |node_gpus: u8, sizes: &[u8], offered: f64, seed: u64| {
        let pods: Vec<Request> = sizes.iter().map(|gpus| request(Gpus::Whole(*gpus))).collect();
        let simulation =
            Simulation::new(cluster(1, usize::from(node_gpus)), pods).expect("GPUs and demand");
        let load = Load { offered, has_queue: true };
        let run: ChurnResult = churn(&simulation, &settings(Policy::Windlass, seed), load);
        let expected = second_simulation(node_gpus, sizes, offered, seed);
        assert!(expected.len() > 5, "{} pods are too few to compare", expected.len());
        let (waits_of, expected_waits) = (
            |class: SizeClass| &run.waits[class as usize],
            |range: (u8, u8)| waits(&expected, |gpus| (range.0..=range.1).contains(&gpus)),
        );
        let case = format!("{sizes:?} on {node_gpus} at {offered}, seed {seed}");
        assert_eq!(*waits_of(SizeClass::OneGpu), expected_waits((1, 1)), "{case}");
        assert_eq!(*waits_of(SizeClass::TwoToSeven), expected_waits((2, 7)), "{case}");
        assert_eq!(*waits_of(SizeClass::EightOrMore), expected_waits((8, 255)), "{case}");
        assert!((run.allocated - allocated(&expected, node_gpus)).abs() < 1e-9, "{case}");
        let counts = SizeClass::ALL.map(|class| run.classes.of(class));
        assert!(counts.iter().all(|count| count.refused == 0), "{case}");
        for class in SizeClass::ALL {
            let arrived = run.classes.of(class).arrived;
            assert_eq!(waits_of(class).len() as u64, arrived, "{case}: each pod has one wait");
        }
    };
    for seed in 0..10 {
        check(4, &[1], 0.9, seed);
        check(8, &[1, 2], 1.2, seed);
        check(16, &[1, 1, 2, 4, 8], 1.0, seed);
        check(16, &[1, 16], 1.5, seed);
    }
}
