//! Fragmentation: the idle part of a node's GPUs that typical requests cannot use.
//!
//! The measure is that of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
//! Descent" (Weng et al., USENIX ATC 2023). It is a sum over the typical requests, weighted by frequency. A node that
//! cannot serve the request adds the idle parts of all its GPUs. Another node adds the idle parts of the GPUs that
//! cannot serve it.

use crate::{
    fit::serves,
    forecast::TypicalRequest,
    gpu::{Gpu, ModelSet},
    node::{Node, Part, state_after_allocation},
    request::Request,
    view::Catalog,
};

/// Typical requests, restricted to one set of products. Requests that differ only in CPU form one kind.
#[derive(Clone, Debug, Default)]
pub struct RequestMix {
    kinds: Vec<RequestKind>,
    /// Weight of the requests that can use no GPU of these products.
    unusable_weight: f64,
    /// Distinct CPU amounts of the requests, ascending.
    cpus: Vec<u32>,
    /// `served_weight[n][kind]`: weight of the kind's requests whose CPU is among the first `n` of `cpus`.
    served_weight: Vec<Vec<f64>>,
}

/// Typical requests for the same GPUs.
#[derive(Clone, Debug)]
struct RequestKind {
    /// One of these requests.
    request: Request,
    /// Number of GPUs of one request.
    gpu_count: u32,
    /// Sum of the requests' weights.
    weight: f64,
}

/// Usability of one node's GPUs for each kind of typical request.
#[derive(Clone, Debug, Default)]
pub struct NodeUsability {
    kinds: Vec<GpuUsability>,
    idle_milli: u32,
    fragmentation: f64,
}

impl NodeUsability {
    /// Idle parts of the node's GPUs, in thousandths of a GPU.
    pub fn idle_milli(&self) -> u32 {
        self.idle_milli
    }

    /// Expected idle part of the node's GPUs that a typical request cannot use, in thousandths of a GPU.
    pub fn fragmentation(&self) -> f64 {
        self.fragmentation
    }
}

impl RequestMix {
    /// The request mix for nodes with these products.
    pub fn new(typical: &[TypicalRequest], models: ModelSet) -> Self {
        let mut sorted: Vec<_> = typical.to_vec();
        sorted.sort_by_key(|it| it.request.cpu_milli);
        let mut mix = Self { served_weight: vec![Vec::new()], ..Self::default() };
        for TypicalRequest { request, weight } in sorted {
            let models = request.models.intersection(models);
            if request.gpu_count() == 0 || models == ModelSet::NONE {
                mix.unusable_weight += weight;
            } else {
                mix.add(Request { models, ..request }, weight);
            }
        }
        mix.served_weight.iter_mut().for_each(|row| row.resize(mix.kinds.len(), 0.0));
        mix
    }

    /// Adds a request. Requests are added in ascending order of CPU.
    fn add(&mut self, request: Request, weight: f64) {
        let is_same_kind = |kind: &RequestKind| {
            kind.request.gpus == request.gpus && kind.request.models == request.models
        };
        let existing = self.kinds.iter().position(is_same_kind);
        let kind = existing.unwrap_or(self.kinds.len());
        if existing.is_none() {
            self.kinds.push(RequestKind { request, gpu_count: request.gpu_count(), weight: 0.0 });
        }
        self.kinds[kind].weight += weight;
        let mut row = self.served_weight.last().cloned().unwrap_or_default();
        if self.cpus.last() == Some(&request.cpu_milli) {
            self.served_weight.pop();
        } else {
            self.cpus.push(request.cpu_milli);
        }
        row.resize(self.kinds.len(), 0.0);
        row[kind] = self.kinds[kind].weight;
        self.served_weight.push(row);
    }

    /// Computes the usability of the node's GPUs.
    pub fn node_usability(&self, catalog: &Catalog, node: &Node) -> NodeUsability {
        let mut kinds = vec![GpuUsability::default(); self.kinds.len()];
        let mut idle_milli = 0;
        for gpus in node.gpus.chunk_by(PartialEq::eq) {
            let (gpu, count) = (&gpus[0], to_u32(gpus.len()));
            let idle = u32::from(gpu.idle_milli());
            for (sum, kind) in kinds.iter_mut().zip(&self.kinds) {
                *sum = sum.plus(count, GpuUsability::of(catalog, kind, gpu, idle));
            }
            idle_milli += count * idle;
        }
        let fragmentation =
            self.weighted_unusable_milli(idle_milli, node.cpu_milli.free, kinds.iter().copied());
        NodeUsability { kinds, idle_milli, fragmentation }
    }

