//! Forecasts: their counts, typical requests, and updates on arrivals.

use proptest::{collection::vec, prelude::*};
use windlass_sched::{
    forecast::typical_requests,
    gpu::{Gpu, ModelId},
    policy::Policy,
    request::{Gpus, Request},
    scheduler::Scheduler,
    simulation::{ForecastSource, Load, Settings, Simulation, churn, fill},
    view::ClusterView,
};

use crate::world::{
    catalog, forecast, idle_clusters, large_node, request, requests, used_clusters,
};

#[test]
fn the_typical_requests_are_the_most_frequent_95_percent() {
    let check = |counts: &[usize], expected: &[f64]| {
        let pods: Vec<_> = (1_u8..)
            .zip(counts)
            .flat_map(|(gpus, count)| vec![request(Gpus::Whole(gpus)); *count])
            .collect();
        let weights: Vec<_> = typical_requests(&forecast(&pods).counts(&ClusterView::default()))
            .iter()
            .map(|it| it.weight)
            .collect();
        assert_eq!(weights.len(), expected.len(), "{counts:?}");
        let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
        assert!(weights.iter().zip(expected).all(is_near), "{counts:?}: {weights:?}");
    };
    check(&[], &[]);
    check(&[1], &[1.0]);
    check(&[95, 5], &[1.0]);
    check(&[4, 96], &[1.0]);
    check(&[94, 4, 2], &[94.0 / 98.0, 4.0 / 98.0]);
    check(&[1, 1], &[0.5, 0.5]);
}

#[test]
fn requests_that_differ_only_in_memory_are_counted_together() {
    let pods = [1, 2, 3].map(|memory_mib| Request { memory_mib, ..request(Gpus::None) });
    let counts = forecast(&pods).counts(&ClusterView::default());
    assert_eq!(counts.len(), 1);
    assert_eq!(counts[0].request.memory_mib, 0);
    assert!((counts[0].pods - 3.0).abs() < 1e-12);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    // The scheduler updates its forecast only when the history has grown by half since the last update.
    #[test]
    fn a_learning_scheduler_equals_one_with_the_forecast_of_the_same_history(
        view in used_clusters(),
        pods in vec(requests(), 1..40),
        probes in vec(requests(), 1..4),
    ) {
        for policy in &Policy::ALL[1..] {
            let mut learning = Scheduler::learning(*policy, 3);
            let mut in_forecast = 0;
            for arrived in 1..=pods.len() {
                learning.observe(&view, &pods[arrived - 1]);
                if arrived > in_forecast + in_forecast / 2 {
                    in_forecast = arrived;
                }
                // This decision caches ranks, which must not be used with a later forecast.
                learning.choose_placement(&view, &probes[arrived % probes.len()]);
            }
            let forecast = forecast(&pods[..in_forecast]);
            let mut fixed = Scheduler::with_forecast(*policy, &forecast, &view, 3);
            for probe in &probes {
                prop_assert_eq!(learning.choose_placement(&view, probe), fixed.choose_placement(&view, probe));
            }
        }
    }

    #[test]
    fn a_scheduler_with_a_fixed_forecast_ignores_arrivals(
        view in used_clusters(),
        pods in vec(requests(), 1..20),
    ) {
        let forecast = forecast(&pods[..1]);
        let mut without_arrivals = Scheduler::with_forecast(Policy::Windlass, &forecast, &view, 3);
        let mut with_arrivals = Scheduler::with_forecast(Policy::Windlass, &forecast, &view, 3);
        for pod in &pods {
            with_arrivals.observe(&view, pod);
            prop_assert_eq!(
                without_arrivals.choose_placement(&view, pod),
                with_arrivals.choose_placement(&view, pod)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn equal_seeds_give_equal_simulations(
        idle in idle_clusters(),
        mut pods in vec(requests(), 1..20),
        seed in any::<u64>(),
    ) {
        // A simulation needs at least one GPU, and a pod that requests GPUs.
        let mut nodes = idle.nodes().to_vec();
        nodes.push(large_node(vec![Gpu::free(ModelId(0), 40_960)]));
        pods.push(request(Gpus::Whole(1)));
        let simulation = Simulation::new(ClusterView::new(catalog(), nodes), pods).expect("GPUs and demand");
        for policy in Policy::ALL {
            for forecast_source in [ForecastSource::Trace, ForecastSource::History] {
                let settings = Settings { policy, forecast_source, seed };
                let filling = || format!("{:?}", fill(&simulation, &settings, 1.1));
                prop_assert_eq!(filling(), filling());
                let load = Load { offered: 0.2, has_queue: seed % 2 == 0 };
                let churning = || format!("{:?}", churn(&simulation, &settings, load));
                prop_assert_eq!(churning(), churning());
            }
        }
    }
}
