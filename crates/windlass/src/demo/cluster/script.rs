//! Steps of the cluster demo: each performs an action, checks the result and reports it.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::{
    api::Objects as ApiObjects,
    scheduler::{CycleOutcome, Scheduler},
};
use windlass_control::{
    explanation::{Explanation, Remedy},
    facts::PodFacts,
    objects::Objects,
};
use windlass_core::annotation::NodeDevices;
use windlass_kubelet_sim::NodeStatus;
use windlass_sched::policy::Policy;

use super::{
    agent_node::AgentNode,
    event::{AgentPod, ClusterEvent, Summary},
    fleet::Fleet,
    pods::{self, GPU_MEMORY, NAMESPACE},
    policy_state::PolicyState,
    replica::Replica,
};
use crate::{
    demo::{
        report::Reporter,
        script::{RETRY_INTERVAL, STEP_LIMIT, elapsed_ms},
        testbed::{NODE, Testbed},
    },
    screen::Progress,
};

pub(super) struct ClusterScript<'a> {
    testbed: &'a Testbed,
    objects: ApiObjects,
    reporter: Reporter,
    start: Instant,
    kubeconfig: PathBuf,
    agent_node: AgentNode,
    /// Durations of the scheduling cycles that bound a pod, in milliseconds.
    cycles_ms: Vec<f64>,
    /// Time at which the extender was stopped. `None` once another one has bound a pod.
    extender_stopped_at: Option<Instant>,
}

/// The extender, and the scheduler that calls it.
struct SchedulerSetup {
    replica: Option<Replica>,
    scheduler: Scheduler,
}

/// The same pods under two placement policies.
struct PolicyStates {
    /// Placed by the extender.
    windlass: PolicyState,
    /// Placed as kube-scheduler does by default.
    kube_scheduler: PolicyState,
}

/// Total requests of all pods, in percent of the cluster's GPUs.
const LOAD_PERCENT: u64 = 115;
/// Percentages at which the demo reports statistics.
const REPORT_PERCENTS: [u64; 6] = [25, 50, 75, 90, 100, LOAD_PERCENT];
/// Percentage at which the demo draws the nodes.
const CHART_PERCENT: u64 = 75;
/// Percentage at which the demo replaces the extender.
const REPLACE_PERCENT: u64 = 50;

// === impl PolicyStates ===

impl PolicyStates {
    fn new(nodes: &[Node]) -> Result<Self> {
        Ok(Self {
            windlass: PolicyState::new(Policy::Windlass, nodes)?,
            kube_scheduler: PolicyState::new(Policy::LeastAllocated, nodes)?,
        })
    }
}

// === impl ClusterScript ===

impl<'a> ClusterScript<'a> {
    pub(super) fn new(
        testbed: &'a Testbed,
        fleet: &Fleet,
        reporter: Reporter,
        start: Instant,
    ) -> Self {
        Self {
            testbed,
            objects: fleet.server().objects(),
            reporter,
            start,
            kubeconfig: testbed.kubeconfig(),
            agent_node: AgentNode::default(),
            cycles_ms: Vec::new(),
            extender_stopped_at: None,
        }
    }

    pub(super) async fn run_steps(&mut self) -> Result<()> {
        let nodes = self.wait_for_agent().await.context("step nodes")?;
        let mut setup = self.start_scheduler(&nodes).await.context("step extender")?;
        let mut states = PolicyStates::new(&nodes)?;
        self.run_on_agent_node(&mut setup, &mut states).await.context("step containers")?;
        let pending_pods =
            self.create_pods(&mut setup, &mut states).await.context("step arrivals")?;
        Box::pin(self.explain(&pending_pods, &mut setup)).await.context("step explanation")?;
        self.check_conflicts().await.context("step check")?;
        let (pods, took_ms) = (self.cycles_ms.len(), elapsed_ms(self.start));
        self.cycles_ms.sort_by(f64::total_cmp);
        let quantile = |percent: usize| {
            let last = pods.saturating_sub(1);
            self.cycles_ms.get(last * percent / 100).copied().unwrap_or_default()
        };
        self.reporter.report(&ClusterEvent::Finished(Summary {
            pods,
            cycle_p50_ms: quantile(50),
            cycle_p99_ms: quantile(99),
            as_decided: self.agent_node.as_chosen,
            elsewhere: self.agent_node.on_other_gpus,
            took_ms,
        }))
    }

