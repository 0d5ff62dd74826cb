//! Decisions: a pod is placed on a node that fits whenever one does, and cached ranks change no decision.

use proptest::{collection::vec, prelude::*, sample::select};
use windlass_sched::{
    fit::{Misfit, fit},
    gpu::{Gpu, GpuSet, ModelId, ModelSet},
    node::ResourceUsage,
    policy::Policy,
    request::{Gpus, ProfileId, Request, ShareMemory},
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex, Placement},
};

use crate::world::{
    catalog, fits, forecast, is_served, large_node, request, requests, used_clusters,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_pod_is_refused_only_if_no_node_fits(
        cluster in used_clusters(),
        pods in vec(requests(), 1..10),
        seed in any::<u64>(),
    ) {
        for policy in Policy::ALL {
            let mut view = cluster.clone();
            let mut scheduler = Scheduler::with_forecast(policy, &forecast(&pods), &view, seed);
            for pod in &pods {
                let is_possible = view.nodes().iter().any(|node| fits(view.catalog(), node, pod));
                let placement = scheduler.choose_placement(&view, pod);
                prop_assert_eq!(placement.is_some(), is_possible, "{:?} of {:?}", policy, pod);
                let Some(placement) = placement else { continue };
                prop_assert!(is_served(&view, pod, placement), "{:?}: {:?}", policy, placement);
                prop_assert_eq!(view.allocate(pod, placement), Ok(()));
            }
        }
    }

    #[test]
    fn both_implementations_find_the_same_nodes(view in used_clusters(), pod in requests()) {
        let expected: Vec<_> =
            view.nodes().iter().map(|node| fits(view.catalog(), node, &pod)).collect();
        let found: Vec<_> =
            view.nodes().iter().map(|node| fit(view.catalog(), node, &pod).is_ok()).collect();
        prop_assert_eq!(&found, &expected);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A pod with one of the requests arrives.
    Arrive(usize),
    /// One of the running pods terminates.
    End(usize),
    /// A spare node replaces a node, whose pods terminate.
    Replace { node: usize, replacement: usize },
    /// A spare node joins the cluster.
    Join(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let nth = || 0..100_usize;
    let step = prop_oneof![
        12 => nth().prop_map(Step::Arrive),
        8 => nth().prop_map(Step::End),
        2 => (nth(), nth()).prop_map(|(node, replacement)| Step::Replace { node, replacement }),
        1 => nth().prop_map(Step::Join),
    ];
    vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn cached_ranks_equal_fresh_ranks(
        mut view in used_clusters(),
        spares in used_clusters(),
        shapes in vec(requests(), 1..8),
        steps in steps(),
        policy in select(&Policy::ALL[1..]),
    ) {
        let forecast = forecast(&shapes);
        let mut scheduler = Scheduler::with_forecast(policy, &forecast, &view, 0);
        // Demand for products is relative to the initial nodes.
        let initial_view = view.clone();
        let mut running: Vec<(Request, Placement)> = Vec::new();
        let spare = |nth: usize| spares.nodes()[nth % spares.nodes().len()].clone();
        for step in steps {
            match step {
                Step::Arrive(nth) => {
                    // Ranks of a shape are valid for every amount of memory.
                    let memory_mib = u32::try_from(nth).expect("below 100") * 256;
                    let pod = Request { memory_mib, ..shapes[nth % shapes.len()] };
                    let mut uncached = Scheduler::with_forecast(policy, &forecast, &initial_view, 0);
                    let ranks: Vec<_> = scheduler.ranks(&view, &pod).collect();
                    prop_assert_eq!(&ranks, &uncached.ranks(&view, &pod).collect::<Vec<_>>());
                    for (node, _) in ranks {
                        prop_assert!(fits(view.catalog(), view.node(node), &pod));
                    }
                    let placement = scheduler.choose_placement(&view, &pod);
                    prop_assert_eq!(placement, uncached.choose_placement(&view, &pod));
                    if let Some(placement) = placement {
                        view.allocate(&pod, placement).expect("a decision fits");
                        running.push((pod, placement));
                    }
                }
                Step::End(nth) if !running.is_empty() => {
                    let (pod, placement) = running.swap_remove(nth % running.len());
                    view.release(&pod, placement);
                }
                Step::End(_) => {}
                Step::Replace { node, replacement } => {
                    let node = node % view.nodes().len();
                    let node = NodeIndex(u32::try_from(node).expect("below 100"));
                    running.retain(|(_, placement)| placement.node != node);
                    view.replace(node, spare(replacement));
                }
                Step::Join(nth) => drop(view.add(spare(nth))),
            }
        }
    }
}

#[test]
fn shapes_are_ranked_again_with_equal_results_after_eviction_from_the_cache() {
    // The cache has about four million ranks at most, fewer than 220 shapes on 20,000 nodes need.
    let node = || large_node(vec![Gpu::free(ModelId(0), 40_960); 2]);
    let view = ClusterView::new(catalog(), (0..20_000).map(|_| node()).collect());
    let shapes =
        (0..220_u32).map(|cpu_milli| Request { cpu_milli, ..request(Gpus::share(300, 0)) });
    let shapes: Vec<_> = shapes.collect();
    let forecast = forecast(&shapes[..10]);
    let mut scheduler = Scheduler::with_forecast(Policy::Windlass, &forecast, &view, 0);
    let first: Vec<_> = shapes.iter().map(|pod| scheduler.choose_placement(&view, pod)).collect();
    let second: Vec<_> = shapes.iter().map(|pod| scheduler.choose_placement(&view, pod)).collect();
    assert_eq!(first, second);
    assert!(first.iter().all(Option::is_some));
}

#[test]
fn the_first_node_and_gpu_are_chosen_among_equal_ranks() {
    let view =
        ClusterView::new(catalog(), vec![large_node(vec![Gpu::free(ModelId(2), 15_360); 3]); 3]);
    for policy in &Policy::ALL[1..] {
        for gpus in [Gpus::None, Gpus::share(500, 0), Gpus::Whole(2)] {
            let pod = request(gpus);
            let mut scheduler = Scheduler::with_forecast(*policy, &forecast(&[pod]), &view, 0);
            let placement = scheduler.choose_placement(&view, &pod).expect("an empty node fits");
            assert_eq!(placement.node, NodeIndex(0), "{policy:?}");
            let count = placement.part.gpus.len();
            assert_eq!(placement.part.gpus, GpuSet((1 << count) - 1), "{policy:?}");
        }
    }
}

#[test]
fn a_misfit_has_the_first_reason_and_the_free_amount() {
    let mut node = large_node(vec![Gpu::free(ModelId(0), 40_960), Gpu::free(ModelId(3), 0)]);
    node.cpu_milli = ResourceUsage::free(2000);
    node.memory_mib = ResourceUsage::free(4096);
    node.gpus[1].is_usable = false;
    let check = |request: Request, expected: Misfit, text: &str| {
        let misfit = fit(&catalog(), &node, &request).expect_err(text);
        assert_eq!(misfit, expected);
        assert_eq!(misfit.to_string(), text);
    };
    let of = |gpus| request(gpus);
    check(
        Request { cpu_milli: 2001, memory_mib: 5000, ..of(Gpus::Whole(9)) },
        Misfit::Cpu { requested_milli: 2001, free_milli: 2000 },
        "2001m of CPU requested, 2000m free",
    );
    check(
        Request { memory_mib: 5000, ..of(Gpus::Whole(9)) },
        Misfit::Memory { requested_mib: 5000, free_mib: 4096 },
        "5000 MiB of memory requested, 4096 MiB free",
    );
    check(
        Request { models: ModelSet::NONE.with(ModelId(1)), ..of(Gpus::Whole(1)) },
        Misfit::Model,
        "no GPU of a requested product",
    );
    check(
        of(Gpus::Whole(2)),
        Misfit::Whole { requested: 2, free: 1 },
        "2 whole GPUs requested, 1 free",
    );
    check(
        of(Gpus::share(100, 50_000)),
        Misfit::Share { compute_milli: 100, memory: ShareMemory::Mib(50_000) },
        "100 thousandths and 50000 MiB of one GPU requested; no GPU has as much free",
    );
    let memory = ShareMemory::Percent(50);
    check(
        of(Gpus::Share { count: 2, compute_milli: 100, memory }),
        Misfit::Shares { compute_milli: 100, memory, requested: 2, free: 1 },
        "100 thousandths and 50 % of the memory of each of 2 GPUs requested; 1 have as much free",
    );
    check(
        Request { models: ModelSet::NONE.with(ModelId(3)), ..of(Gpus::Partition(ProfileId(0))) },
        Misfit::Partition,
        "no GPU has a free place for the MIG profile",
    );
    let mut full = node.clone();
    full.pods = ResourceUsage::free(0);
    assert_eq!(fit(&catalog(), &full, &of(Gpus::None)), Err(Misfit::PodLimit));
}

#[test]
fn a_pod_that_uses_all_free_resources_of_a_node_fits() {
    let mut node = large_node(vec![Gpu::free(ModelId(0), 40_960); 2]);
    let pod = |gpus| Request { cpu_milli: 2000, memory_mib: 4096, ..request(gpus) };
    (node.cpu_milli, node.memory_mib) = (ResourceUsage::free(2000), ResourceUsage::free(4096));
    node.pods = ResourceUsage::free(1);
    for gpus in
        [Gpus::None, Gpus::Whole(2), Gpus::share(1000, 40_960), Gpus::Partition(ProfileId(4))]
    {
        assert!(fit(&catalog(), &node, &pod(gpus)).is_ok(), "{gpus:?}");
    }
}
