//! Shares by amounts of AMD's and Intel's GPUs: limited by the kernel's controller for device memory, and measured by
//! the files that DRM drivers describe.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::Node as NodeObject;
use serde_json::{Value, json};
use windlass_cluster_sim::api::ApiServer;
use windlass_config::{Disclosed, LabelPolicy};
use windlass_core::{
    annotation::NodeDevices, cdi::Spec, enforcement::Enforcement, memory_limit::MemoryLimitRecord,
};
use windlass_kubelet_sim::{Container, Pod};
use windlass_testkit::{Node, until, until_allocatable, until_removed};

use crate::{
    devices::world::{policy, until_metric},
    kernel::{FLEX, HOOK, Kernel, MI300X, PTRACE, Vendor, record_of},
    shares::{COMPUTE, MEMORY, World},
};

/// Resource of a vendor's full GPUs.
fn full_gpus(vendor: Vendor) -> &'static str {
    if vendor.source == "amd" { "amd.com/gpu" } else { "gpu.intel.com/xe" }
}

/// A node that uses the first of its GPUs, once pods may have shares of them.
pub(crate) async fn node(
    vendor: Vendor,
    gpus: usize,
    regions: Option<&str>,
    at_least: &str,
) -> (World, Kernel) {
    let others: Vec<_> = (gpus..8).map(|index| index.to_string()).collect();
    let (source, others) = (vendor.source, others.join(", "));
    let mut policy = policy(&format!(
        "shares: {{source: {source}, memory: {MEMORY}, compute: {COMPUTE}}}\n\
         exclude: [{{source: {source}, index: [{others}]}}]\n\
         memoryLimits: {{hook: {HOOK}, atLeast: {at_least}}}\n\
         watchdog: {{action: kill}}\n"
    ));
    // A shorter interval than a file may have.
    policy.watchdog.interval = Duration::from_millis(10);
    policy.labels = LabelPolicy { devices: true, ..policy.labels };
    let api = ApiServer::start();
    let object = json!({"metadata": {"name": "n1"}});
    api.objects().put::<NodeObject>(&serde_json::from_value(object).expect("a Node"));
    let mut node = Node::new(&vendor.machine(), policy).with_cluster("n1", &api.kubeconfig());
    node.config.disclose.insert(Disclosed::Pods);
    node.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    let kernel = Kernel::of(&node.machine, vendor, regions, PTRACE);
    let (kubelet, agent) = (node.start_kubelet(), node.start_agent());
    let world = World { api, node, kubelet, agent, gpus: Vec::new() };
    until_shareable(&world, vendor, gpus).await;
    (world, kernel)
}

/// Waits until pods may have shares of this number of GPUs.
pub(crate) async fn until_shareable(world: &World, vendor: Vendor, gpus: usize) {
    let gib_per_gpu = usize::try_from(vendor.memory_mib / 1024).expect("few");
    world.agent.until(|state| state.shareable.len() == gpus).await;
    until_allocatable(&world.kubelet, MEMORY, gpus * gib_per_gpu).await;
}

/// A pod with amounts of a GPU, with a UID in the kubelet's form.
pub(crate) fn pod(name: &str, gib: u64, percent: u64) -> Pod {
    let uid = name.repeat(32 / name.len());
    let main = Container::new("main").limit(MEMORY, gib).limit(COMPUTE, percent);
    Pod { uid, ..Pod::new(name).container(main) }
}

/// The document with the memory limit among those of a container.
pub(crate) fn document_with_limit(documents: Vec<Value>) -> Spec {
    let has_hook = |document: &Value| !document["devices"][0]["containerEdits"]["hooks"].is_null();
    let mut documents = documents.into_iter().filter(has_hook);
    serde_json::from_value(documents.next().expect("a limit")).expect("a document")
}

