//! Device nodes of containers, as a container runtime resolves the agent's answers. Each container has to get the nodes
//! of its GPUs, and no node may be in two pods, whatever owners the kubelet reports.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use tokio::time::{Duration, Instant, sleep};
use windlass_kubelet_sim::RunContainerOptions;

use super::{
    super::{runtime, testbed::cdi_dir},
    invariant::Violation,
    owners::{Owner, published_name},
    rig::POLL_INTERVAL,
    run::SoakRun,
};

/// Device nodes that a pod's container would get if it started now.
#[derive(Clone, Debug)]
struct ContainerNodes {
    pod: String,
    /// GPUs of the pod, by published name.
    held: BTreeSet<String>,
    nodes: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Node {
    path: String,
    is_usable: bool,
}

/// Device nodes by published name.
type Nodes = BTreeMap<String, Node>;

/// Time in which a CDI document may be missing or incomplete, because the agent writes it.
const WRITE_TIME: Duration = Duration::from_secs(2);

// === impl SoakRun ===

impl SoakRun {
    /// Checks the nodes of a container that has just started.
    pub(super) fn check_container_nodes(
        &self,
        pod: &str,
        held: &BTreeSet<String>,
        grant: &RunContainerOptions,
    ) -> Result<()> {
        let container_nodes = self.container_nodes(pod, held, grant)?;
        let nodes: Nodes =
            self.nodes()?.into_iter().map(|(name, node)| (name, as_usable(node))).collect();
        Ok(container_nodes.check_nodes(&nodes)?)
    }

    /// Checks the nodes that all pods would get if their containers started again. Retries while a document is written.
    pub(super) async fn check_nodes_with_retry(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.check_nodes() {
                Err(_) if start.elapsed() < WRITE_TIME => sleep(POLL_INTERVAL).await,
                outcome => return outcome,
            }
        }
    }

    fn check_nodes(&self) -> Result<()> {
        let pod_nodes = self.allocations.iter().map(|(uid, allocation)| {
            let held = allocation.held.iter().map(|id| published_name(id)).collect();
            self.container_nodes(uid, &held, &allocation.grant)
        });
        let claim_nodes = self.claims.iter().map(|(uid, claim_pod)| {
            self.container_nodes(uid, &claim_pod.devices, &claim_pod.grant)
        });
        let pods: Vec<_> = pod_nodes.chain(claim_nodes).collect::<Result<_>>()?;
        Ok(check_all(&pods, &self.nodes()?)?)
    }

    /// Resolves a grant. The documents may omit a broken GPU.
    fn container_nodes(
        &self,
        pod: &str,
        held: &BTreeSet<String>,
        grant: &RunContainerOptions,
    ) -> Result<ContainerNodes> {
        let broken = self.rig.broken();
        let has_broken = broken.iter().any(|uuid| held.contains(&published_name(uuid)));
        let mut nodes: BTreeSet<_> =
            grant.devices.iter().map(|node| node.host_path.clone()).collect();
        for name in &grant.cdi_devices {
            let result = runtime::resolve(&cdi_dir(self.rig.dir()), std::slice::from_ref(name));
            match result {
                Ok(edits) => nodes.extend(edits.device_nodes),
                Err(error) => ensure!(has_broken, "the container of {pod} cannot start: {error:#}"),
            }
        }
        nodes.retain(|path| is_gpu(path));
        Ok(ContainerNodes { pod: pod.to_owned(), held: held.clone(), nodes })
    }

    fn nodes(&self) -> Result<Nodes> {
        let nodes = self.rig.gpus()?.into_iter().map(|indexed_gpu| {
            let path = format!("/dev/nvidia{}", indexed_gpu.gpu.minor);
            (
                published_name(&indexed_gpu.gpu.uuid),
                Node { path, is_usable: !indexed_gpu.is_broken },
            )
        });
        Ok(nodes.collect())
    }
}

