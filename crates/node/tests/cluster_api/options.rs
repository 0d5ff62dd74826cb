//! The options of the agent's manifest, and the documented overlays: their effect on pod and configuration.

use std::{collections::BTreeSet, fs, path::Path};

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec},
        core::v1::{ConfigMap, Container, PodSpec},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;
use windlass_config::{Config, DeviceListStrategy, DraOffer};

use crate::cluster_api::{
    kustomize::{build, options, with_options},
    manifests::documents,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect("a text file")
}

/// The agent's objects; Kubernetes knows every field of them.
struct Manifest {
    spec: DaemonSetSpec,
    config: Config,
}

// === impl Manifest ===

impl Manifest {
    fn plain() -> Self {
        Self::from_objects(&build("node"))
    }

    fn with_option(option: &str) -> Self {
        Self::from_objects(&with_options([option]))
    }

    /// The manifest of the folder in a page's `kubectl apply -k`.
    fn documented(page: &str) -> Self {
        let folder =
            page.lines().find_map(|line| line.strip_prefix("kubectl apply -k deploy/overlays/"));
        let folder = folder.and_then(|rest| rest.split_whitespace().next()).expect("a command");
        Self::from_objects(&build(&format!("overlays/{folder}")))
    }

    fn from_objects(objects: &[Value]) -> Self {
        let of_kind = |kind: &str| {
            let object = objects.iter().find(|object| object["kind"] == kind);
            object.unwrap_or_else(|| panic!("no {kind}")).clone()
        };
        let daemon_set: DaemonSet =
            serde_json::from_value(of_kind("DaemonSet")).expect("a DaemonSet");
        let config_map: ConfigMap =
            serde_json::from_value(of_kind("ConfigMap")).expect("a ConfigMap");
        let text = config_map.data.expect("files").remove("config.yaml").expect("a configuration");
        let config = Config::parse(Path::new("config.yaml"), &text);
        let config = config.unwrap_or_else(|error| panic!("{error} in\n{text}"));
        Self { spec: daemon_set.spec.expect("a spec"), config }
    }

