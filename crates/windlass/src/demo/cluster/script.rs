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
    event::{AgentPod, ClusterEvent, Summary},
    fleet::Fleet,
    pods::{self, MEMORY, NAMESPACE},
    policy_state::PolicyState,
    real_node::AgentNode,
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
    begun: Instant,
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
const LOAD: u64 = 115;
/// Percentages at which the demo reports statistics.
const REPORT_PERCENTS: [u64; 6] = [25, 50, 75, 90, 100, LOAD];
/// Percentage at which the demo draws the nodes.
const CHART_PERCENT: u64 = 75;
/// Percentage at which the demo replaces the extender.
const REPLACE_PERCENT: u64 = 50;

// === impl PolicyStates ===

impl PolicyStates {
    fn new(nodes: &[Node]) -> Result<Self> {
        let ours = PolicyState::new(Policy::Windlass, nodes)?;
        Ok(Self {
            windlass: ours,
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
        begun: Instant,
    ) -> Self {
        Self {
            testbed,
            objects: fleet.server().objects(),
            reporter,
            begun,
            kubeconfig: testbed.kubeconfig(),
            agent_node: AgentNode::default(),
            cycles_ms: Vec::new(),
            extender_stopped_at: None,
        }
    }

    pub(super) async fn run_steps(&mut self) -> Result<()> {
        let nodes = self.wait_for_agent().await.context("step nodes")?;
        let mut serving = self.start_scheduler(&nodes).await.context("step extender")?;
        let mut states = PolicyStates::new(&nodes)?;
        self.run_on_agent_node(&mut serving, &mut states).await.context("step containers")?;
        let waiting = self.create_pods(&mut serving, &mut states).await.context("step arrivals")?;
        Box::pin(self.explain(&waiting, &mut serving)).await.context("step explanation")?;
        self.check().await.context("step check")?;
        let (pods, took_ms) = (self.cycles_ms.len(), elapsed_ms(self.begun));
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
        let published = |objects: &ApiObjects| {
            let node = objects.get::<Node>("", NODE)?;
            let devices = node.metadata.annotations?.remove(NodeDevices::ANNOTATION)?;
            let devices = NodeDevices::from_annotation(&devices).ok()?.devices;
            let healthy = devices.iter().filter(|it| it.obstacle.is_none()).count();
            let is_all = healthy > 0 && healthy == self.testbed.state.borrow().shareable.len();
            is_all.then_some(healthy)
        };
        let gpus = self.objects.wait_until(STEP_LIMIT, published).await;
        // The original error prints every object.
        let gpus = gpus.map_err(|_| anyhow!("the agent does not publish its GPUs"))?;
        let counted = |node: &NodeStatus| node.counts(MEMORY).is_some_and(|(_, count)| count > 0);
        self.testbed.kubelet.wait_for(counted, STEP_LIMIT).await?;
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
        serving: &mut SchedulerSetup,
        states: &mut PolicyStates,
    ) -> Result<()> {
        self.reporter.report(&ClusterEvent::OnRealNode { node: NODE.to_owned() })?;
        let replica = serving.replica.as_ref().context("no extender")?;
        let mut scheduler = Scheduler::new(replica.address, vec![NODE.to_owned()]);
        for kind in pods::at_most_one_gpu() {
            let begun = Instant::now();
            let pod = self.objects.create(&kind.pod("real")?)?;
            let pod = self.schedule_pod(pod, &mut scheduler).await?;
            let facts = PodFacts::of(&pod);
            let Some(container) = self.agent_node.last.take() else {
                // A small machine has no room for every workload.
                self.objects.delete::<Pod>(NAMESPACE, &facts.name)?;
                self.reporter.report(&ClusterEvent::NoRoom { pod: facts.namespaced_name() })?;
                continue;
            };
            states.windlass.record(&pod)?;
            states.kube_scheduler.record(&pod)?;
            self.reporter.report(&ClusterEvent::PodRuns(AgentPod {
                pod: facts.namespaced_name(),
                asks: kind.gpu_limits(),
                gpus: facts.gpus,
                container,
                took_ms: elapsed_ms(begun),
            }))?;
        }
        Ok(())
    }

    /// Creates pods up to the total load, and returns those that wait.
    async fn create_pods(
        &mut self,
        serving: &mut SchedulerSetup,
        PolicyStates { windlass: ours, kube_scheduler: stock }: &mut PolicyStates,
    ) -> Result<Vec<Pod>> {
        let total = u64::try_from(ours.gpus())? * 1000;
        let arrivals = pods::arrivals(total * LOAD / 100);
        let (pods, gpus, nodes) = (arrivals.len(), ours.gpus(), ours.nodes());
        self.reporter.report(&ClusterEvent::Arriving { pods, gpus, nodes, asked_percent: LOAD })?;
        let progress = Progress::new();
        let (mut asked, mut reports, mut waiting) =
            (0, REPORT_PERCENTS.into_iter().peekable(), Vec::new());
        for (number, kind) in arrivals.into_iter().enumerate() {
            let pod = self.objects.create(&kind.pod(&number.to_string())?)?;
            stock.place(&pod)?;
            let pod = self.schedule_pod(pod, &mut serving.scheduler).await?;
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if node == Some(NODE) {
                ours.apply_corrections(&self.objects.list())?;
            }
            ours.record(&pod)?;
            if node.is_none() {
                waiting.push(pod);
            }
            asked += u64::from(kind.gpu_milli);
            let percent = asked * 100 / total;
            progress.show(&format!("pods have asked for {percent} % of the GPUs"));
            let Some(asked_percent) = reports.next_if(|at| *at <= percent) else { continue };
            progress.show("");
            let load =
                ClusterEvent::Load { asked_percent, ours: ours.figures(), stock: stock.figures() };
            self.reporter.report(&load)?;
            if asked_percent == CHART_PERCENT {
                let [ours, stock] = [ours.allocated_eighths(), stock.allocated_eighths()];
                self.reporter.report(&ClusterEvent::Drawn { asked_percent, ours, stock })?;
            }
            if asked_percent == REPLACE_PERCENT {
                self.replace(serving).await?;
            }
        }
        Ok(waiting)
    }

    /// Schedules a pod, and runs it if it is bound to the agent's node.
    async fn schedule_pod(&mut self, pod: Pod, scheduler: &mut Scheduler) -> Result<Pod> {
        let begun = Instant::now();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let cycle = loop {
            match scheduler.schedule(&pod).await {
                Ok(cycle) => break cycle,
                Err(error) if begun.elapsed() > STEP_LIMIT => return Err(error.into()),
                // The extender has just started, or its watch has not delivered the pod yet.
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        };
        let CycleOutcome::Bound { node } = cycle else { return Ok(pod) };
        match self.extender_stopped_at.take() {
            Some(since) => {
                self.reporter
                    .report(&ClusterEvent::ExtenderReplaced { took_ms: elapsed_ms(since) })?;
            }
            None => self.cycles_ms.push(elapsed_ms(begun)),
        }
        let pod: Pod = self.objects.get(NAMESPACE, &name).context("a bound pod is gone")?;
        if node == NODE {
            Box::pin(self.agent_node.run(self.testbed, &pod)).await?;
        }
        Ok(pod)
    }

    /// Stops the extender, and starts another.
    async fn replace(&mut self, serving: &mut SchedulerSetup) -> Result<()> {
        self.extender_stopped_at = Some(Instant::now());
        if let Some(first) = serving.replica.take() {
            first.shut_down().await?;
        }
        let second = Replica::start(self.kubeconfig.clone(), "second").await?;
        serving.scheduler.switch_to(second.address);
        serving.replica = Some(second);
        Ok(())
    }

    /// Explains a pending pod, deletes the pod that the explanation names, and checks that the pending pod is placed.
    async fn explain(&mut self, waiting: &[Pod], serving: &mut SchedulerSetup) -> Result<()> {
        let objects = Objects::fetch(Some(self.kubeconfig.clone())).await?;
        let mut index = objects.to_index();
        for pod in waiting.iter().rev() {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let facts = objects.pods_named(Some(NAMESPACE), &name);
            let facts = facts.first().context("a pending pod is gone")?;
            let mut explanation = Explanation::of(&mut index, facts);
            explanation.remedies.retain(|it| it.node != NODE);
            let Some(remedy) = explanation.remedies.first().cloned() else { continue };
            self.reporter.report(&ClusterEvent::Pending { explanation })?;
            return self.apply_remedy(pod, &remedy, serving).await;
        }
        Ok(())
    }

    async fn apply_remedy(
        &mut self,
        pod: &Pod,
        remedy: &Remedy,
        serving: &mut SchedulerSetup,
    ) -> Result<()> {
        let begun = Instant::now();
        let gone = remedy.pod.rsplit('/').next().unwrap_or_default();
        self.objects.delete::<Pod>(NAMESPACE, gone)?;
        let placed = loop {
            let placed = self.schedule_pod(pod.clone(), &mut serving.scheduler).await?;
            if placed.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                break placed;
            }
            ensure!(begun.elapsed() < STEP_LIMIT, "the pod still waits");
            sleep(RETRY_INTERVAL).await;
        };
        let node = placed.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        ensure!(node == remedy.node, "the pod is on {node} instead of {}", remedy.node);
        let pod = placed.metadata.name.unwrap_or_default();
        let gone = gone.to_owned();
        self.reporter.report(&ClusterEvent::RemedyHelped {
            pod,
            node,
            gone,
            took_ms: elapsed_ms(begun),
        })
    }

    /// Checks in the API server's objects that no GPU has two owners.
    async fn check(&self) -> Result<()> {
        let objects = Objects::fetch(Some(self.kubeconfig.clone())).await?;
        let conflicts = objects.to_index().conflicts();
        ensure!(conflicts == 0, "{conflicts} pods hold more than their node has");
        Ok(())
    }
}
