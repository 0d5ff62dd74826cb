//! ResourceSlices kept published, while API servers fail, kubelets delete them and other clients change them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use windlass_cluster::{
    Client, ClientTimeouts,
    slices::{self, DesiredSlices, DroppedFields, PublishState, SliceContent},
};
use windlass_config::DriverName;
use windlass_testkit::until_value;

use crate::cluster_api::{
    api_server::ApiServer,
    objects::{Cluster, NODE_UID, Refusal, status},
    slice_store::{PATH, SliceStore},
};

const POOL: &str = "n1/nvidia";

/// The agent's task that publishes slices.
struct Publisher {
    desired: watch::Sender<Option<Arc<DesiredSlices>>>,
    state: watch::Receiver<Arc<PublishState>>,
    stop: CancellationToken,
}

// === impl Publisher ===

impl Publisher {
    fn start(server: &mut ApiServer) -> Self {
        let client = server.client();
        Self::start_with(server, client)
    }

    fn start_with(server: &mut ApiServer, client: Client) -> Self {
        let (desired, desired_slices) = watch::channel(None);
        let stop = server.stop.child_token();
        let (state, run) =
            slices::publish(client, DriverName::default(), desired_slices, stop.clone());
        server.tasks.spawn(run);
        Self { desired, state, stop }
    }

    fn set_slices(&self, pools: &[(&str, Vec<SliceContent>)]) {
        let pools = pools.iter().map(|(name, slices)| ((*name).to_owned(), slices.clone()));
        let desired = DesiredSlices { pools: pools.collect(), ..DesiredSlices::default() };
        self.desired.send_replace(Some(Arc::new(desired)));
    }

    async fn until_state(
        &mut self,
        condition: impl FnMut(&Arc<PublishState>) -> bool,
    ) -> PublishState {
        (*until_value("the state of publication", &self.state, condition).await).clone()
    }

    async fn until_pool(&mut self, pool: &str, (generation, slices, devices): (i64, usize, usize)) {
        let expected = slices::PublishedPool { generation, slices, devices };
        self.until_state(|state| state.pools.get(pool) == Some(&expected)).await;
    }
}

fn device(name: &str) -> Value {
    json!({"name": name, "capacity": {"gpu.nvidia.com/memory": {"value": "81920Mi"}}})
}

fn tainted(name: &str) -> Value {
    let mut device = device(name);
    let taint = json!({"key": "windlass.dev/unhealthy", "value": "lost", "effect": "NoSchedule"});
    device["taints"] = json!([taint]);
    device
}

fn content(devices: &[Value]) -> SliceContent {
    let devices = serde_json::from_value(devices.into()).expect("devices");
    SliceContent { devices, ..SliceContent::default() }
}

/// A slice with one device.
fn gpu(name: &str) -> SliceContent {
    content(&[device(name)])
}

/// The slices in the order in which a scheduler sees them: index, generation/count, devices.
fn published(cluster: &Cluster) -> Vec<String> {
    let line = |(name, slice): (&String, &Value)| {
        let (pool, devices) = (&slice["spec"]["pool"], slice["spec"]["devices"].as_array());
        let names = devices.into_iter().flatten().filter_map(|device| device["name"].as_str());
        let names: Vec<_> = names.collect();
        let (generation, count) = (&pool["generation"], &pool["resourceSliceCount"]);
        format!("{} {generation}/{count} {}", &name[..5], names.join(","))
    };
    cluster.slices.slices.iter().map(line).collect()
}

/// Number of creates, updates and deletes of slices. A write that conflicts with another client's is repeated, and
/// counts once.
fn writes(cluster: &Cluster) -> [usize; 3] {
    let [post, put, delete] =
        ["POST", "PUT", "DELETE"].map(|method| cluster.requests(method, PATH).len());
    [post, put - cluster.slices.conflicts, delete]
}

fn edit(server: &ApiServer, index: &str, change: impl FnOnce(&mut Value)) {
    server.cluster.send_modify(|cluster| {
        cluster.change_slices(|slices| {
            let entry = slices.slices.iter().find(|(name, _)| name.starts_with(index));
            let (name, mut slice) = entry.map(|(a, b)| (a.clone(), b.clone())).expect("there");
            change(&mut slice);
            slices.put(&name, slice);
        });
    });
}

