//! Placement of gangs, compared with an exhaustive search over all choices of nodes.

use proptest::{collection::vec, prelude::*, sample::select};
use windlass_sched::{
    gang::{MAX_TRIES, Member, place_gang},
    gpu::{Gpu, ModelId, ModelSet},
    node::{Amount, Node},
    policy::Policy,
    request::{Gpus, Request},
    scheduler::Scheduler,
    view::{NodeIx, Placement, View},
};

use crate::world::{catalog, request};

fn node(gpus: usize, model: u8, cpus: u32) -> Node {
    let plenty = Amount::free(1_000_000);
    let gpus = vec![Gpu::free(ModelId(model), 40_960); gpus];
    Node { cpu_milli: Amount::free(cpus * 1000), memory_mib: plenty, pods: plenty, gpus }
}

fn clusters(most: usize) -> impl Strategy<Value = Vec<Node>> {
    let sizes = (0..=8_usize, 0..2_u8, 1..=6_u32);
    vec(sizes.prop_map(|(gpus, model, cpus)| node(gpus, model, cpus)), 1..=most)
}

fn requests() -> impl Strategy<Value = Request> {
    let gpus = select(vec![
        Gpus::Whole(1),
        Gpus::Whole(2),
        Gpus::Whole(4),
        Gpus::Whole(8),
        Gpus::share(500, 0),
    ]);
    let models = select(vec![ModelSet::ANY, ModelSet::NONE.with(ModelId(0))]);
    (gpus, models).prop_map(|(gpus, models)| Request { models, ..request(gpus) })
}

fn placed(
    view: &mut View,
    scheduler: &mut Scheduler,
    members: &[Member<'_>],
) -> Option<Vec<Placement>> {
    place_gang(view, scheduler, members, &mut MAX_TRIES.clone())
}

/// True if some choice of nodes serves all requests.
fn is_possible(
    view: &mut View,
    scheduler: &mut Scheduler,
    requests: &[(Request, Vec<NodeIx>)],
) -> bool {
    let Some(((request, nodes), later)) = requests.split_first() else { return true };
    nodes.iter().any(|node| {
        let Some(part) = scheduler.part(view, *node, request) else { return false };
        let place = Placement { node: *node, part };
        view.take(request, place).expect("it fits");
        let possible = is_possible(view, scheduler, later);
        view.release(request, place);
        possible
    })
}

/// Takes all places. Fails unless they are free together and on allowed nodes.
fn take(view: &mut View, members: &[Member<'_>], places: &[Placement]) {
    assert_eq!(members.len(), places.len());
    for (member, place) in members.iter().zip(places) {
        assert!(member.nodes.contains(&place.node), "on a node that may serve it");
        view.take(&member.request, *place).expect("all places are free together");
    }
}

proptest! {
    /// The order of placement decides which GPUs of a node the members take, so the exhaustive search uses the same
    /// order.
    #[test]
    fn a_gang_has_places_exactly_when_some_choice_of_nodes_does(
        nodes in clusters(4),
        wanted in vec((requests(), 1..16_u32), 1..=5),
    ) {
        let mut view = View::new(catalog(), nodes);
        let mut scheduler = Scheduler::learning(Policy::Windlass, 0);
        let all: Vec<_> = (0..).map(NodeIx).take(view.nodes().len()).collect();
        let allowed = |bits: u32| all.iter().copied().filter(|it| bits >> it.0 & 1 == 1).collect();
        let mut wanted: Vec<(Request, Vec<NodeIx>)> =
            wanted.into_iter().map(|(request, bits)| (request, allowed(bits))).collect();
        let members: Vec<_> =
            wanted.iter().map(|(request, nodes)| Member { request: *request, nodes }).collect();
        let before = view.clone();
        let found = placed(&mut view, &mut scheduler, &members);
        prop_assert_eq!(before.nodes(), view.nodes());
        if let Some(places) = &found {
            take(&mut view.clone(), &members, places);
        }
        wanted.sort_by_key(|(request, nodes)| {
            let gpus = (request.gpu_count(), view.average_milli(request));
            (std::cmp::Reverse((gpus, *request)), nodes.len())
        });
        prop_assert_eq!(found.is_some(), is_possible(&mut view, &mut scheduler, &wanted));
    }

    #[test]
    fn equal_members_have_places_as_long_as_one_node_is_left(
        nodes in clusters(64),
        gpus in select(vec![1_u8, 2, 3, 8]),
    ) {
        let room = |node: &Node| {
            let by_gpus = node.gpus.len() / usize::from(gpus);
            by_gpus.min(node.cpu_milli.free as usize / 1000)
        };
        let room: usize = nodes.iter().map(room).sum();
        let mut view = View::new(catalog(), nodes);
        let mut scheduler = Scheduler::learning(Policy::Windlass, 0);
        let all: Vec<_> = (0..).map(NodeIx).take(view.nodes().len()).collect();
        let member = Member { request: request(Gpus::Whole(gpus)), nodes: &all };
        let found = placed(&mut view, &mut scheduler, &vec![member; room]);
        let found = found.expect("there is room");
        take(&mut view.clone(), &vec![member; room], &found);
        prop_assert_eq!(placed(&mut view, &mut scheduler, &vec![member; room + 1]), None);
    }
}

#[test]
fn the_place_of_a_large_member_is_found_although_small_ones_rank_its_node_best() {
    // Small members alone would take the node that is nearly full, the only one of the product that the large one
    // accepts.
    let mut view = View::new(catalog(), vec![node(4, 0, 5), node(8, 1, 2)]);
    let mut scheduler = Scheduler::learning(Policy::Windlass, 0);
    let all = [NodeIx(0), NodeIx(1)];
    let (first, second) = ([NodeIx(0)], [NodeIx(0), NodeIx(1)]);
    let small = Member { request: request(Gpus::Whole(2)), nodes: &second };
    let picky = Member { request: request(Gpus::Whole(2)), nodes: &first };
    let members = [small, picky, small, picky];
    let found = placed(&mut view, &mut scheduler, &members).expect("they fit");
    let nodes: Vec<_> = found.iter().map(|place| place.node).collect();
    assert_eq!(nodes, [all[1], all[0], all[1], all[0]]);
}
