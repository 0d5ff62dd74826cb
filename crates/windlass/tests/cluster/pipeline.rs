//! A pipeline of four stages in real pods: its layouts compared, then a replica killed and every pod replaced under
//! load.
//!
//! Runs only if `WINDLASS_E2E_IMPORT` names a program that imports an image from a tar into the node's container
//! runtime. The cluster has to have a name server for Services, or `WINDLASS_E2E_NAME_SERVER` names an address of this
//! machine that pods reach: the test then serves the names there.

mod names;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    cluster::{
        KUBECONFIG, eventually, has_cluster,
        images::{IMPORT, import},
        plugin_folder_lock,
        pods::{Pods, clean_up, kubectl, try_kubectl},
    },
    program::{folder, text, windlass},
};
use names::NameServer;

const NAME_SERVER: &str = "WINDLASS_E2E_NAME_SERVER";
const IMAGE: &str = "windlass-laboratory:e2e";
const PART_OF: &str = "app.kubernetes.io/part-of=windlass-e2e";
const KINDS: &str = "deployments,services,poddisruptionbudgets,jobs";
const LOADER: &str = "windlass-e2e-load";
/// Address of the detector's metrics.
const METRICS: &str = "0.0.0.0:9500";
/// Number of the detector's items after which the pipeline is full.
const FULL_AFTER: f64 = 100.0;
/// Deadline for pods to start and drain. The machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Objects of the pipeline; deleted when dropped.
struct Objects;

impl Drop for Objects {
    fn drop(&mut self) {
        clean_up(&["delete", KINDS, "-l", PART_OF, "--ignore-not-found"]);
        clean_up(&["wait", "pods", "-l", PART_OF, "--for=delete", "--timeout=90s"]);
    }
}

/// Content of the pipeline's file.
fn pipeline(name_server: Option<&str>) -> Value {
    let pod = name_server.map_or_else(
        || json!({}),
        |address| {
            let config =
                json!({"nameservers": [address], "searches": ["default.svc.cluster.local"]});
            json!({"dnsPolicy": "None", "dnsConfig": config})
        },
    );
    let stage = |name: &str, time: &str, output: &str| {
        let command = ["windlass", "stage", "--sleep", time, "--output", output];
        json!({"name": name, "image": IMAGE, "command": command, "output": output, "pod": pod,
            "container": {"imagePullPolicy": "Never"}, "on": [{"cpus": 0.1, "time": time}]})
    };
    let mut stages = [
        stage("camera", "4ms", "20KiB"),
        stage("decode", "12ms", "50KiB"),
        stage("detect", "28ms", "1KiB"),
    ];
    stages[2]["replicas"] = 2.into();
    let metrics = ["--metrics", METRICS].map(Value::from);
    stages[2]["command"].as_array_mut().expect("words").extend(metrics);
    let mut act_stage = stage("act", "1ms", "1");
    act_stage["output"] = Value::Null;
    let links = ["camera", "decode", "detect", "act"];
    let links = links.windows(2).map(|pair| json!({"from": pair[0], "to": pair[1]}));
    let links: Vec<_> = links.collect();
    let stages = json!([stages[0], stages[1], stages[2], act_stage]);
    json!({"name": "windlass-e2e", "stages": stages, "links": links})
}

/// Items of a measurement: sent, arrived, failed by reason, and without a result or an error.
fn item_counts(report: &Value) -> (u64, u64, Vec<(String, u64)>, u64) {
    let account = &report["account"];
    let count = |key: &str| account[key].as_u64().expect("a count");
    let failures = account["failed"].as_object().expect("reasons").iter();
    let failures =
        failures.map(|(reason, count)| (reason.clone(), count.as_u64().expect("a count")));
    (count("sent"), count("arrived"), failures.collect(), count("unheard"))
}

