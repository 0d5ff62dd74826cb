//! Another DRA driver on the same node: the test driver of Kubernetes, in Go. A pod has devices of both drivers, and a
//! restart of one driver does not affect the other.

use std::{
    env, fs,
    process::{Child, Command, Stdio},
};

use super::{
    objects::{objects, pod, template},
    restarts::container_starts,
    rig::{Rig, node_name, wait_for_running},
};
use crate::cluster::{
    KUBECONFIG, NODE_STATUS_LIMIT, eventually, has_cluster,
    pods::{Manifests, Pods, clean_up, kubectl},
};

/// Variable with the path of Kubernetes' test driver, built from `test/e2e/dra/test-driver` in its source.
const PROGRAM: &str = "WINDLASS_GO_DRA_DRIVER";

/// Name of the driver.
const DRIVER: &str = "test-driver.cdi.k8s.io";

/// Number of devices that the driver publishes by default.
const DEVICES: usize = 4;

const SOCKETS: &str = "/var/lib/kubelet/plugins/test-driver.cdi.k8s.io";
const REGISTRATION: &str = "/var/lib/kubelet/plugins_registry/test-driver.cdi.k8s.io-reg.sock";

/// Name of a device class, and of a claim template for one device of the class.
const NAME: &str = "windlass-e2e-foreign";

/// Running driver. Drop kills it, and deletes its files and slices.
struct OtherDriver {
    program: String,
    child: Child,
}

// === impl OtherDriver ===

impl OtherDriver {
    fn start(program: String) -> Self {
        // In a DaemonSet, this folder is a mount.
        fs::create_dir_all(SOCKETS).expect("a folder");
        let child = spawn(&program);
        Self { program, child }
    }

    /// Kills the driver with SIGKILL, and starts it again.
    fn replace(&mut self) {
        self.end();
        self.child = spawn(&self.program);
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for OtherDriver {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_file(REGISTRATION);
        let _ = fs::remove_dir_all(SOCKETS);
        // After a kill, the driver does not know the claims that it had prepared.
        for document in fs::read_dir("/var/run/cdi").into_iter().flatten().flatten() {
            if document.file_name().to_string_lossy().starts_with(DRIVER) {
                let _ = fs::remove_file(document.path());
            }
        }
        clean_up(&["delete", "resourceslices", &field_selector()]);
    }
}

fn spawn(program: &str) -> Child {
    let kubeconfig = env::var(KUBECONFIG).expect("checked");
    let flags = [format!("--kubeconfig={kubeconfig}"), format!("--node-name={}", node_name())];
    let mut command = Command::new(program);
    command.arg("kubelet-plugin").args(flags).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{PROGRAM} names no program: {error}"))
}

fn field_selector() -> String {
    format!("--field-selector=spec.driver={DRIVER}")
}

/// Waits until all devices of the driver are published.
async fn wait_for_published() {
    let path = "jsonpath={.items[*].spec.devices[*].name}";
    let query = ["get", "resourceslices", &field_selector(), "-o", path];
    let count = async || kubectl(&query).split_whitespace().count();
    eventually(NODE_STATUS_LIMIT, DEVICES, count).await;
}

fn class_and_template() -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {NAME}}}\nspec:\n  \
         selectors: [{{cel: {{expression: 'device.driver == \"{DRIVER}\"'}}}}]\n---\n\
         apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {{name: {NAME}}}\n\
         spec: {{spec: {{devices: {{requests: [{{name: foreign, exactly: {{deviceClassName: {NAME}}}}}]}}}}}}\n"
    )
}

/// Pod with a GPU of this agent by the claim `gpus`, and a device of the other driver by the claim `foreign`.
fn pod_of_both_drivers(name: &str) -> String {
    let (claims_field, container_claims) = ("resourceClaims: [", "claims: [{name: gpus}]");
    let text = pod(name, 1);
    assert!(text.contains(claims_field) && text.contains(container_claims), "{text}");
    let both_claims =
        format!("{claims_field}{{name: foreign, resourceClaimTemplateName: {NAME}}}, ");
    text.replace(claims_field, &both_claims)
        .replace(container_claims, "claims: [{name: gpus}, {name: foreign}]")
}

/// Pod with a device of the other driver only.
fn pod_of_other_driver(name: &str) -> String {
    pod(name, 1).replace(&template(1), NAME)
}

/// Number of this agent's GPUs and of the other driver's devices in a pod's container.
async fn device_counts(name: &str) -> (usize, usize) {
    wait_for_running("default", name).await;
    let log = kubectl(&["logs", name]);
    let own_nodes = log.lines().filter_map(|line| line.rsplit_once(" nvidia"));
    let own_nodes = own_nodes.filter(|(_, number)| number.parse::<u32>().is_ok()).count();
    (own_nodes, log.lines().filter(|line| line.starts_with("claim_")).count())
}

#[tokio::test]
async fn two_dra_drivers_serve_one_pod_and_survive_restarts_of_each_other() {
    let Ok(program) = env::var(PROGRAM) else {
        eprintln!("SKIPPED: set {PROGRAM} to run another driver beside the agent");
        return;
    };
    if !has_cluster() {
        return;
    }
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    let mut other_driver = OtherDriver::start(program);
    rig.wait_for_published(16).await;
    wait_for_published().await;
    let manifests = Manifests::apply(&[objects(), vec![class_and_template()]].concat());
    let mut pods = Pods::new();
    let (own, other, shared) = ("windlass-e2e-ours", "windlass-e2e-theirs", "windlass-e2e-both");
    pods.apply(own, &pod(own, 1));
    pods.apply(other, &pod_of_other_driver(other));
    pods.apply(shared, &pod_of_both_drivers(shared));
    assert_eq!(
        [device_counts(own).await, device_counts(other).await, device_counts(shared).await],
        [(1, 0), (0, 1), (1, 1)]
    );

    let (owners_before, starts_before) = (rig.owners().await, container_starts());
    assert_eq!(starts_before.matches(" 0 2").count(), 3, "{starts_before}");
    rig.replace_agent();
    rig.wait_for_published(16).await;
    wait_for_published().await;
    let pod_after_agent = "windlass-e2e-after-ours";
    pods.apply(pod_after_agent, &pod_of_both_drivers(pod_after_agent));
    assert_eq!(device_counts(pod_after_agent).await, (1, 1));
    other_driver.replace();
    rig.wait_for_published(16).await;
    wait_for_published().await;
    let pod_after_driver = "windlass-e2e-after-theirs";
    pods.apply(pod_after_driver, &pod_of_both_drivers(pod_after_driver));
    assert_eq!(device_counts(pod_after_driver).await, (1, 1));

    let starts_after = container_starts();
    assert!(
        starts_before.lines().all(|line| starts_after.contains(line)),
        "{starts_before}\n{starts_after}"
    );
    let owners_after = rig.owners().await;
    assert!(
        owners_before.iter().all(|(claim, devices)| owners_after.get(claim) == Some(devices)),
        "{owners_after:?}"
    );
    drop(pods);
    rig.wait_for_no_owners().await;
    drop((manifests, other_driver));
}
