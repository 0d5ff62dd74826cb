//! The verbs of kube-scheduler's extender: filter, prioritize, preempt, bind.
//!
//! Filter, prioritize and preempt assume no placement: kube-scheduler may call them for pods that it then does not
//! bind. Only bind chooses devices, and writes them with the Binding.

use std::{collections::HashMap, sync::Arc};

use tokio::time::Instant;
use windlass_host::{causes, shared::Shared};

use crate::{
    binder::Binder,
    facts::{GangError, PodFacts},
    index::{Index, Refusal},
    metrics::{Metrics, Verb},
    wire::{
        BindArgs, BindResult, FilterArgs, FilterResult, HostPriority, MetaPod, PreemptArgs,
        PreemptResult,
    },
};

/// Maximum number of nodes with a score. kube-scheduler scores all other nodes zero, so it prefers these.
const MAX_SCORED: usize = 100;

/// The extender of one cluster.
pub(crate) struct Extender {
    index: Arc<Shared<Index>>,
    binder: Arc<Binder>,
    metrics: Arc<Metrics>,
    /// By UID: the best node of each pod that was ranked and is not bound yet.
    best_nodes: Shared<HashMap<String, String>>,
}

/// Maximum number of entries in `best_nodes`. kube-scheduler soon binds a ranked pod, or calls prioritize again.
const MAX_BEST_NODES: usize = 4096;

// === impl Extender ===

impl Extender {
    pub(crate) fn new(
        index: Arc<Shared<Index>>,
        binder: Arc<Binder>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { index, binder, metrics, best_nodes: Shared::default() }
    }

    /// The nodes that can serve the pod, and the first reason for each node that cannot.
    ///
    /// Nodes that preemption cannot help are in `failed_and_unresolvable_nodes`: kube-scheduler evicts no pod there.
    pub(crate) fn filter(&self, args: &FilterArgs) -> FilterResult {
        let start = Instant::now();
        let result = self.filter_nodes(args);
        self.metrics.count_call(Verb::Filter, start.elapsed(), result.error.is_empty());
        result
    }

    fn filter_nodes(&self, args: &FilterArgs) -> FilterResult {
        let Some(names) = &args.node_names else {
            return FilterResult::error("nodeCacheCapable has to be true for this extender");
        };
        if !self.index.with_lock(|index| index.is_synced()) {
            return FilterResult::error("not ready: the cluster's objects have not been read yet");
        }
        let pod = PodFacts::of(&args.pod);
        if let Some(reason) = self.binder.backoff_message(&pod) {
            return FilterResult::error(&reason);
        }
        let outcomes = self.index.with_lock(|index| {
            index.add_offer(&pod, names);
            index.filter(&pod, names)
        });
        // After an error kube-scheduler retries when its back-off ends. After a refusal it would wait for an event, and
        // events about other pods of the gang do not make it retry this pod.
        if let Some((_, Err(refusal))) = outcomes.first()
            && matches!(
                refusal,
                Refusal::InvalidGang(GangError::Differs { .. })
                    | Refusal::GangIncomplete { .. }
                    | Refusal::TooManyWaiting(_)
            )
        {
            self.metrics.count_refusal(refusal);
            return FilterResult::error(&refusal.to_string());
        }
        let mut result = FilterResult::default();
        for (name, outcome) in outcomes {
            match outcome {
                Ok(()) => result.node_names.push(name.to_owned()),
                Err(refusal) => {
                    self.metrics.count_refusal(&refusal);
                    let list = if is_unresolvable(&refusal) {
                        &mut result.failed_and_unresolvable_nodes
                    } else {
                        &mut result.failed_nodes
                    };
                    list.insert(name.to_owned(), refusal.to_string());
                }
            }
        }
        result
    }

