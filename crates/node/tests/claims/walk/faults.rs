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
    dra::checkpoint::NEIGHBOUR,
    pluginregistration::{
        InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use windlass_testkit::{GPU, LIMIT};

use super::{
    agent::{AgentProcess, config},
    front::Front,
    node::{Node, Tells, dial},
};
use crate::{
    claims::{
        rng::{Chance, Length},
        world::{Mounts, NODE, free_gpus, removed, show_what_is_mounted},
    },
    dra::records,
};

/// Causes faults, one after the other.
pub(super) struct Strikes {
    node: Arc<Node>,
    agent: AgentProcess,
    cluster: Cluster,
    front: Option<Front>,
    config: Config,
    mounts: Mounts,
    chance: Chance,
    /// Claims that only pod resources show to an agent without its state file.
    witnessed: BTreeSet<String>,
}

/// Maximum number of steps between two faults.
const STEPS_BETWEEN: usize = 200;

/// Longest duration of a lasting fault, in milliseconds.
const LASTS_MS: usize = 300;

/// Maximum number of requests that the API server remembers.
const REMEMBERED: u64 = 2_000;

/// The GPUs of the node.
const GPUS: usize = 8;

/// Length of a walk after which the running agent, too, has to see at the end that every device is free. A device that
/// was allocated too briefly for a checkpoint stays allocated for half a minute.
const LONG: u64 = 5_000;

// === impl Strikes ===

impl Strikes {
    /// A node with an agent that has just started.
    pub(super) async fn begin(mounts: Mounts, length: Length, chance: Chance) -> (Self, Arc<Node>) {
        let folder = windlass_testkit::Node::named("dgx-h100", Policy::default()).folder;
        let cluster = Cluster::start();
        cluster.add_node(NODE);
        fs::write(folder.join("kubeconfig"), cluster.server().kubeconfig()).expect("written");
        let mut config = config(&folder);
        let kubelet = config.places.kubelet_dir.clone();
        for name in [PLUGIN_DIR, "plugins", "plugins_registry", "pod-resources"] {
            fs::create_dir_all(kubelet.join(name)).expect("made");
        }
        fs::write(kubelet.join(NEIGHBOUR), "{}").expect("written");
        if mounts == Mounts::Shipped {
            show_what_is_mounted(&mut config);
        }
        let node = Arc::new(Node::new(kubelet, cluster.objects(), length));
        let (front, shared) = (Some(Front::start(&node)), Arc::clone(&node));
        let (agent, witnessed) = (AgentProcess::new(&folder), BTreeSet::new());
        let mut strikes = Self { node, agent, cluster, front, config, mounts, chance, witnessed };
        strikes.agent.start();
        strikes.is_settled(GPUS).await;
        (strikes, shared)
    }

    /// Causes faults until the walk is over.
    pub(super) async fn run(&mut self) {
        let (mut next, mut forgotten) = (self.node.steps(), 0);
        while !self.node.is_over() {
            if self.node.steps() >= next {
                next = self.node.steps() + self.chance.below(STEPS_BETWEEN) as u64;
                self.agent.lives();
                self.strike().await;
            }
            if self.node.steps() >= forgotten {
                forgotten = self.node.steps() + REMEMBERED;
                self.node.objects.clear_log();
                self.node.objects.compact();
            }
            sleep(Duration::from_millis(1)).await;
        }
        self.node.facts().tells = Tells::Truth;
    }

    async fn strike(&mut self) {
        match self.chance.below(100) {
            0..30 => self.kill(|_| "agent killed").await,
            30..38 => self.terminate().await,
            38..46 => self.freeze().await,
            46..52 => self.delete_plugin_socket(),
            52..58 => self.delete_driver_sockets().await,
            58..64 => self.lose_record().await,
            64..70 => self.delete_documents(),
            70..75 => self.delete_slices(),
            75..84 => self.tell_otherwise(),
            84..90 => self.restart_kubelet(),
            _ => self.fail_api().await,
        }
    }

    fn api(&mut self) -> &mut ApiServer {
        self.cluster.server_mut()
    }

    fn happened(&self, what: &str) {
        self.node.facts().hands.log(what);
        self.node.step(what);
    }

    fn moment(&mut self) -> Duration {
        Duration::from_millis(self.chance.below(LASTS_MS) as u64)
    }

    /// Kills the agent at any moment, runs `meanwhile` without an agent, and starts the next.
    async fn kill(&mut self, meanwhile: impl FnOnce(&mut Self) -> &'static str) {
        let is_called = self.node.calls.try_write().is_err();
        self.agent.kill();
        if is_called {
            self.node.count("agent killed in the midst of calls");
        }
        let node = Arc::clone(&self.node);
        // Every call has failed by then.
        let _quiet = node.calls.write().await;
        let what = meanwhile(self);
        self.happened(what);
        self.agent.start();
    }

    async fn terminate(&mut self) {
        self.happened("agent terminated");
        self.agent.terminate().await;
        self.agent.start();
    }

    async fn freeze(&mut self) {
        self.happened("agent frozen");
        self.agent.signal(Signal::STOP);
        sleep(self.moment()).await;
        if self.chance.below(4) == 0 {
            return self.kill(|_| "agent killed while frozen").await;
        }
        self.agent.signal(Signal::CONT);
    }

    fn delete_plugin_socket(&mut self) {
        self.happened("device plugin's socket deleted");
        removed(&self.node.plugin_socket());
    }

    /// Deletes the driver's sockets. The kubelet finds the registration socket again once it is bound again.
    async fn delete_driver_sockets(&mut self) {
        self.happened("driver's sockets deleted");
        removed(&self.node.registration_socket());
        if self.chance.below(2) == 0 {
            removed(&self.node.driver_socket());
        }
        sleep(self.moment()).await;
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
    async fn lose_record(&mut self) {
        // Then it takes seconds until everything is released.
        if self.mounts == Mounts::Shipped && self.chance.below(2) == 0 {
            return self.kill(|_| "agent killed").await;
        }
        self.kill(|strikes| {
            let [path, copy] = records(&strikes.config.places);
            let keeps_copy = strikes.chance.below(2) == 0 && copy.exists();
            if !keeps_copy {
                removed(&copy);
            }
            if strikes.mounts == Mounts::Shipped && !keeps_copy {
                removed(&path);
                strikes.lose_documents();
                return "agent killed and its record lost with its copy";
            }
            match fs::read(&path) {
                Ok(text) if strikes.chance.below(3) == 0 => {
                    let length = strikes.chance.below(text.len());
                    fs::write(&path, &text[..length]).expect("written");
                    "agent killed and its record cut off"
                }
                _ => {
                    removed(&path);
                    "agent killed and its record lost"
                }
            }
        })
        .await;
    }

    /// Removes the documents, unless they are the only trace of claims.
    fn lose_documents(&mut self) {
        let facts = self.node.facts();
        let mut prepared = facts.hands.holders();
        prepared.retain(|who| facts.claims.contains_key(who));
        drop(facts);
        let documents = self.documents();
        let has_document = |uid: &String| documents.iter().any(|it| it.ends_with(of_claim(uid)));
        if self.chance.below(2) == 0 || !prepared.iter().all(has_document) {
            self.delete_documents();
            self.node.facts().tells = Tells::Truth;
        }
        self.witnessed = prepared;
    }

    fn delete_documents(&mut self) {
        // The state file was lost, and only its copy exists.
        let is_lost = !records(&self.config.places)[0].exists();
        let is_witnessed = self.is_witnessed() && self.node.facts().tells != Tells::Truth;
        if is_witnessed || is_lost && self.mounts == Mounts::Shipped {
            return;
        }
        self.happened("CDI documents deleted");
        self.documents().iter().for_each(|path| removed(path));
    }

    fn documents(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.config.places.cdi_dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn is_witnessed(&self) -> bool {
        let facts = self.node.facts();
        self.witnessed.iter().any(|uid| facts.hands.has(uid))
    }

    fn delete_slices(&mut self) {
        self.happened("slices deleted");
        self.node.objects.wipe_slices(NODE);
    }

    /// Changes the answer of pod resources.
    fn tell_otherwise(&mut self) {
        let all = [Tells::Truth, Tells::Nothing, Tells::Error, Tells::Late];
        let tells = all[self.chance.below(all.len())];
        if !self.is_witnessed() {
            self.happened(&format!("pod resources: {tells:?}"));
            self.node.facts().tells = tells;
        }
    }

    /// Restarts the kubelet. It reads its checkpoint, and knows no pod until its API server answers.
    fn restart_kubelet(&mut self) {
        self.happened("kubelet restarted");
        self.front = None;
        self.node.facts().lists.clear();
        if self.chance.below(2) == 0 && !self.is_witnessed() {
            self.node.facts().tells = Tells::Nothing;
        }
        self.node.objects.wipe_slices(NODE);
        self.front = Some(Front::start(&self.node));
    }

    async fn fail_api(&mut self) {
        let failure = Refusal::new(500, "InternalError", "as the walk wants");
        let effects = [
            ("API server fails", Effect::Refuse(failure)),
            ("API server drops connections", Effect::Drop),
            ("API server loses answers", Effect::LoseAnswer),
        ];
        let drawn = self.chance.below(effects.len() + 1);
        if let Some((what, effect)) = effects.into_iter().nth(drawn) {
            self.happened(what);
            self.api().inject(Fault::at("/", effect));
        } else {
            self.happened("API server away");
            self.api().go_away().await;
        }
        sleep(self.moment()).await;
        if self.chance.below(4) == 0 {
            self.kill(|_| "agent killed without its API server").await;
        }
        self.api().heal();
        self.api().come_back();
    }

    /// Ends the walk, and checks that every device is free for this agent and for the next. Returns the number of each
    /// event.
    pub(super) async fn end(mut self) -> BTreeMap<String, u64> {
        assert!(self.node.facts().hands.holders().is_empty());
        let is_long = self.node.steps() >= LONG;
        self.is_settled(if is_long { GPUS } else { 0 }).await;
        self.kill(|_| "agent killed").await;
        self.is_settled(GPUS).await;
        self.agent.terminate().await;
        assert_eq!(self.left(), Vec::<String>::new(), "left by the last agent");
        std::mem::take(&mut self.node.facts().tally)
    }

    /// Waits until every device is healthy, nothing is left of claims, and this number of GPUs is free for new ones.
    async fn is_settled(&mut self, expected: usize) {
        let begun = Instant::now();
        loop {
            let (free, left) = (free_gpus(&self.node.objects), self.left());
            let list = self.node.facts().lists.get(GPU).cloned().unwrap_or_default();
            let healthy = list.values().filter(|is| **is).count();
            if free >= expected && healthy == GPUS && left.is_empty() {
                return;
            }
            self.agent.lives();
            assert!(
                begun.elapsed() < LIMIT * 3,
                "{free} GPUs are free for claims, {healthy} are healthy, and left are {left:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Entries of the state file, and documents, that are left of claims.
    fn left(&self) -> Vec<String> {
        let record = fs::read(self.config.places.state_dir.join("claims.json")).unwrap_or_default();
        let record: Value = serde_json::from_slice(&record).unwrap_or_default();
        let recorded =
            record["claims"].as_object().into_iter().flatten().map(|(uid, _)| uid.clone());
        let documents = self.documents().into_iter().map(|path| path.display().to_string());
        recorded.chain(documents.filter(|name| name.contains("-claim-"))).collect()
    }
}

fn of_claim(uid: &str) -> String {
    format!("windlass.dev-claim-{uid}.json")
}
