//! Pods keep running across restarts of the kubelet, crashes of the agent, and faults.

use std::time::Duration;

use crate::cluster::{
    NODE_STATUS_LIMIT, eventually, has_cluster,
    kubelet::{Holdings, allocatable, holdings, restart},
    node::Node,
    plugin_folder_lock,
    pods::{Pods, kubectl, node_status},
};

const GPU: &str = "nvidia.com/gpu";

/// Deadline for the kubelet to learn of a fault.
const FAULT_REPORT_LIMIT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_real_kubelet_runs_pods_through_restarts_crashes_and_faults() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let node = Node::new("dgx-h100", "health: {quietPeriod: 20s, probeInterval: 1s}\n");
    let mut agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, "8".to_owned(), async || node_status("capacity", GPU)).await;
    let mut pods = Pods::new();
    run_pods(&mut pods).await;
    let holdings_before = holdings().await;
    let count = holdings_before.iter().flat_map(Holdings::values).map(Vec::len).sum::<usize>();
    assert_eq!(count, 7, "{holdings_before:?}");

    if restart() {
        eventually(NODE_STATUS_LIMIT, Some(8), async || allocatable(GPU).await).await;
        eventually(NODE_STATUS_LIMIT, holdings_before.clone(), async || holdings().await).await;
    }

    agent.kill();
    eventually(NODE_STATUS_LIMIT, Some(0), async || allocatable(GPU).await).await;
    agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(8), async || allocatable(GPU).await).await;
    assert_eq!(holdings().await, holdings_before, "after the crash of the agent");

    node.inject_fault("xid:79@7");
    let duration = eventually(FAULT_REPORT_LIMIT, Some(7), async || allocatable(GPU).await).await;
    eprintln!("the kubelet learned of the fault after {duration:?}");
    eventually(NODE_STATUS_LIMIT, "7".to_owned(), async || node_status("allocatable", GPU)).await;
    eventually(NODE_STATUS_LIMIT, "8".to_owned(), async || node_status("allocatable", GPU)).await;
    drop(pods);
    drop(agent);
}

/// Runs pods of 1, 2 and 4 GPUs, and checks the devices in their containers.
async fn run_pods(pods: &mut Pods) {
    for gpus in [1, 2, 4] {
        let name = format!("windlass-e2e-{gpus}");
        pods.run(&name, GPU, gpus).await;
        let device_counts = async || {
            let log = kubectl(&["logs", &name]);
            let ids = log.lines().find_map(|line| line.strip_prefix("WINDLASS_NVIDIA_COM_GPU="));
            let id_count = ids.map_or(0, |ids| ids.split(',').count());
            let nodes = log.lines().filter_map(|line| line.rsplit_once(" nvidia"));
            (id_count, nodes.filter(|(_, name)| name.parse::<u32>().is_ok()).count())
        };
        eventually(NODE_STATUS_LIMIT, (gpus, gpus), device_counts).await;
    }
}