    /// A score for each of the best nodes. All scores differ, because kube-scheduler breaks ties at random.
    pub(crate) async fn prioritize(&self, args: &FilterArgs) -> Vec<HostPriority> {
        let start = Instant::now();
        let names = args.node_names.as_deref().unwrap_or_default();
        let pod = PodFacts::of(&args.pod);
        // Ranking for claims of a new shape takes several steps; other requests are served between them.
        let ranked = loop {
            let step = self.index.with_lock(|index| {
                if !index.is_synced() {
                    return Some(Vec::new());
                }
                index.rank_step(&pod, names, MAX_SCORED)
            });
            match step {
                Some(ranked) => break ranked,
                None => tokio::task::yield_now().await,
            }
        };
        let scores = (1..).zip(ranked.into_iter().rev());
        let scores = scores.map(|(score, host)| HostPriority { host: host.to_owned(), score });
        let scores: Vec<_> = scores.collect();
        self.metrics.count_call(Verb::Prioritize, start.elapsed(), true);
        if let Some(HostPriority { host, .. }) = scores.last() {
            if !pod.claims.is_empty() {
                self.index.with_lock(|index| index.predict_claims(&pod, host));
            }
            self.best_nodes.with_lock(|best| {
                if best.len() >= MAX_BEST_NODES {
                    best.clear();
                }
                best.insert(pod.uid.clone(), host.clone());
            });
        }
        scores
    }

    /// The nodes on which the pod fits after preemption, with the victims. kube-scheduler chose its victims by total
    /// amounts. More victims are added until the pod fits individual GPUs.
    pub(crate) fn preempt(&self, args: &PreemptArgs) -> PreemptResult {
        let start = Instant::now();
        let pod = PodFacts::of(&args.pod);
        let victims_by_node =
            args.node_name_to_meta_victims.iter().filter_map(|(name, victims)| {
                let mut victims = victims.clone();
                let victim_uids: Vec<_> = victims.pods.iter().map(|pod| pod.uid.clone()).collect();
                let additional = self
                    .index
                    .with_lock(|index| index.additional_victims(&pod, name, &victim_uids))?;
                victims.pods.extend(additional.into_iter().map(|uid| MetaPod { uid }));
                Some((name.clone(), victims))
            });
        let result = PreemptResult { node_name_to_meta_victims: victims_by_node.collect() };
        self.metrics.count_call(Verb::Preempt, start.elapsed(), true);
        result
    }

    /// Chooses the pod's devices on the node, and binds it there.
    pub(crate) async fn bind(&self, args: BindArgs) -> BindResult {
        let start = Instant::now();
        let result = self.binder.bind(args.clone()).await;
        self.metrics.count_call(Verb::Bind, start.elapsed(), result.is_ok());
        match result {
            Ok(()) => {
                // kube-scheduler does not prioritize a single candidate.
                if let Some(best) = self.best_nodes.with_lock(|best| best.remove(&args.pod_uid)) {
                    self.metrics.count_bound_pod(best == args.node);
                }
                BindResult::default()
            }
            Err(error) => {
                let error = causes(&error);
                let pod = format!("{}/{}", args.pod_namespace, args.pod_name);
                tracing::warn!(pod, node = args.node, error, "pod not bound");
                BindResult { error }
            }
        }
    }
}

/// True if preemption cannot resolve the refusal.
fn is_unresolvable(refusal: &Refusal) -> bool {
    use windlass_sched::fit::Misfit;
    match refusal {
        Refusal::InvalidRequest(_)
        | Refusal::NoAgent(_)
        | Refusal::NoVirtualGpus(_)
        | Refusal::InvalidGang(_)
        | Refusal::GangIncomplete { .. }
        | Refusal::GangDoesNotFit { .. }
        | Refusal::GangPlannedElsewhere(_)
        | Refusal::GangLostNode(_)
        | Refusal::TooManyWaiting(_)
        | Refusal::AlreadyBound { .. } => true,
        Refusal::NotAccepted { accepted, .. } => *accepted == 0,
        Refusal::Misfit(misfit) => matches!(misfit, Misfit::Model),
        Refusal::UnknownNode(_) | Refusal::OutcomeUnknown(_) => false,
    }
}
