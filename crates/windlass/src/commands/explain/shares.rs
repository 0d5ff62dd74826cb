//! A pod's shares of GPUs, with the memory that its processes use.

use anyhow::Result;
use serde::Serialize;
use windlass_config::Config;
use windlass_core::enforcement::Enforcement;
use windlass_host::causes;
use windlass_node::{PodHoldings, PodShare, ShareKind, agent, shares_of};
use windlass_resources::NodeState;

use crate::commands::{clock, require_sources, short_name};

/// Share of a GPU, with the memory that the pod's processes use.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShareInUse {
    #[serde(flatten)]
    share: PodShare,
    /// Memory in use, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_mib: Option<u64>,
    /// Reason why the memory in use is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    use_unknown: Option<String>,
}

/// Reasons why the memory in use is unknown.
const NO_DRIVER: &str = "no NVIDIA driver answers on this host: run windlass on the pod's node";
const NO_POD: &str = "the kubelet's checkpoint does not identify the pod";

const MIB: u64 = 1 << 20;

/// Scans the node, and measures the pod's shares of its GPUs.
pub(super) async fn shares_in_use(
    config: &Config,
    pod: &PodHoldings,
) -> Result<(NodeState, Vec<ShareInUse>)> {
    let mut shares = Vec::new();
    let devices = |node: &NodeState| {
        shares = shares_of(&config.places, node, pod);
        shares.iter().map(|share| share.device.clone()).collect()
    };
    let (node, in_use) = Box::pin(agent::scan_host_with_processes(config, clock(), devices)).await;
    require_sources(&node.inventory)?;
    let share_in_use = |share: PodShare| match in_use.get(&share.device) {
        Some(Ok(_)) if share.pod_uids.is_empty() => {
            ShareInUse { share, used_mib: None, use_unknown: Some(NO_POD.to_owned()) }
        }
        Some(Ok(processes)) => {
            let pod_processes =
                processes.iter().filter(|process| share.pod_uids.contains(&process.container.pod));
            let used = pod_processes.map(|process| process.memory_bytes).sum::<u64>() / MIB;
            ShareInUse { share, used_mib: Some(used), use_unknown: None }
        }
        Some(Err(error)) => ShareInUse { share, used_mib: None, use_unknown: Some(causes(error)) },
        None => ShareInUse { share, used_mib: None, use_unknown: Some(NO_DRIVER.to_owned()) },
    };
    let shares = shares.into_iter().map(share_in_use).collect();
    Ok((node, shares))
}

// === impl ShareInUse ===

impl ShareInUse {
    pub(super) fn title(&self, node: &NodeState) -> String {
        let id = self.share.device.as_str();
        let gpu = node.inventory.get(id).map_or_else(|| id.to_owned(), short_name);
        match &self.share.by {
            ShareKind::Amounts => format!("share of {gpu} ({id})"),
            ShareKind::Replicas(1) => format!("replica of {gpu} ({id})"),
            ShareKind::Replicas(count) => format!("{count} replicas of {gpu} ({id})"),
            ShareKind::Claim(name) => format!("claim {name}, share of {gpu} ({id})"),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let PodShare { memory_mib, of_mib, compute_percent, enforcement, .. } = &self.share;
        let used = match (&self.used_mib, &self.use_unknown) {
            (Some(used), _) => format!("{used} MiB in use"),
            (None, reason) => format!("use unknown: {}", reason.as_deref().unwrap_or_default()),
        };
        let memory = match memory_mib {
            0 => format!("  memory: none requested; {used}"),
            _ => {
                format!(
                    "  memory: {memory_mib} of {of_mib} MiB, enforcement: {enforcement}; {used}"
                )
            }
        };
        let compute = match (compute_percent, enforcement) {
            (0, _) => "none requested".to_owned(),
            (percent, Enforcement::Mps) => format!("{percent} %, enforced by the MPS daemon"),
            (percent, _) => format!("{percent} % reserved, not enforced"),
        };
        vec![memory, format!("  compute: {compute}")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_share_has_its_amounts_their_enforcement_and_their_use() {
        let share = PodShare {
            device: "GPU-a".parse().expect("an id"),
            by: ShareKind::Amounts,
            pod_uids: ["u".to_owned()].into(),
            memory_mib: 8192,
            of_mib: 81_559,
            compute_percent: 50,
            enforcement: Enforcement::Driver,
        };
        let mut share_in_use = ShareInUse { share, used_mib: Some(5000), use_unknown: None };
        assert_eq!(share_in_use.title(&NodeState::default()), "share of GPU-a (GPU-a)");
        let memory = "  memory: 8192 of 81559 MiB, enforcement: driver; 5000 MiB in use";
        let compute = "  compute: 50 % reserved, not enforced";
        assert_eq!(share_in_use.lines(), [memory, compute]);
        share_in_use.share.by = ShareKind::Replicas(2);
        assert_eq!(share_in_use.title(&NodeState::default()), "2 replicas of GPU-a (GPU-a)");
        share_in_use.share.by = ShareKind::Claim("c".to_owned());
        share_in_use.share.enforcement = Enforcement::Mps;
        assert_eq!(share_in_use.title(&NodeState::default()), "claim c, share of GPU-a (GPU-a)");
        assert_eq!(share_in_use.lines()[1], "  compute: 50 %, enforced by the MPS daemon");
        share_in_use.share.memory_mib = 0;
        (share_in_use.used_mib, share_in_use.use_unknown) = (None, Some("it hangs".to_owned()));
        assert_eq!(share_in_use.lines()[0], "  memory: none requested; use unknown: it hangs");
    }
}
