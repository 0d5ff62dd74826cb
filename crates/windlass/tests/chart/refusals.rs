//! The chart refuses wrong values, contradictions and clusters that lack something, with the value's name and the
//! remedy.

use std::{fs, path::Path};

use super::{CLUSTER, HELM, program, render};
use crate::program::folder;

/// Values for `--set`, and words of the refusal.
const REFUSED: [(&str, &[&str]); 32] = [
    ("cdi=maybe", &["cdi", "boolean"]),
    ("claims=true", &["claims", "object"]),
    ("acess=privileged", &["acess"]),
    ("claims.enable=true", &["claims", "enable"]),
    ("access=root", &["access", "nvidia-runtime-class"]),
    ("resources.limits.memory=true", &["memory"]),
    ("tolerations=x", &["tolerations", "array"]),
    ("image.repository=", &["repository"]),
    ("scheduler.replicas=0", &["replicas"]),
    ("maxUnavailable=0", &["maxUnavailable"]),
    ("driverRoot=run/nvidia", &["driverRoot"]),
    ("claims.enabled=true", &["claims.enabled", "set cdi to true"]),
    ("watchdog.drm=true", &["watchdog.drm", "set watchdog.enabled to true"]),
    ("driverLimits=true", &["driverLimits", "set cdi to true"]),
    ("nvFractions=true", &["nvFractions", "set driverLimits to true"]),
    ("mps=true", &["mps", "set access to privileged"]),
    ("simulated.enabled=true", &["image.repository", "windlass-laboratory, in place of windlass"]),
    (
        "simulated.enabled=true,image.repository=windlass-laboratory,driverRoot=/run/nvidia/driver",
        &["simulated.enabled: a simulated machine has a driver of its own"],
    ),
    ("gke=true", &["gke", "set access to privileged"]),
    ("gke=true,access=privileged", &["gke", "set cdi to true"]),
    (
        "gke=true,access=privileged,cdi=true,driverRoot=/run/nvidia/driver",
        &["gke", "leave driverRoot out"],
    ),
    ("config.resource=x", &["config.resource", "no such key"]),
    ("config.dra=x", &["config.dra", "keys of its own"]),
    ("config.kubeletDir=/kubelet", &["config.kubeletDir", "leave it out"]),
    ("config.dra.offer=beside", &["config.dra.offer", "set claims.enabled to true"]),
    (
        "cdi=true,claims.enabled=true,config.dra.offer=instead",
        &["config.dra.offer is instead", "claims.offer asks for beside"],
    ),
    (
        "cdi=true,claims.enabled=true,config.dra.driver=gpu.nvidia.com",
        &["config.dra.driver", "Kustomize"],
    ),
    ("config.deviceList={envvar,cdi-cri}", &["config.deviceList", "set cdi to true"]),
    ("config.nvFractions.enabled=true", &["config.nvFractions.enabled", "set nvFractions to true"]),
    ("config.watchdog.action=kill", &["config.watchdog.action", "set watchdog.enabled to true"]),
    ("config.driver.root=/run/nvidia/driver", &["config.driver.root", "set driverRoot"]),
    ("config.version=v1,labels.to=node", &["config", "labels.to", "windlass config convert"]),
];

/// Fails unless Helm refuses with these words, and renders nothing.
fn assert_refused(helm: &Path, arguments: &[&str], words: &[&str]) {
    let refusal = render(helm, arguments).expect_err("a mistake");
    for word in words {
        assert!(refusal.contains(word), "{arguments:?}: no {word:?} in {refusal}");
    }
}

#[test]
fn wrong_and_contradictory_values_are_refused_by_name_with_the_remedy() {
    let Some(helm) = program(HELM) else { return };
    for (values, words) in REFUSED {
        assert_refused(&helm, &[&["--set", values], &CLUSTER[..]].concat(), words);
    }
}

#[test]
fn a_configuration_that_is_a_list_or_no_yaml_is_refused() {
    let Some(helm) = program(HELM) else { return };
    for text in ["- kind", "deviceList: cdi: cri"] {
        let config = format!("config={text}");
        assert_refused(&helm, &["--set-string", &config], &["config is not YAML with keys"]);
    }
}

#[test]
fn claims_are_refused_on_a_cluster_without_dra() {
    let Some(helm) = program(HELM) else { return };
    let claims = ["--set", "cdi=true,claims.enabled=true", "--kube-version", "v1.33.1"];
    assert_refused(&helm, &claims, &["claims.enabled", "Kubernetes 1.34", "v1.33.1"]);
}

#[test]
fn a_cluster_that_is_too_old_for_the_manifests_is_refused() {
    let Some(helm) = program(HELM) else { return };
    assert_refused(&helm, &["--kube-version", "v1.29.9"], &["kubeVersion", "1.30", "v1.29.9"]);
}

/// Helm reads YAML before 1.2, in which `off` is false. The agent expects the word.
#[test]
fn the_word_off_stays_a_string() {
    let Some(helm) = program(HELM) else { return };
    let folder = folder();
    let path = folder.path().join("values.yaml");
    let values = "config: {dra: {offer: off}, watchdog: {action: off}}";
    fs::write(&path, values).expect("written");
    let output = render(&helm, &["--values", path.to_str().expect("text")]).expect("accepted");
    assert_eq!(output.matches("\"off\"").count(), 2, "{output}");
}
