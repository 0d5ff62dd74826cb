//! Fragmentation, compared with the definition in the paper.

use proptest::{collection::vec, prelude::*};
use windlass_sched::{
    fit::{Fit, fit},
    forecast::{TypicalRequest, typical},
    fragmentation::RequestMix,
    gpu::{Gpu, GpuSet, ModelId, ModelSet},
    node::{Amount, Node, Part},
    request::{Gpus, Request},
    view::{Catalog, View},
};

use crate::world::{
    catalog, forecast, gpu_serves, request, requests, roomy_node, used_clusters, wanted_gpus,
};

/// The definition, request by request: all idle GPU if the node cannot serve it, else that of the GPUs that cannot.
fn defined(catalog: &Catalog, node: &Node, typical: &[TypicalRequest]) -> f64 {
    let of = |TypicalRequest { request, weight }: &TypicalRequest| {
        let serves = |gpu: &&Gpu| gpu_serves(catalog, gpu, request);
        let is_served = wanted_gpus(request) > 0
            && node.cpu_milli.free >= request.cpu_milli
            && node.gpus.iter().filter(serves).count() >= wanted_gpus(request);
        let useless = node.gpus.iter().filter(|gpu| !is_served || !serves(gpu));
        weight * useless.map(|gpu| f64::from(gpu.idle_milli())).sum::<f64>()
    };
    typical.iter().map(of).sum()
}

fn fragmentation(catalog: &Catalog, node: &Node, typical: &[TypicalRequest]) -> f64 {
    RequestMix::new(typical, node.models()).node_usability(catalog, node).fragmentation()
}

/// The first and the last of the GPUs.
fn some(gpus: GpuSet, count: u32) -> Vec<Part> {
    let last = gpus.iter().collect::<Vec<_>>().into_iter().rev().take(count as usize);
    let last = last.fold(GpuSet::default(), |set, it| set.or(GpuSet::one(it)));
    [gpus.lowest(count), last].map(Part::of).to_vec()
}

/// Every part of the node that the request could have, but of several GPUs only two choices.
fn parts(fit: &Fit) -> Vec<Part> {
    match fit {
        Fit::Node => vec![Part::default()],
        Fit::Whole { free, count } => some(*free, *count),
        Fit::Share { gpus, count: 1 } => gpus.iter().map(|it| Part::of(GpuSet::one(it))).collect(),
        Fit::Share { gpus, count } => some(*gpus, *count),
        Fit::Partition(places) => places.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn it_is_that_of_the_definition(view in used_clusters(), pods in vec(requests(), 1..20)) {
        let typical = typical(&forecast(&pods).counts(&View::default()));
        for node in view.nodes() {
            let found = fragmentation(view.catalog(), node, &typical);
            let expected = defined(view.catalog(), node, &typical);
            prop_assert!((found - expected).abs() < 1e-6, "{} and not {}", found, expected);
        }
    }

    #[test]
    fn a_decrease_is_that_of_the_changed_node(
        view in used_clusters(),
        pods in vec(requests(), 1..20),
        newcomer in requests(),
    ) {
        let typical = typical(&forecast(&pods).counts(&View::default()));
        for node in view.nodes() {
            let Ok(fit) = fit(view.catalog(), node, &newcomer) else { continue };
            let (parts, mix) = (parts(&fit), RequestMix::new(&typical, node.models()));
            let before = mix.node_usability(view.catalog(), node);
            for part in parts {
                let found = mix.decrease(view.catalog(), node, &before, &newcomer, part);
                let mut after = node.clone();
                after.take(&newcomer, part).expect("a part of a fit is free");
                let expected = defined(view.catalog(), node, &typical)
                    - defined(view.catalog(), &after, &typical);
                prop_assert!((found - expected).abs() < 1e-6, "{} and not {}", found, expected);
            }
        }
    }
}

#[test]
fn hand_computed_nodes_have_the_papers_fragmentation() {
    let share = |milli| request(Gpus::share(milli, 0));
    let typical = [
        TypicalRequest { request: share(500), weight: 0.5 },
        TypicalRequest { request: request(Gpus::Whole(2)), weight: 0.25 },
        TypicalRequest { request: request(Gpus::None), weight: 0.25 },
    ];
    let check = |taken: &[u16], cpu_milli: u32, expected: f64| {
        let mut node = roomy_node(vec![Gpu::free(ModelId(2), 0); 3]);
        for (position, milli) in taken.iter().enumerate().filter(|(_, milli)| **milli > 0) {
            let part = Part { gpus: GpuSet::one(position), slices: 0 };
            node.take(&share(*milli), part).expect("it is free");
        }
        node.cpu_milli = Amount::free(cpu_milli);
        let found = fragmentation(&catalog(), &node, &typical);
        assert!((found - expected).abs() < 1e-9, "{taken:?}: {found} and not {expected}");
    };
    // Only pods without GPUs, for whom each GPU is useless.
    check(&[0, 0, 0], 8000, 0.25 * 3000.0);
    // 400 of the first are too few for a half, and cannot be part of a pair.
    check(&[600, 0, 0], 8000, 0.5 * 400.0 + 0.25 * 400.0 + 0.25 * 2400.0);
    // No pair is left, so all that is idle is useless for it.
    check(&[600, 100, 0], 8000, 0.5 * 400.0 + 0.25 * 2300.0 + 0.25 * 2300.0);
    // CPU for one of the requests suffices for each.
    check(&[600, 0, 0], 1000, 0.5 * 400.0 + 0.25 * 400.0 + 0.25 * 2400.0);
    check(&[600, 0, 0], 999, 2400.0);
    // Without CPU no request can use it.
    check(&[600, 0, 0], 0, 2400.0);
}

#[test]
fn an_unwanted_product_is_all_fragmentation() {
    let wanted =
        Request { models: ModelSet::NONE.with(ModelId(1)), ..request(Gpus::share(100, 0)) };
    let node = roomy_node(vec![Gpu::free(ModelId(2), 0), Gpu::free(ModelId(1), 0)]);
    let typical = [TypicalRequest { request: wanted, weight: 1.0 }];
    assert!((fragmentation(&catalog(), &node, &typical) - 1000.0).abs() < 1e-9);
}