    /// Decrease of the fragmentation in thousandths of a GPU, if the part serves the request.
    pub fn decrease(
        &self,
        catalog: &Catalog,
        node: &Node,
        before: &NodeUsability,
        request: &Request,
        part: Part,
    ) -> f64 {
        let change =
            |position: usize| Change::of(&node.gpus[position], request, part.memory_slices);
        let mut gpu_changes = part.gpus.iter().filter_map(change);
        // Most parts have one GPU. Their change needs no `Vec`.
        let (first, mut grouped_changes) = (gpu_changes.next(), Vec::<Change>::new());
        for change in gpu_changes {
            match grouped_changes.last_mut() {
                Some(last) if last.old == change.old => last.count += 1,
                _ => grouped_changes.push(change),
            }
        }
        if !grouped_changes.is_empty() {
            grouped_changes.extend(first);
        }
        let changes = if grouped_changes.is_empty() { first.as_slice() } else { &grouped_changes };
        let lost_milli = |it: &Change| it.count * (it.old_idle - it.new_idle);
        let idle = before.idle_milli - changes.iter().map(lost_milli).sum::<u32>();
        let cpu = node.cpu_milli.free.saturating_sub(request.cpu_milli);
        let usabilities = self.kinds.iter().zip(&before.kinds);
        let usabilities = usabilities.map(|(kind, before)| before.after(catalog, kind, changes));
        before.fragmentation - self.weighted_unusable_milli(idle, cpu, usabilities)
    }

    fn weighted_unusable_milli(
        &self,
        idle: u32,
        cpu_milli: u32,
        usabilities: impl Iterator<Item = GpuUsability>,
    ) -> f64 {
        let idle = f64::from(idle);
        let served_weights =
            &self.served_weight[self.cpus.partition_point(|cpu| *cpu <= cpu_milli)];
        let kind_unusable_milli =
            |((kind, served), usability): ((&RequestKind, &f64), GpuUsability)| {
                let served = if usability.serving >= kind.gpu_count { *served } else { 0.0 };
                served * f64::from(usability.unusable_milli) + (kind.weight - served) * idle
            };
        self.unusable_weight * idle
            + self
                .kinds
                .iter()
                .zip(served_weights)
                .zip(usabilities)
                .map(kind_unusable_milli)
                .sum::<f64>()
    }
}

/// Change of `gpu_count` GPUs in the same state by serving a request, with the idle thousandths before and after.
#[derive(Clone, Copy)]
struct Change {
    old: Gpu,
    old_idle: u32,
    new: Gpu,
    new_idle: u32,
    count: u32,
}

impl Change {
    fn of(gpu: &Gpu, request: &Request, memory_slices: u8) -> Option<Self> {
        let new = Gpu { state: state_after_allocation(gpu, request, memory_slices)?, ..*gpu };
        let [old_idle, new_idle] = [gpu, &new].map(|gpu| u32::from(gpu.idle_milli()));
        Some(Self { old: *gpu, old_idle, new, new_idle, count: 1 })
    }
}

/// For one kind of request: the number of GPUs that can serve it, and the idle thousandths of the other GPUs.
#[derive(Clone, Copy, Debug, Default)]
struct GpuUsability {
    serving: u32,
    unusable_milli: u32,
}

impl GpuUsability {
    fn of(catalog: &Catalog, kind: &RequestKind, gpu: &Gpu, idle_milli: u32) -> Self {
        if serves(catalog, gpu, &kind.request) {
            Self { serving: 1, unusable_milli: 0 }
        } else {
            Self { serving: 0, unusable_milli: idle_milli }
        }
    }

    /// The sum of this value and `count` times the other.
    fn plus(self, count: u32, other: Self) -> Self {
        Self {
            serving: self.serving + count * other.serving,
            unusable_milli: self.unusable_milli + count * other.unusable_milli,
        }
    }

    /// The value after some GPUs have changed.
    fn after(mut self, catalog: &Catalog, kind: &RequestKind, changes: &[Change]) -> Self {
        for change in changes {
            let old = Self::of(catalog, kind, &change.old, change.old_idle);
            self.serving -= change.count * old.serving;
            self.unusable_milli -= change.count * old.unusable_milli;
            self = self.plus(change.count, Self::of(catalog, kind, &change.new, change.new_idle));
        }
        self
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).expect("a node has at most 64 GPUs")
}
