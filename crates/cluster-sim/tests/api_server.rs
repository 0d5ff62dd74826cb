//! API server, tested through a Kubernetes client.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{
            Device, DeviceTaint, ResourceClaim, ResourcePool, ResourceSlice, ResourceSliceSpec,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use windlass_cluster_sim::api::{ApiServer, Effect, Fault, Gate, Refusal, Settings};

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(30);

fn client(server: &ApiServer) -> Client {
    let config = Config::new(server.url().parse().expect("a url"));
    Client::try_from(config).expect("a client")
}

fn slice(name: &str, node: &str, devices: &[&str]) -> ResourceSlice {
    let device = |name: &&str| Device { name: (*name).to_owned(), ..Device::default() };
    ResourceSlice {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: ResourceSliceSpec {
            driver: "gpu.example.com".to_owned(),
            node_name: Some(node.to_owned()),
            pool: ResourcePool {
                name: format!("{node}/gpus"),
                generation: 1,
                resource_slice_count: 1,
            },
            devices: Some(devices.iter().map(device).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

fn claim(name: &str) -> ResourceClaim {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}},
        ]}},
    });
    serde_json::from_value(claim).expect("a claim")
}

fn allocation() -> Value {
    json!({"devices": {"results": [
        {"request": "gpu", "driver": "gpu.example.com", "pool": "n1/gpus", "device": "gpu-0"},
    ]}})
}

/// Code, reason and message of a refusal.
fn refusal_of<T: Debug>(result: Result<T, kube::Error>) -> (u16, String, String) {
    match result {
        Err(kube::Error::Api(status)) => {
            (status.code, status.reason.clone(), status.message.clone())
        }
        result => panic!("{result:?}"),
    }
}

#[tokio::test]
async fn objects_are_created_read_replaced_and_deleted() {
    let server = ApiServer::start();
    let slices: Api<ResourceSlice> = Api::all(client(&server));
    let created = slices.create(&PostParams::default(), &slice("s", "n1", &["gpu-0"])).await;
    let created = created.expect("created");
    assert_eq!(created.metadata.generation, Some(1));
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());

    let result = slices.create(&PostParams::default(), &slice("s", "n1", &[])).await;
    let exists = "resourceslices.resource.k8s.io \"s\" already exists";
    assert_eq!(refusal_of(result), (409, "AlreadyExists".into(), exists.into()));

    let mut new_slice = created.clone();
    new_slice.spec.devices = slice("s", "n1", &["gpu-0", "gpu-1"]).spec.devices;
    let new_slice =
        slices.replace("s", &PostParams::default(), &new_slice).await.expect("replaced");
    assert_eq!(new_slice.metadata.generation, Some(2));
    let unchanged =
        slices.replace("s", &PostParams::default(), &new_slice).await.expect("replaced");
    assert_eq!(unchanged, new_slice, "an update without a change creates no new version");

    let (code, reason, message) =
        refusal_of(slices.replace("s", &PostParams::default(), &created).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert!(message.contains("the object has been modified"), "{message}");

    assert_eq!(slices.get("s").await.expect("the slice exists"), new_slice);
    slices.delete("s", &DeleteParams::default()).await.expect("deleted");
    let not_found = "resourceslices.resource.k8s.io \"s\" not found";
    assert_eq!(refusal_of(slices.get("s").await), (404, "NotFound".into(), not_found.into()));
}

#[tokio::test]
async fn names_are_generated_and_selected() {
    let server = ApiServer::start();
    let slices: Api<ResourceSlice> = Api::all(client(&server));
    for node in ["n1", "n1", "n2"] {
        let mut slice = slice("", node, &[]);
        slice.metadata.name = None;
        slice.metadata.generate_name = Some(format!("{node}-"));
        let created = slices.create(&PostParams::default(), &slice).await.expect("created");
        let name = created.metadata.name.expect("a name");
        assert!(name.starts_with(node) && name.len() == node.len() + 6, "{name}");
    }
    let node_params = ListParams::default().fields("spec.driver=gpu.example.com,spec.nodeName=n1");
    assert_eq!(slices.list(&node_params).await.expect("a list").items.len(), 2);
    let driver_params = ListParams::default().fields("spec.driver!=gpu.example.com");
    assert!(slices.list(&driver_params).await.expect("a list").items.is_empty());
    let pool_params = ListParams::default().fields("spec.pool.name=p");
    assert_eq!(
        refusal_of(slices.list(&pool_params).await).2,
        "field label not supported: spec.pool.name"
    );
    slices.delete_collection(&DeleteParams::default(), &node_params).await.expect("deleted");
    assert_eq!(server.objects().list::<ResourceSlice>().len(), 1);
}

