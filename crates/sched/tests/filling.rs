//! Filling with pods that never end, on clusters small enough to compute by hand.

use windlass_sched::{
    gpu::{Gpu, ModelId},
    policy::Policy,
    request::{Class, Gpus, Request},
    scheduler::Scheduler,
    simulation::{Filling, KnowledgeSource, Settings, Simulation, Tally, fill},
    view::View,
};

use crate::world::{catalog, request, roomy_node};

fn settings(policy: Policy) -> Settings {
    Settings { policy, knowledge: KnowledgeSource::History, seed: 1 }
}

fn cluster(nodes: usize, gpus: usize) -> View {
    View::new(catalog(), vec![roomy_node(vec![Gpu::free(ModelId(2), 15_360); gpus]); nodes])
}

fn known(filling: &Filling) -> Vec<(usize, f64)> {
    let known = filling.allocated.iter().enumerate();
    known.filter_map(|(column, percent)| Some((column, (*percent)?))).collect()
}

#[test]
fn the_curve_has_a_column_per_percent_of_arrived_gpus() {
    let check = |pods: Vec<Request>, load: f64, expected: &[(usize, f64)]| {
        let simulation = Simulation::new(cluster(1, 2), pods).expect("GPUs and demand");
        for policy in Policy::ALL {
            let filling = fill(&simulation, &settings(policy), load);
            assert_eq!(known(&filling), expected, "{policy:?}");
            assert_eq!(filling.allocated.len(), expected[expected.len() - 1].0 + 1);
        }
    };
    let one = request(Gpus::Whole(1));
    check(vec![one; 4], 2.0, &[(50, 50.0), (100, 100.0), (150, 100.0), (200, 100.0)]);
    // Copies come until one more would be above the load.
    check(vec![one], 2.4, &[(50, 50.0), (100, 100.0), (150, 100.0), (200, 100.0)]);
    check(vec![one; 2], 1.49, &[(50, 50.0), (100, 100.0)]);
    check(vec![one; 2], 1.5, &[(50, 50.0), (100, 100.0), (150, 100.0)]);
    // Two arrivals of 600 on two GPUs fit one each. The third has no GPU with 600 left.
    let share = request(Gpus::share(600, 0));
    check(vec![share; 3], 0.9, &[(30, 30.0), (60, 60.0), (90, 60.0)]);
    // Two arrivals on one percent: the mean of 0.5 and 1.0.
    let small = request(Gpus::share(10, 0));
    check(vec![small; 3], 0.015, &[(1, 0.75), (2, 1.5)]);
}

#[test]
fn refusals_are_counted_by_class() {
    let pods = vec![
        request(Gpus::Whole(8)),
        request(Gpus::Whole(2)),
        Request { cpu_milli: 2_000_000, ..request(Gpus::None) },
        request(Gpus::None),
        request(Gpus::Whole(1)),
        request(Gpus::share(250, 0)),
        request(Gpus::share(250, 20_000)),
    ];
    let simulation = Simulation::new(cluster(2, 1), pods).expect("GPUs and demand");
    assert_eq!(simulation.capacity_milli(), 2000);
    for policy in Policy::ALL {
        let filling = fill(&simulation, &settings(policy), 5.75);
        let count = |arrived, refused, arrived_milli, refused_milli| Tally {
            arrived,
            refused,
            arrived_milli,
            refused_milli,
        };
        let found = Class::ALL.map(|class| filling.classes.of(class));
        let expected = [
            count(2, 1, 0, 0),
            count(2, 1, 500, 250),
            count(1, 0, 1000, 0),
            count(1, 1, 2000, 2000),
            count(1, 1, 8000, 8000),
        ];
        // Copies without GPUs may follow the pods of the trace.
        assert_eq!(found[1..], expected[1..], "{policy:?}");
        assert!(found[0].arrived >= 2 && found[0].refused >= 1, "{policy:?}");
        assert_eq!(filling.decisions, found.iter().map(|it| it.arrived).sum::<u64>());
    }
}

#[test]
fn packing_policies_leave_a_node_for_the_largest_pod() {
    // Seven shares fill two GPUs if packed. Spread over the nodes, they break both.
    let pods = vec![request(Gpus::share(250, 0)); 7];
    for policy in [Policy::BestFit, Policy::Packing, Policy::Windlass] {
        let mut view = cluster(2, 8);
        let mut scheduler = Scheduler::learning(policy, 0);
        for pod in &pods {
            scheduler.observe(&view, pod);
            let placement = scheduler.decide(&view, pod).expect("there is room");
            view.take(pod, placement).expect("a decision fits");
        }
        let free: Vec<_> = view.nodes().iter().map(|node| node.free_gpus().len()).collect();
        assert_eq!(free, [6, 8], "{policy:?}");
    }
}
