//! The label of the agent's own Node, watched through restarts, cut watches and errors of API servers.

use windlass_cluster::node_label;
use windlass_config::LabelValue;

use crate::cluster_api::{
    api_server::{ApiServer, until_equal},
    objects::{Cluster, Refusal, status},
};

const LABEL: &str = "nvidia.com/device-plugin.config";

type Values = tokio::sync::watch::Receiver<LabelValue>;

fn watch(server: &mut ApiServer) -> Values {
    let (values, run) = node_label::watch(server.client(), LABEL.to_owned(), server.stop.clone());
    server.tasks.spawn(run);
    values
}

/// Server that the agent watches, without the label.
async fn start_watch() -> (ApiServer, Values) {
    let mut server = ApiServer::start();
    let values = watch(&mut server);
    until_equal(&values, &LabelValue::Absent).await;
    server.until(|cluster| watches(cluster) == 1).await;
    (server, values)
}

fn value(text: &str) -> LabelValue {
    LabelValue::Value(text.to_owned())
}

fn set(server: &ApiServer, text: &str) {
    server.cluster.send_modify(|cluster| cluster.set_label(LABEL, Some(text)));
}

fn watches(cluster: &Cluster) -> usize {
    let requests = cluster.requests("GET", "/api/v1/nodes");
    requests.iter().filter(|request| request.query.contains_key("watch")).count()
}

fn lists(cluster: &Cluster) -> usize {
    cluster.requests("GET", "/api/v1/nodes").len() - watches(cluster)
}

#[tokio::test]
async fn a_label_is_read_and_its_changes_and_removal_are_seen() {
    let mut server = ApiServer::start();
    let values = watch(&mut server);
    until_equal(&values, &LabelValue::Absent).await;
    set(&server, "a100");
    until_equal(&values, &value("a100")).await;
    set(&server, "h100");
    until_equal(&values, &value("h100")).await;
    server.cluster.send_modify(|cluster| cluster.set_label(LABEL, None));
    until_equal(&values, &LabelValue::Absent).await;
    let cluster = server.cluster.borrow().clone();
    assert_eq!((lists(&cluster), watches(&cluster)), (1, 1));
    let accept = &cluster.requests("GET", "/api/v1/nodes")[0].accept;
    assert!(accept.contains("PartialObjectMetadata"), "only metadata is requested: {accept}");
    server.stop().await;
}

#[tokio::test]
async fn a_change_of_other_labels_is_ignored() {
    let mut server = ApiServer::start();
    set(&server, "a100");
    let mut values = watch(&mut server);
    until_equal(&values, &value("a100")).await;
    values.mark_unchanged();
    server.cluster.send_modify(|cluster| cluster.set_label("other", Some("x")));
    set(&server, "h100");
    values.changed().await.expect("the watcher runs");
    assert_eq!(*values.borrow_and_update(), value("h100"));
    server.stop().await;
}

#[tokio::test]
async fn a_watch_that_ends_continues_from_the_last_version_without_another_list() {
    let (server, values) = start_watch().await;
    // The change reaches the agent together with the end of the watch, or before it: both orders are valid.
    set(&server, "a100");
    until_equal(&values, &value("a100")).await;
    server.cluster.send_modify(|cluster| cluster.ended_watches += 1);
    set(&server, "h100");
    until_equal(&values, &value("h100")).await;
    let cluster = server.until(|cluster| watches(cluster) == 2).await;
    assert_eq!(lists(&cluster), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_watch_continues_from_the_version_of_the_last_bookmark() {
    let (server, _values) = start_watch().await;
    server.cluster.send_modify(Cluster::bookmark);
    let bookmark_version =
        server.cluster.borrow().history.last().expect("a bookmark").0.to_string();
    // Until the bookmark is read, an interrupted watch continues from an earlier version.
    let end_watches = async || {
        server.cluster.send_modify(|cluster| cluster.ended_watches += 1);
        let before = watches(&server.cluster.borrow());
        let cluster = server.until(|cluster| watches(cluster) > before).await;
        cluster.log.last().and_then(|request| request.query.get("resourceVersion").cloned())
    };
    while end_watches().await.as_ref() != Some(&bookmark_version) {}
    assert_eq!(lists(&server.cluster.borrow()), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_version_that_is_too_old_leads_to_a_new_list() {
    let (server, values) = start_watch().await;
    server.cluster.send_modify(|cluster| {
        cluster.compacted = cluster.history.last().expect("a version").0;
        cluster.ended_watches += 1;
        cluster.set_label(LABEL, Some("a100"));
    });
    until_equal(&values, &value("a100")).await;
    let cluster = server.until(|cluster| watches(cluster) == 3).await;
    assert_eq!(lists(&cluster), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_version_that_becomes_too_old_within_a_watch_leads_to_a_new_list() {
    let (server, values) = start_watch().await;
    server.cluster.send_modify(|cluster| {
        cluster.bookmark();
        let last = cluster.history.last_mut().expect("a bookmark");
        last.1 = serde_json::json!({
            "type": "ERROR", "object": status(410, "Expired", "too old resource version"),
        });
    });
    server.until(|cluster| lists(cluster) == 2).await;
    set(&server, "a100");
    until_equal(&values, &value("a100")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_refused_request_is_tried_again_and_the_last_value_remains() {
    let mut server = ApiServer::start();
    set(&server, "a100");
    let values = watch(&mut server);
    until_equal(&values, &value("a100")).await;
    server.until(|cluster| watches(cluster) == 1).await;
    let forbidden = status(403, "Forbidden", "nodes is forbidden");
    let refusal = Refusal { method: "GET", path: "/nodes", times: 3, status: forbidden };
    server.cluster.send_modify(|cluster| {
        cluster.refusals.push(refusal);
        cluster.ended_watches += 1;
    });
    server.until(|cluster| cluster.refusals[0].times == 0).await;
    assert_eq!(*values.borrow(), value("a100"));
    set(&server, "h100");
    until_equal(&values, &value("h100")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_late_api_server_is_watched() {
    let mut server = ApiServer::unstarted();
    set(&server, "a100");
    let values = watch(&mut server);
    tokio::task::yield_now().await;
    assert_eq!(*values.borrow(), LabelValue::Unknown);
    server.start_serving();
    until_equal(&values, &value("a100")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_missing_node_is_unknown_and_watched_once_it_is_created() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| cluster.has_node = false);
    let values = watch(&mut server);
    server.until(|cluster| watches(cluster) == 1).await;
    assert_eq!(*values.borrow(), LabelValue::Unknown);
    set(&server, "a100");
    until_equal(&values, &value("a100")).await;
    server.stop().await;
}

#[tokio::test]
async fn an_api_server_that_restarts_is_watched_again() {
    let mut server = ApiServer::start();
    set(&server, "a100");
    let values = watch(&mut server);
    until_equal(&values, &value("a100")).await;
    server.until(|cluster| watches(cluster) == 1).await;
    server.stop_serving().await;
    set(&server, "h100");
    tokio::task::yield_now().await;
    assert_eq!(*values.borrow(), value("a100"));
    server.start_serving();
    until_equal(&values, &value("h100")).await;
    server.stop().await;
}
