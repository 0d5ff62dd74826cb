//! Allocations on all nodes under one placement policy, and statistics of them.

use std::collections::HashMap;

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use windlass_control::facts::{NodeFacts, PodFacts};
use windlass_core::device::DeviceId;
use windlass_sched::{
    gpu::GpuSet,
    node::{Node as NodeState, Part},
    policy::Policy,
    request::Request,
    scheduler::Scheduler,
    view::{Catalog, ClusterView, NodeIndex, Placement},
};

/// Pods that one policy placed or refused.
#[derive(Debug)]
pub(super) struct PolicyState {
    nodes: Vec<NodeFacts>,
    view: ClusterView,
    /// Pods by name.
    placed: HashMap<String, (Request, Placement)>,
    /// Places pods by the policy, and measures fragmentation for the pods that it has seen.
    scheduler: Scheduler,
    refused: Refusals,
}

/// Statistics at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    pub(super) allocated_percent: f64,
    /// Expected number of idle GPUs that a pod cannot use, if pods are like those so far.
    pub(super) fragmented_gpus: f64,
    /// Nodes with eight free GPUs.
    pub(super) nodes_for_eight: usize,
    pub(super) refused: Refusals,
}

/// Pods without a fitting node, and the GPUs that they requested.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Refusals {
    pub(super) pods: usize,
    pub(super) gpus: f64,
}

// === impl PolicyState ===

impl PolicyState {
    /// All nodes, without pods.
    pub(super) fn new(policy: Policy, nodes: &[Node]) -> Result<Self> {
        let nodes: Vec<_> = nodes.iter().map(NodeFacts::of).collect();
        let mut catalog = Catalog::default();
        let empty: Result<Vec<_>, _> =
            nodes.iter().map(|node| node.empty_node(&mut catalog)).collect();
        let view = ClusterView::new(catalog, empty?);
        // The seed has no effect: neither policy of the demo is random.
        let scheduler = Scheduler::learning(policy, 0);
        Ok(Self { nodes, view, placed: HashMap::new(), scheduler, refused: Refusals::default() })
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn gpus(&self) -> usize {
        self.nodes.iter().map(|node| node.gpus.len()).sum()
    }

    /// Places a pod by the policy, or counts it as refused.
    pub(super) fn place(&mut self, pod: &Pod) -> Result<()> {
        let request = self.observe(pod)?;
        match self.scheduler.choose_placement(&self.view, &request) {
            Some(placement) => self.allocate(pod, &request, placement)?,
            None => self.refuse(&request),
        }
        Ok(())
    }

    /// Records a pod that the cluster half has placed or refused.
    pub(super) fn record(&mut self, pod: &Pod) -> Result<()> {
        let request = self.observe(pod)?;
        match self.placement(&PodFacts::of(pod))? {
            Some(placement) => self.allocate(pod, &request, placement)?,
            None => self.refuse(&request),
        }
        Ok(())
    }

    /// Moves pods whose agent has corrected the GPUs in the pod's object.
    pub(super) fn apply_corrections(&mut self, pods: &[Pod]) -> Result<()> {
        let mut corrections = Vec::new();
        for pod in pods {
            let facts = PodFacts::of(pod);
            let Some((request, old_placement)) = self.placed.get(&facts.name).copied() else {
                continue;
            };
            let new_placement = self
                .placement(&facts)?
                .with_context(|| format!("{} waits", facts.namespaced_name()))?;
            if new_placement != old_placement {
                self.view.release(&request, old_placement);
                corrections.push((pod, request, new_placement));
            }
        }
        corrections.into_iter().try_for_each(|(pod, request, new_placement)| {
            self.allocate(pod, &request, new_placement)
        })
    }

    /// Node and GPUs in the pod's object. `None` if the pod is not bound.
    fn placement(&self, pod: &PodFacts) -> Result<Option<Placement>> {
        let Some(name) = &pod.node else { return Ok(None) };
        let node = self.nodes.iter().position(|node| node.name == *name);
        let node = node.with_context(|| format!("{name} is no node"))?;
        let position = |id: &DeviceId| {
            let mut gpus = self.nodes[node].gpus.iter();
            gpus.position(|gpu| gpu.id.as_ref() == Some(id))
                .ok_or_else(|| anyhow!("{name} has no GPU {id}"))
        };
        let mut gpus = GpuSet::default();
        for id in &pod.gpus {
            gpus = gpus.union(GpuSet::single(position(id)?));
        }
        Ok(Some(Placement { node: NodeIndex(u32::try_from(node)?), part: Part::of(gpus) }))
    }

    /// Allocates the GPUs. Fails if a GPU is already allocated.
    fn allocate(&mut self, pod: &Pod, request: &Request, placement: Placement) -> Result<()> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.view.allocate(request, placement).with_context(|| format!("pod {name}"))?;
        self.placed.insert(name, (*request, placement));
        Ok(())
    }

    pub(super) fn figures(&mut self) -> Figures {
        let nodes = self.view.nodes();
        let total: usize = nodes.iter().map(|node| node.gpus.len()).sum();
        let idle: u32 = nodes.iter().map(NodeState::idle_milli).sum();
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        let idle_gpus = f64::from(idle) / 1000.0;
        Figures {
            allocated_percent: 100.0 * (1.0 - idle_gpus / f64::from(total.max(1))),
            nodes_for_eight: nodes.iter().filter(|node| node.free_gpus().len() >= 8).count(),
            fragmented_gpus: self.scheduler.fragmentation(&self.view),
            refused: self.refused,
        }
    }

    /// Allocated eighths of each node's GPUs, rounded up, in the order of the nodes.
    pub(super) fn allocated_eighths(&self) -> Vec<u32> {
        let eighths = |node: &NodeState| {
            let total_milli = u32::try_from(node.gpus.len() * 1000).unwrap_or(u32::MAX).max(1);
            ((total_milli - node.idle_milli()) * 8).div_ceil(total_milli)
        };
        self.view.nodes().iter().map(eighths).collect()
    }

    fn observe(&mut self, pod: &Pod) -> Result<Request> {
        let request = PodFacts::of(pod).resources.request(self.view.catalog())?;
        self.scheduler.observe(&self.view, &request);
        Ok(request)
    }

    fn refuse(&mut self, request: &Request) {
        self.refused.pods += 1;
        self.refused.gpus += f64::from(request.gpu_milli()) / 1000.0;
    }
}
