//! The idle part of a node's GPUs that the requests which are likely to come cannot use.
//!
//! The measure is that of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
//! Descent" (Weng et al., USENIX ATC 2023): for each typical request, weighted by its frequency, all idle GPU of a node
//! that cannot serve the request, else the idle rest of the GPUs that cannot.

use crate::{
    fit::serves,
    forecast::Typical,
    gpu::{Gpu, ModelSet},
    node::{Node, Part, taken},
    request::Request,
    view::Catalog,
};

/// The typical requests as nodes with the same products see them: those that differ in CPU alone are one kind.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    kinds: Vec<RequestKind>,
    /// Weight of the requests that can use no GPU of such a node.
    useless: f64,
}

/// Typical requests for the same GPUs.
#[derive(Clone, Debug)]
struct RequestKind {
    /// One of them.
    request: Request,
    /// GPUs that have to serve together.
    count: u32,
    /// CPU of each, ascending, and the weight of all up to it.
    cpus: Vec<(u32, f64)>,
}

impl Outlook {
    /// The outlook of nodes with these products.
    pub fn new(typical: &[Typical], models: ModelSet) -> Self {
        let mut sorted: Vec<_> = typical.to_vec();
        sorted.sort_by_key(|it| it.request.cpu_milli);
        let mut outlook = Self::default();
        for Typical { request, weight } in sorted {
            let models = request.models.and(models);
            let count = request.gpu_count();
            if count == 0 || models == ModelSet::NONE {
                outlook.useless += weight;
                continue;
            }
            let is_alike = |kind: &&mut RequestKind| {
                kind.request.gpus == request.gpus && kind.request.models == models
            };
            match outlook.kinds.iter_mut().find(is_alike) {
                Some(kind) => kind.cpus.push((request.cpu_milli, weight + kind.weight())),
                None => outlook.kinds.push(RequestKind {
                    request: Request { models, ..request },
                    count,
                    cpus: vec![(request.cpu_milli, weight)],
                }),
            }
        }
        outlook
    }

    /// Expected idle GPU of the node that a typical request cannot use, in thousandths of a GPU.
    pub fn fragmentation(&self, catalog: &Catalog, node: &Node) -> f64 {
        let use_of = |kind: &RequestKind| GpuUse::of(catalog, kind, &node.gpus);
        let idle = node.idle_milli();
        self.sum(idle, node.cpu_milli.free, self.kinds.iter().map(use_of))
    }

    /// Decrease of the fragmentation, in thousandths of a GPU, by each of the parts that might serve the request.
    pub fn decreases(
        &self,
        catalog: &Catalog,
        node: &Node,
        request: &Request,
        parts: &[Part],
    ) -> Vec<f64> {
        let uses: Vec<_> =
            self.kinds.iter().map(|kind| GpuUse::of(catalog, kind, &node.gpus)).collect();
        let idle = node.idle_milli();
        let before = self.sum(idle, node.cpu_milli.free, uses.iter().copied());
        let cpu = node.cpu_milli.free.saturating_sub(request.cpu_milli);
        let decrease = |part: &Part| {
            let changed: Vec<(Gpu, Gpu)> = part
                .gpus
                .iter()
                .filter_map(|position| {
                    let gpu = node.gpus[position];
                    Some((gpu, Gpu { state: taken(&gpu, request, part.slices)?, ..gpu }))
                })
                .collect();
            let lost = |(old, new): &(Gpu, Gpu)| u32::from(old.idle_milli() - new.idle_milli());
            let idle = idle - changed.iter().map(lost).sum::<u32>();
            let uses = self.kinds.iter().zip(&uses);
            let uses = uses.map(|(kind, before)| before.after(catalog, kind, &changed));
            before - self.sum(idle, cpu, uses)
        };
        parts.iter().map(decrease).collect()
    }

    fn sum(&self, idle: u32, cpu_milli: u32, uses: impl Iterator<Item = GpuUse>) -> f64 {
        let idle = f64::from(idle);
        let of_kind = |(kind, of): (&RequestKind, GpuUse)| {
            let served = if of.serving >= kind.count { kind.weight_up_to(cpu_milli) } else { 0.0 };
            served * f64::from(of.unusable_milli) + (kind.weight() - served) * idle
        };
        self.useless * idle + self.kinds.iter().zip(uses).map(of_kind).sum::<f64>()
    }
}

impl RequestKind {
    fn weight(&self) -> f64 {
        self.cpus.last().map_or(0.0, |(_, weight)| *weight)
    }

    /// Weight of the requests that so much CPU suffices for.
    fn weight_up_to(&self, cpu_milli: u32) -> f64 {
        let enough = self.cpus.partition_point(|(cpu, _)| *cpu <= cpu_milli);
        if enough == 0 { 0.0 } else { self.cpus[enough - 1].1 }
    }
}

/// The GPUs of a node that serve a kind, and the idle rest of the others.
#[derive(Clone, Copy, Debug, Default)]
struct GpuUse {
    serving: u32,
    unusable_milli: u32,
}

impl GpuUse {
    fn of(catalog: &Catalog, kind: &RequestKind, gpus: &[Gpu]) -> Self {
        gpus.iter().fold(Self::default(), |sum, gpu| sum.and(Self::of_one(catalog, kind, gpu)))
    }

    fn of_one(catalog: &Catalog, kind: &RequestKind, gpu: &Gpu) -> Self {
        if serves(catalog, gpu, &kind.request) {
            Self { serving: 1, unusable_milli: 0 }
        } else {
            Self { serving: 0, unusable_milli: u32::from(gpu.idle_milli()) }
        }
    }

    fn and(self, other: Self) -> Self {
        let serving = self.serving + other.serving;
        Self { serving, unusable_milli: self.unusable_milli + other.unusable_milli }
    }

    /// The same once some GPUs have changed.
    fn after(mut self, catalog: &Catalog, kind: &RequestKind, changed: &[(Gpu, Gpu)]) -> Self {
        for (old, new) in changed {
            let old = Self::of_one(catalog, kind, old);
            self.serving -= old.serving;
            self.unusable_milli -= old.unusable_milli;
            self = self.and(Self::of_one(catalog, kind, new));
        }
        self
    }
}
