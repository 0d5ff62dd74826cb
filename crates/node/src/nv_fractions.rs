//! GPU fractions of the KAI scheduler, enforced at the container runtime in place of KAI's daemon `fractiond`.
//!
//! ```text
//!  containerd ── NRI: CreateContainer ──> plugin ── request, plan ──> record on disk; variables and hook, or a refusal
//!                                           │
//!                       known containers ───┴─> limits, for the watchdog
//!  NRI's state, NodeState ──> condition ──> Node's status
//! ```
//!
//! The kubelet allocates no GPU to these containers: a reservation pod of KAI holds the whole GPU.
//!
//! # Guarantees
//!
//! An answer to the container runtime waits for neither the API server nor the driver. A container without KAI's
//! annotations stays unchanged.

mod condition;
mod plan;
mod plugin;
mod request;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::ClaimRef;
use windlass_cdi::memory_limits::LimitRecords;
use windlass_cluster::{
    Client,
    node_condition::{ConditionWriter, NodeCondition},
};
use windlass_config::NvFractions;
use windlass_core::device::DeviceId;
use windlass_host::{
    clock::Clock,
    watch::{changed, publish_if_changed},
};
use windlass_nri::{NriSettings, NriState};
use windlass_resources::NodeState;

use self::plugin::{FractionPlugin, FractionedContainers};

/// Memory limits of pods with fractions, in MiB, by GPU and pod: the sum over the pod's containers.
pub(crate) type FractionLimits = BTreeMap<DeviceId, BTreeMap<ClaimRef, u64>>;

/// Index of the plugin among the runtime's NRI plugins, the same as that of `fractiond`.
const INDEX: &str = "10";

/// Tasks that enforce GPU fractions.
pub(crate) struct Fractions {
    plugin: FractionPlugin,
    containers: watch::Receiver<Arc<FractionedContainers>>,
    state: watch::Receiver<Arc<NodeState>>,
    limits: watch::Sender<Arc<FractionLimits>>,
    condition: watch::Sender<Option<Arc<NodeCondition>>>,
}

// === impl Fractions ===

impl Fractions {
    /// Creates the tasks, and the channel of the limits that they publish.
    pub(crate) fn new(
        settings: &NvFractions,
        state_dir: &Path,
        state: watch::Receiver<Arc<NodeState>>,
    ) -> (Self, watch::Receiver<Arc<FractionLimits>>) {
        let (container_sender, containers) = watch::channel(Arc::default());
        let (limits, limit_receiver) = watch::channel(Arc::default());
        let plugin = FractionPlugin {
            settings: settings.clone(),
            state: state.clone(),
            records: LimitRecords::of_fractions(state_dir),
            containers: container_sender,
        };
        let condition = watch::Sender::new(None);
        (Self { plugin, containers, state, limits, condition }, limit_receiver)
    }

    /// Writer of the node's condition.
    pub(crate) fn condition(&self, client: Client, clock: Clock) -> ConditionWriter {
        let condition = self.condition.subscribe();
        ConditionWriter {
            kind: condition::KIND,
            condition,
            final_condition: condition::final_condition(),
            client,
            clock,
        }
    }

    /// Serves the container runtime, until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let settings = NriSettings::new(&self.plugin.settings.socket, "windlass", INDEX);
        let (state_sender, nri) = watch::channel(NriState::default());
        let nri_session = windlass_nri::run(settings, self.plugin, state_sender, stop.clone());
        let watcher = Watcher {
            nri,
            containers: self.containers,
            state: self.state,
            limits: self.limits,
            condition: self.condition,
        };
        tokio::join!(nri_session, stop.run_until_cancelled(watcher.run()));
    }
}

/// Task that computes the limits and the node's condition.
struct Watcher {
    nri: watch::Receiver<NriState>,
    containers: watch::Receiver<Arc<FractionedContainers>>,
    state: watch::Receiver<Arc<NodeState>>,
    limits: watch::Sender<Arc<FractionLimits>>,
    condition: watch::Sender<Option<Arc<NodeCondition>>>,
}

// === impl Watcher ===

impl Watcher {
    async fn run(mut self) {
        loop {
            let state = self.state.borrow_and_update().clone();
            let containers = self.containers.borrow_and_update().clone();
            let nri = self.nri.borrow_and_update().clone();
            publish_if_changed(&self.limits, Arc::new(limits(&containers, &state)));
            if let Some(current) = condition::condition(&nri, &state) {
                publish_if_changed(&self.condition, Some(Arc::new(current)));
            }
            tokio::select! {
                () = changed(&mut self.state) => {}
                () = changed(&mut self.containers) => {}
                () = changed(&mut self.nri) => {}
            }
        }
    }
}

/// Limits of the pods of these containers. A container whose limit is the whole GPU adds no limit.
fn limits(containers: &FractionedContainers, state: &NodeState) -> FractionLimits {
    let mut limits = FractionLimits::new();
    for fraction in containers.values() {
        let pod = &fraction.container.pod;
        let pod = ClaimRef::of_share(&pod.namespace, &pod.name, &pod.uid);
        let gpus = plan::measurable_memory(&fraction.request, state).into_iter();
        for gpu in gpus.filter(|gpu| gpu.limit_mib < gpu.total_mib) {
            *limits.entry(gpu.device).or_default().entry(pod.clone()).or_default() += gpu.limit_mib;
        }
    }
    limits
}
