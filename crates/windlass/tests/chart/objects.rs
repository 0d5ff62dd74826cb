//! The chart and the kustomizations produce the same objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass_config::Config;

use super::{
    CLUSTER, DEPLOY, HELM, KUBECTL, NAMESPACE, folders, objects, output_of, program, render, yaml,
};
use crate::program::folder;

/// Options of an overlay in their order, the equivalent values, and the overlay's configuration if the options need
/// one. `privileged` comes after the options that add capabilities, because a privileged agent lists none.
const CASES: [(&[&str], &str, &str); 23] = [
    (&["nvidia-runtime"], "access: nvidia-runtime-class", ""),
    (&["privileged"], "access: privileged", ""),
    (&["cdi"], "cdi: true", ""),
    (&["cdi", "account", "claims"], "{cdi: true, claims: {enabled: true}}", ""),
    (
        &["cdi", "account", "claims"],
        "{cdi: true, claims: {enabled: true, offer: instead}, config: {mig: single}}",
        "{deviceList: cdi-cri, dra: {offer: instead}, mig: single}",
    ),
    (&["account"], "account: true", ""),
    (&["account"], "config: {labels: {to: node}}", "{deviceList: envvar, labels: {to: node}}"),
    (&["network"], "network: true", ""),
    (&["nfd"], "labels: {to: file}", "{deviceList: envvar, labels: {to: file}}"),
    (&["pods"], "monitoring: {podNames: true}", ""),
    (&["account", "watchdog"], "watchdog: {enabled: true}", ""),
    (&["account", "watchdog", "watchdog-drm"], "watchdog: {enabled: true, drm: true}", ""),
    (
        &["cdi", "account", "driver-limits"],
        "{cdi: true, driverLimits: true}",
        "{deviceList: cdi-cri, memoryLimits: {hook: /var/lib/windlass/bin/windlass-hook}}",
    ),
    (
        &["cdi", "account", "driver-limits", "nvfractions"],
        "{cdi: true, driverLimits: true, nvFractions: true}",
        "{deviceList: cdi-cri, nvFractions: {enabled: true},
          memoryLimits: {hook: /var/lib/windlass/bin/windlass-hook}}",
    ),
    (&["account", "privileged", "mps"], "{access: privileged, mps: true}", ""),
    (&["take-over"], "takeOver: true", ""),
    (
        &["driver-container"],
        "driverRoot: /run/nvidia/driver",
        "{deviceList: envvar, driver: {root: /run/nvidia/driver}}",
    ),
    (
        &["cdi", "privileged", "gke"],
        "{access: privileged, cdi: true, gke: true}",
        "{deviceList: cdi-cri, driver: {root: /home/kubernetes/bin/nvidia}}",
    ),
    (&["openshift"], "openshift: true", ""),
    (&["k0s"], "kubeletDir: /var/lib/k0s/kubelet", ""),
    (&["microk8s"], "kubeletDir: /var/snap/microk8s/common/var/lib/kubelet", ""),
    (
        &["cdi", "account", "claims", "microk8s", "microk8s-claims"],
        "{cdi: true, claims: {enabled: true},
          kubeletDir: /var/snap/microk8s/common/var/lib/kubelet}",
        "",
    ),
    (ALL, ALL_AS_VALUES, ALL_AS_CONFIGURATION),
];

/// Every option that can be combined with the others.
const ALL: &[&str] = &[
    "cdi",
    "account",
    "claims",
    "network",
    "nfd",
    "pods",
    "watchdog",
    "watchdog-drm",
    "driver-limits",
    "nvfractions",
    "privileged",
    "mps",
    "take-over",
    "gke",
    "openshift",
    "k0s",
    "k0s-claims",
];

const ALL_AS_VALUES: &str = "
access: privileged
cdi: true
claims: {enabled: true}
network: true
labels: {to: file}
monitoring: {podNames: true}
watchdog: {enabled: true, drm: true}
driverLimits: true
nvFractions: true
mps: true
takeOver: true
gke: true
openshift: true
kubeletDir: /var/lib/k0s/kubelet
";

const ALL_AS_CONFIGURATION: &str = "
deviceList: cdi-cri
dra: {offer: beside}
labels: {to: file}
driver: {root: /home/kubernetes/bin/nvidia}
memoryLimits: {hook: /var/lib/windlass/bin/windlass-hook}
nvFractions: {enabled: true}
";

/// Paths of Helm and kubectl, if both variables are set.
fn programs() -> Option<(PathBuf, PathBuf)> {
    program(HELM).zip(program(KUBECTL))
}

