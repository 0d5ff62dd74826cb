//! Placement of gangs, compared with an exhaustive search over all choices of nodes.

use proptest::{collection::vec, prelude::*, sample::select};
use windlass_sched::{
    gang::{MAX_BACKTRACKS, Member, place_gang},
    gpu::{Gpu, ModelId, ModelSet},
    node::{Node, ResourceUsage},
    policy::Policy,
    request::{Gpus, Request},
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex, Placement},
};

use crate::world::{catalog, request};

fn node(gpus: usize, model: u8, cpus: u32) -> Node {
    let plenty = ResourceUsage::free(1_000_000);
    let gpus = vec![Gpu::free(ModelId(model), 40_960); gpus];
    Node { cpu_milli: ResourceUsage::free(cpus * 1000), memory_mib: plenty, pods: plenty, gpus }
}

fn clusters(max_nodes: usize) -> impl Strategy<Value = Vec<Node>> {
    let sizes = (0..=8_usize, 0..2_u8, 1..=6_u32);
    vec(sizes.prop_map(|(gpus, model, cpus)| node(gpus, model, cpus)), 1..=max_nodes)
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

fn place(
    view: &mut ClusterView,
    scheduler: &mut Scheduler,
    members: &[Member<'_>],
) -> Option<Vec<Placement>> {
    place_gang(view, scheduler, members, &mut MAX_BACKTRACKS.clone())
}

/// True if some choice of nodes serves all requests.
fn is_possible(
    view: &mut ClusterView,
    scheduler: &mut Scheduler,
    requests: &[(Request, Vec<NodeIndex>)],
) -> bool {
    let Some(((request, nodes), later)) = requests.split_first() else { return true };
    nodes.iter().any(|node| {
        let Some(part) = scheduler.choose_part(view, *node, request) else { return false };
        let placement = Placement { node: *node, part };
        view.allocate(request, placement).expect("it fits");
        let possible = is_possible(view, scheduler, later);
        view.release(request, placement);
        possible
    })
}

/// Allocates all placements. Panics unless all of them fit at the same time, on nodes that the members allow.
fn allocate(view: &mut ClusterView, members: &[Member<'_>], placements: &[Placement]) {
    assert_eq!(members.len(), placements.len());
    for (member, placement) in members.iter().zip(placements) {
        assert!(member.nodes.contains(&placement.node), "on a node that the member allows");
        view.allocate(&member.request, *placement).expect("all placements fit at the same time");
    }
}

proptest! {
    /// The order of placement decides which GPUs of a node each member gets, so the exhaustive search uses the same
    /// order.
    #[test]
    fn a_gang_is_placed_exactly_if_some_choice_of_nodes_fits(
        nodes in clusters(4),
        requests in vec((requests(), 1..16_u32), 1..=5),
    ) {
        let mut view = ClusterView::new(catalog(), nodes);
        let mut scheduler = Scheduler::learning(Policy::Windlass, 0);
        let all_nodes: Vec<_> = (0..).map(NodeIndex).take(view.nodes().len()).collect();
        let allowed = |bits: u32| all_nodes.iter().copied().filter(|it| bits >> it.0 & 1 == 1).collect();
        let mut requests: Vec<(Request, Vec<NodeIndex>)> =
            requests.into_iter().map(|(request, bits)| (request, allowed(bits))).collect();
        let members: Vec<_> =
            requests.iter().map(|(request, nodes)| Member { request: *request, nodes }).collect();
        let before = view.clone();
        let result = place(&mut view, &mut scheduler, &members);
        prop_assert_eq!(before.nodes(), view.nodes());
        if let Some(placements) = &result {
            allocate(&mut view.clone(), &members, placements);
        }
        requests.sort_by_key(|(request, nodes)| {
            let gpus = (request.gpu_count(), view.average_milli(request));
            (std::cmp::Reverse((gpus, *request)), nodes.len())
        });
        prop_assert_eq!(result.is_some(), is_possible(&mut view, &mut scheduler, &requests));
    }

    #[test]
    fn as_many_equal_members_are_placed_as_fit_on_all_nodes(
        nodes in clusters(64),
        gpus in select(vec![1_u8, 2, 3, 8]),
    ) {
        let capacity_of = |node: &Node| {
            let by_gpus = node.gpus.len() / usize::from(gpus);
            by_gpus.min(node.cpu_milli.free as usize / 1000)
        };
        let capacity: usize = nodes.iter().map(capacity_of).sum();
        let mut view = ClusterView::new(catalog(), nodes);
        let mut scheduler = Scheduler::learning(Policy::Windlass, 0);
        let all_nodes: Vec<_> = (0..).map(NodeIndex).take(view.nodes().len()).collect();
        let member = Member { request: request(Gpus::Whole(gpus)), nodes: &all_nodes };
        let placements = place(&mut view, &mut scheduler, &vec![member; capacity]);
        let placements = placements.expect("as many members as fit");
        allocate(&mut view.clone(), &vec![member; capacity], &placements);
        prop_assert_eq!(place(&mut view, &mut scheduler, &vec![member; capacity + 1]), None);
    }
}

#[test]
fn members_that_allow_one_node_are_placed_before_members_that_allow_two() {
    // The members that allow both nodes rank the first one best, which is the only one that the others allow.
    let mut view = ClusterView::new(catalog(), vec![node(4, 0, 5), node(8, 1, 2)]);
    let mut scheduler = Scheduler::learning(Policy::Windlass, 0);
    let all_nodes = [NodeIndex(0), NodeIndex(1)];
    let (first, second) = ([NodeIndex(0)], [NodeIndex(0), NodeIndex(1)]);
    let flexible = Member { request: request(Gpus::Whole(2)), nodes: &second };
    let fixed = Member { request: request(Gpus::Whole(2)), nodes: &first };
    let members = [flexible, fixed, flexible, fixed];
    let placements = place(&mut view, &mut scheduler, &members).expect("they fit");
    let nodes: Vec<_> = placements.iter().map(|placement| placement.node).collect();
    assert_eq!(nodes, [all_nodes[1], all_nodes[0], all_nodes[1], all_nodes[0]]);
}
