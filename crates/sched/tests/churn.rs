//! Churn, compared with a second simulation of one node.

use std::{cmp::Reverse, collections::BinaryHeap};

use windlass_sched::{
    gpu::{Gpu, ModelId},
    policy::Policy,
    random::Random,
    request::{Class, Gpus, Request},
    simulation::{Churn, KnowledgeSource, Load, Settings, Simulation, churn},
    view::View,
};

use crate::world::{catalog, request, roomy_node};

/// Ticks of a mean lifetime, of the warm-up, and of the whole run.
const LIFE: f64 = 1e6;
const WARM_UP: u64 = 2_000_000;
const END: u64 = 6_000_000;

fn cluster(nodes: usize, gpus: usize) -> View {
    View::new(catalog(), vec![roomy_node(vec![Gpu::free(ModelId(2), 15_360); gpus]); nodes])
}

fn settings(policy: Policy, seed: u64) -> Settings {
    Settings { policy, knowledge: KnowledgeSource::History, seed }
}

#[test]
fn nothing_is_refused_and_nobody_waits_where_there_is_room() {
    let pods = vec![request(Gpus::Whole(1)), request(Gpus::share(500, 0))];
    let simulation = Simulation::new(cluster(10, 8), pods).expect("GPUs and demand");
    for (policy, queues) in
        [(Policy::Windlass, false), (Policy::Windlass, true), (Policy::Random, true)]
    {
        let load = Load { offered: 0.1, queues };
        let run = churn(&simulation, &settings(policy, 5), load);
        let counts = Class::ALL.map(|class| run.classes.of(class));
        assert!(counts.iter().map(|count| count.arrived).sum::<u64>() > 10);
        assert!(counts.iter().all(|count| count.refused == 0), "{counts:?}");
        assert!(run.waits.iter().flatten().all(|wait| *wait == 0.0));
        assert!((5.0..15.0).contains(&run.allocated), "{}", run.allocated);
    }
}

#[test]
fn a_pod_that_fits_nowhere_is_refused_at_any_load() {
    let pods = vec![request(Gpus::Whole(1)), request(Gpus::Whole(9))];
    let simulation = Simulation::new(cluster(2, 8), pods).expect("GPUs and demand");
    let run = churn(&simulation, &settings(Policy::Fgd, 5), Load { offered: 0.5, queues: false });
    let (one, nine) = (run.classes.of(Class::One), run.classes.of(Class::Eight));
    assert!(nine.arrived > 0 && nine.refused == nine.arrived, "{nine:?}");
    assert!(one.arrived > 0 && one.refused == 0, "{one:?}");
    assert_eq!(nine.refused_milli, nine.arrived * 9000);
}

// === A second simulation ===

/// An arrived pod, and the time of its start.
struct Pod {
    gpus: u8,
    came: u64,
    life: u64,
    started: Option<u64>,
}

/// One node where only GPUs are scarce. At each event the waiting pods that fit start, in the order of their arrival.
fn second_simulation(all: u8, sizes: &[u8], offered: f64, seed: u64) -> Vec<Pod> {
    let mut random = Random::new(seed);
    let mean = sizes.iter().map(|gpus| f64::from(*gpus)).sum::<f64>()
        / f64::from(u8::try_from(sizes.len()).expect("few"));
    let spacing = mean / (offered * f64::from(all));
    let (mut pods, mut lives): (Vec<Pod>, f64) = (Vec::new(), 0.0);
    loop {
        lives += random.exponential(spacing);
        let came = ticks(lives);
        if came > END {
            break;
        }
        let gpus = sizes[random.below(sizes.len())];
        let life = ticks(random.exponential(1.0));
        pods.push(Pod { gpus, came, life, started: None });
    }
    let arrivals = pods.iter().enumerate().map(|(pod, it)| Reverse((it.came, pod, false)));
    let mut events: BinaryHeap<_> = arrivals.collect();
    let (mut free, mut here) = (all, 0);
    while let Some(Reverse((now, pod, is_end))) = events.pop().filter(|it| it.0.0 <= END) {
        if is_end {
            free += pods[pod].gpus;
        } else {
            here = pod + 1;
        }
        for (waiting, pod) in pods[..here].iter_mut().enumerate() {
            if pod.started.is_none() && pod.gpus <= free {
                free -= pod.gpus;
                pod.started = Some(now);
                events.push(Reverse((now + pod.life, waiting, true)));
            }
        }
    }
    pods
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some lives")]
fn ticks(lives: f64) -> u64 {
    (lives * LIFE).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "some million ticks")]
fn lives(ticks: u64) -> f64 {
    ticks as f64 / LIFE
}

fn waits(pods: &[Pod], is_wanted: impl Fn(u8) -> bool) -> Vec<f64> {
    let measured = pods.iter().filter(|pod| pod.came >= WARM_UP && is_wanted(pod.gpus));
    let mut waits: Vec<_> =
        measured.map(|pod| lives(pod.started.unwrap_or(END) - pod.came)).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

fn allocated(pods: &[Pod], all: u8) -> f64 {
    let held = |pod: &Pod| {
        let Some(started) = pod.started else { return 0.0 };
        let ended = (started + pod.life).clamp(WARM_UP, END);
        f64::from(pod.gpus) * lives(ended - started.clamp(WARM_UP, END))
    };
    100.0 * pods.iter().map(held).sum::<f64>() / f64::from(all) / lives(END - WARM_UP)
}

#[test]
fn waiting_pods_start_first_come_first_served_and_small_ones_go_ahead() {
    let check = |all: u8, sizes: &[u8], offered: f64, seed: u64| {
        let pods: Vec<Request> = sizes.iter().map(|gpus| request(Gpus::Whole(*gpus))).collect();
        let simulation =
            Simulation::new(cluster(1, usize::from(all)), pods).expect("GPUs and demand");
        let load = Load { offered, queues: true };
        let run: Churn = churn(&simulation, &settings(Policy::Windlass, seed), load);
        let expected = second_simulation(all, sizes, offered, seed);
        assert!(expected.len() > 5, "{} pods tell nothing", expected.len());
        let (found, of) = (
            |class: Class| &run.waits[class as usize],
            |range: (u8, u8)| waits(&expected, |gpus| (range.0..=range.1).contains(&gpus)),
        );
        let case = format!("{sizes:?} on {all} at {offered}, seed {seed}");
        assert_eq!(*found(Class::One), of((1, 1)), "{case}");
        assert_eq!(*found(Class::Several), of((2, 7)), "{case}");
        assert_eq!(*found(Class::Eight), of((8, 255)), "{case}");
        assert!((run.allocated - allocated(&expected, all)).abs() < 1e-9, "{case}");
        let counts = Class::ALL.map(|class| run.classes.of(class));
        assert!(counts.iter().all(|count| count.refused == 0), "{case}");
        for class in Class::ALL {
            let arrived = run.classes.of(class).arrived;
            assert_eq!(found(class).len() as u64, arrived, "{case}: each pod has one wait");
        }
    };
    for seed in 0..10 {
        check(4, &[1], 0.9, seed);
        check(8, &[1, 2], 1.2, seed);
        check(16, &[1, 1, 2, 4, 8], 1.0, seed);
        check(16, &[1, 16], 1.5, seed);
    }
}
