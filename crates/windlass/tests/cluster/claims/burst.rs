//! A hundred pods at once, each with a GPU for half a second, while the agent is killed repeatedly.

use std::time::{Duration, Instant};

use super::{
    objects::objects,
    rig::{Rig, trigger_sync},
    spans::{AllocationApi, Logs, ShortPod, overlapping_pairs},
};
use crate::cluster::{
    eventually,
    pods::{Manifests, apply, kubectl},
};

const PODS: usize = 100;

/// Deadline for all pods, on eight GPUs.
const BURST_LIMIT: Duration = Duration::from_secs(240);

/// Number of kills of the agent during the burst.
const KILLS: usize = 4;

fn succeeded_count(logs: &Logs) -> usize {
    let phases = ["get", "pods", "-l", &logs.label, "-o", "jsonpath={.items[*].status.phase}"];
    kubectl(&phases).matches("Succeeded").count()
}

#[tokio::test]
async fn a_burst_of_pods_is_served_while_the_agent_is_killed_repeatedly() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    rig.wait_for_published(16).await;
    let manifests = Manifests::apply(&objects());
    let logs = Logs::on(&rig.node, "burst");
    let short_pod = |number| ShortPod {
        name: format!("windlass-e2e-burst-{number}"),
        api: AllocationApi::Claim,
        gpus: 1,
        duration_tenths: 5,
    };
    let start = Instant::now();
    apply(&(0..PODS).map(|number| logs.pod(&short_pod(number))).collect::<Vec<_>>().join("---\n"));
    for kill in 1..=KILLS {
        eventually(BURST_LIMIT, true, async || succeeded_count(&logs) >= PODS * kill / (KILLS + 1))
            .await;
        rig.replace_agent();
        rig.wait_for_published(16).await;
        trigger_sync(&["-l", &logs.label]);
    }
    eventually(BURST_LIMIT, PODS, async || succeeded_count(&logs)).await;
    eprintln!("{PODS} pods had a GPU each within {:?}, with {KILLS} kills", start.elapsed());
    let spans = logs.spans();
    assert_eq!(spans.len(), PODS, "each had one GPU");
    assert_eq!(overlapping_pairs(&spans), [], "a GPU had two owners");
    drop(logs);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