    /// Waits until the agent has published its GPUs, and its kubelet has counted their shares.
    async fn wait_for_agent(&self) -> Result<Vec<Node>> {
        let published_gpus = |objects: &ApiObjects| {
            let node = objects.get::<Node>("", NODE)?;
            let devices = node.metadata.annotations?.remove(NodeDevices::ANNOTATION)?;
            let devices = NodeDevices::from_annotation(&devices).ok()?.devices;
            let healthy = devices.iter().filter(|device| device.obstacle.is_none()).count();
            let is_all = healthy > 0 && healthy == self.testbed.state.borrow().shareable.len();
            is_all.then_some(healthy)
        };
        let gpus = self.objects.wait_until(STEP_LIMIT, published_gpus).await;
        // The original error prints every object.
        let gpus = gpus.map_err(|_| anyhow!("the agent does not publish its GPUs"))?;
        let has_shares =
            |node: &NodeStatus| node.counts(GPU_MEMORY).is_some_and(|(_, count)| count > 0);
        self.testbed.kubelet.wait_for(has_shares, STEP_LIMIT).await?;
        let node = NODE.to_owned();
        let took_ms = elapsed_ms(self.testbed.agent_started);
        self.reporter.report(&ClusterEvent::AgentJoined { node, gpus, took_ms })?;
        Ok(self.objects.list())
    }

    async fn start_scheduler(&self, nodes: &[Node]) -> Result<SchedulerSetup> {
        let replica = Replica::start(self.kubeconfig.clone(), "first").await?;
        let names = nodes.iter().filter_map(|node| node.metadata.name.clone()).collect();
        let scheduler = Scheduler::new(replica.address, names);
        Ok(SchedulerSetup { replica: Some(replica), scheduler })
    }

    /// Runs pods that select the agent's node, and reports their containers.
    async fn run_on_agent_node(
        &mut self,
        setup: &mut SchedulerSetup,
        states: &mut PolicyStates,
    ) -> Result<()> {
        self.reporter.report(&ClusterEvent::OnRealNode { node: NODE.to_owned() })?;
        let replica = setup.replica.as_ref().context("no extender")?;
        let mut scheduler = Scheduler::new(replica.address, vec![NODE.to_owned()]);
        for workload in pods::at_most_one_gpu() {
            let start = Instant::now();
            let pod = self.objects.create(&workload.pod("real")?)?;
            let pod = self.schedule_pod(pod, &mut scheduler).await?;
            let facts = PodFacts::of(&pod);
            let Some(container) = self.agent_node.last_grant.take() else {
                // A small machine has no room for every workload.
                self.objects.delete::<Pod>(NAMESPACE, &facts.name)?;
                self.reporter.report(&ClusterEvent::NoRoom { pod: facts.namespaced_name() })?;
                continue;
            };
            states.windlass.record(&pod)?;
            states.kube_scheduler.record(&pod)?;
            self.reporter.report(&ClusterEvent::PodRuns(AgentPod {
                pod: facts.namespaced_name(),
                asks: workload.gpu_limits(),
                gpus: facts.gpus,
                container,
                took_ms: elapsed_ms(start),
            }))?;
        }
        Ok(())
    }

    /// Creates pods up to the total load, and returns the pending ones.
    async fn create_pods(
        &mut self,
        setup: &mut SchedulerSetup,
        PolicyStates { windlass, kube_scheduler }: &mut PolicyStates,
    ) -> Result<Vec<Pod>> {
        let total = u64::try_from(windlass.gpus())? * 1000;
        let arrivals = pods::arrivals(total * LOAD_PERCENT / 100);
        let (pods, gpus, nodes) = (arrivals.len(), windlass.gpus(), windlass.nodes());
        self.reporter.report(&ClusterEvent::Arriving {
            pods,
            gpus,
            nodes,
            asked_percent: LOAD_PERCENT,
        })?;
        let progress = Progress::new();
        let (mut requested_milli, mut reports, mut pending_pods) =
            (0, REPORT_PERCENTS.into_iter().peekable(), Vec::new());
        for (number, workload) in arrivals.into_iter().enumerate() {
            let pod = self.objects.create(&workload.pod(&number.to_string())?)?;
            kube_scheduler.place(&pod)?;
            let pod = self.schedule_pod(pod, &mut setup.scheduler).await?;
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if node == Some(NODE) {
                windlass.apply_corrections(&self.objects.list())?;
            }
            windlass.record(&pod)?;
            if node.is_none() {
                pending_pods.push(pod);
            }
            requested_milli += u64::from(workload.gpu_milli);
            let percent = requested_milli * 100 / total;
            progress.show(&format!("pods have asked for {percent} % of the GPUs"));
            let Some(asked_percent) = reports.next_if(|report_percent| *report_percent <= percent)
            else {
                continue;
            };
            progress.show("");
            let load = ClusterEvent::Load {
                asked_percent,
                ours: windlass.figures(),
                stock: kube_scheduler.figures(),
            };
            self.reporter.report(&load)?;
            if asked_percent == CHART_PERCENT {
                let (ours, stock) =
                    (windlass.allocated_eighths(), kube_scheduler.allocated_eighths());
                self.reporter.report(&ClusterEvent::Drawn { asked_percent, ours, stock })?;
            }
            if asked_percent == REPLACE_PERCENT {
                self.replace_extender(setup).await?;
            }
        }
        Ok(pending_pods)
    }

