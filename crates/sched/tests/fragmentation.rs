//! Fragmentation, compared with its definition in "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use windlass_sched::{
    fit::{Fit, fit},
    forecast::{TypicalRequest, typical_requests},
    fragmentation::RequestMix,
    gpu::{Gpu, GpuSet, ModelId, ModelSet},
    node::{Node, Part, ResourceUsage},
    policy::Policy,
    request::{Gpus, Request, SizeClass},
    scheduler::Scheduler,
    view::{Catalog, ClusterView},
};

use crate::world::{
    catalog, forecast, gpu_serves, large_node, request, requested_gpus, requests, used_clusters,
};

/// The paper's definition, in thousandths of a GPU. If the node cannot serve a request, all its idle capacity is
/// fragmented for the request, else the idle capacity of the GPUs that cannot serve it.
fn by_definition(catalog: &Catalog, node: &Node, typical: &[TypicalRequest]) -> f64 {
    let fragmented_milli = |TypicalRequest { request, weight }: &TypicalRequest| {
        let serves = |gpu: &&Gpu| gpu_serves(catalog, gpu, request);
        let is_served = requested_gpus(request) > 0
            && node.cpu_milli.free >= request.cpu_milli
            && node.gpus.iter().filter(serves).count() >= requested_gpus(request);
        let fragmented = node.gpus.iter().filter(|gpu| !is_served || !serves(gpu));
        weight * fragmented.map(|gpu| f64::from(gpu.idle_milli())).sum::<f64>()
    };
    typical.iter().map(fragmented_milli).sum()
}

fn fragmentation(catalog: &Catalog, node: &Node, typical: &[TypicalRequest]) -> f64 {
    RequestMix::new(typical, node.models()).node_usability(catalog, node).fragmentation()
}

/// Two choices of `count` GPUs: the first ones and the last ones.
fn two_choices(gpus: GpuSet, count: u32) -> Vec<Part> {
    let last = gpus.iter().collect::<Vec<_>>().into_iter().rev().take(count as usize);
    let last = last.fold(GpuSet::default(), |set, it| set.union(GpuSet::single(it)));
    [gpus.lowest(count), last].map(Part::of).to_vec()
}

