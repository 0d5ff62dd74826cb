//! The Helm chart: it renders the objects of the kustomizations in `deploy/`, and refuses contradictory values.
//!
//! Runs in full when `WINDLASS_E2E_HELM` names a Helm of 3.17 or newer, and `WINDLASS_E2E_KUBECTL` a kubectl.

mod files;
mod objects;
mod refusals;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Variable with the path of Helm.
const HELM: &str = "WINDLASS_E2E_HELM";
/// Variable with the path of kubectl, which builds kustomizations.
const KUBECTL: &str = "WINDLASS_E2E_KUBECTL";

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/windlass");

/// The namespace of the manifests, which the chart leaves to Helm's command line.
const NAMESPACE: &str = "windlass-system";

/// Cluster for which `helm template` renders, with the version of the kube-scheduler in `deploy/scheduler`.
const CLUSTER: [&str; 4] = ["--kube-version", "v1.36.2", "--api-versions", "resource.k8s.io/v1"];

/// Path of the program that a variable names. Prints a notice if the variable is not set.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn program(variable: &str) -> Option<PathBuf> {
    let program = env::var_os(variable).map(PathBuf::from);
    if program.is_none() {
        eprintln!("SKIPPED: set {variable} to run this");
    }
    program
}

/// Path of Helm, if the variable is set.
pub(crate) fn helm() -> Option<PathBuf> {
    program(HELM)
}

/// Output of a program; its errors if it fails.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Objects of the chart as text; Helm's errors if it refuses the values.
fn render(helm: &Path, arguments: &[&str]) -> Result<String, String> {
    output_of(Command::new(helm).args(["template", "windlass", CHART]).args(arguments))
}

/// Names of the folders in a folder of `deploy/`.
pub(crate) fn folders(parent: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(DEPLOY).join(parent)).expect("a folder");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().expect("text")).collect();
    names.sort();
    names
}

/// Content of a file of the chart.
fn file(name: &str) -> String {
    fs::read_to_string(Path::new(CHART).join(name))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

/// Objects of several documents.
fn objects(text: &str) -> Vec<Value> {
    text.trim_start_matches("---\n").split("\n---\n").map(yaml).collect()
}
