//! Manifest of a static pod. Its containers print their environment, and end on request.

use serde_json::{Value, json};
use windlass_kubelet_sim::{Container, InitRole, Pod};

use super::DIR;

/// Shell script of a container that runs until it is ended. It prints its environment, then `END=`. It
/// ends at SIGTERM, or when its file appears in `/ends`.
const RUN_UNTIL_ENDED: &str = "env; echo END=; trap 'exit 0' TERM; \
    while [ ! -e /ends/$UID_OF_POD.$NAME ]; do sleep 0.05 & wait; done; \
    exec busybox rm /ends/$UID_OF_POD.$NAME";

/// The manifest of a pod.
pub(super) fn of(pod: &Pod) -> Value {
    let app_containers = pod.containers.iter().map(|app| container(&pod.uid, app, RUN_UNTIL_ENDED));
    let app_containers: Vec<_> = app_containers.collect();
    let init_containers: Vec<_> = pod
        .init_containers
        .iter()
        .map(|init| match init.role {
            InitRole::RunsToCompletion => container(&pod.uid, &init.container, "env; echo END="),
            InitRole::Sidecar => {
                let mut sidecar = container(&pod.uid, &init.container, RUN_UNTIL_ENDED);
                sidecar["restartPolicy"] = json!("Always");
                sidecar
            }
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
        "spec": {
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "initContainers": init_containers,
            "containers": app_containers,
            "volumes": [{ "name": "ends", "hostPath": { "path": format!("{DIR}/ends") } }],
        },
    })
}

fn container(pod: &str, container: &Container, command: &str) -> Value {
    let limits = container.limits.iter().map(|(resource, count)| (resource.clone(), json!(count)));
    let limits = Value::Object(limits.collect());
    json!({
        "name": container.name,
        "image": "docker.io/local/app:1",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "env": [
            { "name": "NAME", "value": container.name },
            { "name": "UID_OF_POD", "value": pod },
        ],
        "resources": { "limits": limits, "requests": limits },
        "volumeMounts": [{ "name": "ends", "mountPath": "/ends" }],
    })
}
