//! Filling a cluster with pods that never terminate. The clusters are small enough to compute results by hand.

use windlass_sched::{
    gpu::{Gpu, ModelId},
    policy::Policy,
    request::{Gpus, Request, SizeClass},
    scheduler::Scheduler,
    simulation::{FillingResult, ForecastSource, Settings, Simulation, Tally, fill},
    view::ClusterView,
};

use crate::world::{catalog, large_node, request};

fn settings(policy: Policy) -> Settings {
    Settings { policy, forecast_source: ForecastSource::History, seed: 1 }
}

fn cluster(nodes: usize, gpus: usize) -> ClusterView {
    ClusterView::new(catalog(), vec![large_node(vec![Gpu::free(ModelId(2), 15_360); gpus]); nodes])
}

/// The columns of the curve that have a value.
fn columns(filling: &FillingResult) -> Vec<(usize, f64)> {
    let columns = filling.allocated.iter().enumerate();
    columns.filter_map(|(column, percent)| Some((column, (*percent)?))).collect()
}

#[test]
fn the_curve_has_a_column_per_percent_of_arrived_gpus() {
    let check = |pods: Vec<Request>, load: f64, expected: &[(usize, f64)]| {
        let simulation = Simulation::new(cluster(1, 2), pods).expect("GPUs and demand");
        for policy in Policy::ALL {
            let filling = fill(&simulation, &settings(policy), load);
            assert_eq!(columns(&filling), expected, "{policy:?}");
            assert_eq!(filling.allocated.len(), expected[expected.len() - 1].0 + 1);
        }
    };
    let one = request(Gpus::Whole(1));
    check(vec![one; 4], 2.0, &[(50, 50.0), (100, 100.0), (150, 100.0), (200, 100.0)]);
    // Copies of the pods arrive until one more would exceed the load.
    check(vec![one], 2.4, &[(50, 50.0), (100, 100.0), (150, 100.0), (200, 100.0)]);
    check(vec![one; 2], 1.49, &[(50, 50.0), (100, 100.0)]);
    check(vec![one; 2], 1.5, &[(50, 50.0), (100, 100.0), (150, 100.0)]);
    // Each of the two GPUs has room for one share of 600 thousandths, so the third share is refused.
    let share = request(Gpus::share(600, 0));
    check(vec![share; 3], 0.9, &[(30, 30.0), (60, 60.0), (90, 60.0)]);
    // Two pods arrive within one percent, so its value is the mean of 0.5 and 1.0.
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
        let found = SizeClass::ALL.map(|class| filling.classes.of(class));
        let expected = [
            count(2, 1, 0, 0),
            count(2, 1, 500, 250),
            count(1, 0, 1000, 0),
            count(1, 1, 2000, 2000),
            count(1, 1, 8000, 8000),
        ];
        // Copies of pods without GPUs may arrive after the pods of the trace.
        assert_eq!(found[1..], expected[1..], "{policy:?}");
        assert!(found[0].arrived >= 2 && found[0].refused >= 1, "{policy:?}");
        assert_eq!(filling.decisions, found.iter().map(|it| it.arrived).sum::<u64>());
    }
}

#[test]
fn packing_policies_leave_a_node_free_for_the_largest_pod() {
    // Packed shares need two GPUs of one node. Spread shares would use GPUs of both nodes.
    let pods = vec![request(Gpus::share(250, 0)); 7];
    for policy in [Policy::BestFit, Policy::Packing, Policy::Windlass] {
        let mut view = cluster(2, 8);
        let mut scheduler = Scheduler::learning(policy, 0);
        for pod in &pods {
            scheduler.observe(&view, pod);
            let placement = scheduler.choose_placement(&view, pod).expect("there is room");
            view.allocate(pod, placement).expect("a decision fits");
        }
        let free: Vec<_> = view.nodes().iter().map(|node| node.free_gpus().len()).collect();
        assert_eq!(free, [6, 8], "{policy:?}");
    }
}
