//! `kubectl` against the embedded server, with its default flags. The test needs `WINDLASS_E2E_KUBECTL`, the path of
//! the program.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use tokio::task::spawn_blocking;
use windlass_cluster_sim::api::ApiServer;

const CLAIM: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c, labels: {step: "1"}}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: it, resourceClaimName: c}]
  containers: [{name: a, image: i:1}, {name: b, image: i:1}]
"#;

/// Arguments of `kubectl`, each with a part of the expected output. With `!` the command must fail.
const SESSION: &[(&str, &str)] = &[
    ("api-resources --api-group=resource.k8s.io", "resourceslices"),
    ("apply -f one.yaml", "resourceclaim.resource.k8s.io/c created"),
    ("apply -f one.yaml", "pod/p unchanged"),
    ("apply -f two.yaml", "pod/p configured"),
    ("get pod p -o jsonpath={.spec.containers[*].image}", "i:1 i:2"),
    ("get claims", "!the server doesn't have a resource type"),
    ("get resourceclaims", "pending"),
    ("get resourceclaim c -o yaml", "deviceClassName: gpu.example.com"),
    ("get po,deviceclasses", "deviceclass.resource.k8s.io/gpu.example.com"),
    ("describe resourceclaim c", "Device Class Name:"),
    ("describe pod p", "Containers:"),
    ("label resourceclaim c x=1", "labeled"),
    ("annotate pod p x=1", "annotated"),
    ("patch pod p -p {\"metadata\":{\"labels\":{\"y\":\"1\"}}}", "patched"),
    ("wait --for=jsonpath={.metadata.labels.x}=1 resourceclaim/c --timeout=10s", "condition met"),
    ("apply --server-side -f two.yaml --force-conflicts", "serverside-applied"),
    ("apply -f wrong.yaml", "!unknown field \"spec.colour\""),
    ("delete -f two.yaml --timeout=10s", "\"c\" deleted"),
    ("wait --for=delete resourceclaim/c --timeout=10s", ""),
    ("get resourceclaim c", "!not found"),
];

#[tokio::test]
async fn kubectl_gets_describes_applies_waits_and_deletes() {
    let Ok(program) = env::var("WINDLASS_E2E_KUBECTL") else {
        eprintln!("left out: WINDLASS_E2E_KUBECTL names no kubectl");
        return;
    };
    let server = ApiServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("kubeconfig", &server.kubeconfig());
    write("one.yaml", CLAIM);
    write("two.yaml", &CLAIM.replace("name: b, image: i:1", "name: b, image: i:2"));
    write("wrong.yaml", &CLAIM.replace("spec: {devices", "spec: {colour: red, devices"));
    let mut failures = Vec::new();
    for (arguments, expected) in SESSION {
        let (program, folder) = (program.clone(), folder.path().to_owned());
        let output =
            spawn_blocking(move || run(&program, arguments, &folder)).await.expect("it ran");
        let output_text = [output.stdout, output.stderr].concat();
        let output_text = String::from_utf8_lossy(&output_text);
        let (must_fail, text) =
            expected.strip_prefix('!').map_or((false, *expected), |text| (true, text));
        if output.status.success() == must_fail || !output_text.contains(text) {
            failures.push(format!("kubectl {arguments}: {}\n{output_text}", output.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn run(program: &str, arguments: &str, folder: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).current_dir(folder);
    command.env("KUBECONFIG", folder.join("kubeconfig")).env("HOME", folder);
    command.output().expect("kubectl runs")
}
