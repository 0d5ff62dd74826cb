//! The four losses that Windlass' policy measures and FGD does not, with one decision each.

use windlass_sched::{
    gpu::{Gpu, GpuSet, ModelId, ModelSet},
    node::{Node, Part, ResourceUsage},
    policy::Policy,
    request::{Gpus, Request},
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex},
};

use crate::world::{catalog, forecast, large_node, request};

const T4: ModelId = ModelId(2);
const L4: ModelId = ModelId(3);

fn share(milli: u16) -> Request {
    request(Gpus::share(milli, 0))
}

fn node(gpus: usize) -> Node {
    large_node(vec![Gpu::free(T4, 0); gpus])
}

/// Checks that FGD chooses GPU 0 of node 0, and Windlass' policy the given node and GPU.
fn check(view: &ClusterView, forecast_pods: &[Request], pod: Request, expected: (u32, usize)) {
    let choice = |policy| {
        let mut scheduler = Scheduler::with_forecast(policy, &forecast(forecast_pods), view, 0);
        let placement = scheduler.choose_placement(view, &pod).expect("the pod fits");
        (placement.node, placement.part.gpus.iter().next().unwrap_or(0))
    };
    assert_eq!(choice(Policy::Fgd), (NodeIndex(0), 0));
    assert_eq!(choice(Policy::Windlass), (NodeIndex(expected.0), expected.1));
}

#[test]
fn a_share_is_placed_where_the_remainder_keeps_its_value() {
    // A free GPU fits three shares of 300 thousandths, before and after the placement. The other one fits three before,
    // and two after.
    let mut node = node(2);
    let first = Part { gpus: GpuSet::single(0), memory_slices: 0 };
    node.allocate(&share(100), first).expect("the part is free");
    check(&ClusterView::new(catalog(), vec![node]), &[share(300)], share(100), (0, 1));
}

#[test]
fn cpu_is_reserved_for_the_gpus_of_its_node() {
    // Pods of the forecast request 8 cores per GPU. The new pod would leave 4 cores for the GPU of the first node.
    let (mut small, large) = (node(1), node(1));
    small.cpu_milli = ResourceUsage::free(10_000);
    let typical = Request { cpu_milli: 4000, ..share(500) };
    let pod = Request { cpu_milli: 6000, ..request(Gpus::None) };
    check(&ClusterView::new(catalog(), vec![small, large]), &[typical], pod, (1, 0));
}

#[test]
fn a_product_is_reserved_for_pods_that_require_it() {
    // Requests for the product are too rare for FGD, which uses only the most frequent ones.
    let nodes = [T4, L4].map(|model| large_node(vec![Gpu::free(model, 0)]));
    let any = request(Gpus::Whole(1));
    let selective = Request { models: ModelSet::NONE.with(T4), ..any };
    let typical = [vec![any; 96], vec![selective; 4]].concat();
    check(&ClusterView::new(catalog(), nodes.to_vec()), &typical, any, (1, 0));
}

#[test]
fn a_pair_is_reserved_for_pods_with_two_gpus() {
    let view = ClusterView::new(catalog(), vec![node(2), node(3)]);
    let typical = [vec![share(500); 96], vec![request(Gpus::Whole(2)); 4]].concat();
    check(&view, &typical, share(500), (1, 0));
}
