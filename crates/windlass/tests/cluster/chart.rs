//! The chart on a real cluster: installed, updated, rolled back and removed. No node runs its pods.

use std::{env, path::Path, process::Command};

use crate::{
    chart::{CHART, folders, helm, output_of},
    cluster::{
        KUBECONFIG, has_cluster, plugin_folder_lock,
        pods::{clean_up, kubectl, try_kubectl},
    },
};

const NAMESPACE: &str = "windlass-system";
/// Kinds of the chart's objects outside of its namespace.
const OUTSIDE_KINDS: &str = "clusterroles,clusterrolebindings,roles,rolebindings,deviceclasses,\
     validatingadmissionpolicies,validatingadmissionpolicybindings";
/// No node has this label, so no pod is scheduled, and no image is pulled.
const NO_NODE: &str =
    "nodeSelector.windlass\\.dev/nowhere=true,scheduler.nodeSelector.windlass\\.dev/nowhere=true";

/// A release of the chart; removed with its namespace when dropped.
struct Release<'a> {
    helm: &'a Path,
}

// === impl Release ===

impl Release<'_> {
    /// Runs a command of Helm in the namespace. Returns its standard output, or its errors if it fails.
    fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        let kubeconfig = env::var_os(KUBECONFIG).expect("checked");
        let mut command = Command::new(self.helm);
        output_of(
            command.args(arguments).args(["--namespace", NAMESPACE]).env("KUBECONFIG", kubeconfig),
        )
    }

    /// Installs or updates the release.
    fn apply(&self, arguments: &[&str]) -> Result<String, String> {
        let command = ["upgrade", "--install", "windlass", CHART, "--create-namespace"];
        self.helm(&[&command[..], &["--set-string", NO_NODE], arguments].concat())
    }

    fn revision(&self) -> String {
        let list = self.helm(&["list", "-o", "json"]).expect("an answer");
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list[0]["revision"].as_str().unwrap_or("none").to_owned()
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        // A failed test may not have uninstalled the release.
        let _ = self.helm(&["uninstall", "windlass"]);
        clean_up(&["delete", "namespace", "--ignore-not-found", NAMESPACE]);
    }
}

/// Objects of the chart outside of its namespace.
fn outside_objects() -> Vec<String> {
    let names = kubectl(&["get", OUTSIDE_KINDS, "--all-namespaces", "-o", "name"]);
    names.lines().filter(|name| name.contains("/windlass-")).map(str::to_owned).collect()
}

fn agent_account() -> String {
    let field = "jsonpath={.spec.template.spec.serviceAccountName}";
    kubectl(&["-n", NAMESPACE, "get", "daemonset", "windlass-node", "-o", field])
}

#[test]
fn the_chart_is_installed_updated_rolled_back_and_removed_without_a_trace() {
    if !has_cluster() {
        return;
    }
    let Some(helm) = helm() else { return };
    let _lock = plugin_folder_lock();
    let release = Release { helm: &helm };
    assert_eq!(outside_objects(), [""; 0], "another Windlass is installed");

    let error = release.apply(&["--set", "claims.enabled=true"]).expect_err("no CDI");
    assert!(error.contains("set cdi to true"), "{error}");
    assert!(
        try_kubectl(&["get", "namespace", NAMESPACE]).is_err(),
        "the refused release has created its namespace"
    );

    let claims = Path::new(CHART).join("../../overlays/claims/values.yaml");
    let claims = claims.to_str().expect("text");
    let notes = release.apply(&["--values", claims]).expect("installed");
    assert!(notes.contains("rollout status daemonset/windlass-node"), "{notes}");
    assert_eq!(agent_account(), "windlass");
    let result = release.apply(&["--values", claims, "--set", "cdi=maybe"]);
    assert!(result.is_err() && release.revision() == "1", "{result:?}");

    // The service account of the claims option is deleted. Pods that still name it would never start.
    release.apply(&["--reset-values"]).expect("updated");
    assert_eq!((agent_account().as_str(), outside_objects().len()), ("default", 0));
    release.helm(&["rollback", "windlass", "1"]).expect("rolled back");
    assert_eq!(agent_account(), "windlass");

    for overlay in folders("overlays") {
        let values = Path::new(CHART).join("../../overlays").join(&overlay).join("values.yaml");
        let result = release.apply(&["--values", values.to_str().expect("text")]);
        result.unwrap_or_else(|error| panic!("{overlay}: {error}"));
    }
    release.helm(&["uninstall", "windlass"]).expect("removed");
    assert_eq!(outside_objects(), [""; 0]);
    drop(release);
    assert!(try_kubectl(&["get", "namespace", NAMESPACE]).is_err(), "the namespace still exists");
}
