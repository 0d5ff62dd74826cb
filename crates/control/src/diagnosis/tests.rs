//! Findings about clusters given as JSON objects.

use serde_json::{Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
fn evidence(items: Value, workloads: Workloads) -> Evidence {
    let list = json!({"kind": "List", "items": items});
    let objects = Objects::parse(&list.to_string(), "f".as_ref()).expect("a list");
    Evidence { objects, workloads: Some(workloads), findings: Vec::new() }
}

/// Findings that need action, as `severity subject: detail`.
fn actionable_findings(evidence: &Evidence) -> Vec<String> {
    let findings = evidence.findings().into_iter().filter(|it| it.severity > Severity::Skipped);
    findings
        .map(|it| {
            assert!(it.remedy.is_some(), "{it:?} has no remedy");
            format!("{:?} {}: {}", it.severity, it.subject, it.detail)
        })
        .collect()
}

fn agents(desired: i32, ready: i32) -> Workloads {
    let daemon_set = json!({
        "metadata": {"namespace": "windlass-system", "name": "windlass-node"},
        "spec": {"selector": {}, "template": {}},
        "status": {"desiredNumberScheduled": desired, "numberReady": ready,
            "currentNumberScheduled": desired, "numberMisscheduled": 0},
    });
    let daemon_sets = vec![serde_json::from_value(daemon_set).expect("a DaemonSet")];
    Workloads { daemon_sets, ..Workloads::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
fn slice(pool: &str, generation: i64, count: i64, devices: Value) -> Value {
    json!({
        "kind": "ResourceSlice", "metadata": {"name": format!("{pool}-{generation}")},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "devices": devices,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}},
    })
}

#[test]
fn the_remedy_for_a_cluster_without_agents_is_an_installation() {
    let expected = ["Problem agents: no DaemonSet of Windlass"];
    assert_eq!(actionable_findings(&evidence(json!([]), Workloads::default())), expected);
}

#[test]
fn an_agent_that_is_not_ready_and_a_node_without_one_are_named_with_the_reason() {
    let items = json!([
        {"kind": "Node", "metadata": {"name": "a", "labels": {"nvidia.com/gpu.present": "true"}},
         "spec": {"taints": [{"key": "example.com/training", "effect": "NoSchedule"}]}},
        {"kind": "Node", "metadata": {"name": "b", "labels": {"nvidia.com/gpu.present": "true"}}},
        {"kind": "Pod", "metadata": {"name": "windlass-x", "namespace": "windlass-system", "uid": "1",
            "labels": {"app.kubernetes.io/name": "windlass", "app.kubernetes.io/component": "node"}},
         "spec": {"nodeName": "a", "containers": []},
         "status": {"containerStatuses": [{"name": "node", "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]}},
        {"kind": "Pod", "metadata": {"name": "windlass-y", "namespace": "windlass-system", "uid": "2",
            "labels": {"app.kubernetes.io/name": "windlass", "app.kubernetes.io/component": "node"}},
         "spec": {"nodeName": "b", "containers": []},
         "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ]);
    let expected = [
        "Problem windlass-system/windlass-node: 1 of 2 agents are ready",
        "Problem windlass-system/windlass-x: container node: ErrImageNeverPull, on a",
        "Warning node a: has GPUs, but no ready agent",
    ];
    assert_eq!(actionable_findings(&evidence(items, agents(2, 1))), expected);
}

#[test]
fn a_refused_agent_pod_has_its_reason_and_a_command_as_the_remedy() {
    let mut workloads = agents(1, 0);
    let reason = r#"pods "windlass-node-x" is forbidden: violates PodSecurity "baseline:latest""#;
    let daemon_set = "windlass-system/windlass-node".to_owned();
    workloads.refused_pods.insert(daemon_set, reason.to_owned());
    let evidence = evidence(json!([]), workloads);
    let expected =
        format!("Problem windlass-system/windlass-node: 0 of 1 agents are ready: {reason}");
    assert_eq!(actionable_findings(&evidence), [expected]);
    let remedies: Vec<_> = evidence.findings().into_iter().filter_map(|it| it.remedy).collect();
    let label =
        "`kubectl label namespace windlass-system pod-security.kubernetes.io/enforce=privileged`";
    assert!(remedies.contains(&label.to_owned()), "{remedies:?}");
}

#[test]
fn incomplete_pools_tainted_devices_and_missing_classes_are_found() {
    let taint = json!([{"key": "windlass.dev/unhealthy", "value": "xid", "effect": "NoExecute"}]);
    let in_use =
        json!([{"key": "windlass.dev/device-plugin", "value": "gpu", "effect": "NoSchedule"}]);
    let items = json!([
        slice("n", 1, 1, json!([{"name": "old"}])),
        slice("n", 2, 2, json!([{"name": "gpu-0", "taints": taint}])),
        slice("whole", 1, 1, json!([{"name": "gpu-1", "taints": in_use}])),
        {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "d"},
         "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.x"}}]}}},
    ]);
    let expected = [
        "Problem pool n of gpu.nvidia.com: 1 of 2 slices exist",
        "Warning device gpu-0 of n: windlass.dev/unhealthy=xid:NoExecute",
        "Problem class gpu.x: claims name it, but it does not exist",
    ];
    assert_eq!(actionable_findings(&evidence(items, agents(1, 1))), expected);
}

#[test]
fn a_runtime_without_cdi_is_a_problem_where_devices_are_published_for_claims() {
    let node = |name: &str, runtime: &str| {
        json!({"kind": "Node", "metadata": {"name": name}, "status": {"nodeInfo": {
            "architecture": "", "bootID": "", "containerRuntimeVersion": runtime, "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": ""}}})
    };
    let class = json!({"kind": "DeviceClass", "metadata": {"name": "c"}, "spec": {}});
    let findings = |name: &str, runtime: &str| {
        let slice = slice("p", 1, 1, json!([]));
        let items = json!([node(name, runtime), slice, class]);
        actionable_findings(&evidence(items, agents(1, 1)))
    };
    for (runtime, expected) in [
        ("containerd://1.6.33", "Problem node n: containerd 1.6.33 ignores the devices of claims"),
        ("cri-o://1.27.5", "Problem node n: cri-o 1.27.5 ignores the devices of claims"),
    ] {
        assert_eq!(findings("n", runtime), [expected]);
    }
    for runtime in
        ["containerd://1.7.24", "containerd://2.1.0-rc.1", "cri-o://1.33.0", "docker://28.0"]
    {
        assert_eq!(findings("n", runtime), [""; 0], "{runtime}");
    }
    assert_eq!(findings("without-slices", "containerd://1.6.33"), [""; 0]);
}

#[test]
fn a_pending_pod_has_its_reason_and_a_pod_to_delete_as_the_remedy() {
    let devices =
        json!({"devices": [{"id": "GPU-0", "model": "A10", "memoryMib": 24576}]}).to_string();
    let pod = |name: &str, node: Option<&str>| {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources":
                {"limits": {"nvidia.com/gpu": "1"}}}]}})
    };
    let items = json!([
        {"kind": "Node", "metadata": {"name": "n", "annotations": {"windlass.dev/devices": devices}},
         "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "10"}}},
        pod("holder", Some("n")),
        pod("waiting", None),
    ]);
    let evidence = evidence(items, agents(1, 1));
    let findings = actionable_findings(&evidence);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].starts_with("Warning pod d/waiting: waits for 1 GPU"), "{findings:?}");
    let remedies: Vec<_> = evidence.findings().into_iter().filter_map(|it| it.remedy).collect();
    assert_eq!(remedies, ["n would have room once pod d/holder is gone"]);
}

#[test]
fn pods_that_hold_more_than_their_node_has_are_named_with_the_likely_cause() {
    let devices = json!({"devices": [{"id": "GPU-0", "model": "A10"}]}).to_string();
    let node = |name: &str, annotations: &Value| {
        json!({"kind": "Node", "metadata": {"name": name, "annotations": annotations},
               "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "10"}}})
    };
    let pod = |name: &str, node: &str| {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "uid": name},
               "spec": {"nodeName": node, "containers": [{"name": "c", "resources":
                   {"limits": {"nvidia.com/gpu": "1"}}}]}})
    };
    let items = json!([
        node("agentless", &json!({})),
        node("full", &json!({"windlass.dev/devices": devices})),
        pod("held", "agentless"),
        pod("one", "full"),
        pod("two", "full"),
    ]);
    let expected = [
        "Warning node agentless: publishes no GPU, but GPUs are held: d/held",
        "Problem node full: more GPUs are held than it has: d/two",
    ];
    assert_eq!(actionable_findings(&evidence(items, agents(1, 1))), expected);
}

#[test]
fn a_recording_says_that_it_lacks_workloads() {
    let findings = Evidence::recorded(Objects::default()).findings();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Skipped), "{findings:?}");
}