    fn pod(&self) -> &PodSpec {
        self.spec.template.spec.as_ref().expect("a pod template")
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
    let plain = Manifest::plain();
    assert_eq!(plain.pod().automount_service_account_token, Some(false));
    assert_eq!(plain.pod().service_account_name.as_deref(), Some("default"));
    assert_eq!(plain.config.policy.dra.offer, DraOffer::Off);
    assert_eq!(plain.config.policy.delivery.strategies, [DeviceListStrategy::Envvar].into());
}

#[test]
fn every_option_and_overlay_has_a_valid_configuration_and_is_documented() {
    let page = read("docs/install.md");
    for option in options() {
        Manifest::with_option(&option);
        assert!(page.contains(&format!("\n| `{option}` |")), "docs/install.md lacks {option}");
    }
    for overlay in fs::read_dir(Path::new(ROOT).join("deploy/overlays")).expect("a folder") {
        let name = overlay.expect("readable").file_name().into_string().expect("text");
        Manifest::from_objects(&build(&format!("overlays/{name}")));
        assert!(page.contains(&format!("deploy/overlays/{name}")), "docs/install.md lacks {name}");
    }
}

#[test]
fn the_readmes_name_the_device_list_of_the_manifest_and_the_command_for_cdi() {
    let plain = Manifest::plain();
    assert_eq!(plain.config.policy.delivery.strategies, [DeviceListStrategy::Envvar].into());
    for name in ["README.md", "README.zh-CN.md"] {
        let page = read(name);
        assert!(
            page.contains("`deviceList: envvar`"),
            "{name} does not say the manifest's default"
        );
        let manifest = Manifest::documented(&page);
        assert_eq!(
            manifest.config.policy.delivery.strategies,
            [DeviceListStrategy::CdiCri].into(),
            "{name}"
        );
        assert!(manifest.mounts().contains("/var/run/cdi"), "{name}");
    }
}

#[test]
fn the_documented_command_turns_claims_on() {
    let manifest = Manifest::documented(&read("docs/dra.md"));
    assert_eq!(manifest.config.policy.dra.offer, DraOffer::Beside);
    assert_eq!(manifest.config.policy.delivery.strategies, [DeviceListStrategy::CdiCri].into());
    assert_eq!(manifest.pod().automount_service_account_token, Some(true));
    let accounts = documents(&Path::new(ROOT).join("deploy/rbac.yaml"));
    let account = accounts.iter().find(|document| document["kind"] == "ServiceAccount");
    let account = account.expect("an account")["metadata"]["name"].as_str();
    assert_eq!(manifest.pod().service_account_name.as_deref(), account);
    let folders = ["plugins/windlass.dev", "plugins_registry"];
    let folders = folders.map(|folder| format!("/var/lib/kubelet/{folder}"));
    for folder in folders.iter().map(String::as_str).chain(["/var/run/cdi"]) {
        assert!(manifest.mounts().contains(folder), "{folder} is not mounted");
    }
}

#[test]
fn the_watchdog_sees_the_hosts_processes_and_may_end_them() {
    let manifest = Manifest::from_objects(&with_options(["account", "watchdog"]));
    assert_eq!(manifest.pod().host_pid, Some(true));
    assert!(manifest.mounts().contains("/host/proc"));
    let capabilities =
        manifest.container().security_context.as_ref().and_then(|it| it.capabilities.clone());
    let capabilities = capabilities.expect("capabilities");
    assert_eq!(
        (capabilities.add, capabilities.drop),
        (Some(vec!["KILL".into()]), Some(vec!["ALL".into()]))
    );
    let manifest = Manifest::from_objects(&with_options(["account", "watchdog", "watchdog-drm"]));
    let capabilities =
        manifest.container().security_context.as_ref().and_then(|it| it.capabilities.clone());
    let capabilities = capabilities.expect("capabilities");
    let added = Some(vec!["KILL".into(), "SYS_PTRACE".into()]);
    assert_eq!((capabilities.add, capabilities.drop), (added, Some(vec!["ALL".into()])));
}

#[test]
fn the_hook_is_installed_on_the_host_before_the_agent_starts() {
    let manifest = Manifest::with_option("driver-limits");
    let agent = manifest.container();
    let Some([install]) = manifest.pod().init_containers.as_deref() else {
        panic!("one container")
    };
    assert_eq!(
        (&install.image, &install.security_context),
        (&agent.image, &agent.security_context)
    );
    let command = install.command.as_deref().expect("a command");
    assert_eq!(command, ["/usr/bin/windlass-hook", "install", "/var/lib/windlass/bin"]);
    let state = agent.volume_mounts.iter().flatten().find(|mount| mount.name == "state").cloned();
    assert_eq!(install.volume_mounts, Some(vec![state.expect("the agent's state")]));
    let page = read("docs/shares.md");
    assert!(
        page.contains("\n  hook: /var/lib/windlass/bin/windlass-hook "),
        "the page has another path"
    );
}

#[test]
fn the_agents_pod_mounts_the_configured_socket_of_the_runtime() {
    let manifest = Manifest::from_objects(&with_options(["account", "nvfractions"]));
    let socket = manifest.config.nv_fractions.socket.clone();
    let folder = socket.parent().and_then(Path::to_str).expect("a folder");
    assert!(manifest.mounts().contains(folder), "{folder} is not mounted");
    let page = read("docs/nvfractions.md");
    let example = page.split("```").find(|it| it.contains("nvFractions:")).expect("an example");
    let lines = example.lines().skip(1).map(|line| line.strip_prefix("   ").unwrap_or(line));
    let config = lines.collect::<Vec<_>>().join("\n");
    let config = Config::parse(Path::new("example.yaml"), &config).expect("valid");
    assert!(config.nv_fractions.enabled && config.policy.memory_limits.hook.is_some());
}

#[test]
fn a_surge_update_has_agents_in_standby() {
    let strategy = |manifest: &Manifest| {
        let strategy = manifest.spec.update_strategy.clone().expect("a strategy");
        strategy.rolling_update.expect("the numbers of a rolling update").max_surge
    };
    let is_standby = |manifest: &Manifest| {
        let env = manifest.container().env.iter().flatten();
        env.filter(|it| it.value.as_deref() == Some("true"))
            .any(|it| it.name == "WINDLASS_TAKE_OVER")
    };
    let (plain, surge) = (Manifest::plain(), Manifest::with_option("take-over"));
    assert_eq!((strategy(&plain), is_standby(&plain)), (Some(IntOrString::Int(0)), false));
    assert_eq!((strategy(&surge), is_standby(&surge)), (Some(IntOrString::Int(1)), true));
}

#[test]
fn probes_have_a_socket_that_no_other_pod_reaches() {
    let plain = Manifest::plain();
    let container = plain.container();
    for probe in [&container.liveness_probe, &container.readiness_probe] {
        let probe = probe.as_ref().expect("a probe");
        let command = probe.exec.as_ref().and_then(|exec| exec.command.clone()).expect("a command");
        assert_eq!(command[..2], ["/usr/bin/windlass", "probe"]);
        assert!(
            probe.timeout_seconds.is_some_and(|limit| limit > 4),
            "the probe itself has four seconds"
        );
    }
    let env = container.env.iter().flatten();
    let socket =
        env.filter(|it| it.name == "WINDLASS_PROBE_SOCKET").find_map(|it| it.value.clone());
    let folder = socket.as_deref().map(Path::new).and_then(Path::parent).expect("a socket");
    let mut mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.find(|it| Path::new(&it.mount_path) == folder).expect("mounted");
    let mut volumes = plain.pod().volumes.iter().flatten();
    let volume = volumes.find(|it| it.name == mount.name).expect("a volume");
    assert!(volume.empty_dir.is_some(), "the next agent would share a folder of the node");
}

#[test]
fn the_network_policy_selects_the_agents_and_their_port() {
    let plain = Manifest::plain();
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
