//! Device nodes that containers get when a runtime resolves the agent's answers. Each gets the nodes of its GPUs, and
//! no node is in two pods; the kubelet's account is not used.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use tokio::time::{Duration, Instant, sleep};
use windlass_kubelet_sim::Grant;

use super::{
    super::{runtime, stage::cdi_dir},
    invariant::Violation,
    owners::{Owner, published_name},
    rig::POLL_INTERVAL,
    run::Run,
};

/// Device nodes that a pod's container would get now.
#[derive(Clone, Debug)]
struct Share {
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

/// Time in which a document may be missing or incomplete while it is written.
const WRITING: Duration = Duration::from_secs(2);

// === impl Run ===

impl Run {
    /// Checks the nodes of a container that has just started.
    pub(super) fn has_nodes(
        &self,
        pod: &str,
        held: &BTreeSet<String>,
        grant: &Grant,
    ) -> Result<()> {
        let share = self.share(pod, held, grant)?;
        let all: Nodes =
            self.nodes()?.into_iter().map(|(name, node)| (name, usable(node))).collect();
        Ok(share.check_nodes(&all)?)
    }

    /// Checks the nodes of all pods, also for a restart of their containers.
    pub(super) async fn nodes_are_right(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.check_nodes() {
                Err(_) if begun.elapsed() < WRITING => sleep(POLL_INTERVAL).await,
                outcome => return outcome,
            }
        }
    }

    fn check_nodes(&self) -> Result<()> {
        let of_pods = self.given.iter().map(|(uid, given)| {
            let held = given.held.iter().map(|id| published_name(id)).collect();
            self.share(uid, &held, &given.grant)
        });
        let of_claims = self.claims.iter();
        let of_claims =
            of_claims.map(|(uid, claim_pod)| self.share(uid, &claim_pod.devices, &claim_pod.grant));
        let shares: Vec<_> = of_pods.chain(of_claims).collect::<Result<_>>()?;
        Ok(check_all(&shares, &self.nodes()?)?)
    }

    /// Resolves a grant. The documents may omit a broken GPU.
    fn share(&self, pod: &str, held: &BTreeSet<String>, grant: &Grant) -> Result<Share> {
        let broken = self.rig.broken();
        let has_broken = broken.iter().any(|uuid| held.contains(&published_name(uuid)));
        let mut nodes: BTreeSet<_> =
            grant.devices.iter().map(|node| node.host_path.clone()).collect();
        for name in &grant.cdi_devices {
            let resolved = runtime::resolve(&cdi_dir(self.rig.dir()), std::slice::from_ref(name));
            match resolved {
                Ok(edits) => nodes.extend(edits.device_nodes),
                Err(why) => ensure!(has_broken, "the container of {pod} cannot start: {why:#}"),
            }
        }
        nodes.retain(|path| is_gpu(path));
        Ok(Share { pod: pod.to_owned(), held: held.clone(), nodes })
    }

    fn nodes(&self) -> Result<Nodes> {
        let nodes = self.rig.gpus()?.into_iter().map(|found| {
            let path = format!("/dev/nvidia{}", found.gpu.minor);
            (published_name(&found.gpu.uuid), Node { path, is_usable: !found.is_broken })
        });
        Ok(nodes.collect())
    }
}

fn usable(node: Node) -> Node {
    Node { is_usable: true, ..node }
}

fn is_gpu(path: &str) -> bool {
    let number = path.strip_prefix("/dev/nvidia");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Checks that no node is in two pods, and that each pod has the nodes of its GPUs.
fn check_all(shares: &[Share], all: &Nodes) -> Result<(), Violation> {
    let mut owners = BTreeMap::<_, BTreeSet<_>>::new();
    for share in shares {
        for node in &share.nodes {
            owners.entry(node).or_default().insert(Owner::Pod(share.pod.clone()).to_string());
        }
    }
    if let Some((node, owners)) = owners.into_iter().find(|(_, owners)| owners.len() > 1) {
        return Err(Violation::TwoOwners { device: node.clone(), owners });
    }
    shares.iter().try_for_each(|share| share.check_nodes(all))
}

// === impl Share ===

impl Share {
    /// Checks the nodes of one pod; those of broken GPUs may be missing.
    fn check_nodes(&self, all: &Nodes) -> Result<(), Violation> {
        let own = || self.held.iter().filter_map(|name| all.get(name));
        let may: BTreeSet<_> = own().map(|node| node.path.clone()).collect();
        let must = own().filter(|node| node.is_usable).map(|node| node.path.clone()).collect();
        if self.nodes.is_subset(&may) && self.nodes.is_superset(&must) {
            return Ok(());
        }
        let (pod, given) = (self.pod.clone(), self.nodes.clone());
        Err(Violation::WrongNodes { pod, right: must, given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|one| (*one).to_owned()).collect()
    }

    fn share(pod: &str, held: &[&str], nodes: &[&str]) -> Share {
        Share { pod: pod.to_owned(), held: set(held), nodes: set(nodes) }
    }

    /// GPUs 0 and 1 are usable, GPU 2 is broken.
    fn check(shares: &[Share]) -> Result<(), Violation> {
        let node = |number: usize| {
            let path = format!("/dev/nvidia{number}");
            (format!("gpu-{number}"), Node { path, is_usable: number < 2 })
        };
        check_all(shares, &(0..3).map(node).collect())
    }

    #[test]
    fn a_node_that_two_containers_get_is_found_whatever_the_kubelet_says() {
        let well = share("a", &["gpu-0"], &["/dev/nvidia0"]);
        assert_eq!(check(&[well.clone(), share("b", &["gpu-1"], &["/dev/nvidia1"])]), Ok(()));
        let twice = check(&[well, share("b", &["gpu-1"], &["/dev/nvidia0"])]);
        let owners = set(&["pod a", "pod b"]);
        assert_eq!(twice, Err(Violation::TwoOwners { device: "/dev/nvidia0".to_owned(), owners }));
    }

    #[test]
    fn a_container_that_gets_other_nodes_than_its_pods_is_found() {
        for nodes in [&[][..], &["/dev/nvidia1"], &["/dev/nvidia0", "/dev/nvidia1"]] {
            let wrong = check(&[share("a", &["gpu-0"], nodes)]);
            let (right, given) = (set(&["/dev/nvidia0"]), set(nodes));
            assert_eq!(wrong, Err(Violation::WrongNodes { pod: "a".to_owned(), right, given }));
        }
    }

    #[test]
    fn the_node_of_a_broken_gpu_may_be_missing_and_no_other() {
        let held = ["gpu-0", "gpu-2"];
        for nodes in [&["/dev/nvidia0"][..], &["/dev/nvidia0", "/dev/nvidia2"]] {
            assert_eq!(check(&[share("a", &held, nodes)]), Ok(()));
        }
        assert!(check(&[share("a", &held, &["/dev/nvidia2"])]).is_err());
    }
}