#[tokio::test]
async fn a_watch_reports_changes_of_selected_objects() {
    let server = ApiServer::start();
    let objects = server.objects();
    let slices: Api<ResourceSlice> = Api::all(client(&server));
    let existing = objects.create(&slice("a", "n1", &[])).expect("created");
    let version = existing.metadata.resource_version.clone().expect("a version");
    let of_node = WatchParams::default().fields("spec.nodeName=n1");
    let mut watch = Box::pin(slices.watch(&of_node, &version).await.expect("a watch"));

    objects.create(&slice("other", "n2", &[])).expect("created");
    objects.create(&slice("b", "n1", &[])).expect("created");
    objects.update(&slice("a", "n1", &["gpu-0"])).expect("replaced");
    assert_eq!(objects.delete_all_slices("n1"), 2);
    let mut received = Vec::new();
    while received.len() < 4 {
        let event = timeout(TIMEOUT, watch.next()).await.expect("in time").expect("open");
        received.push(match event.expect("an event") {
            WatchEvent::Added(slice) => format!("+{}", slice.metadata.name.expect("a name")),
            WatchEvent::Modified(slice) => format!("~{}", slice.metadata.name.expect("a name")),
            WatchEvent::Deleted(slice) => format!("-{}", slice.metadata.name.expect("a name")),
            event => panic!("{event:?}"),
        });
    }
    assert_eq!(received, ["+b", "~a", "-a", "-b"]);

    objects.compact();
    let mut old_watch = Box::pin(slices.watch(&of_node, &version).await.expect("a watch"));
    match old_watch.next().await.expect("open").expect("an event") {
        WatchEvent::Error(status) => assert_eq!((status.code, &*status.reason), (410, "Expired")),
        event => panic!("{event:?}"),
    }
    objects.end_watches();
    assert!(timeout(TIMEOUT, watch.next()).await.expect("in time").is_none());
}

#[tokio::test]
async fn status_is_written_separately_and_its_devices_are_applied_by_key() {
    let server = ApiServer::start();
    let claims: Api<ResourceClaim> = Api::default_namespaced(client(&server));
    let mut created = claims.create(&PostParams::default(), &claim("c")).await.expect("created");
    let exactly =
        created.spec.devices.clone().and_then(|d| d.requests).and_then(|r| r[0].exactly.clone());
    let exactly = exactly.expect("a request");
    assert_eq!((exactly.allocation_mode.as_deref(), exactly.count), (Some("ExactCount"), Some(1)));

    let status = json!({"allocation": allocation()});
    created.status = serde_json::from_value(status).expect("a status");
    let body = claims.replace("c", &PostParams::default(), &created).await.expect("replaced");
    assert_eq!(body.status, None, "the main path does not change the status");
    created.metadata = body.metadata;
    let created =
        claims.replace_status("c", &PostParams::default(), &created).await.expect("replaced");
    assert!(created.status.expect("a status").allocation.is_some());

    let device = |ready: &str| {
        let condition = json!({
            "type": "Ready", "status": ready, "reason": "Prepared", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let device = json!({
            "driver": "gpu.example.com", "pool": "n1/gpus", "device": "gpu-0",
            "conditions": [condition],
        });
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c"}, "status": {"devices": [device]},
        })
    };
    let params = PatchParams::apply("driver").force();
    for ready in ["False", "True"] {
        let patch = Patch::Apply(device(ready));
        let patched = claims.patch_status("c", &params, &patch).await.expect("applied");
        let status = patched.status.expect("a status");
        assert!(status.allocation.is_some());
        let devices = status.devices.expect("devices");
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].conditions.as_ref().expect("conditions")[0].status, ready);
    }
}

