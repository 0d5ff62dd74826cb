//! Claims on a real cluster: its scheduler chooses from the agent's slices, its kubelet has the agent prepare.

use std::time::{Duration, Instant};

use crate::{
    NODE_STATUS, alone, eventually, has_cluster,
    node::Node,
    pods::{Manifests, Pods, kubectl},
};

/// A claim is released when the last pod is gone, and what the kubelet missed a minute later.
const LET_GO: Duration = Duration::from_secs(150);

/// A hundred pods, each of which has a GPU for a moment, on eight of them.
const BURST: Duration = Duration::from_secs(240);

/// How often the agent is killed while they run.
const KILLS: u32 = 4;

const CLASS: &str = "windlass-e2e-gpu";
const EXTENDED: &str = "example.com/e2e-gpu";

/// The agent's classes and the claims that the tests make of them.
fn objects() -> Vec<String> {
    let one = format!("[{{name: gpu, exactly: {{deviceClassName: {CLASS}}}}}]");
    let asked = "device.attributes[\"gpu.nvidia.com\"].productName.matches(\"H100\") && \
                 device.capacity[\"gpu.nvidia.com\"].memory.compareTo(quantity(\"40Gi\")) > 0";
    let two = format!(
        "[{{name: gpus, exactly: {{deviceClassName: {CLASS}, count: 2, selectors: \
         [{{cel: {{expression: '{asked}'}}}}]}}}}]"
    );
    let near = format!(
        "[{{name: gpu, exactly: {{deviceClassName: {CLASS}}}}}, \
         {{name: nic, exactly: {{deviceClassName: {CLASS}-nic}}}}], \
         constraints: [{{requests: [gpu, nic], matchAttribute: resource.kubernetes.io/pcieRoot}}]"
    );
    vec![
        class(CLASS, "gpu", &format!("extendedResourceName: {EXTENDED}")),
        class(&format!("{CLASS}-nic"), "nic", ""),
        template("windlass-e2e-one", &one),
        template("windlass-e2e-two", &two),
        template("windlass-e2e-near", &near),
    ]
}

fn class(name: &str, kind: &str, more: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {name}}}\nspec:\n  \
         selectors: [{{cel: {{expression: 'device.driver == \"windlass.dev\" && \
         device.attributes[\"windlass.dev\"].type == \"{kind}\"'}}}}]\n  {more}\n"
    )
}

/// A template of claims with these requests.
fn template(name: &str, requests: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {{name: {name}}}\n\
         spec: {{spec: {{devices: {{requests: {requests}}}}}}}\n"
    )
}

/// A pod whose containers each have all devices of a claim of that template.
fn pod(name: &str, template: &str, containers: &[&str]) -> String {
    let containers = containers.iter().map(|container| {
        format!(
            "  - {{name: {container}, image: \"docker.io/local/app:1\", imagePullPolicy: Never, \
             resources: {{claims: [{{name: devices}}]}}}}\n"
        )
    });
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  \
         resourceClaims: [{{name: devices, resourceClaimTemplateName: {template}}}]\n  \
         containers:\n{}",
        containers.collect::<String>()
    )
}

/// A pod that says for how long it has which GPU, and ends.
fn short_pod(name: &str) -> String {
    let clock = "$(cut -d\" \" -f1 /proc/uptime)";
    let script = format!("echo from {clock}; ls /dev; sleep 0.5; echo to {clock}");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: windlass-e2e-burst}}}}\n\
         spec:\n  restartPolicy: Never\n  automountServiceAccountToken: false\n  \
         terminationGracePeriodSeconds: 0\n  \
         resourceClaims: [{{name: devices, resourceClaimTemplateName: windlass-e2e-one}}]\n  \
         containers:\n  - {{name: main, image: \"docker.io/local/app:1\", imagePullPolicy: Never, \
         command: [sh, -c, '{script}'], resources: {{claims: [{{name: devices}}]}}}}\n"
    )
}

fn config() -> String {
    let kubeconfig = std::env::var(crate::KUBECONFIG).expect("checked");
    let node = kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    format!(
        "health: {{quietPeriod: 2s, probeInterval: 1s}}\n\
         cluster: {{kubeconfig: {kubeconfig}, nodeName: {node}}}\ndra: {{offer: instead}}\n"
    )
}

/// The nodes of a container's `/dev` that are called so, with a number.
fn nodes(pod: &str, container: &str, prefix: &str) -> Vec<String> {
    let log = kubectl(&["logs", pod, "-c", container]);
    let words = log.split_whitespace().filter_map(|word| word.strip_prefix(prefix));
    words.filter(|rest| rest.parse::<u32>().is_ok()).map(|n| format!("{prefix}{n}")).collect()
}

fn listed(resource: &str, path: &str) -> Vec<String> {
    let names = kubectl(&["get", resource, "-o", &format!("jsonpath={{.items[*].{path}}}")]);
    names.split_whitespace().map(str::to_owned).collect()
}