fn as_usable(node: Node) -> Node {
    Node { is_usable: true, ..node }
}

fn is_gpu(path: &str) -> bool {
    let number = path.strip_prefix("/dev/nvidia");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Checks that no node is in two pods, and that each pod has the nodes of its GPUs.
fn check_all(pods: &[ContainerNodes], gpu_nodes: &Nodes) -> Result<(), Violation> {
    let mut owners = BTreeMap::<_, BTreeSet<_>>::new();
    for container_nodes in pods {
        for node in &container_nodes.nodes {
            owners
                .entry(node)
                .or_default()
                .insert(Owner::Pod(container_nodes.pod.clone()).to_string());
        }
    }
    if let Some((node, owners)) = owners.into_iter().find(|(_, owners)| owners.len() > 1) {
        return Err(Violation::TwoOwners { device: node.clone(), owners });
    }
    pods.iter().try_for_each(|container_nodes| container_nodes.check_nodes(gpu_nodes))
}

// === impl ContainerNodes ===

impl ContainerNodes {
    /// Checks the nodes of one pod; those of broken GPUs may be missing.
    fn check_nodes(&self, gpu_nodes: &Nodes) -> Result<(), Violation> {
        let own_nodes = || self.held.iter().filter_map(|name| gpu_nodes.get(name));
        let allowed: BTreeSet<_> = own_nodes().map(|node| node.path.clone()).collect();
        let required =
            own_nodes().filter(|node| node.is_usable).map(|node| node.path.clone()).collect();
        if self.nodes.is_subset(&allowed) && self.nodes.is_superset(&required) {
            return Ok(());
        }
        let (pod, actual) = (self.pod.clone(), self.nodes.clone());
        Err(Violation::WrongNodes { pod, expected: required, actual })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn container_nodes(pod: &str, held: &[&str], nodes: &[&str]) -> ContainerNodes {
        ContainerNodes { pod: pod.to_owned(), held: set(held), nodes: set(nodes) }
    }

    /// GPUs 0 and 1 are usable, GPU 2 is broken.
    fn check(pods: &[ContainerNodes]) -> Result<(), Violation> {
        let node = |number: usize| {
            let path = format!("/dev/nvidia{number}");
            (format!("gpu-{number}"), Node { path, is_usable: number < 2 })
        };
        check_all(pods, &(0..3).map(node).collect())
    }

    #[test]
    fn a_node_in_two_containers_is_found() {
        let valid = container_nodes("a", &["gpu-0"], &["/dev/nvidia0"]);
        assert_eq!(
            check(&[valid.clone(), container_nodes("b", &["gpu-1"], &["/dev/nvidia1"])]),
            Ok(())
        );
        let twice = check(&[valid, container_nodes("b", &["gpu-1"], &["/dev/nvidia0"])]);
        let owners = set(&["pod a", "pod b"]);
        assert_eq!(twice, Err(Violation::TwoOwners { device: "/dev/nvidia0".to_owned(), owners }));
    }

    #[test]
    fn a_container_with_wrong_nodes_is_found() {
        for nodes in [&[][..], &["/dev/nvidia1"], &["/dev/nvidia0", "/dev/nvidia1"]] {
            let result = check(&[container_nodes("a", &["gpu-0"], nodes)]);
            let (expected, actual) = (set(&["/dev/nvidia0"]), set(nodes));
            assert_eq!(
                result,
                Err(Violation::WrongNodes { pod: "a".to_owned(), expected, actual })
            );
        }
    }

    #[test]
    fn only_the_node_of_a_broken_gpu_may_be_missing() {
        let held = ["gpu-0", "gpu-2"];
        for nodes in [&["/dev/nvidia0"][..], &["/dev/nvidia0", "/dev/nvidia2"]] {
            assert_eq!(check(&[container_nodes("a", &held, nodes)]), Ok(()));
        }
        assert!(check(&[container_nodes("a", &held, &["/dev/nvidia2"])]).is_err());
    }
}
