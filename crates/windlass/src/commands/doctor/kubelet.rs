//! Checks of the kubelet: its folders, sockets and checkpoint, and other device plugins.

use std::{fs, path::Path};

use windlass_allocations::podresources;
use windlass_config::{Config, DraOffer};
use windlass_core::finding::Finding;
use windlass_kubelet_api::{
    checkpoint::{self, Checkpoint},
    deviceplugin::{KUBELET_SOCKET, PLUGIN_DIR},
    pluginregistration::REGISTRY_DIR,
};

const AREA: &str = "kubelet";

pub(super) async fn check(config: &Config) -> Vec<Finding> {
    let folder = &config.places.kubelet_dir;
    let plugins = folder.join(PLUGIN_DIR);
    if !plugins.is_dir() && !rustix::process::geteuid().is_root() {
        return vec![Finding::skipped(AREA, "folder", format!("{} needs root", folder.display()))];
    }
    if !plugins.is_dir() {
        let detail = format!("no {}", plugins.display());
        return vec![Finding::problem(AREA, "folder", detail).with_remedy(
            "start the kubelet; k0s and MicroK8s have another folder: --kubelet-dir",
        )];
    }
    let mut findings = vec![registration(&plugins.join(KUBELET_SOCKET)).await];
    findings.push(dra_registration(folder, config.policy.dra.offer != DraOffer::Off));
    findings.push(device_checkpoint(&plugins.join(checkpoint::FILE_NAME)));
    findings.extend(other_plugins(&plugins).await);
    findings.push(pod_resources(folder).await);
    findings
}

/// Names of the sockets in a folder of plugins, sorted.
pub(super) fn sockets(plugins: &Path) -> Vec<String> {
    let names = fs::read_dir(plugins).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_socket =
        |name: &String| Path::new(name).extension().is_some_and(|extension| extension == "sock");
    let mut names: Vec<_> = names.filter(is_socket).collect();
    names.sort();
    names
}

/// Checks that the kubelet listens for device plugins.
async fn registration(socket: &Path) -> Finding {
    const SUBJECT: &str = "registration of plugins";
    match super::socket::connect(socket).await {
        Ok(()) => Finding::ok(AREA, SUBJECT, socket.display().to_string()),
        Err(error) => Finding::problem(AREA, SUBJECT, format!("{}: {error}", socket.display()))
            .with_remedy("start the kubelet; as root, if permission is denied"),
    }
}

fn dra_registration(folder: &Path, is_configured: bool) -> Finding {
    const SUBJECT: &str = "registration of DRA drivers";
    let registry = folder.join(REGISTRY_DIR);
    match (registry.is_dir(), is_configured) {
        (true, _) => Finding::ok(AREA, SUBJECT, registry.display().to_string()),
        (false, true) => Finding::problem(AREA, SUBJECT, format!("no {}", registry.display()))
            .with_remedy("start the kubelet; in a pod, mount the folder (option claims)"),
        (false, false) => Finding::skipped(AREA, SUBJECT, "no claims in the configuration"),
    }
}

/// Checks the kubelet's checkpoint of devices and pods.
fn device_checkpoint(path: &Path) -> Finding {
    const SUBJECT: &str = "checkpoint of devices";
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Finding::skipped(AREA, SUBJECT, "none yet: no pod has had a device");
        }
        Err(error) => {
            return Finding::warning(AREA, SUBJECT, format!("{}: {error}", path.display()))
                .with_remedy("run it as root");
        }
    };
    match Checkpoint::parse(&text) {
        Ok(checkpoint) => {
            let pods: std::collections::BTreeSet<_> =
                checkpoint.pods.iter().flatten().map(|pod| &pod.pod_uid).collect();
            Finding::ok(AREA, SUBJECT, format!("pods with devices: {}", pods.len()))
        }
        Err(error) => Finding::problem(AREA, SUBJECT, windlass_host::causes(&error)).with_remedy(
            "if the kubelet refuses it too, it does not start and logs the reason; otherwise update windlass",
        ),
    }
}

/// Lists the sockets of other plugins, which usually serve other devices.
async fn other_plugins(plugins: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in sockets(plugins) {
        let is_other = name != KUBELET_SOCKET && !name.starts_with("windlass-");
        if is_other && super::socket::connect(&plugins.join(&name)).await.is_ok() {
            let detail =
                "another device plugin; two plugins for the same devices allocate them twice";
            findings.push(Finding::ok(AREA, format!("plugin {name}"), detail));
        }
    }
    findings
}

async fn pod_resources(folder: &Path) -> Finding {
    const SUBJECT: &str = "pod resources API";
    match podresources::holders(folder).await {
        Ok(holders) => Finding::ok(AREA, SUBJECT, format!("devices held: {}", holders.len())),
        Err(error) => Finding::warning(AREA, SUBJECT, windlass_host::causes(&error)).with_remedy(
            "the names of pods are missing in `windlass devices`; mount pod-resources (option pods)",
        ),
    }
}