#[tokio::test]
async fn a_pods_share_of_each_vendors_gpu_is_limited_by_the_kernel_and_measured() {
    for vendor in [MI300X, FLEX] {
        let (world, kernel) = node(vendor, 1, Some(&vendor.capacity()), "dmem").await;
        until_allocatable(&world.kubelet, COMPUTE, 100).await;
        until_allocatable(&world.kubelet, full_gpus(vendor), 1).await;
        let state = world.agent.state.borrow().clone();
        let gpu = vendor.gpu(&state);
        let offer = &state.device_offers()[gpu.id.as_str()];
        assert_eq!(offer.enforcement, Some(Enforcement::Dmem));
        let annotated = until("the node's GPUs are annotated", async || {
            let node: NodeObject = world.api.objects().get("", "n1").expect("a Node");
            let text = node.metadata.annotations.unwrap_or_default();
            let text = text.get(NodeDevices::ANNOTATION).ok_or("none")?;
            Ok::<_, &str>(NodeDevices::from_annotation(text).expect("readable"))
        })
        .await;
        let [listed] = &annotated.devices[..] else { panic!("{annotated:?}") };
        assert_eq!((&listed.id, u64::from(listed.memory_mib)), (&gpu.id, vendor.memory_mib));

        let pod = pod("a", 10, 30);
        let uid = pod.uid.clone();
        world.admit(pod, &json!({})).await;
        let document = document_with_limit(world.start_by_uid(&uid, "main").await);
        let edits = &document.devices[0].container_edits;
        let nodes: Vec<_> = gpu.own_nodes().map(|node| node.path.clone()).collect();
        assert!(nodes.iter().all(|path| edits.device_nodes.iter().any(|it| it.path == *path)));
        let record = record_of(edits);
        let parsed = MemoryLimitRecord::parse(&fs::read(&record).expect("there")).expect("valid");
        assert_eq!(parsed.gpus()[0].region.as_ref().expect("a region").as_str(), vendor.region);
        // A GPU with a share is not offered in full.
        until_allocatable(&world.kubelet, full_gpus(vendor), 0).await;
        let program = kernel.program(Some(&uid));
        assert_eq!(kernel.limit(&uid, &program, &record), Ok(10 << 30));
        let until_measured = async |metric: &str, parts: &[&str]| {
            let has = |lines: &[String]| {
                lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
            };
            until_metric(&world.agent, metric, has).await;
        };
        let limit = (10_u64 << 30).to_string();
        let parts = [r#"holder="a",enforcement="dmem"}"#, &limit];
        until_measured("windlass_share_memory_limit_bytes", &parts).await;
        kernel.open_file(&program, 3, 1, 10_000);
        let used = (10_000_u64 << 20).to_string();
        until_measured("windlass_share_memory_used_bytes", &[gpu.id.as_str(), &used]).await;
        kernel.open_file(&program, 4, 2, 1000);
        program.until_ended().await;
        world.kubelet.delete_pod(&uid).await;
        until_removed(&record).await;
        until_allocatable(&world.kubelet, full_gpus(vendor), 1).await;
        world.agent.stop().await;
    }
}

#[tokio::test]
async fn a_share_that_the_kernel_cannot_limit_waits_if_a_limit_is_required() {
    for (at_least, refusal) in [
        ("watched", None),
        ("dmem", Some("the kernel limits no device memory")),
        ("driver", Some("the kernel limits no device memory")),
    ] {
        let (world, _) = node(FLEX, 1, None, at_least).await;
        let enforcement = world.agent.state.borrow().weakest_enforcement();
        assert_eq!(enforcement, Some(Enforcement::Watched));
        let pod = pod("a", 10, 30);
        let uid = pod.uid.clone();
        world.admit(pod, &json!({})).await;
        match refusal {
            None => drop(world.start_by_uid(&uid, "main").await),
            Some(text) => {
                let error = world.kubelet.start_container(&uid, "main").await.expect_err("waits");
                assert!(error.to_string().contains(text), "{error}");
            }
        }
        world.agent.stop().await;
    }
}
