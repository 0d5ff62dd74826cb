//! The shipped `DaemonSet`: it has the privileges and mounts that docs/security.md lists, and no others.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Container, PodSpec},
};

use crate::cluster_api::kustomize::{options, with_options};

/// Options that give the agent privileges.
const PRIVILEGES: [&str; 4] = ["mps", "privileged", "watchdog", "watchdog-drm"];

/// Options that mount a folder of the host at another path, or mount nothing.
const OTHER_PATHS: [&str; 7] =
    ["gke", "k0s", "k0s-claims", "microk8s", "microk8s-claims", "mps", "privileged"];

fn pod_without(excluded: &[&str]) -> PodSpec {
    let options = options().into_iter().filter(|option| !excluded.contains(&option.as_str()));
    let mut objects = with_options(options).into_iter();
    let object = objects.find(|object| object["kind"] == "DaemonSet").expect("one");
    let daemon_set: DaemonSet = serde_json::from_value(object).expect("a DaemonSet");
    daemon_set.spec.expect("a spec").template.spec.expect("a pod template")
}

/// The mounts that the documentation lists, each with `read` or `written`.
fn documented() -> BTreeMap<String, String> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md"));
    let page = fs::read_to_string(path).expect("a page");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (paths, access) = (cells.next()?, cells.next()?);
        ["read", "written"].contains(&access).then_some((paths, access))
    });
    let paths = rows.flat_map(|(paths, access)| {
        let paths = paths.split('`').skip(1).step_by(2);
        paths.map(|path| (path.to_owned(), access.to_owned()))
    });
    paths.collect()
}

/// The agent's container, and the one that installs the hook.
fn containers(pod: &PodSpec) -> [&Container; 2] {
    let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let containers: Vec<_> = containers.collect();
    containers.try_into().expect("two containers")
}

#[test]
fn the_agent_has_no_unnecessary_privilege() {
    let pod = pod_without(&PRIVILEGES);
    for setting in [pod.host_network, pod.host_pid, pod.host_ipc] {
        assert_ne!(setting, Some(true));
    }
    let seccomp = pod.security_context.as_ref().and_then(|it| it.seccomp_profile.as_ref());
    assert_eq!(seccomp.expect("a profile").type_, "RuntimeDefault");
    let containers = containers(&pod);
    assert_eq!(containers.map(|it| it.name.as_str()), ["node", "hook"]);
    for container in containers {
        let context = container.security_context.as_ref().expect("a context");
        assert_ne!(context.privileged, Some(true));
        assert_eq!(context.allow_privilege_escalation, Some(false));
        assert_eq!(context.read_only_root_filesystem, Some(true));
        let capabilities = context.capabilities.clone().expect("capabilities");
        assert_eq!((capabilities.add, capabilities.drop), (None, Some(vec!["ALL".to_owned()])));
    }
}

#[test]
fn the_mounts_are_those_that_the_documentation_lists() {
    let pod = pod_without(&OTHER_PATHS);
    let containers = containers(&pod);
    let mounts = containers.map(|it| it.volume_mounts.as_deref().expect("mounts")).concat();
    let mut mounted = BTreeMap::new();
    for volume in pod.volumes.iter().flatten() {
        let mut volume_mounts = mounts.iter().filter(|mount| mount.name == volume.name).peekable();
        assert!(volume_mounts.peek().is_some(), "{} is not mounted", volume.name);
        for mount in volume_mounts {
            let access = if mount.read_only == Some(true) { "read" } else { "written" };
            let path = mount.mount_path.strip_prefix("/host").unwrap_or(&mount.mount_path);
            if let Some(host) = &volume.host_path {
                assert_eq!(host.path, path, "a path of the host is the same in the pod");
            }
            mounted.insert(path.to_owned(), access.to_owned());
        }
    }
    assert_eq!(mounted, documented());
}