#[tokio::test]
async fn faults_apply_until_their_number_of_requests_or_until_they_are_removed() {
    let mut server = ApiServer::start();
    let slices: Api<ResourceSlice> = Api::all(client(&server));
    // The client retries after 429 and 503, so the test uses 500.
    let refusal = Refusal::new(500, "InternalError", "etcd is unavailable");
    server.inject(Fault::at("resourceslices", Effect::Refuse(refusal)).times(1));
    server.inject(Fault::at("resourceslices", Effect::Forbid).for_method("POST").times(1));
    server.inject(Fault::at("resourceslices", Effect::DropResponse).for_method("POST").times(1));
    assert_eq!(refusal_of(slices.list(&ListParams::default()).await).0, 500);
    let new_slice = slice("s", "n1", &[]);
    let (code, _, message) = refusal_of(slices.create(&PostParams::default(), &new_slice).await);
    assert_eq!(code, 403);
    assert!(message.contains("cannot create resource \"resourceslices\""), "{message}");
    let result = slices.create(&PostParams::default(), &new_slice).await;
    assert!(!matches!(result, Ok(_) | Err(kube::Error::Api(_))), "{result:?}");
    assert!(slices.get("s").await.is_ok(), "the object was created");

    server.inject(Fault::at("resourceslices", Effect::ReturnEmpty));
    assert_eq!(slices.list(&ListParams::default()).await.expect("a list").items.len(), 0);
    assert_eq!(refusal_of(slices.get("s").await).0, 404);
    let second_result = slices.create(&PostParams::default(), &new_slice).await;
    assert_eq!(refusal_of(second_result).0, 409, "the object exists");
    server.clear_faults();

    server.go_offline().await;
    assert!(slices.get("s").await.is_err());
    server.go_online();
    assert!(slices.get("s").await.is_ok());
    assert_eq!(
        server.objects().requests().iter().filter(|request| request.method == "POST").count(),
        3
    );
    server.objects().clear_log();
    assert!(server.objects().requests().is_empty());
}

#[tokio::test]
async fn a_server_of_1_35_drops_unknown_fields() {
    let server = ApiServer::start_with(Settings::of_1_35());
    let version = client(&server).apiserver_version().await.expect("a version");
    assert_eq!(version.minor, "35");
    let mut tainted_slice = slice("s", "n1", &["gpu-0"]);
    let taint = DeviceTaint {
        key: "gpu.example.com/broken".into(),
        effect: "NoSchedule".into(),
        ..DeviceTaint::default()
    };
    tainted_slice.spec.devices.as_mut().expect("devices")[0].taints = Some(vec![taint]);
    let taints = |slice: &ResourceSlice| {
        slice.spec.devices.as_ref().expect("devices")[0].taints.clone().unwrap_or_default()
    };
    let slices: Api<ResourceSlice> = Api::all(client(&server));
    let created = slices.create(&PostParams::default(), &tainted_slice).await.expect("created");
    assert!(taints(&created).is_empty());
    server.set_disabled_gates([Gate::ListTypeAttributes]);
    let created =
        slices.replace("s", &PostParams::default(), &tainted_slice).await.expect("replaced");
    let time_added = taints(&created)[0].time_added.clone().expect("the time of the taint");
    let created =
        slices.replace("s", &PostParams::default(), &tainted_slice).await.expect("replaced");
    assert_eq!(taints(&created)[0].time_added, Some(time_added));
}

#[test]
fn objects_of_a_node_are_deleted_with_it() {
    let objects = ApiServer::offline(Settings::default()).objects();
    let mut node = Node::default();
    node.metadata.name = Some("n1".into());
    let node = objects.put(&node);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: "n1".into(),
        uid: node.metadata.uid.expect("a uid"),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let mut owned_slice = slice("owned", "n1", &[]);
    owned_slice.metadata.owner_references = Some(vec![owner]);
    objects.put(&owned_slice);
    objects.put(&slice("free", "n1", &[]));
    assert_eq!(objects.delete_node("n1").expect("deleted"), 1);
    let remaining: Vec<ResourceSlice> = objects.list();
    assert_eq!(remaining[0].metadata.name.as_deref(), Some("free"));
}