#[tokio::test]
async fn slices_are_created_once_in_order_and_belong_to_the_node() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[
        (POOL, vec![gpu("a"), gpu("b")]),
        ("n1/nics", vec![SliceContent::default()]),
    ]);
    publisher.until_pool(POOL, (1, 2, 2)).await;
    publisher.until_pool("n1/nics", (1, 1, 0)).await;
    let cluster = server.cluster.borrow().clone();
    assert_eq!(published(&cluster), ["00000 1/1 ", "00000 1/2 a", "00001 1/2 b"]);
    let (name, slice) = cluster.slices.slices.last_key_value().expect("a slice");
    assert!(name.starts_with("00001-windlass.dev-n1-"), "{name}");
    let owner = json!([{
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": NODE_UID, "controller": true,
    }]);
    assert_eq!(slice["metadata"]["ownerReferences"], owner);
    assert_eq!(slice["spec"]["nodeName"], "n1");
    publisher.stop.cancel();
    let mut next = Publisher::start(&mut server);
    next.set_slices(&[
        (POOL, vec![gpu("a"), gpu("b")]),
        ("n1/nics", vec![SliceContent::default()]),
    ]);
    next.until_pool(POOL, (1, 2, 2)).await;
    assert_eq!(writes(&server.cluster.borrow()), [3, 0, 0], "the next agent writes nothing");
    server.stop().await;
}

#[tokio::test]
async fn a_burst_of_changes_is_one_update_in_the_same_generation() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a"), gpu("b")])]);
    publisher.until_pool(POOL, (1, 2, 2)).await;
    for devices in [[tainted("b"), device("c")], [device("b"), device("c")]] {
        publisher.set_slices(&[(POOL, vec![gpu("a"), content(&devices)])]);
        tokio::task::yield_now().await;
    }
    publisher.until_pool(POOL, (1, 2, 3)).await;
    let cluster = server.cluster.borrow().clone();
    assert_eq!(published(&cluster), ["00000 1/2 a", "00001 1/2 b,c"]);
    assert_eq!(writes(&cluster), [2, 1, 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_pool_that_grows_has_a_new_generation_and_one_that_shrinks_loses_its_last_slice() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a")])]);
    publisher.until_pool(POOL, (1, 1, 1)).await;
    publisher.set_slices(&[(POOL, vec![gpu("a"), gpu("b")])]);
    publisher.until_pool(POOL, (2, 2, 2)).await;
    assert_eq!(published(&server.cluster.borrow()), ["00000 2/2 a", "00001 2/2 b"]);
    publisher.set_slices(&[(POOL, vec![gpu("a")])]);
    publisher.until_pool(POOL, (2, 1, 1)).await;
    assert_eq!(published(&server.cluster.borrow()), ["00000 2/1 a"]);
    server.stop().await;
}

#[tokio::test]
async fn slices_that_a_starting_kubelet_deletes_are_published_again() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a"), gpu("b")])]);
    publisher.until_pool(POOL, (1, 2, 2)).await;
    // The Node was deleted and created again meanwhile.
    server.cluster.send_modify(|cluster| {
        cluster.node_uid = "another";
        cluster.change_slices(SliceStore::delete_all);
    });
    let cluster = server.until(|cluster| cluster.slices.slices.len() == 2).await;
    assert_eq!(published(&cluster), ["00000 1/2 a", "00001 1/2 b"]);
    for slice in cluster.slices.slices.values() {
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "another");
    }
    server.stop().await;
}

#[tokio::test]
async fn changes_by_others_are_reverted_at_once_and_repeated_ones_after_a_pause() {
    let mut server = ApiServer::start();
    let pause = Duration::from_secs(1);
    let timeouts = ClientTimeouts { retry_min: pause, ..ClientTimeouts::default() };
    let client = server.client().with_timeouts(timeouts);
    let mut publisher = Publisher::start_with(&mut server, client);
    publisher.set_slices(&[(POOL, vec![gpu("a"), gpu("b")])]);
    publisher.until_pool(POOL, (1, 2, 2)).await;
    let mut revert_times = vec![Instant::now()];
    for times in 1..=5 {
        edit(&server, "00001", |slice| slice["spec"]["devices"] = json!([device("x")]));
        server.until(|cluster| writes(cluster)[1] == times).await;
        revert_times.push(Instant::now());
    }
    assert!(revert_times[4] - revert_times[0] < pause * 4, "{revert_times:?}");
    assert!(revert_times[5] - revert_times[4] >= pause, "{revert_times:?}");
    let mut foreign = server.cluster.borrow().slices.slices.values().next().expect("one").clone();
    foreign["metadata"]["name"] = "stray".into();
    server.cluster.send_modify(|cluster| cluster.change_slices(|it| it.put("stray", foreign)));
    let cluster = server.until(|cluster| !cluster.slices.slices.contains_key("stray")).await;
    assert_eq!(published(&cluster), ["00000 1/2 a", "00001 1/2 b"]);
    server.stop().await;
}

