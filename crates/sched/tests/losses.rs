//! The four losses that Windlass' policy measures and FGD does not, with one hand-made choice each.

use windlass_sched::{
    gpu::{Gpu, GpuSet, ModelId, ModelSet},
    node::{Amount, Node, Part},
    policy::Policy,
    request::{Gpus, Request},
    scheduler::Scheduler,
    view::{NodeIx, View},
};

use crate::world::{catalog, forecast, request, roomy_node};

const T4: ModelId = ModelId(2);
const L4: ModelId = ModelId(3);

fn share(milli: u16) -> Request {
    request(Gpus::share(milli, 0))
}

fn node(gpus: usize) -> Node {
    roomy_node(vec![Gpu::free(T4, 0); gpus])
}

/// Checks that FGD takes the first node and GPU, and Windlass' policy the other one.
fn check(view: &View, known: &[Request], pod: Request, own: (u32, usize)) {
    let choice = |policy| {
        let mut scheduler = Scheduler::with_forecast(policy, &forecast(known), view, 0);
        let placement = scheduler.decide(view, &pod).expect("there is room");
        (placement.node, placement.part.gpus.iter().next().unwrap_or(0))
    };
    assert_eq!(choice(Policy::Fgd), (NodeIx(0), 0));
    assert_eq!(choice(Policy::Windlass), (NodeIx(own.0), own.1));
}

#[test]
fn a_share_is_cut_where_the_rest_stays_as_useful() {
    // Three shares fit into 900 and into 1000, but only two into 800.
    let mut node = node(2);
    let first = Part { gpus: GpuSet::one(0), slices: 0 };
    node.take(&share(100), first).expect("it is free");
    check(&View::new(catalog(), vec![node]), &[share(300)], share(100), (0, 1));
}

#[test]
fn cpu_is_left_for_the_gpus_of_its_node() {
    // Known pods request 8 cores per GPU. The new pod would leave the first node four cores for one GPU.
    let (mut small, large) = (node(1), node(1));
    small.cpu_milli = Amount::free(10_000);
    let known = Request { cpu_milli: 4000, ..share(500) };
    let pod = Request { cpu_milli: 6000, ..request(Gpus::None) };
    check(&View::new(catalog(), vec![small, large]), &[known], pod, (1, 0));
}

#[test]
fn a_product_is_left_for_those_who_insist_on_it() {
    // Requests for the product are too rare for FGD, which knows only the most frequent ones.
    let nodes = [T4, L4].map(|model| roomy_node(vec![Gpu::free(model, 0)]));
    let any = request(Gpus::Whole(1));
    let picky = Request { models: ModelSet::NONE.with(T4), ..any };
    let known = [vec![any; 96], vec![picky; 4]].concat();
    check(&View::new(catalog(), nodes.to_vec()), &known, any, (1, 0));
}

#[test]
fn a_pair_is_left_for_those_who_need_two() {
    let view = View::new(catalog(), vec![node(2), node(3)]);
    let known = [vec![share(500); 96], vec![request(Gpus::Whole(2)); 4]].concat();
    check(&view, &known, share(500), (1, 0));
}
