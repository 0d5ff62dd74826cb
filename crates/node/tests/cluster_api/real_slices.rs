//! The slices of every simulated machine at a real API server, if there is one: it refuses none, and every device and
//! field is kept.

use std::{collections::BTreeMap, env, net::SocketAddr, path::Path, time::Duration};

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};
use windlass_config::{
    ClusterAccess, PerContainer, Policy, Replicas, ResourceRule, Resources, Selector, Shared,
    Sharing, SharingMethod, Unmatched,
};
use windlass_core::{
    device::{Device, DeviceKind},
    health::HealthState,
};
use windlass_machine::MachineProfile;
use windlass_testkit::until;

use crate::cluster_api::whole_agent;

const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";

/// Longer than the agent collects changes before it writes.
const READ_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn client(kubeconfig: &Path) -> kube::Client {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options).await;
    kube::Client::try_from(config.expect("complete")).expect("a client")
}

async fn page(address: SocketAddr) -> String {
    let (mut text, mut stream) =
        (String::new(), TcpStream::connect(address).await.expect("connected"));
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n").await.expect("sent");
    stream.read_to_string(&mut text).await.expect("answered");
    text
}

/// Waits until two reads in a row find the same slices. Returns the number of devices of each pool.
async fn until_published(slices: &Api<ResourceSlice>, node: &str) -> BTreeMap<String, usize> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let list = async || slices.list(&params).await.expect("a list").items;
    let published = until("the slices are published", async || {
        let before = list().await;
        sleep(READ_INTERVAL).await;
        let current = list().await;
        if !current.is_empty() && current == before { Ok(current) } else { Err(current.len()) }
    })
    .await;
    let mut pools = BTreeMap::new();
    for ResourceSlice { spec, .. } in published {
        *pools.entry(spec.pool.name).or_default() +=
            spec.devices.map_or(0, |devices| devices.len());
    }
    pools
}

/// GPUs in three shares each: their published devices have taints, and request policies for amounts.
fn shared_gpus() -> Policy {
    let replicas = Replicas::try_from(3).expect("valid");
    let (method, per_container) = (SharingMethod::TimeSlicing, PerContainer::Any);
    let sharing = Sharing::Shared(Shared { method, replicas, per_container, memory_mib: None });
    let name = "nvidia.com/gpu".parse().expect("valid");
    let rule = ResourceRule::new(name, Selector::all(DeviceKind::Gpu), sharing);
    let (resources, unmatched) = (Resources::Rules(vec![rule]), Unmatched::Default);
    Policy { resources, unmatched, ..whole_agent::policy_for_both_apis() }
}

async fn check_machine(kubeconfig: &Path, kube: &kube::Client, profile: &str) {
    let name = format!("windlass-{profile}-{}", std::process::id());
    let nodes: Api<Node> = Api::all(kube.clone());
    let mut object = Node::default();
    object.metadata.name = Some(name.clone());
    nodes.create(&PostParams::default(), &object).await.expect("a Node");
    let profile = MachineProfile::named(profile).expect("a shipped profile");
    let mut node = windlass_testkit::Node::new(&profile, shared_gpus());
    node.config.listen = Some(([127, 0, 0, 1], 0).into());
    node.config.cluster = ClusterAccess {
        kubeconfig: Some(kubeconfig.to_owned()),
        node_name: Some(name.clone()),
        ..ClusterAccess::default()
    };
    let agent = node.start_agent();
    let slices: Api<ResourceSlice> = Api::all(kube.clone());
    agent.until(|state| state.inventory.is_complete()).await;
    if profile.driver.is_some() {
        node.inject("lost@0");
        let is_unhealthy = |device: &Device| device.health.state == HealthState::Unhealthy;
        agent.until(|state| state.inventory.devices.iter().any(is_unhealthy)).await;
    }
    let pools = until_published(&slices, &name).await;
    let page = page(agent.admin.expect("an address")).await;
    for line in ["windlass_dra_publish_errors_total 0", "windlass_dra_devices_left_out 0"] {
        assert!(page.contains(line), "{name}: {line}\n{page}");
    }
    assert!(!page.contains("windlass_dra_dropped_fields{"), "{name}: {page}");
    // A machine whose GPUs are all in MIG mode without instances has no such line.
    let counts = page.lines().filter(|line| line.starts_with("windlass_dra_devices{"));
    let counts = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
    assert_eq!(pools.values().sum::<usize>(), counts.sum::<usize>(), "{name}: {pools:?}\n{page}");
    agent.stop().await;
    let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
    slices.delete_collection(&DeleteParams::default(), &params).await.expect("deleted");
    nodes.delete(&name, &DeleteParams::default()).await.expect("deleted");
}

#[tokio::test]
async fn a_real_api_server_accepts_the_slices_of_every_machine() {
    let Some(kubeconfig) = env::var_os(KUBECONFIG) else { return };
    let kubeconfig = Path::new(&kubeconfig);
    let kube = client(kubeconfig).await;
    for profile in MachineProfile::names() {
        check_machine(kubeconfig, &kube, profile).await;
    }
}