#[tokio::test]
async fn equal_amounts_in_another_notation_and_times_of_taints_cause_no_write() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![content(&[tainted("a")])])]);
    publisher.until_pool(POOL, (1, 1, 1)).await;
    edit(&server, "00000", |slice| {
        slice["spec"]["devices"][0]["capacity"]["gpu.nvidia.com/memory"]["value"] = "80Gi".into();
    });
    publisher.set_slices(&[(POOL, vec![content(&[tainted("a"), device("b")])])]);
    publisher.until_pool(POOL, (1, 1, 2)).await;
    let cluster = server.cluster.borrow().clone();
    assert_eq!(writes(&cluster), [1, 1, 0], "only the desired slices are written");
    let taint = &cluster.requests("PUT", PATH).last().expect("a write").body["spec"]["devices"][0]
        ["taints"][0];
    assert_eq!(taint["timeAdded"], "2026-01-02T03:04:05Z", "a taint that remains keeps its time");
    server.stop().await;
}

#[tokio::test]
async fn a_refused_device_is_omitted_by_name_and_affects_no_other() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| {
        cluster.slices.refused = ["b", "n1/nics"].into();
    });
    let mut publisher = Publisher::start(&mut server);
    let pool = vec![content(&[device("a"), device("b"), device("c")])];
    publisher.set_slices(&[("n1/nics", vec![gpu("nic")]), (POOL, pool.clone())]);
    publisher.until_pool(POOL, (1, 1, 2)).await;
    let state = publisher.state.borrow().clone();
    let [omission] = &state.omitted[..] else { panic!("{state:#?}") };
    assert_eq!((&*omission.pool, &*omission.device), (POOL, "b"));
    assert!(omission.reason.contains("spec.devices[1].attributes[x].string: Invalid value"));
    let error = state.error.as_deref().unwrap_or_default();
    assert!(error.contains("pool n1/nics is refused: ResourceSlice is invalid"), "{error}");
    assert_eq!(state.error_count, 2);
    let writes_before = writes(&server.cluster.borrow());
    // A slice with a changed device is written again.
    server.cluster.send_modify(|cluster| cluster.slices.refused.clear());
    publisher.set_slices(&[(POOL, vec![content(&[device("a"), tainted("b"), device("c")])])]);
    publisher.until_pool(POOL, (1, 1, 3)).await;
    assert_eq!(writes_before, [3, 0, 0], "no refused slice is sent twice");
    server.stop().await;
}

#[tokio::test]
async fn a_pool_with_one_refused_slice_is_restored_completely_or_removed() {
    let refusal = |method, path, times| {
        let status = status(422, "Invalid", "ResourceSlice is invalid");
        Refusal { method, path, times, status }
    };
    // The second slice is refused, and then also the return to the previous slices.
    for (restore_refusals, expected) in [(0, &["00000 3/2 a", "00001 3/2 b"][..]), (1, &[])] {
        let mut server = ApiServer::start();
        let mut publisher = Publisher::start(&mut server);
        publisher.set_slices(&[(POOL, vec![gpu("a"), gpu("b")])]);
        publisher.until_pool(POOL, (1, 2, 2)).await;
        server.cluster.send_modify(|cluster| {
            let second = "/resourceslices/00001";
            cluster.refusals =
                vec![refusal("PUT", second, 1), refusal("POST", PATH, restore_refusals)];
        });
        publisher.set_slices(&[(POOL, vec![gpu("c"), gpu("d")])]);
        let state = publisher.until_state(|state| state.error.is_some()).await;
        assert_eq!(published(&server.cluster.borrow()), expected);
        assert_eq!(state.error.as_deref().unwrap_or_default().matches("is refused").count(), 1);
        publisher.set_slices(&[(POOL, vec![gpu("e"), gpu("f")])]);
        let state = publisher.until_state(|state| state.error.is_none()).await;
        assert_eq!(state.pools[POOL].devices, 2, "other desired slices are tried");
        server.stop().await;
    }
}

#[tokio::test]
async fn the_version_is_requested_again_after_a_failed_answer() {
    let mut server = ApiServer::start();
    let status = status(503, "ServiceUnavailable", "not ready");
    server.refuse(Refusal { method: "GET", path: "/version", times: 1, status });
    let mut publisher = Publisher::start(&mut server);
    let mut part = device("part");
    part["consumesCounters"] = json!([{"counterSet": "c", "counters": {"m": {"value": "1"}}}]);
    let counter_set = json!({"name": "c", "counters": {"m": {"value": "8"}}});
    let shared_counters = vec![serde_json::from_value(counter_set).expect("a set")];
    let counters = SliceContent { shared_counters, ..SliceContent::default() };
    publisher.set_slices(&[(POOL, vec![counters, content(&[part])])]);
    publisher.until_pool(POOL, (1, 2, 1)).await;
    assert_eq!(server.cluster.borrow().requests("GET", "/version").len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn dropped_fields_are_named_and_cause_no_second_write() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| cluster.slices.has_feature_gates = false);
    let mut publisher = Publisher::start(&mut server);
    let mut shared = device("shared");
    shared["allowMultipleAllocations"] = true.into();
    publisher.set_slices(&[(POOL, vec![content(&[shared.clone(), tainted("sick")])])]);
    // Without its taint the failed device would be allocated.
    publisher.until_pool(POOL, (1, 1, 1)).await;
    let state = publisher.state.borrow().clone();
    assert_eq!(state.dropped_fields, [DroppedFields::Sharing, DroppedFields::Taints].into());
    assert!(state.omitted[0].reason.contains("keeps no taints"), "{state:?}");
    assert_eq!(writes(&server.cluster.borrow()), [1, 1, 0]);
    publisher.set_slices(&[(POOL, vec![content(&[shared, device("sick")])])]);
    publisher.until_pool(POOL, (1, 1, 2)).await;
    assert_eq!(writes(&server.cluster.borrow()), [1, 2, 0]);
    server.stop().await;
}