/// Every part of the node that fits the request, but only two choices of several GPUs.
fn parts(fit: &Fit) -> Vec<Part> {
    match fit {
        Fit::NoGpu => vec![Part::default()],
        Fit::Whole { free, count } => two_choices(*free, *count),
        Fit::Share { gpus, count: 1 } => {
            gpus.iter().map(|it| Part::of(GpuSet::single(it))).collect()
        }
        Fit::Share { gpus, count } => two_choices(*gpus, *count),
        Fit::Partition(places) => places.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn fragmentation_equals_the_definition(
        view in used_clusters(),
        pods in vec(requests(), 1..20),
    ) {
        let typical = typical_requests(&forecast(&pods).counts(&ClusterView::default()));
        for node in view.nodes() {
            let found = fragmentation(view.catalog(), node, &typical);
            let expected = by_definition(view.catalog(), node, &typical);
            prop_assert!((found - expected).abs() < 1e-6, "{}, expected {}", found, expected);
        }
    }

    #[test]
    fn fragmentation_by_size_adds_up_to_the_whole(
        view in used_clusters(),
        pods in vec(requests(), 1..20),
    ) {
        let forecast = forecast(&pods);
        let mut scheduler = Scheduler::with_forecast(Policy::Windlass, &forecast, &view, 0);
        let mut weights = BTreeMap::new();
        for TypicalRequest { request, weight } in typical_requests(&forecast.counts(&view)) {
            *weights.entry(request.class()).or_insert(0.0) += weight;
        }
        // No GPU serves a request for none.
        let idle: f64 = view.nodes().iter().map(|node| f64::from(node.idle_milli()) / 1000.0).sum();
        let mut sum = weights.remove(&SizeClass::CpuOnly).unwrap_or(0.0) * idle;
        for (size, gpus) in scheduler.fragmentation_by_size(&view) {
            sum += gpus * weights.remove(&size).expect("a size with typical requests");
        }
        prop_assert!(weights.is_empty(), "{weights:?}");
        let whole = scheduler.fragmentation(&view);
        prop_assert!((sum - whole).abs() < 1e-6, "{sum}, expected {whole}");
    }

    #[test]
    fn a_decrease_equals_the_difference_of_the_definitions(
        view in used_clusters(),
        pods in vec(requests(), 1..20),
        pod in requests(),
    ) {
        let typical = typical_requests(&forecast(&pods).counts(&ClusterView::default()));
        for node in view.nodes() {
            let Ok(fit) = fit(view.catalog(), node, &pod) else { continue };
            let (parts, mix) = (parts(&fit), RequestMix::new(&typical, node.models()));
            let before = mix.node_usability(view.catalog(), node);
            for part in parts {
                let found = mix.decrease(view.catalog(), node, &before, &pod, part);
                let mut after = node.clone();
                after.allocate(&pod, part).expect("a part of a fit is free");
                let expected = by_definition(view.catalog(), node, &typical)
                    - by_definition(view.catalog(), &after, &typical);
                prop_assert!((found - expected).abs() < 1e-6, "{}, expected {}", found, expected);
            }
        }
    }
}

#[test]
fn fragmentation_equals_values_computed_by_hand() {
    let share = |milli| request(Gpus::share(milli, 0));
    let typical = [
        TypicalRequest { request: share(500), weight: 0.5 },
        TypicalRequest { request: request(Gpus::Whole(2)), weight: 0.25 },
        TypicalRequest { request: request(Gpus::None), weight: 0.25 },
    ];
    let check = |allocated_milli: &[u16], cpu_milli: u32, expected: f64| {
        let mut node = large_node(vec![Gpu::free(ModelId(2), 0); 3]);
        for (position, milli) in allocated_milli.iter().enumerate().filter(|(_, milli)| **milli > 0)
        {
            let part = Part { gpus: GpuSet::single(position), memory_slices: 0 };
            node.allocate(&share(*milli), part).expect("the part is free");
        }
        node.cpu_milli = ResourceUsage::free(cpu_milli);
        let found = fragmentation(&catalog(), &node, &typical);
        assert!(
            (found - expected).abs() < 1e-9,
            "{allocated_milli:?}: {found}, expected {expected}"
        );
    };
    // A request without GPUs can use no GPU. Each other request can use all three.
    check(&[0, 0, 0], 8000, 0.25 * 3000.0);
    // The 400 thousandths left of the first GPU serve neither a half nor two whole GPUs.
    check(&[600, 0, 0], 8000, 0.5 * 400.0 + 0.25 * 400.0 + 0.25 * 2400.0);
    // Only one GPU is free, so all idle capacity is useless for requests of two whole GPUs.
    check(&[600, 100, 0], 8000, 0.5 * 400.0 + 0.25 * 2300.0 + 0.25 * 2300.0);
    // Each request needs 1,000 thousandths of a CPU. They suffice, because each request is considered alone.
    check(&[600, 0, 0], 1000, 0.5 * 400.0 + 0.25 * 400.0 + 0.25 * 2400.0);
    check(&[600, 0, 0], 999, 2400.0);
    // Without free CPU no request fits.
    check(&[600, 0, 0], 0, 2400.0);
}

#[test]
fn gpus_of_a_product_that_no_request_accepts_are_fragmented() {
    let selective =
        Request { models: ModelSet::NONE.with(ModelId(1)), ..request(Gpus::share(100, 0)) };
    let node = large_node(vec![Gpu::free(ModelId(2), 0), Gpu::free(ModelId(1), 0)]);
    let typical = [TypicalRequest { request: selective, weight: 1.0 }];
    assert!((fragmentation(&catalog(), &node, &typical) - 1000.0).abs() < 1e-9);
}
