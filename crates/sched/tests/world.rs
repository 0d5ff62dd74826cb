//! Random clusters and requests, and a second implementation of the check that a request fits a node.

use proptest::{collection::vec, prelude::*};
use windlass_sched::{
    forecast::Forecast,
    gpu::{Gpu, GpuState, ModelId, ModelSet},
    node::{Node, ResourceUsage},
    request::{Gpus, ProfileId, Request, ShareMemory},
    view::{Catalog, ClusterView, Placement},
};

/// Products with their memory in MiB. The first two can be partitioned.
const MODELS: [(&str, u32); 4] = [("A100", 40_960), ("H100", 81_920), ("T4", 15_360), ("L4", 0)];
const PARTITIONABLE: u8 = 2;

/// MIG profiles with their places on an A100, as memory slices. An H100 has all but the first.
const PROFILES: [(&str, &[u8]); 5] = [
    ("1g.5gb", &[1, 2, 4, 8, 16, 32, 64]),
    ("1g.10gb", &[0b11, 0b1100, 0b11_0000, 0b1100_0000]),
    ("2g.10gb", &[0b11, 0b1100, 0b11_0000]),
    ("3g.20gb", &[0b1111, 0b1111_0000]),
    ("7g.40gb", &[0b1111_1111]),
];

pub(crate) fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    let models = MODELS.map(|(name, _)| catalog.intern_model(name).expect("far below 64"));
    for (name, places) in PROFILES {
        let profile = catalog.intern_profile(name).expect("far below 64");
        catalog.set_places(models[0], profile, places.to_vec());
        if name != "1g.5gb" {
            catalog.set_places(models[1], profile, places.to_vec());
        }
    }
    catalog
}

/// A request for GPUs of any product, with one core and 1 GiB of memory.
pub(crate) fn request(gpus: Gpus) -> Request {
    Request { cpu_milli: 1000, memory_mib: 1024, gpus, models: ModelSet::ANY }
}

/// A node with more CPU, memory and pods than the tests use.
pub(crate) fn large_node(gpus: Vec<Gpu>) -> Node {
    let plenty = ResourceUsage::free(1_000_000);
    Node { cpu_milli: plenty, memory_mib: plenty, pods: plenty, gpus }
}

pub(crate) fn forecast(requests: &[Request]) -> Forecast {
    let mut forecast = Forecast::default();
    for request in requests {
        forecast.observe(request);
    }
    forecast
}

// === Random values ===

/// One to twelve empty nodes. Some GPUs are unusable, some have unknown memory.
pub(crate) fn idle_clusters() -> impl Strategy<Value = ClusterView> {
    vec(nodes(idle_gpu), 1..=12).prop_map(|nodes| ClusterView::new(catalog(), nodes))
}

/// One to twelve nodes in any state.
pub(crate) fn used_clusters() -> impl Strategy<Value = ClusterView> {
    let nodes = (nodes(used_gpu), 20..=100_u32).prop_map(|(mut node, percent)| {
        for amount in [&mut node.cpu_milli, &mut node.memory_mib, &mut node.pods] {
            amount.free = amount.total * percent / 100;
        }
        node
    });
    vec(nodes, 1..=12).prop_map(|nodes| ClusterView::new(catalog(), nodes))
}

/// An empty node, often with little CPU.
pub(crate) fn idle_nodes() -> impl Strategy<Value = Node> {
    (nodes(idle_gpu), 4000..=60_000_u32)
        .prop_map(|(node, cpu)| Node { cpu_milli: ResourceUsage::free(cpu), ..node })
}

/// Nodes with the GPUs of one product, or of several.
fn nodes(gpu: fn(ModelId) -> BoxedStrategy<Gpu>) -> impl Strategy<Value = Node> {
    let cpu = prop_oneof![1 => 0..=4000_u32, 4 => 16_000..=96_000_u32];
    let memory = prop_oneof![1 => 0..=4096_u32, 4 => 65_536..=524_288_u32];
    let pods = prop_oneof![1 => 0..=2_u32, 4 => 10..=110_u32];
    let uniform = models().prop_flat_map(move |model| vec(gpu(model), 0..=16));
    let mixed = vec(models().prop_flat_map(gpu), 0..=16);
    let gpus = prop_oneof![uniform, mixed];
    (cpu, memory, pods, gpus).prop_map(|(cpu, memory, pods, gpus)| Node {
        cpu_milli: ResourceUsage::free(cpu),
        memory_mib: ResourceUsage::free(memory),
        pods: ResourceUsage::free(pods),
        gpus,
    })
}

fn models() -> impl Strategy<Value = ModelId> {
    (0..4_u8).prop_map(ModelId)
}

fn idle_gpu(model: ModelId) -> BoxedStrategy<Gpu> {
    let (_, memory_mib) = MODELS[usize::from(model.0)];
    let parts = (prop::bool::weighted(0.8), prop::bool::weighted(0.9));
    let gpu = move |(has_known_memory, is_usable)| {
        let memory_mib = if has_known_memory { memory_mib } else { 0 };
        Gpu { is_usable, ..Gpu::free(model, memory_mib) }
    };
    parts.prop_map(gpu).boxed()
}

