//! The dependency policy of `deny.toml`, and the dependencies between our crates, checked without a network and
//! without another tool.
//!
//! Advisories are not checked here: their database has to be fetched, which `cargo deny` does, run by `.ci/run`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    process::Command,
};

use serde::Deserialize;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; `None` for a normal dependency.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    #[serde(rename = "crate")]
    name: String,
}

/// Crates of this workspace, each with the workspace crates that it may use outside of tests. Dependencies point
/// towards the domain. The binary is not listed, and may use all.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("windlass-core", &[]),
    ("windlass-cuda", &[]),
    ("windlass-kubelet-api", &[]),
    ("windlass-nvml", &[]),
    ("windlass-machine", &[]),
    ("windlass-nvml-sim", &["windlass-machine"]),
    ("windlass-host", &["windlass-core"]),
    ("windlass-nri", &["windlass-core", "windlass-host"]),
    ("windlass-hook", &["windlass-core", "windlass-host", "windlass-nvml"]),
    ("windlass-sched", &["windlass-core"]),
    ("windlass-pipeline", &["windlass-config", "windlass-core", "windlass-host"]),
    ("windlass-config", &["windlass-core", "windlass-host"]),
    ("windlass-migrate", &["windlass-config", "windlass-core", "windlass-host"]),
    ("windlass-snapshot", &["windlass-config", "windlass-core", "windlass-host"]),
    ("windlass-discovery", &["windlass-config", "windlass-core", "windlass-host", "windlass-nvml"]),
    ("windlass-cdi", &["windlass-config", "windlass-core", "windlass-discovery", "windlass-host"]),
    (
        "windlass-allocations",
        &["windlass-config", "windlass-core", "windlass-host", "windlass-kubelet-api"],
    ),
    (
        "windlass-lifecycle",
        &[
            "windlass-allocations",
            "windlass-cdi",
            "windlass-config",
            "windlass-core",
            "windlass-discovery",
            "windlass-host",
            "windlass-kubelet-api",
            "windlass-nvml",
        ],
    ),
    (
        "windlass-resources",
        &[
            "windlass-allocations",
            "windlass-cdi",
            "windlass-config",
            "windlass-core",
            "windlass-discovery",
            "windlass-host",
            "windlass-lifecycle",
        ],
    ),
    (
        "windlass-deviceplugin",
        &[
            "windlass-allocations",
            "windlass-cdi",
            "windlass-config",
            "windlass-core",
            "windlass-host",
            "windlass-kubelet-api",
            "windlass-lifecycle",
            "windlass-resources",
        ],
    ),
    ("windlass-page", &[]),
    ("windlass-stage", &[]),
    ("windlass-control", &["windlass-core", "windlass-host", "windlass-page", "windlass-sched"]),
    (
        "windlass-cluster",
        &[
            "windlass-allocations",
            "windlass-config",
            "windlass-core",
            "windlass-host",
            "windlass-lifecycle",
            "windlass-resources",
        ],
    ),
    (
        "windlass-dra",
        &[
            "windlass-allocations",
            "windlass-cdi",
            "windlass-cluster",
            "windlass-config",
            "windlass-core",
            "windlass-discovery",
            "windlass-host",
            "windlass-kubelet-api",
            "windlass-lifecycle",
            "windlass-resources",
        ],
    ),
    (
        "windlass-node",
        &[
            "windlass-allocations",
            "windlass-cdi",
            "windlass-cluster",
            "windlass-config",
            "windlass-core",
            "windlass-deviceplugin",
            "windlass-discovery",
            "windlass-dra",
            "windlass-host",
            "windlass-kubelet-api",
            "windlass-lifecycle",
            "windlass-nri",
            "windlass-page",
            "windlass-resources",
        ],
    ),
    ("windlass-kubelet-sim", &["windlass-core", "windlass-kubelet-api"]),
    ("windlass-cluster-sim", &["windlass-core", "windlass-kubelet-sim", "windlass-sched"]),
    (
        "windlass-conformance",
        &["windlass-cluster-sim", "windlass-kubelet-api", "windlass-kubelet-sim"],
    ),
    (
        "windlass-fuzz",
        &[
            "windlass-cdi",
            "windlass-config",
            "windlass-core",
            "windlass-host",
            "windlass-kubelet-api",
            "windlass-machine",
            "windlass-migrate",
            "windlass-node",
            "windlass-nri",
        ],
    ),
    (
        TESTKIT,
        &[
            "windlass-config",
            "windlass-core",
            "windlass-discovery",
            "windlass-host",
            "windlass-kubelet-sim",
            "windlass-machine",
            "windlass-node",
            "windlass-nvml-sim",
            "windlass-resources",
        ],
    ),
];