    /// Schedules a pod, and runs it if it is bound to the agent's node.
    async fn schedule_pod(&mut self, pod: Pod, scheduler: &mut Scheduler) -> Result<Pod> {
        let start = Instant::now();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let cycle = loop {
            match scheduler.schedule(&pod).await {
                Ok(cycle) => break cycle,
                Err(error) if start.elapsed() > STEP_LIMIT => return Err(error.into()),
                // The extender has just started, or its watch has not delivered the pod yet.
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        };
        let CycleOutcome::Bound { node } = cycle else { return Ok(pod) };
        match self.extender_stopped_at.take() {
            Some(stopped_at) => {
                self.reporter
                    .report(&ClusterEvent::ExtenderReplaced { took_ms: elapsed_ms(stopped_at) })?;
            }
            None => self.cycles_ms.push(elapsed_ms(start)),
        }
        let pod: Pod = self.objects.get(NAMESPACE, &name).context("a bound pod is gone")?;
        if node == NODE {
            Box::pin(self.agent_node.run(self.testbed, &pod)).await?;
        }
        Ok(pod)
    }

    /// Stops the extender, and starts another.
    async fn replace_extender(&mut self, setup: &mut SchedulerSetup) -> Result<()> {
        self.extender_stopped_at = Some(Instant::now());
        if let Some(first) = setup.replica.take() {
            first.shut_down().await?;
        }
        let second = Replica::start(self.kubeconfig.clone(), "second").await?;
        setup.scheduler.switch_to(second.address);
        setup.replica = Some(second);
        Ok(())
    }

    /// Explains a pending pod, deletes the pod that the explanation names, and checks that the pending pod is placed.
    async fn explain(&mut self, pending_pods: &[Pod], setup: &mut SchedulerSetup) -> Result<()> {
        let objects = Objects::fetch(Some(self.kubeconfig.clone())).await?;
        let mut index = objects.to_index();
        for pod in pending_pods.iter().rev() {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let facts = objects.pods_named(Some(NAMESPACE), &name);
            let facts = facts.first().context("a pending pod is gone")?;
            let mut explanation = Explanation::of(&mut index, facts);
            explanation.remedies.retain(|remedy| remedy.node != NODE);
            let Some(remedy) = explanation.remedies.first().cloned() else { continue };
            self.reporter.report(&ClusterEvent::Pending { explanation })?;
            return self.apply_remedy(pod, &remedy, setup).await;
        }
        Ok(())
    }

    async fn apply_remedy(
        &mut self,
        pod: &Pod,
        remedy: &Remedy,
        setup: &mut SchedulerSetup,
    ) -> Result<()> {
        let start = Instant::now();
        let deleted_pod = remedy.pod.rsplit('/').next().unwrap_or_default();
        self.objects.delete::<Pod>(NAMESPACE, deleted_pod)?;
        let placed_pod = loop {
            let placed_pod = self.schedule_pod(pod.clone(), &mut setup.scheduler).await?;
            if placed_pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                break placed_pod;
            }
            ensure!(start.elapsed() < STEP_LIMIT, "the pod still waits");
            sleep(RETRY_INTERVAL).await;
        };
        let node = placed_pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        ensure!(node == remedy.node, "the pod is on {node} instead of {}", remedy.node);
        let pod = placed_pod.metadata.name.unwrap_or_default();
        let gone = deleted_pod.to_owned();
        self.reporter.report(&ClusterEvent::RemedyHelped {
            pod,
            node,
            gone,
            took_ms: elapsed_ms(start),
        })
    }

    /// Checks in the API server's objects that no GPU has two owners.
    async fn check_conflicts(&self) -> Result<()> {
        let objects = Objects::fetch(Some(self.kubeconfig.clone())).await?;
        let conflicts = objects.to_index().conflicts();
        ensure!(conflicts == 0, "{conflicts} pods hold more than their node has");
        Ok(())
    }
}
