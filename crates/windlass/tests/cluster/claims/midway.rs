//! An agent that is killed after it began to prepare a claim and before it told the kubelet that it is done.

use std::fs;

use super::{
    objects::{objects, pod},
    rig::{Rig, look_again, until_it_runs},
};
use crate::cluster::{
    NODE_STATUS, eventually,
    pods::{Manifests, Pods},
};

/// The first time, the cleanup step kills the agent, which waits for it with the kubelet's call open.
fn killed_by_its_own_step(once: &str) -> String {
    let script = format!("mkdir {once} && kill -9 $PPID || test -d {once}");
    format!(
        "dra: {{offer: instead}}\n\
         gpu: {{prepare: [{{command: [/bin/sh, -c, '{script}'], timeout: 10s}}]}}\n"
    )
}

#[tokio::test]
async fn a_claim_that_an_agent_died_over_is_finished_by_the_next_and_has_one_owner() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let once = folder.path().join("killed");
    let config = killed_by_its_own_step(&once.display().to_string());
    let Some(mut rig) = Rig::start("dgx-h100", &config) else { return };
    rig.published(16).await;
    let manifests = Manifests::apply(&objects());
    let mut pods = Pods::none();
    let name = "windlass-e2e-midway";
    pods.apply(name, &pod(name, 2));
    eventually(NODE_STATUS, true, async || rig.agent.end().is_some()).await;
    assert!(fs::exists(&once).expect("readable"), "it was killed by the step");
    assert!(rig.node.state("claims.json").contains("PrepareStarted"), "begun, and not done");
    let begun = rig.owners().await;
    assert_eq!(begun.values().map(Vec::len).collect::<Vec<_>>(), [2]);

    rig.agent = rig.node.agent();
    rig.published(16).await;
    look_again(&[name]);
    until_it_runs("default", name).await;
    assert_eq!(rig.owners().await, begun, "the same devices");
    assert!(!rig.node.state("claims.json").contains("PrepareStarted"), "done");
    drop(pods);
    rig.nothing_is_held().await;
    drop(manifests);
}
