//! The agent's tasks against a real API server, if there is one.
//!
//! Runs if `WINDLASS_E2E_KUBECONFIG` names a cluster, with an administrator's rights. The test creates a Node, which no
//! kubelet serves, and deletes it.

use std::{collections::BTreeMap, env, sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::Node, events::v1::Event};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, DynamicObject},
};
use serde_json::json;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use windlass_cluster::{Client, ClientTimeouts, events, labels, node_label};
use windlass_config::{ClusterAccess, LabelOutput, LabelPolicy, LabelValue, Policy};
use windlass_core::health::Reason;
use windlass_testkit::until;

use crate::cluster_api::{api_server::until_equal, events::with_failure};

const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";

/// Deadline of any wait before the test fails.
const TIMEOUT: Duration = Duration::from_secs(20);

const COUNT: &str = "nvidia.com/gpu.count";

/// The cluster, and the tasks of an agent on its Node.
struct World {
    kube: kube::Client,
    nodes: Api<Node>,
    /// `None` where node-feature-discovery is not installed.
    node_features: Option<Api<DynamicObject>>,
    name: String,
    client: Client,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

// === impl World ===

impl World {
    async fn new(kubeconfig: std::path::PathBuf) -> Self {
        let file = Kubeconfig::read_from(&kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await;
        let kube = kube::Client::try_from(config.expect("complete")).expect("a client");
        let name = format!("windlass-e2e-{}", std::process::id());
        let access = ClusterAccess {
            kubeconfig: Some(kubeconfig),
            node_name: Some(name.clone()),
            ..ClusterAccess::default()
        };
        let retry = Duration::from_millis(200);
        let timeouts =
            ClientTimeouts { retry_min: retry, apply_interval: retry, ..ClientTimeouts::default() };
        let client = Client::new(&access).expect("a good name").with_timeouts(timeouts);
        let nodes = Api::all(kube.clone());
        let node_features = node_features(&kube).await;
        let (tasks, stop) = (JoinSet::new(), CancellationToken::new());
        Self { kube, nodes, node_features, name, client, tasks, stop }
    }

    async fn label(&self, key: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"labels": {key: value}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.nodes.patch(&self.name, &params, &patch).await.expect("labelled");
    }

    async fn labels(&self) -> BTreeMap<String, String> {
        self.nodes.get(&self.name).await.expect("a Node").labels().clone()
    }

    /// Follows a label of the Node through changes and its deletion.
    async fn watch_label(&mut self) {
        let label = "windlass.dev/config".to_owned();
        let (values, run) =
            node_label::watch(self.client.clone(), label.clone(), self.stop.clone());
        self.tasks.spawn(run);
        until_equal(&values, &LabelValue::Absent).await;
        for value in ["a", "b"] {
            self.label(&label, Some(value)).await;
            until_equal(&values, &LabelValue::Value(value.to_owned())).await;
        }
        self.label(&label, None).await;
        until_equal(&values, &LabelValue::Absent).await;
    }

    /// Writes labels to the Node, removes one, keeps one that `kubectl` set, and removes the agent's labels.
    async fn write_labels(&mut self) {
        self.label("nvidia.com/gpu.memory", Some("1")).await;
        let (labels, labels_receiver) =
            watch::channel(Arc::new(labels_of(&[(COUNT, "8"), ("a.b/c", "d")])));
        let (policy, policy_receiver) = watch::channel(policy(LabelOutput::Node));
        let (client, stop) = (self.client.clone(), self.stop.clone());
        self.tasks.spawn(labels::run(labels_receiver, policy_receiver, client, stop));
        self.until(async |world| world.labels().await.contains_key("a.b/c")).await;
        labels
            .send_replace(Arc::new(labels_of(&[(COUNT, "7"), ("nvidia.com/gpu.memory", "81559")])));
        self.until(async |world| !world.labels().await.contains_key("a.b/c")).await;
        self.until(async |world| world.labels().await.get(COUNT).is_some_and(|c| c == "7")).await;
        let memory = self.labels().await.remove("nvidia.com/gpu.memory");
        assert_eq!(memory.as_deref(), Some("1"), "the label that kubectl set remains");
        if let Some(objects) = &self.node_features {
            self.move_to_node_feature(&policy, objects).await;
        }
        policy.send_replace(self::policy(LabelOutput::None));
        self.until(async |world| !world.labels().await.contains_key(COUNT)).await;
    }

    async fn move_to_node_feature(
        &self,
        policy: &watch::Sender<Arc<Policy>>,
        objects: &Api<DynamicObject>,
    ) {
        policy.send_replace(self::policy(LabelOutput::NodeFeature));
        let name = format!("windlass-features-for-{}", self.name);
        let find = async || objects.get_opt(&name).await.expect("an answer");
        self.until(async |_| find().await.is_some()).await;
        let feature = find().await.expect("it is there");
        assert_eq!(feature.data["spec"]["labels"][COUNT], "7");
        assert!(!self.labels().await.contains_key(COUNT), "removed from the Node");
        policy.send_replace(self::policy(LabelOutput::Node));
        self.until(async |_| find().await.is_none()).await;
        self.until(async |world| world.labels().await.contains_key(COUNT)).await;
    }

    /// Reports a failure three times, with recoveries in between: two events, which become series.
    async fn report_failures(&mut self) {
        let (state, receiver) = watch::channel(with_failure(None, 0));
        self.tasks.spawn(events::run(receiver, self.client.clone(), self.stop.clone()));
        for round in 0..3 {
            state.send_replace(with_failure(Some(Reason::Xid(79)), i64::from(round) * 120));
            self.until(async |world| world.event_count("DeviceUnhealthy").await == round + 1).await;
            state.send_replace(with_failure(None, i64::from(round) * 120 + 60));
            self.until(async |world| world.event_count("DeviceRecovered").await == round + 1).await;
        }
    }

    /// Number of events about the Node.
    async fn event_count(&self, reason: &str) -> i32 {
        let count = |event: &Event| event.series.as_ref().map_or(1, |series| series.count);
        let events = self.events().await;
        events.iter().filter(|event| event.reason.as_deref() == Some(reason)).map(count).sum()
    }

    /// The events about the Node.
    async fn events(&self) -> Vec<Event> {
        let api: Api<Event> = Api::namespaced(self.kube.clone(), "default");
        let mut events = api.list(&ListParams::default()).await.expect("a list").items;
        events.retain(|event| {
            event.regarding.as_ref().and_then(|object| object.name.as_ref()) == Some(&self.name)
        });
        events
    }

    /// Leaves the cluster as it was.
    async fn clean_up(self) {
        self.stop.cancel();
        let events: Api<Event> = Api::namespaced(self.kube.clone(), "default");
        for event in self.events().await {
            let deleted = events.delete(&event.name_any(), &DeleteParams::default()).await;
            deleted.expect("the event is deleted");
        }
        let deleted = self.nodes.delete(&self.name, &DeleteParams::default()).await;
        deleted.expect("the Node is deleted");
    }

    async fn until(&self, condition: impl AsyncFn(&Self) -> bool) {
        until("the condition", async || condition(self).await.then_some(()).ok_or("not met")).await;
    }
}

async fn node_features(kube: &kube::Client) -> Option<Api<DynamicObject>> {
    let kind = ApiResource {
        group: "nfd.k8s-sigs.io".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "nfd.k8s-sigs.io/v1alpha1".to_owned(),
        kind: "NodeFeature".to_owned(),
        plural: "nodefeatures".to_owned(),
    };
    let objects = Api::namespaced_with(kube.clone(), "default", &kind);
    objects.list(&ListParams::default()).await.is_ok().then_some(objects)
}

fn labels_of(pairs: &[(&str, &str)]) -> labels::Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn policy(output: LabelOutput) -> Arc<Policy> {
    Arc::new(Policy {
        labels: LabelPolicy { output, ..LabelPolicy::default() },
        ..Policy::default()
    })
}

#[tokio::test]
async fn a_real_api_server_accepts_labels_and_events_and_reports_a_label() {
    let Some(kubeconfig) = env::var_os(KUBECONFIG) else {
        eprintln!("SKIPPED: set {KUBECONFIG} to run this on a real cluster");
        return;
    };
    let mut world = World::new(kubeconfig.into()).await;
    if world.node_features.is_none() {
        eprintln!("SKIPPED in part: the cluster has no NodeFeature");
    }
    let node = serde_json::from_value(json!({"metadata": {"name": world.name}}));
    let created = world.nodes.create(&PostParams::default(), &node.expect("a Node")).await;
    created.expect("the Node is created");
    let steps = async {
        world.watch_label().await;
        world.write_labels().await;
        world.report_failures().await;
    };
    let outcome = timeout(TIMEOUT * 5, steps).await;
    world.clean_up().await;
    outcome.expect("in time");
}
