//! Labels that the agent writes: applied, removed, kept, and refused by the API server.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::watch;
use windlass_cluster::{Client, labels};
use windlass_config::{LabelOutput, LabelPolicy, PodIdentity, Policy};

use crate::cluster_api::{
    api_server::ApiServer,
    objects::{Cluster, NODE, NODE_UID, Refusal, status},
};

const FEATURE: &str = "gpu/windlass-features-for-n1";

/// Inputs of the task that writes labels.
struct Inputs {
    labels: watch::Sender<Arc<labels::Labels>>,
    policy: watch::Sender<Arc<Policy>>,
}

fn labels_of(pairs: &[(&str, &str)]) -> Arc<labels::Labels> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Arc::new(pairs.iter().map(owned).collect())
}

fn policy(output: LabelOutput) -> Arc<Policy> {
    Arc::new(Policy {
        labels: LabelPolicy { output, ..LabelPolicy::default() },
        ..Policy::default()
    })
}

fn run(server: &mut ApiServer, output: LabelOutput) -> Inputs {
    let client = server.client();
    run_as(server, client, output)
}

fn run_as(server: &mut ApiServer, client: Client, output: LabelOutput) -> Inputs {
    let (labels, labels_receiver) = watch::channel(Arc::new(labels::Labels::new()));
    let (policy, policy_receiver) = watch::channel(policy(output));
    let stop = server.stop.clone();
    server.tasks.spawn(labels::run(labels_receiver, policy_receiver, client, stop));
    Inputs { labels, policy }
}

fn patches(cluster: &Cluster) -> usize {
    cluster.requests("PATCH", "/api/v1/nodes/n1").len()
}

impl Inputs {
    fn send(&self, pairs: &[(&str, &str)]) {
        self.labels.send_replace(labels_of(pairs));
    }
}

#[tokio::test]
async fn labels_are_applied_to_the_node_and_those_that_vanish_are_removed() {
    let mut server = ApiServer::start();
    let inputs = run(&mut server, LabelOutput::Node);
    inputs.send(&[("nvidia.com/gpu.count", "8"), ("nvidia.com/mig.capable", "true")]);
    let cluster = server.until(|cluster| cluster.labels.len() == 3).await;
    let patch = cluster.requests("PATCH", "/api/v1/nodes/n1")[0];
    assert_eq!(patch.content_type, "application/apply-patch+yaml");
    assert_eq!(patch.query.get("fieldManager").map(String::as_str), Some("windlass"));
    assert_eq!(patch.query.get("force"), None);
    let labels = json!({"nvidia.com/gpu.count": "8", "nvidia.com/mig.capable": "true"});
    let metadata = json!({"name": NODE, "uid": NODE_UID, "labels": labels});
    assert_eq!(patch.body, json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));

    inputs.send(&[("nvidia.com/gpu.count", "7")]);
    let cluster = server.until(|cluster| cluster.labels.len() == 2).await;
    let expected = [("kubernetes.io/hostname", NODE), ("nvidia.com/gpu.count", "7")];
    assert_eq!(cluster.node_labels(), expected.into());
    server.stop().await;
}

#[tokio::test]
async fn without_labels_for_the_api_server_no_request_is_sent() {
    let mut server = ApiServer::start();
    for output in [LabelOutput::None, LabelOutput::File("/dev/null".into())] {
        let inputs = run(&mut server, output);
        inputs.send(&[("nvidia.com/gpu.count", "8")]);
        // A second task on the same thread runs after the first.
        let other = run(&mut server, LabelOutput::NodeFeature);
        other.send(&[("a", "b")]);
        server.until(|cluster| cluster.node_features.contains_key(FEATURE)).await;
    }
    assert_eq!(patches(&server.cluster.borrow()), 0);
    server.stop().await;
}

#[tokio::test]
async fn labels_remain_while_their_values_are_unknown() {
    let mut server = ApiServer::start();
    let first = run(&mut server, LabelOutput::Node);
    first.send(&[("nvidia.com/gpu.count", "8")]);
    server.until(|cluster| patches(cluster) == 1).await;
    // The next agent starts without labels.
    let second = run(&mut server, LabelOutput::Node);
    second.send(&[]);
    first.send(&[("nvidia.com/gpu.count", "7")]);
    let cluster = server.until(|cluster| patches(cluster) == 2).await;
    assert_eq!(cluster.node_labels().get("nvidia.com/gpu.count"), Some(&"7"));
    server.stop().await;
}

#[tokio::test]
async fn equal_labels_are_not_written_again() {
    let mut server = ApiServer::start();
    let inputs = run(&mut server, LabelOutput::Node);
    inputs.send(&[("a", "1")]);
    server.until(|cluster| patches(cluster) == 1).await;
    inputs.send(&[("a", "1")]);
    inputs.policy.send_replace(policy(LabelOutput::Node));
    inputs.send(&[("a", "2")]);
    let cluster = server.until(|cluster| cluster.node_labels().get("a") == Some(&"2")).await;
    assert_eq!(patches(&cluster), 2);
    server.stop().await;
}