/// Objects that kubectl builds from the kustomization of a folder.
fn build_with_kustomize(kubectl: &Path, folder: &Path) -> Vec<Value> {
    let output = output_of(Command::new(kubectl).arg("kustomize").arg(folder));
    objects(&output.unwrap_or_else(|error| panic!("{}: {error}", folder.display())))
}

/// Objects that Helm renders from values.
fn render_with_helm(helm: &Path, values: &Path) -> Vec<Value> {
    let values = values.to_str().expect("text");
    let arguments = [&["--namespace", NAMESPACE, "--values", values], &CLUSTER[..]].concat();
    let output = render(helm, &arguments);
    objects(&output.unwrap_or_else(|error| panic!("{values}: {error}")))
}

/// Temporary folder with a kustomization of the agent, with options and a configuration, and with the values.
fn overlay(options: &[&str], values: &str, config: &str) -> TempDir {
    let overlay = folder();
    // A kustomization must name others by relative paths.
    let path = overlay.path().canonicalize().expect("an existing path");
    let root_prefix: PathBuf = path.components().skip(1).map(|_| "..").collect();
    let deploy = Path::new(DEPLOY).canonicalize().expect("an existing path");
    let deploy = root_prefix.join(deploy.strip_prefix("/").expect("absolute"));
    let options: Vec<_> =
        options.iter().map(|option| deploy.join("options").join(option)).collect();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "windlass", "namespace": NAMESPACE},
        "data": {"config.yaml": config},
    });
    let patches = if config.is_empty() { json!([]) } else { json!([{"patch": map.to_string()}]) };
    let kustomization =
        json!({"resources": [deploy.join("node")], "components": options, "patches": patches});
    fs::write(path.join("kustomization.yaml"), kustomization.to_string()).expect("written");
    fs::write(path.join("values.yaml"), values).expect("written");
    overlay
}

/// Objects by kind, namespace and name, without Namespace objects: Helm creates the namespace.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut objects_by_name = BTreeMap::new();
    for mut object in objects.into_iter().filter(|object| object["kind"] != "Namespace") {
        let metadata = &object["metadata"];
        let name = format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]);
        if object["kind"] == "ConfigMap" && metadata["name"] == "windlass" {
            let text = &mut object["data"]["config.yaml"];
            *text = configuration(text.as_str().expect("text"));
        }
        sort_lists(&mut object);
        assert!(objects_by_name.insert(name.clone(), object).is_none(), "{name} twice");
    }
    objects_by_name
}

/// Parses a configuration, which the agent has to accept. Comments are lost.
fn configuration(text: &str) -> Value {
    let result = Config::parse(Path::new("config.yaml"), text);
    result.unwrap_or_else(|error| panic!("{error} in\n{text}"));
    yaml(text)
}

/// Sorts lists, whose order depends on the program, and trims the ends of strings.
fn sort_lists(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(sort_lists),
        Value::Array(values) => {
            values.iter_mut().for_each(sort_lists);
            values.sort_by_key(Value::to_string);
        }
        // One of the programs drops the end of line of a one-line string.
        Value::String(text) => *text = text.trim_end().to_owned(),
        _ => {}
    }
}

/// Fails with the first value that differs.
fn assert_same(kustomized: Vec<Value>, charted: Vec<Value>, subject: &str) {
    let (kustomized, charted) = (by_name(kustomized), by_name(charted));
    let names: BTreeSet<_> = kustomized.keys().chain(charted.keys()).collect();
    for name in names {
        let difference = difference(kustomized.get(name), charted.get(name), "");
        assert_eq!(difference, None, "{subject}: {name}");
    }
}

/// The first path at which Kustomize's and the chart's values differ, with both.
fn difference(kustomized: Option<&Value>, charted: Option<&Value>, path: &str) -> Option<String> {
    match (kustomized, charted) {
        (Some(Value::Object(kustomized)), Some(Value::Object(charted))) => {
            let keys: BTreeSet<_> = kustomized.keys().chain(charted.keys()).collect();
            let mut keys = keys.into_iter();
            keys.find_map(|key| {
                difference(kustomized.get(key), charted.get(key), &format!("{path}.{key}"))
            })
        }
        (Some(Value::Array(kustomized)), Some(Value::Array(charted)))
            if kustomized.len() == charted.len() =>
        {
            let mut items = kustomized.iter().zip(charted);
            items
                .find_map(|(kustomized, charted)| difference(Some(kustomized), Some(charted), path))
        }
        (kustomized, charted) if kustomized == charted => None,
        (kustomized, charted) => {
            Some(format!("{path}: {kustomized:?} by Kustomize, {charted:?} by Helm"))
        }
    }
}