/// The layouts of the pipeline, measured in the cluster.
fn compare(file: &Path) -> Value {
    let mut command = windlass(&["pipeline", "measure", "--compare", "--for", "4s", "-o", "json"]);
    command.arg(file).arg("--kubeconfig").arg(env::var_os(KUBECONFIG).expect("checked"));
    let output = command.output().expect("windlass runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Pod that puts load on the pipeline for twice this time.
fn loader_pod(name_server: Option<&str>, seconds: u32) -> String {
    let file = pipeline(name_server);
    let pod = &file["stages"][0]["pod"];
    let command = json!([
        "windlass",
        "pipeline",
        "measure",
        "/pipeline/file",
        "-o",
        "json",
        "--for",
        format!("{seconds}s")
    ]);
    let annotation_files =
        json!([{"path": "file", "fieldRef": {"fieldPath": "metadata.annotations['file']"}}]);
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never",
            "command": command, "volumeMounts": [{"name": "file", "mountPath": "/pipeline"}]}],
        "volumes": [{"name": "file", "downwardAPI": {"items": annotation_files}}],
    });
    for (key, value) in pod.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    let metadata = json!({"name": LOADER, "annotations": {"file": file.to_string()}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string()
}

/// Kills the process of a replica, so that it cannot drain.
fn kill_replica(stage: &str) {
    let command_line = |process: &fs::DirEntry| {
        fs::read_to_string(process.path().join("cmdline")).unwrap_or_default()
    };
    let processes = fs::read_dir("/proc").expect("mounted").map(|entry| entry.expect("readable"));
    // Another pipeline of this machine may have a stage of this name.
    let names = [format!("\0--name\0{stage}\0--listen\0"), "=windlass-e2e-act:".to_owned()];
    let is_of_stage = |process: &fs::DirEntry| {
        let command_line = command_line(process);
        names.iter().all(|name| command_line.contains(name))
    };
    let mut replicas = processes.filter(is_of_stage);
    let process = replicas.next().expect("a replica of the stage").file_name();
    assert!(Command::new("kill").arg("-KILL").arg(process).status().expect("kill runs").success());
}

/// Number of items that the detector's replicas have processed.
fn processed_items() -> f64 {
    let names =
        kubectl(&["get", "pods", "-l", "windlass.dev/stage-detect=windlass-e2e", "-o", "name"]);
    let pages = names.lines().filter_map(|name| {
        let name = name.trim_start_matches("pod/");
        try_kubectl(&[
            "get",
            "--raw",
            &format!("/api/v1/namespaces/default/pods/{name}:9500/proxy/metrics"),
        ])
        .ok()
    });
    let processed_count = |page: String| {
        let counts = page.lines().filter(|line| {
            line.starts_with("windlass_stage_items_total") && line.contains("worked")
        });
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    pages.map(processed_count).sum()
}

fn phase(pod: &str) -> String {
    kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"])
}

#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn importer() -> Option<PathBuf> {
    let program = env::var_os(IMPORT).map(PathBuf::from);
    if program.is_none() {
        eprintln!("SKIPPED: set {IMPORT} to run a pipeline in pods");
    }
    program
}

#[tokio::test]
async fn layouts_are_compared_and_only_a_killed_replica_loses_items() {
    if !has_cluster() {
        return;
    }
    let Some(importer) = importer() else { return };
    let _lock = plugin_folder_lock();
    let program = Path::new(env!("CARGO_BIN_EXE_windlass"));
    import(program, Some(&format!("docker.io/library/{IMAGE}")), &importer);
    let address = env::var(NAME_SERVER).ok();
    let _names = address.as_ref().map(|_| NameServer::start());
    let folder = folder();
    let file = folder.path().join("pipeline.json");
    fs::write(&file, pipeline(address.as_deref()).to_string()).expect("written");
    let _objects = Objects;

    let report = compare(&file);
    let layouts = report["layouts"].as_array().expect("layouts");
    let rate = |layout: &Value| layout["itemsPerSecond"].as_f64().expect("a rate");
    for layout in layouts {
        let (sent, arrived, failures, missing) = item_counts(layout);
        assert!(sent > 100 && sent == arrived && failures.is_empty() && missing == 0, "{layout}");
        let predicted = rate(&layout["predicted"]);
        assert!((rate(layout) / predicted - 1.0).abs() < 0.15, "{layout}");
    }
    // A pod has one replica of each stage, and the detector is the slowest.
    let rate_of = |name: &str| {
        layouts.iter().find(|layout| layout["layout"] == name).map(rate).expect("measured")
    };
    assert!(rate_of("planned") > 1.5 * rate_of("pod") && report["take"] != "pod", "{report}");
    assert_eq!(report["runsIn"], "default");

    let processed_before = processed_items();
    let mut pods = Pods::new();
    pods.apply(LOADER, &loader_pod(address.as_deref(), 12));
    pods.wait_for_running(LOADER).await;
    // Kill and replace while the pipeline is full.
    eventually(LIMIT, true, async || processed_items() >= processed_before + FULL_AFTER).await;
    kill_replica("detect");
    let deployments = kubectl(&["get", "deployments", "-l", PART_OF, "-o", "name"]);
    kubectl(&[&["rollout", "restart"], &deployments.lines().collect::<Vec<_>>()[..]].concat());
    eventually(LIMIT, true, async || phase(LOADER) != "Running").await;
    let log = kubectl(&["logs", LOADER]);
    assert_eq!(phase(LOADER), "Succeeded", "{log}");
    let report: Value = serde_json::from_str(&log).expect("JSON");
    let (sent, arrived, failures, missing) = item_counts(&report["layouts"][0]);
    let failed_count: u64 = failures.iter().map(|(_, count)| count).sum();
    assert!(sent > 300 && missing == 0 && sent == arrived + failed_count, "{log}");
    assert!(failures.iter().all(|(reason, _)| reason.starts_with("detect: ")), "{failures:?}");
    // One replica has a window of items, a batch, and items that wait for room.
    assert!(failed_count <= 40, "{failures:?}");
}