async fn published(devices: usize) {
    let count = async || listed("resourceslices", "spec.devices[*].name").len();
    eventually(NODE_STATUS, devices, count).await;
}

/// Waits until no claim has anything, by the API server and by the agent's own record.
async fn nothing_is_held(node: &Node) {
    let allocated =
        async || listed("resourceclaims", "status.allocation.devices.results[*].device").len();
    eventually(LET_GO, 0, allocated).await;
    let recorded = async || node.state("claims.json").matches("\"ref\"").count();
    eventually(LET_GO, 0, recorded).await;
    let documents = std::fs::read_dir("/var/run/cdi").expect("a folder").flatten();
    let of_claims = documents.filter(|it| it.file_name().to_string_lossy().contains("-claim-"));
    assert_eq!(of_claims.count(), 0, "documents of claims are left");
}

#[tokio::test]
async fn pods_run_with_the_devices_that_the_scheduler_chose_for_their_claims() {
    if !has_cluster() {
        return;
    }
    let _alone = alone();
    let node = Node::new("dgx-h100", &config());
    let agent = node.agent();
    published(16).await;
    let manifests = Manifests::apply(&objects());
    let mut pods = Pods::none();
    let both = "windlass-e2e-both";
    pods.apply(both, &pod(both, "windlass-e2e-two", &["a", "b"]));
    pods.until_it_runs(both).await;
    let held = nodes(both, "a", "nvidia");
    assert_eq!(held.len(), 2, "{held:?}");
    assert_eq!(held, nodes(both, "b", "nvidia"), "two containers share one claim");

    let near = "windlass-e2e-near";
    pods.apply(near, &pod(near, "windlass-e2e-near", &["main"]));
    pods.until_it_runs(near).await;
    let roots = kubectl(&["exec", near, "--", "sh", "-c", "env; ls /dev/infiniband"]);
    assert!(roots.contains("PCIDEVICE_") && roots.contains("uverbs"), "{roots}");

    let extended = "windlass-e2e-extended";
    pods.make(extended, EXTENDED, 1);
    pods.until_it_runs(extended).await;
    assert_eq!(nodes(extended, "main", "nvidia").len(), 1, "a plain resource, by a claim");

    agent.kill();
    kubectl(&["delete", "resourceslices", "--all"]);
    let agent = node.agent();
    published(16).await;
    let after = "windlass-e2e-after";
    pods.apply(after, &pod(after, "windlass-e2e-one", &["main"]));
    pods.until_it_runs(after).await;
    let other = nodes(after, "main", "nvidia");
    assert!(other.len() == 1 && !held.contains(&other[0]), "{other:?} beside {held:?}");

    kubectl(&["delete", "pod", both, "--force", "--grace-period=0"]);
    drop(pods);
    nothing_is_held(&node).await;
    drop((manifests, agent));
}

#[tokio::test]
async fn a_burst_of_pods_is_served_while_the_agent_is_killed_again_and_again() {
    if !has_cluster() {
        return;
    }
    let _alone = alone();
    let node = Node::new("dgx-h100", &config());
    let mut agent = node.agent();
    published(16).await;
    let manifests = Manifests::apply(&objects());
    let names: Vec<_> = (0..100).map(|n| format!("windlass-e2e-burst-{n}")).collect();
    let begun = Instant::now();
    let pods = Manifests::apply(&names.iter().map(|name| short_pod(name)).collect::<Vec<_>>());
    let done = || {
        let phases = ["get", "pods", "-l", "app=windlass-e2e-burst", "-o"];
        let path = "jsonpath={.items[*].status.phase}";
        kubectl(&[&phases[..], &[path]].concat()).matches("Succeeded").count()
    };
    for kill in 1..=KILLS {
        let enough = (100 * kill / (KILLS + 1)) as usize;
        eventually(BURST, true, async || done() >= enough).await;
        agent.kill();
        agent = node.agent();
    }
    eventually(BURST, 100, async || done()).await;
    eprintln!("100 pods had a GPU each within {:?}, with {KILLS} kills", begun.elapsed());
    let mut spans: Vec<_> = names.iter().flat_map(|name| spans(name)).collect();
    assert_eq!(spans.len(), 100, "each had one GPU");
    spans.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
    for pair in spans.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(pair[0].2 <= pair[1].1, "{} had two owners: {pair:?}", pair[0].0);
    }
    drop(pods);
    nothing_is_held(&node).await;
    drop((manifests, agent));
}

/// Which GPUs a pod had, from when, to when.
fn spans(pod: &str) -> Vec<(String, f64, f64)> {
    let log = kubectl(&["logs", pod]);
    let time = |word: &str| {
        let line = log.lines().find_map(|line| line.strip_prefix(word));
        line.and_then(|line| line.trim().parse().ok()).expect("a time")
    };
    nodes(pod, "main", "nvidia").into_iter().map(|gpu| (gpu, time("from"), time("to"))).collect()
}
