//! The options of `deploy/daemonset.yaml`: what the documented commands make of it is what is meant.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec},
        core::v1::{ConfigMap, Container, PodSpec},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;
use windlass_config::{Config, DraOffer, Strategy};

use crate::cluster_api::manifests::{documents, kept, lost};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect("a text file")
}

/// The manifest as a command makes it, every field of which Kubernetes knows.
struct Manifest {
    spec: DaemonSetSpec,
    config: Config,
}

/// The command that puts options in, as the manifest gives it.
fn with(options: &str) -> Manifest {
    let usage = read("deploy/daemonset.yaml");
    let command = usage.lines().find_map(|line| line.strip_prefix("#   sed ")).expect("a command");
    Manifest::made_by(&format!("sed {}", command.replace("cdi", options)))
}

// === impl Manifest ===

impl Manifest {
    fn made_by(command: &str) -> Self {
        let made = Command::new("sh").args(["-c", command]).current_dir(ROOT).output();
        let made = String::from_utf8(made.expect("sh runs").stdout).expect("text");
        let documents = made.split("\n---\n").map(serde_saphyr::from_str::<Value>);
        let documents: Vec<_> = documents
            .map(|read| read.unwrap_or_else(|error| panic!("{command}: {error}")))
            .collect();
        for document in &documents {
            assert_eq!(lost(document, &kept(document), ""), None, "{command}");
        }
        let of_kind = |kind: &str| {
            let mut found = documents.iter().filter(|document| document["kind"] == kind);
            found.next().unwrap_or_else(|| panic!("{command}: no {kind}")).clone()
        };
        let set: DaemonSet = serde_json::from_value(of_kind("DaemonSet")).expect("a DaemonSet");
        let map: ConfigMap = serde_json::from_value(of_kind("ConfigMap")).expect("a ConfigMap");
        let text = map.data.expect("files").remove("config.yaml").expect("a configuration");
        let config = Config::parse(Path::new("config.yaml"), &text);
        let config = config.unwrap_or_else(|error| panic!("{command}: {error}"));
        Self { spec: set.spec.expect("a spec"), config }
    }

    fn pod(&self) -> &PodSpec {
        self.spec.template.spec.as_ref().expect("a pod's")
    }

    fn container(&self) -> &Container {
        self.pod().containers.first().expect("one container")
    }

    fn mounts(&self) -> BTreeSet<&str> {
        let mounts = self.container().volume_mounts.iter().flatten();
        mounts.map(|mount| mount.mount_path.as_str()).collect()
    }
}

#[test]
fn without_an_option_the_agent_has_no_token_and_offers_nothing_to_claims() {
    let plain = Manifest::made_by("cat deploy/daemonset.yaml");
    assert_eq!(plain.pod().automount_service_account_token, Some(false));
    assert_eq!(plain.pod().service_account_name, None);
    assert_eq!(plain.config.policy.dra.offer, DraOffer::Off);
    assert_eq!(plain.config.policy.delivery.strategies, [Strategy::Envvar].into());
}

#[test]
fn every_option_alone_is_understood() {
    let text = read("deploy/daemonset.yaml");
    let tags = text.split("# [").skip(1).filter_map(|rest| rest.split_once(']'));
    let tags: BTreeSet<_> = tags.map(|(tag, _)| tag.trim_start_matches('-')).collect();
    assert_eq!(tags, ["account", "cdi", "dra", "nfd", "nic", "pods", "surge"].into());
    for tag in tags {
        with(tag);
        assert!(text.contains(&format!("\n# {tag}: ")), "{tag} is explained nowhere");
    }
}

#[test]
fn the_readmes_say_which_runtime_the_manifest_is_for_and_how_to_have_it_without() {
    let plain = Manifest::made_by("cat deploy/daemonset.yaml");
    assert_eq!(plain.config.policy.delivery.strategies, [Strategy::Envvar].into());
    for name in ["README.md", "README.zh-CN.md"] {
        let page = read(name);
        assert!(
            page.contains("`deviceList: envvar`"),
            "{name} does not say the manifest's default"
        );
        let command = page.lines().find(|line| line.starts_with("sed ")).expect("a command");
        let made = Manifest::made_by(command.split(" > ").next().expect("a command"));
        assert_eq!(made.config.policy.delivery.strategies, [Strategy::CdiCri].into(), "{name}");
        assert!(made.mounts().contains("/var/run/cdi"), "{name}: {command}");
    }
}

