//! An agent that is killed during the preparation of a claim.

use std::fs;

use super::{
    objects::{objects, pod},
    rig::{Rig, trigger_sync, wait_for_running},
};
use crate::cluster::{
    NODE_STATUS_LIMIT, eventually,
    pods::{Manifests, Pods},
};

/// Configuration with a preparation step that kills the agent once, while the kubelet waits for the agent's answer. The
/// folder `marker` exists afterwards.
fn config_that_kills_the_agent(marker: &str) -> String {
    let script = format!("mkdir {marker} && kill -9 $PPID || test -d {marker}");
    format!(
        "dra: {{offer: instead}}\n\
         gpu: {{prepare: [{{command: [/bin/sh, -c, '{script}'], timeout: 10s}}]}}\n"
    )
}

#[tokio::test]
async fn a_restarted_agent_completes_an_interrupted_claim_preparation() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let marker = folder.path().join("killed");
    let config = config_that_kills_the_agent(&marker.display().to_string());
    let Some(mut rig) = Rig::start("dgx-h100", &config) else { return };
    rig.wait_for_published(16).await;
    let manifests = Manifests::apply(&objects());
    let mut pods = Pods::new();
    let name = "windlass-e2e-midway";
    pods.apply(name, &pod(name, 2));
    eventually(NODE_STATUS_LIMIT, true, async || rig.agent.try_wait().is_some()).await;
    assert!(fs::exists(&marker).expect("readable"), "the agent ended before the step killed it");
    assert!(
        rig.node.state("claims.json").contains("PrepareStarted"),
        "the record lacks the started preparation"
    );
    let owners = rig.owners().await;
    assert_eq!(owners.values().map(Vec::len).collect::<Vec<_>>(), [2]);

    rig.agent = rig.node.start_agent();
    rig.wait_for_published(16).await;
    trigger_sync(&[name]);
    wait_for_running("default", name).await;
    assert_eq!(rig.owners().await, owners, "the claim has other devices");
    assert!(
        !rig.node.state("claims.json").contains("PrepareStarted"),
        "the preparation has not ended"
    );
    drop(pods);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
