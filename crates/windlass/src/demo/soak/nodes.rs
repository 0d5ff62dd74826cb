//! Which device nodes containers get, by what a runtime makes of the agent's answers: those of their GPUs, and no
//! node in two pods. The kubelet's account has no part in it, which only the kubelet can make wrong.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use tokio::time::{Duration, Instant, sleep};
use windlass_kubelet_sim::Grant;

use super::{
    super::runtime,
    agent::cdi_dir,
    hands::{Hand, published_name},
    invariant::Broken,
    rig::GLANCE,
    run::Run,
};

/// What a pod's container gets if it starts now.
#[derive(Clone, Debug)]
struct Share {
    pod: String,
    /// What the pod has, by the names that claims have for it.
    held: BTreeSet<String>,
    nodes: BTreeSet<String>,
}

/// A GPU's node, and whether the GPU can be used.
#[derive(Clone, Debug)]
struct Node {
    path: String,
    is_usable: bool,
}

/// The machine's nodes, by the names that claims have for GPUs.
type Nodes = BTreeMap<String, Node>;

/// How long a document may not be there, or not be right, while nothing is wrong: it is being written.
const WRITING: Duration = Duration::from_secs(2);

// === impl Run ===

impl Run {
    /// A container that has just started has the nodes of these GPUs.
    pub(super) fn has_nodes(
        &self,
        pod: &str,
        (held, grant): (&BTreeSet<String>, &Grant),
    ) -> Result<()> {
        let share = self.share(pod, (held, grant))?;
        let all: Nodes =
            self.nodes()?.into_iter().map(|(name, node)| (name, usable(node))).collect();
        Ok(share.is_right(&all)?)
    }

    /// Each pod's container has the nodes of its GPUs, also if it is started anew, and no other's.
    pub(super) async fn nodes_are_right(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.look_at_nodes() {
                Err(_) if begun.elapsed() < WRITING => sleep(GLANCE).await,
                outcome => return outcome,
            }
        }
    }

    fn look_at_nodes(&self) -> Result<()> {
        let of_pods = self.given.iter().map(|(uid, given)| {
            let held = given.held.iter().map(|id| published_name(id)).collect();
            self.share(uid, (&held, &given.grant))
        });
        let of_claims = self.claims.iter();
        let of_claims =
            of_claims.map(|(uid, claimant)| self.share(uid, (&claimant.devices, &claimant.grant)));
        let shares: Vec<_> = of_pods.chain(of_claims).collect::<Result<_>>()?;
        Ok(are_right(&shares, &self.nodes()?)?)
    }

    /// What a grant comes to. Of a GPU that is broken a document may say nothing.
    fn share(&self, pod: &str, (held, grant): (&BTreeSet<String>, &Grant)) -> Result<Share> {
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

/// No node is in two pods, and each has those of its GPUs.
fn are_right(shares: &[Share], all: &Nodes) -> Result<(), Broken> {
    let mut hands = BTreeMap::<_, BTreeSet<_>>::new();
    for share in shares {
        for node in &share.nodes {
            hands.entry(node).or_default().insert(Hand::Pod(share.pod.clone()).to_string());
        }
    }
    if let Some((node, hands)) = hands.into_iter().find(|(_, hands)| hands.len() > 1) {
        return Err(Broken::TwoHands { device: node.clone(), hands });
    }
    shares.iter().try_for_each(|share| share.is_right(all))
}

// === impl Share ===

impl Share {
    /// Whether the nodes are those of the GPUs; that of a broken one may be missing.
    fn is_right(&self, all: &Nodes) -> Result<(), Broken> {
        let own = || self.held.iter().filter_map(|name| all.get(name));
        let may: BTreeSet<_> = own().map(|node| node.path.clone()).collect();
        let must = own().filter(|node| node.is_usable).map(|node| node.path.clone()).collect();
        if self.nodes.is_subset(&may) && self.nodes.is_superset(&must) {
            return Ok(());
        }
        let (pod, given) = (self.pod.clone(), self.nodes.clone());
        Err(Broken::WrongNodes { pod, right: must, given })
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

    /// GPUs 0 and 1, and 2 which is broken.
    fn check(shares: &[Share]) -> Result<(), Broken> {
        let node = |number: usize| {
            let path = format!("/dev/nvidia{number}");
            (format!("gpu-{number}"), Node { path, is_usable: number < 2 })
        };
        are_right(shares, &(0..3).map(node).collect())
    }

    #[test]
    fn a_node_that_two_containers_get_is_found_whatever_the_kubelet_says() {
        let well = share("a", &["gpu-0"], &["/dev/nvidia0"]);
        assert_eq!(check(&[well.clone(), share("b", &["gpu-1"], &["/dev/nvidia1"])]), Ok(()));
        let twice = check(&[well, share("b", &["gpu-1"], &["/dev/nvidia0"])]);
        let hands = set(&["pod a", "pod b"]);
        assert_eq!(twice, Err(Broken::TwoHands { device: "/dev/nvidia0".to_owned(), hands }));
    }

    #[test]
    fn a_container_that_gets_other_nodes_than_its_pods_is_found() {
        for nodes in [&[][..], &["/dev/nvidia1"], &["/dev/nvidia0", "/dev/nvidia1"]] {
            let wrong = check(&[share("a", &["gpu-0"], nodes)]);
            let (right, given) = (set(&["/dev/nvidia0"]), set(nodes));
            assert_eq!(wrong, Err(Broken::WrongNodes { pod: "a".to_owned(), right, given }));
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
