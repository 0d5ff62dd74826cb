//! A hundred pods at once, each of which has a GPU for a moment, while the agent is killed.

use std::time::{Duration, Instant};

use super::{
    objects::objects,
    rig::{Rig, look_again},
    spans::{Logs, Short, Way, at_once},
};
use crate::cluster::{
    eventually,
    pods::{Manifests, apply, kubectl},
};

const PODS: usize = 100;

/// All of them, on eight GPUs.
const BURST: Duration = Duration::from_secs(240);

/// Kills of the agent during the burst.
const KILLS: usize = 4;

fn done(logs: &Logs) -> usize {
    let phases = ["get", "pods", "-l", &logs.label, "-o", "jsonpath={.items[*].status.phase}"];
    kubectl(&phases).matches("Succeeded").count()
}

#[tokio::test]
async fn a_burst_of_pods_is_served_while_the_agent_is_killed_again_and_again() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    rig.published(16).await;
    let manifests = Manifests::apply(&objects());
    let logs = Logs::on(&rig.node, "burst");
    let short =
        |n| Short { name: format!("windlass-e2e-burst-{n}"), way: Way::Claim, gpus: 1, tenths: 5 };
    let begun = Instant::now();
    apply(&(0..PODS).map(|n| logs.pod(&short(n))).collect::<Vec<_>>().join("---\n"));
    for kill in 1..=KILLS {
        eventually(BURST, true, async || done(&logs) >= PODS * kill / (KILLS + 1)).await;
        rig.replace_agent();
        rig.published(16).await;
        look_again(&["-l", &logs.label]);
    }
    eventually(BURST, PODS, async || done(&logs)).await;
    eprintln!("{PODS} pods had a GPU each within {:?}, with {KILLS} kills", begun.elapsed());
    let spans = logs.spans();
    assert_eq!(spans.len(), PODS, "each had one GPU");
    assert_eq!(at_once(&spans), [], "a GPU had two owners");
    drop(logs);
    rig.nothing_is_held().await;
    drop(manifests);
}