#[test]
fn every_overlay_gives_the_same_objects_by_helm_and_by_kustomize() {
    let Some((helm, kubectl)) = programs() else { return };
    let deploy = Path::new(DEPLOY);
    for name in folders("overlays") {
        let overlay = deploy.join("overlays").join(&name);
        let mut objects = build_with_kustomize(&kubectl, &overlay);
        if name == "cluster" {
            objects.extend(build_with_kustomize(&kubectl, &deploy.join("scheduler")));
            // Both kustomizations have the Namespace. kubectl applies it twice.
            objects.retain(|object| object["kind"] != "Namespace");
        }
        assert_same(objects, render_with_helm(&helm, &overlay.join("values.yaml")), &name);
    }
}

#[test]
fn every_option_gives_the_same_objects_by_helm_and_by_kustomize() {
    let Some((helm, kubectl)) = programs() else { return };
    let options = folders("options");
    let is_compared = |option: &String| {
        CASES.iter().any(|(case_options, ..)| case_options.contains(&option.as_str()))
    };
    assert_eq!(options.iter().find(|option| !is_compared(option)), None, "not compared");
    for (options, values, config) in CASES {
        let overlay = overlay(options, values, config);
        let objects = build_with_kustomize(&kubectl, overlay.path());
        assert_same(objects, render_with_helm(&helm, &overlay.path().join("values.yaml")), values);
    }
}

#[test]
fn without_a_value_the_chart_gives_the_plain_manifest() {
    let Some((helm, kubectl)) = programs() else { return };
    let overlay = overlay(&[], "{}", "");
    let plain_objects = build_with_kustomize(&kubectl, &Path::new(DEPLOY).join("node"));
    assert_same(
        plain_objects,
        render_with_helm(&helm, &overlay.path().join("values.yaml")),
        "plain",
    );
}

#[test]
fn the_chart_gives_the_simulated_machine_of_the_manifest() {
    let Some((helm, kubectl)) = programs() else { return };
    let folder = Path::new(DEPLOY).join("simulated");
    let simulated = build_with_kustomize(&kubectl, &folder);
    assert_same(simulated, render_with_helm(&helm, &folder.join("values.yaml")), "simulated");
}

#[test]
fn every_object_and_policy_uses_the_release_namespace() {
    let Some(helm) = program(HELM) else { return };
    let overlay = overlay(&[], ALL_AS_VALUES, "");
    let values = overlay.path().join("values.yaml");
    let flags = ["--values", values.to_str().expect("text"), "--set", "scheduler.enabled=true"];
    let output = render(&helm, &[&["--namespace", "accelerators"], &flags[..], &CLUSTER].concat());
    let output = output.expect("accepted");
    assert!(!output.contains(NAMESPACE), "an object is in {NAMESPACE}");
    assert!(output.contains("system:serviceaccount:accelerators:windlass"));
}

#[test]
fn a_configuration_of_nvidias_plugin_reaches_the_agent_unchanged() {
    let Some(helm) = program(HELM) else { return };
    let folder = folder();
    let path = folder.path().join("nvidia.yaml");
    let text = "version: v1 # ours\nflags: {migStrategy: mixed}";
    fs::write(&path, text).expect("written");
    let file = format!("config={}", path.display());
    let output = render(&helm, &[&["--set-file", file.as_str()], &CLUSTER[..]].concat());
    let objects = objects(&output.expect("accepted"));
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap").expect("a ConfigMap");
    let config = map["data"]["config.yaml"].as_str().expect("text");
    assert_eq!(config.trim(), text);
}

#[test]
fn monitoring_gives_the_same_objects_by_helm_and_by_kustomize() {
    let Some((helm, kubectl)) = programs() else { return };
    let render_values = |values: &str| {
        render_with_helm(&helm, &overlay(&[], values, "").path().join("values.yaml"))
    };
    let plain_objects = render_values("{}");
    let example = "monitoring: {enabled: true, labels: {release: kube-prometheus-stack},
        runbooks: 'https://git.example.com/windlass/docs/monitoring.md'}";
    for (folder, values) in
        [("monitoring", "monitoring: {enabled: true}"), ("examples/monitoring", example)]
    {
        let mut added = render_values(values);
        added.retain(|object| !plain_objects.contains(object));
        let kustomized = build_with_kustomize(&kubectl, &Path::new(DEPLOY).join(folder));
        assert_same(kustomized, added, folder);
    }
}