fn used_gpu(model: ModelId) -> BoxedStrategy<Gpu> {
    let parts = (idle_gpu(model), 0..6_u8, 0..=1000_u16, 0..=100_u32, 1..=255_u8);
    let gpu = |(gpu, kind, free_milli, percent, slices): (Gpu, u8, u16, u32, u8)| {
        let state = match kind {
            0 => GpuState::Whole,
            1 | 2 => GpuState::Shared { free_milli, free_mib: gpu.memory_mib * percent / 100 },
            3 if gpu.model.0 < PARTITIONABLE => GpuState::Partitioned { memory_slices: slices },
            _ => gpu.state,
        };
        Gpu { state, ..gpu }
    };
    parts.prop_map(gpu).boxed()
}

fn memories() -> impl Strategy<Value = ShareMemory> {
    prop_oneof![
        (0..=20_000_u32).prop_map(ShareMemory::Mib),
        (0..=110_u8).prop_map(ShareMemory::Percent)
    ]
}

pub(crate) fn requests() -> impl Strategy<Value = Request> {
    let gpus = prop_oneof![
        2 => Just(Gpus::None),
        3 => (1..=4_u8).prop_map(Gpus::Whole),
        1 => (5..=16_u8).prop_map(Gpus::Whole),
        3 => (1..=1000_u16).prop_map(|milli| Gpus::share(milli, 0)),
        2 => (1..=90_000_u32).prop_map(|mib| Gpus::share(0, mib)),
        2 => (0..=1000_u16, 0..=40_000_u32).prop_map(|(milli, mib)| Gpus::share(milli, mib)),
        1 => Just(Gpus::share(0, 0)),
        3 => (1..=5_u8, 0..=700_u16, memories())
            .prop_map(|(count, compute_milli, memory)| Gpus::Share { count, compute_milli, memory }),
        4 => (0..5_u8).prop_map(|profile| Gpus::Partition(ProfileId(profile))),
    ];
    let models = prop_oneof![
        4 => Just(ModelSet::ANY),
        3 => vec(models(), 0..3)
            .prop_map(|ids| ids.into_iter().fold(ModelSet::NONE, ModelSet::with)),
    ];
    (0..=12_000_u32, 0..=32_768_u32, gpus, models).prop_map(
        |(cpu_milli, memory_mib, gpus, models)| Request { cpu_milli, memory_mib, gpus, models },
    )
}

// === A second implementation of the check ===

/// True if the placement has everything that the request needs, and no other pod has any part of it.
pub(crate) fn is_served(view: &ClusterView, request: &Request, placement: Placement) -> bool {
    let (node, part) = (view.node(placement.node), placement.part);
    let gpu_serves = |position: usize| {
        let gpu = node.gpus.get(position);
        gpu.is_some_and(|gpu| gpu_serves_at(view.catalog(), gpu, request, part.memory_slices))
    };
    has_free_resources(node, request)
        && part.gpus.iter().count() == requested_gpus(request)
        && part.gpus.iter().all(gpu_serves)
}

/// True if the node has free resources for the request.
pub(crate) fn fits(catalog: &Catalog, node: &Node, request: &Request) -> bool {
    let serving = node.gpus.iter().filter(|gpu| gpu_serves(catalog, gpu, request)).count();
    has_free_resources(node, request) && serving >= requested_gpus(request)
}

/// True if the GPU can be one of those that serve the request, for a partition at any of its places.
pub(crate) fn gpu_serves(catalog: &Catalog, gpu: &Gpu, request: &Request) -> bool {
    let last = if matches!(request.gpus, Gpus::Partition(_)) { u8::MAX } else { 0 };
    (0..=last).any(|slices| gpu_serves_at(catalog, gpu, request, slices))
}

pub(crate) fn requested_gpus(request: &Request) -> usize {
    match request.gpus {
        Gpus::None => 0,
        Gpus::Whole(count) | Gpus::Share { count, .. } => usize::from(count),
        Gpus::Partition(_) => 1,
    }
}

fn has_free_resources(node: &Node, request: &Request) -> bool {
    let Node { cpu_milli, memory_mib, pods, .. } = node;
    cpu_milli.free >= request.cpu_milli && memory_mib.free >= request.memory_mib && pods.free >= 1
}

pub(crate) fn mib_of(gpu: &Gpu, memory: ShareMemory) -> u32 {
    match memory {
        ShareMemory::Mib(mib) => mib,
        ShareMemory::Percent(percent) => gpu.memory_mib * u32::from(percent) / 100,
    }
}

fn gpu_serves_at(catalog: &Catalog, gpu: &Gpu, request: &Request, slices: u8) -> bool {
    let unallocated = GpuState::Shared { free_milli: 1000, free_mib: gpu.memory_mib };
    let is_free = match (request.gpus, gpu.state) {
        (Gpus::Whole(_), state) => slices == 0 && state == unallocated,
        (Gpus::Share { compute_milli, memory, .. }, GpuState::Shared { free_milli, free_mib }) => {
            let has_memory = match memory {
                ShareMemory::Percent(0) => true,
                ShareMemory::Percent(_) if gpu.memory_mib == 0 => false,
                memory => mib_of(gpu, memory) <= free_mib,
            };
            slices == 0 && compute_milli <= free_milli && has_memory
        }
        (Gpus::None | Gpus::Share { .. }, _) => false,
        (Gpus::Partition(profile), state) => {
            let is_place_free = match state {
                GpuState::Partitioned { memory_slices: used } => used & slices == 0,
                state => state == unallocated,
            };
            is_place_free && catalog.places(gpu.model, profile).contains(&slices)
        }
    };
    gpu.is_usable && request.models.contains(gpu.model) && is_free
}