/// Crate of test fixtures, which product crates may use in tests only.
const TESTKIT: &str = "windlass-testkit";

const BINARY: &str = "windlass";

/// Crates that simulate or test others. The node build must not contain them.
const TEST_CRATES: [&str; 5] = [
    "windlass-cluster-sim",
    "windlass-conformance",
    "windlass-kubelet-sim",
    "windlass-machine",
    "windlass-nvml-sim",
];

/// Crates that only the commands for the cluster use. The node build must not contain them.
const CLUSTER_CRATES: [&str; 2] = ["windlass-control", "windlass-sched"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn policy() -> Policy {
    let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    toml::from_str(&text).expect("licenses and bans in deny.toml")
}

/// Every package that a Linux build of the workspace can contain.
fn packages() -> Vec<Package> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform"])
        .arg(target)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    metadata.packages
}

#[test]
fn every_license_is_allowed_by_the_policy() {
    let allowed = policy().licenses.allow;
    for package in packages() {
        let name = format!("{} {}", package.name, package.version);
        let license = package.license.unwrap_or_else(|| panic!("{name} names no license"));
        let parsed = spdx::Expression::parse_mode(&license, spdx::ParseMode::LAX);
        let expression = parsed.unwrap_or_else(|error| panic!("{name}: {license}: {error}"));
        let is_allowed = expression.evaluate(|part| allowed.contains(&part.to_string()));
        assert!(is_allowed, "{name} is under {license}, which deny.toml does not allow");
    }
}

#[test]
fn a_crate_with_two_versions_has_a_reason() {
    let excused: BTreeSet<_> = policy().bans.skip.into_iter().map(|skip| skip.name).collect();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        versions.entry(package.name).or_default().push(package.version);
    }
    versions.retain(|name, versions| versions.len() > 1 && !excused.contains(name));
    assert!(versions.is_empty(), "name a reason in deny.toml, or remove a version: {versions:?}");
}

#[test]
fn every_package_is_from_the_registry_or_this_repository() {
    for package in packages() {
        let source = package.source.unwrap_or_default();
        assert!(
            source.is_empty() || source.starts_with("registry+"),
            "{} comes from {source}",
            package.name
        );
    }
}

#[test]
fn only_tests_use_the_fixtures_crate() {
    for package in packages() {
        let mut dependencies =
            package.dependencies.iter().filter(|dependency| dependency.name == TESTKIT);
        assert!(
            dependencies.all(|dependency| dependency.kind.as_deref() == Some("dev")),
            "{} uses {TESTKIT}",
            package.name
        );
    }
}

#[test]
fn workspace_crates_have_only_the_allowed_dependencies() {
    let allowed_of: BTreeMap<_, _> = ALLOWED_DEPENDENCIES.iter().copied().collect();
    for package in packages().iter().filter(|package| package.source.is_none()) {
        if package.name == BINARY {
            continue;
        }
        let allowed = allowed_of.get(package.name.as_str());
        let allowed =
            allowed.unwrap_or_else(|| panic!("list the crates that {} may use", package.name));
        let dependencies =
            package.dependencies.iter().filter(|dependency| dependency.kind.is_none());
        for Dependency { name, .. } in
            dependencies.filter(|dependency| dependency.name.starts_with(BINARY))
        {
            assert!(allowed.contains(&name.as_str()), "{} may not use {name}", package.name);
        }
    }
}

#[test]
fn the_build_for_nodes_is_without_the_laboratory_and_the_cluster_half() {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["tree", "--package", BINARY, "--edges", "normal,build", "--prefix", "none"])
        .args(["--locked", "--offline", "--no-default-features"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("text");
    let node_crates: BTreeSet<_> =
        stdout.lines().filter_map(|line| line.split(' ').next()).collect();
    let packages = packages();
    for name in TEST_CRATES.iter().chain(&CLUSTER_CRATES) {
        assert!(
            packages.iter().any(|package| package.name == *name),
            "{name} is no crate of this workspace"
        );
        assert!(!node_crates.contains(name), "the node build contains {name}");
    }
}