#[tokio::test]
async fn removed_labels_are_applied_again() {
    let mut server = ApiServer::start();
    let interval = std::time::Duration::from_millis(20);
    let timeouts =
        windlass_cluster::ClientTimeouts { apply_interval: interval, ..Default::default() };
    let client = server.client().with_timeouts(timeouts);
    let inputs = run_as(&mut server, client, LabelOutput::Node);
    inputs.send(&[("a", "1")]);
    server.until(|cluster| cluster.node_labels().contains_key("a")).await;
    server.cluster.send_modify(|cluster| cluster.set_label("a", None));
    server.until(|cluster| cluster.node_labels().contains_key("a")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_label_of_another_manager_remains_and_the_others_are_written() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| cluster.set_label("nvidia.com/gpu.count", Some("16")));
    let inputs = run(&mut server, LabelOutput::Node);
    inputs.send(&[("nvidia.com/gpu.count", "8"), ("nvidia.com/gpu.memory", "81559")]);
    let cluster = server.until(|c| c.node_labels().contains_key("nvidia.com/gpu.memory")).await;
    assert_eq!(cluster.node_labels().get("nvidia.com/gpu.count"), Some(&"16"));
    server.stop().await;
}

#[tokio::test]
async fn a_node_feature_names_its_node_and_its_owner() {
    let mut server = ApiServer::start();
    let (namespace, name, uid) = ("gpu".into(), "windlass-x".into(), "pod-uid".into());
    let client = server.client_in(Some(PodIdentity { namespace, name, uid }));
    let inputs = run_as(&mut server, client, LabelOutput::NodeFeature);
    inputs.send(&[("nvidia.com/gpu.count", "8")]);
    let cluster = server.until(|cluster| cluster.node_features.contains_key(FEATURE)).await;
    let written = serde_json::to_string_pretty(&cluster.node_features[FEATURE]);
    insta::assert_snapshot!(written.expect("JSON"), @r#"
    {
      "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
      "kind": "NodeFeature",
      "metadata": {
        "labels": {
          "nfd.node.kubernetes.io/node-name": "n1"
        },
        "name": "windlass-features-for-n1",
        "ownerReferences": [
          {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": "windlass",
            "uid": "ds-uid"
          },
          {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "windlass-x",
            "uid": "pod-uid"
          }
        ]
      },
      "spec": {
        "features": {
          "attributes": {},
          "flags": {},
          "instances": {}
        },
        "labels": {
          "nvidia.com/gpu.count": "8"
        }
      }
    }
    "#);
    inputs.send(&[]);
    let labels = |cluster: &Cluster| cluster.node_features[FEATURE]["spec"]["labels"].clone();
    server.until(|cluster| labels(cluster) == json!({})).await;
    server.stop().await;
}

#[tokio::test]
async fn a_change_of_the_label_output_removes_labels_from_the_first() {
    let mut server = ApiServer::start();
    let inputs = run(&mut server, LabelOutput::NodeFeature);
    inputs.send(&[("a", "1")]);
    server.until(|cluster| cluster.node_features.contains_key(FEATURE)).await;
    inputs.policy.send_replace(policy(LabelOutput::Node));
    let cluster = server.until(|cluster| cluster.node_labels().contains_key("a")).await;
    assert!(cluster.node_features.is_empty());
    inputs.policy.send_replace(policy(LabelOutput::None));
    server.until(|cluster| !cluster.node_labels().contains_key("a")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_is_tried_again_with_the_newest_labels() {
    let mut server = ApiServer::start();
    let forbidden = status(403, "Forbidden", "nodes \"n1\" is forbidden");
    server.refuse(Refusal { method: "PATCH", path: "/nodes/n1", times: 3, status: forbidden });
    let inputs = run(&mut server, LabelOutput::Node);
    inputs.send(&[("a", "1")]);
    server.until(|cluster| patches(cluster) >= 1).await;
    inputs.send(&[("a", "2")]);
    let cluster = server.until(|cluster| cluster.node_labels().get("a") == Some(&"2")).await;
    assert_eq!(cluster.refusals[0].times, 0);
    server.stop().await;
}

#[tokio::test]
async fn without_node_feature_discovery_another_label_output_works_at_once() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| cluster.has_nfd = false);
    let hour = std::time::Duration::from_secs(3600);
    let timeouts = windlass_cluster::ClientTimeouts { retry_min: hour, ..Default::default() };
    let client = server.client().with_timeouts(timeouts);
    let inputs = run_as(&mut server, client, LabelOutput::NodeFeature);
    inputs.send(&[("a", "1")]);
    server.until(|cluster| !cluster.requests("PATCH", "nodefeatures").is_empty()).await;
    inputs.policy.send_replace(policy(LabelOutput::Node));
    server.until(|cluster| cluster.node_labels().contains_key("a")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_missing_node_is_not_created() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| cluster.has_node = false);
    let inputs = run(&mut server, LabelOutput::Node);
    inputs.send(&[("a", "1")]);
    let cluster = server.until(|c| c.requests("GET", "/api/v1/nodes/n1").len() >= 2).await;
    assert_eq!(patches(&cluster), 0);
    server.cluster.send_modify(|cluster| cluster.has_node = true);
    server.until(|cluster| cluster.node_labels().contains_key("a")).await;
    server.stop().await;
}

#[tokio::test]
async fn labels_are_written_once_the_api_server_starts() {
    let mut server = ApiServer::unstarted();
    let inputs = run(&mut server, LabelOutput::Node);
    inputs.send(&[("a", "1")]);
    tokio::task::yield_now().await;
    server.start_serving();
    server.until(|cluster| cluster.node_labels().contains_key("a")).await;
    server.stop().await;
}