#[tokio::test]
async fn an_api_server_that_returns_gets_the_newest_slices() {
    let mut server = ApiServer::unstarted();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a")])]);
    publisher.until_state(|state| state.error.is_some() && state.error_count > 0).await;
    server.start_serving();
    publisher.until_pool(POOL, (1, 1, 1)).await;
    assert_eq!(publisher.state.borrow().error, None);
    server.stop_serving().await;
    publisher.set_slices(&[(POOL, vec![gpu("b")])]);
    let state = publisher.until_state(|state| state.error.is_some()).await;
    assert_eq!(state.pools.len(), 1, "the published slices are still known");
    server.start_serving();
    let cluster = server.until(|cluster| published(cluster) == ["00000 1/1 b"]).await;
    assert_eq!(writes(&cluster), [1, 1, 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_of_every_device_is_logged_and_tried_again() {
    let mut server = ApiServer::start();
    let status = status(403, "Forbidden", "resourceslices is forbidden");
    server.refuse(Refusal { method: "POST", path: PATH, times: 2, status });
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a")])]);
    let state = publisher.until_state(|state| state.error.is_some()).await;
    let error = state.error.expect("an error");
    assert!(error.contains("pool n1/nvidia") && error.contains("deploy/rbac.yaml"), "{error}");
    publisher.until_pool(POOL, (1, 1, 1)).await;
    assert_eq!(publisher.state.borrow().error_count, 2);
    server.stop().await;
}

#[tokio::test]
async fn a_missing_api_is_named_and_requested_again() {
    let mut server = ApiServer::start();
    server.cluster.send_modify(|cluster| cluster.slices.is_served = false);
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a")])]);
    let state = publisher.until_state(|state| state.error.is_some()).await;
    let error = state.error.expect("an error");
    assert!(error.contains("no resource.k8s.io/v1"), "{error}");
    server.cluster.send_modify(|cluster| cluster.slices.is_served = true);
    publisher.until_pool(POOL, (1, 1, 1)).await;
    server.stop().await;
}

#[tokio::test]
async fn without_desired_slices_no_request_is_sent_and_existing_ones_are_deleted() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    tokio::task::yield_now().await;
    assert_eq!(server.cluster.borrow().log.len(), 0);
    publisher.set_slices(&[(POOL, vec![gpu("a"), gpu("b")])]);
    publisher.until_pool(POOL, (1, 2, 2)).await;
    publisher.desired.send_replace(None);
    let cluster = server.until(|cluster| cluster.slices.slices.is_empty()).await;
    publisher.until_state(|state| state.pools.is_empty()).await;
    assert_eq!(writes(&cluster), [2, 0, 2]);
    server.cluster.send_modify(|cluster| cluster.ended_watches += 1);
    publisher.set_slices(&[(POOL, vec![gpu("c")])]);
    publisher.until_pool(POOL, (1, 1, 1)).await;
    server.stop().await;
}

#[tokio::test]
async fn pools_with_unknown_devices_remain() {
    let mut server = ApiServer::start();
    let mut publisher = Publisher::start(&mut server);
    publisher.set_slices(&[(POOL, vec![gpu("a")]), ("n1/nics", vec![gpu("nic")])]);
    publisher.until_pool(POOL, (1, 1, 1)).await;
    publisher.stop.cancel();
    let next = Publisher::start(&mut server);
    let unknown_pools = [POOL.to_owned()].into();
    let desired = DesiredSlices { pools: BTreeMap::new(), unknown_pools, omitted: Vec::new() };
    next.desired.send_replace(Some(Arc::new(desired)));
    let cluster = server.until(|cluster| cluster.slices.slices.len() == 1).await;
    assert_eq!(published(&cluster), ["00000 1/1 a"]);
    server.stop().await;
}