#[test]
fn the_documented_command_turns_claims_on() {
    let page = read("docs/dra.md");
    let command = page.lines().find(|line| line.starts_with("sed ")).expect("a command");
    let made = Manifest::made_by(command.split(" > ").next().expect("a command"));
    assert_eq!(made.config.policy.dra.offer, DraOffer::Beside);
    assert_eq!(made.config.policy.delivery.strategies, [Strategy::CdiCri].into());
    assert_eq!(made.pod().automount_service_account_token, Some(true));
    let accounts = documents(&Path::new(ROOT).join("deploy/rbac.yaml"));
    let account = accounts.iter().find(|document| document["kind"] == "ServiceAccount");
    let account = account.expect("an account")["metadata"]["name"].as_str();
    assert_eq!(made.pod().service_account_name.as_deref(), account);
    let folders = ["plugins/windlass.dev", "plugins_registry"];
    let folders = folders.map(|folder| format!("/var/lib/kubelet/{folder}"));
    for folder in folders.iter().map(String::as_str).chain(["/var/run/cdi"]) {
        assert!(made.mounts().contains(folder), "{folder} is not mounted");
    }
}

#[test]
fn an_update_that_surges_has_agents_that_stand_by() {
    let strategy = |manifest: &Manifest| {
        let strategy = manifest.spec.update_strategy.clone().expect("a strategy");
        strategy.rolling_update.expect("its numbers").max_surge
    };
    let stands_by = |manifest: &Manifest| {
        let env = manifest.container().env.iter().flatten();
        env.filter(|it| it.value.as_deref() == Some("true"))
            .any(|it| it.name == "WINDLASS_TAKE_OVER")
    };
    let (plain, surging) = (Manifest::made_by("cat deploy/daemonset.yaml"), with("surge"));
    assert_eq!((strategy(&plain), stands_by(&plain)), (Some(IntOrString::Int(0)), false));
    assert_eq!((strategy(&surging), stands_by(&surging)), (Some(IntOrString::Int(1)), true));
}

#[test]
fn probes_have_a_way_of_their_own_which_no_other_pod_reaches() {
    let plain = Manifest::made_by("cat deploy/daemonset.yaml");
    let container = plain.container();
    for probe in [&container.liveness_probe, &container.readiness_probe] {
        let probe = probe.as_ref().expect("probed");
        let command = probe.exec.as_ref().and_then(|exec| exec.command.clone()).expect("a command");
        assert_eq!(command[..2], ["/usr/bin/windlass", "probe"]);
        assert!(probe.timeout_seconds.is_some_and(|limit| limit > 4), "it has four seconds itself");
    }
    let env = container.env.iter().flatten();
    let socket =
        env.filter(|it| it.name == "WINDLASS_PROBE_SOCKET").find_map(|it| it.value.clone());
    let folder = socket.as_deref().map(Path::new).and_then(Path::parent).expect("a socket");
    let mut mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.find(|it| Path::new(&it.mount_path) == folder).expect("mounted");
    let mut volumes = plain.pod().volumes.iter().flatten();
    let volume = volumes.find(|it| it.name == mount.name).expect("a volume");
    assert!(
        volume.empty_dir.is_some(),
        "a folder of the node is shared with the agent that comes next"
    );
}

#[test]
fn the_network_policy_is_about_the_agents_and_their_port() {
    let plain = Manifest::made_by("cat deploy/daemonset.yaml");
    let policies = documents(&Path::new(ROOT).join("deploy/networkpolicy.yaml"));
    let [policy] = policies.as_slice() else { panic!("one policy") };
    let policy: NetworkPolicy = serde_json::from_value(policy.clone()).expect("a policy");
    let spec = policy.spec.expect("a spec");
    let labels = plain.spec.template.metadata.as_ref().and_then(|it| it.labels.clone());
    assert_eq!(spec.pod_selector.and_then(|it| it.match_labels), labels);
    let ports = plain.container().ports.iter().flatten();
    let named: Vec<_> =
        ports.filter_map(|port| port.name.clone()).map(IntOrString::String).collect();
    let allowed =
        spec.ingress.into_iter().flatten().flat_map(|rule| rule.ports.unwrap_or_default());
    assert_eq!(allowed.filter_map(|port| port.port).collect::<Vec<_>>(), named);
}
