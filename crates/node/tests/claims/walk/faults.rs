//! Faults of the node beside its pods: the agent is killed and frozen, files are deleted, and the kubelet and the API
//! server fail or give false answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::{
    api::{ApiServer, Effect, Fault, Refusal},
    cluster::Cluster,
};
use windlass_config::{Config, Policy};
use windlass_kubelet_api::{
    deviceplugin::PLUGIN_DIR,
    dra::checkpoint::CPU_MANAGER_FILE,
    pluginregistration::{
        InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use windlass_testkit::{GPU, TIMEOUT};

use super::{
    agent::{AgentProcess, config},
    kubelet_sockets::KubeletSockets,
    node::{Node, PodResourcesAnswer, dial},
};
use crate::{
    claims::{
        rng::{Length, Rng},
        world::{Mounts, NODE, free_gpus, remove_if_exists, use_shipped_mounts},
    },
    dra::records,
};

/// Causes faults, one after the other.
pub(super) struct Faults {
    node: Arc<Node>,
    agent: AgentProcess,
    cluster: Cluster,
    sockets: Option<KubeletSockets>,
    config: Config,
    mounts: Mounts,
    rng: Rng,
    /// Claims that only pod resources show to an agent without its state file.
    unrecorded: BTreeSet<String>,
}

/// Maximum number of steps between two faults.
const STEPS_BETWEEN: usize = 200;

/// Longest duration of a lasting fault, in milliseconds.
const MAX_FAULT_MS: usize = 300;

/// Maximum number of requests that the API server remembers.
const MAX_LOGGED: u64 = 2_000;

/// The GPUs of the node.
const GPUS: usize = 8;

/// Length of a walk after which the running agent, too, has to see at the end that every device is free. A device that
/// was allocated too briefly for a checkpoint stays allocated for half a minute.
const LONG_WALK: u64 = 5_000;

// === impl Faults ===

impl Faults {
    /// Starts a node and its agent, and waits until all GPUs are published.
    pub(super) async fn start(mounts: Mounts, length: Length, rng: Rng) -> (Self, Arc<Node>) {
        let folder = windlass_testkit::Node::from_profile("dgx-h100", Policy::default()).folder;
        let cluster = Cluster::start();
        cluster.add_node(NODE);
        fs::write(folder.join("kubeconfig"), cluster.server().kubeconfig()).expect("written");
        let mut config = config(&folder);
        let kubelet = config.places.kubelet_dir.clone();
        for name in [PLUGIN_DIR, "plugins", "plugins_registry", "pod-resources"] {
            fs::create_dir_all(kubelet.join(name)).expect("created");
        }
        fs::write(kubelet.join(CPU_MANAGER_FILE), "{}").expect("written");
        if mounts == Mounts::Shipped {
            use_shipped_mounts(&mut config);
        }
        let node = Arc::new(Node::new(kubelet, cluster.objects(), length));
        let (sockets, shared) = (Some(KubeletSockets::start(&node)), Arc::clone(&node));
        let (agent, unrecorded) = (AgentProcess::new(&folder), BTreeSet::new());
        let mut faults = Self { node, agent, cluster, sockets, config, mounts, rng, unrecorded };
        faults.agent.start();
        faults.until_settled(GPUS).await;
        (faults, shared)
    }

    /// Causes faults until the walk is over.
    pub(super) async fn run(&mut self) {
        let (mut next_fault, mut next_clear) = (self.node.steps(), 0);
        while !self.node.is_over() {
            if self.node.steps() >= next_fault {
                next_fault = self.node.steps() + self.rng.below(STEPS_BETWEEN) as u64;
                self.agent.check_running();
                self.cause_fault().await;
            }
            if self.node.steps() >= next_clear {
                next_clear = self.node.steps() + MAX_LOGGED;
                self.node.objects.clear_log();
                self.node.objects.compact();
            }
            sleep(Duration::from_millis(1)).await;
        }
        self.node.facts().pod_resources = PodResourcesAnswer::Correct;
    }

    async fn cause_fault(&mut self) {
        match self.rng.below(100) {
            0..30 => self.kill(|_| "agent killed").await,
            30..38 => self.terminate().await,
            38..46 => self.freeze().await,
            46..52 => self.delete_plugin_socket(),
            52..58 => self.delete_driver_sockets().await,
            58..64 => self.delete_record().await,
            64..70 => self.delete_documents(),
            70..75 => self.delete_slices(),
            75..84 => self.change_pod_resources(),
            84..90 => self.restart_kubelet(),
            _ => self.fail_api().await,
        }
    }

    fn api(&mut self) -> &mut ApiServer {
        self.cluster.server_mut()
    }

    fn record_event(&self, event: &str) {
        self.node.facts().owners.log(event);
        self.node.step(event);
    }

    fn fault_duration(&mut self) -> Duration {
        Duration::from_millis(self.rng.below(MAX_FAULT_MS) as u64)
    }

    /// Kills the agent at any moment, runs `action` without an agent, and starts the next.
    async fn kill(&mut self, action: impl FnOnce(&mut Self) -> &'static str) {
        let is_called = self.node.calls.try_write().is_err();
        self.agent.kill();
        if is_called {
            self.node.count("agent killed during calls");
        }
        let node = Arc::clone(&self.node);
        // Every call has failed by then.
        let _quiet = node.calls.write().await;
        let event = action(self);
        self.record_event(event);
        self.agent.start();
    }

    async fn terminate(&mut self) {
        self.record_event("agent terminated");
        self.agent.terminate().await;
        self.agent.start();
    }

    async fn freeze(&mut self) {
        self.record_event("agent frozen");
        self.agent.signal(Signal::STOP);
        sleep(self.fault_duration()).await;
        if self.rng.below(4) == 0 {
            return self.kill(|_| "agent killed while frozen").await;
        }
        self.agent.signal(Signal::CONT);
    }

    fn delete_plugin_socket(&mut self) {
        self.record_event("device plugin's socket deleted");
        remove_if_exists(&self.node.plugin_socket());
    }

    /// Deletes the driver's sockets. The kubelet finds the registration socket again once it is bound again.
    async fn delete_driver_sockets(&mut self) {
        self.record_event("driver's sockets deleted");
        remove_if_exists(&self.node.registration_socket());
        if self.rng.below(2) == 0 {
            remove_if_exists(&self.node.driver_socket());
        }
        sleep(self.fault_duration()).await;
        self.register_driver().await;
    }

    async fn register_driver(&self) {
        let Some(channel) = dial(self.node.registration_socket()).await else { return };
        let mut driver = RegistrationClient::new(channel);
        if driver.get_info(InfoRequest {}).await.is_ok() {
            let status = RegistrationStatus { plugin_registered: true, error: String::new() };
            // The driver gets the status again at the next registration.
            let _ = driver.notify_registration_status(status).await;
        }
    }

    /// Removes the agent's state file of claims, or half of it, before the next agent starts. The copy or the kubelet's
    /// checkpoint replaces it. If the copy is lost too and the checkpoint is not mounted, CDI documents and pod
    /// resources show the claims: the walk leaves one of the two alone until all of these claims have ended.
    async fn delete_record(&mut self) {
        // With the shipped mounts it takes seconds until everything is released, so half of these faults keep the
        // record.
        if self.mounts == Mounts::Shipped && self.rng.below(2) == 0 {
            return self.kill(|_| "agent killed").await;
        }
        self.kill(|faults| {
            let [path, copy] = records(&faults.config.places);
            let keeps_copy = faults.rng.below(2) == 0 && copy.exists();
            if !keeps_copy {
                remove_if_exists(&copy);
            }
            if faults.mounts == Mounts::Shipped && !keeps_copy {
                remove_if_exists(&path);
                faults.delete_documents_if_safe();
                return "agent killed and its record lost with its copy";
            }
            match fs::read(&path) {
                Ok(text) if faults.rng.below(3) == 0 => {
                    let length = faults.rng.below(text.len());
                    fs::write(&path, &text[..length]).expect("written");
                    "agent killed and its record cut off"
                }
                _ => {
                    remove_if_exists(&path);
                    "agent killed and its record lost"
                }
            }
        })
        .await;
    }

    /// Removes the documents, unless they are the only trace of claims.
    fn delete_documents_if_safe(&mut self) {
        let facts = self.node.facts();
        let mut prepared = facts.owners.names();
        prepared.retain(|uid| facts.claims.contains_key(uid));
        drop(facts);
        let documents = self.documents();
        let has_document =
            |uid: &String| documents.iter().any(|it| it.ends_with(document_of_claim(uid)));
        if self.rng.below(2) == 0 || !prepared.iter().all(has_document) {
            self.delete_documents();
            self.node.facts().pod_resources = PodResourcesAnswer::Correct;
        }
        self.unrecorded = prepared;
    }

    fn delete_documents(&mut self) {
        // The state file was lost, and only its copy exists.
        let is_state_lost = !records(&self.config.places)[0].exists();
        let has_unrecorded =
            self.has_unrecorded() && self.node.facts().pod_resources != PodResourcesAnswer::Correct;
        if has_unrecorded || is_state_lost && self.mounts == Mounts::Shipped {
            return;
        }
        self.record_event("CDI documents deleted");
        self.documents().iter().for_each(|path| remove_if_exists(path));
    }

    fn documents(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.config.places.cdi_dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn has_unrecorded(&self) -> bool {
        let facts = self.node.facts();
        self.unrecorded.iter().any(|uid| facts.owners.has(uid))
    }

    fn delete_slices(&mut self) {
        self.record_event("slices deleted");
        self.node.objects.delete_all_slices(NODE);
    }

    /// Changes the answer of pod resources.
    fn change_pod_resources(&mut self) {
        let answers = [
            PodResourcesAnswer::Correct,
            PodResourcesAnswer::Empty,
            PodResourcesAnswer::Error,
            PodResourcesAnswer::Late,
        ];
        let pod_resources = answers[self.rng.below(answers.len())];
        if !self.has_unrecorded() {
            self.record_event(&format!("pod resources: {pod_resources:?}"));
            self.node.facts().pod_resources = pod_resources;
        }
    }

    /// Restarts the kubelet. It reads its checkpoint, and knows no pod until its API server answers.
    fn restart_kubelet(&mut self) {
        self.record_event("kubelet restarted");
        self.sockets = None;
        self.node.facts().lists.clear();
        if self.rng.below(2) == 0 && !self.has_unrecorded() {
            self.node.facts().pod_resources = PodResourcesAnswer::Empty;
        }
        self.node.objects.delete_all_slices(NODE);
        self.sockets = Some(KubeletSockets::start(&self.node));
    }

    async fn fail_api(&mut self) {
        let failure = Refusal::new(500, "InternalError", "injected by the walk");
        let effects = [
            ("API server fails", Effect::Refuse(failure)),
            ("API server drops connections", Effect::CloseConnection),
            ("API server loses answers", Effect::DropResponse),
        ];
        let chosen = self.rng.below(effects.len() + 1);
        if let Some((event, effect)) = effects.into_iter().nth(chosen) {
            self.record_event(event);
            self.api().inject(Fault::at("/", effect));
        } else {
            self.record_event("API server stopped");
            self.api().go_offline().await;
        }
        sleep(self.fault_duration()).await;
        if self.rng.below(4) == 0 {
            self.kill(|_| "agent killed without its API server").await;
        }
        self.api().clear_faults();
        self.api().go_online();
    }

    /// Ends the walk, and checks that every device is free for this agent and for the next. Returns the number of each
    /// event.
    pub(super) async fn end(mut self) -> BTreeMap<String, u64> {
        assert!(self.node.facts().owners.names().is_empty());
        let is_long = self.node.steps() >= LONG_WALK;
        self.until_settled(if is_long { GPUS } else { 0 }).await;
        self.kill(|_| "agent killed").await;
        self.until_settled(GPUS).await;
        self.agent.terminate().await;
        assert_eq!(self.remains(), Vec::<String>::new(), "remains after the last agent");
        std::mem::take(&mut self.node.facts().tally)
    }

    /// Waits until every device is healthy, nothing is left of claims, and this number of GPUs is free for new ones.
    async fn until_settled(&mut self, expected: usize) {
        let start = Instant::now();
        loop {
            let (free, remaining) = (free_gpus(&self.node.objects), self.remains());
            let list = self.node.facts().lists.get(GPU).cloned().unwrap_or_default();
            let healthy = list.values().filter(|is_healthy| **is_healthy).count();
            if free >= expected && healthy == GPUS && remaining.is_empty() {
                return;
            }
            self.agent.check_running();
            assert!(
                start.elapsed() < TIMEOUT * 3,
                "{free} GPUs are free for claims, {healthy} are healthy; claims left {remaining:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Entries of the state file, and documents, that are left of claims.
    fn remains(&self) -> Vec<String> {
        let record = fs::read(self.config.places.state_dir.join("claims.json")).unwrap_or_default();
        let record: Value = serde_json::from_slice(&record).unwrap_or_default();
        let recorded =
            record["claims"].as_object().into_iter().flatten().map(|(uid, _)| uid.clone());
        let documents = self.documents().into_iter().map(|path| path.display().to_string());
        recorded.chain(documents.filter(|name| name.contains("-claim-"))).collect()
    }
}

fn document_of_claim(uid: &str) -> String {
    format!("windlass.dev-claim-{uid}.json")
}
