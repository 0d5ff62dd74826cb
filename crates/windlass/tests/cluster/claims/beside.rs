//! Both ways at once: pods of the device plugin and pods with claims come and go at random on the same GPUs,
//! while agent, kubelet and slices are taken away under them. No GPU is ever in two hands.

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use super::{
    LET_GO,
    objects::objects,
    owners::in_two_hands,
    rig::{Rig, look_again},
    spans::{APP, Logs, Short, Way, at_once},
};
use crate::{
    eventually, has_cluster,
    kubelet::restart,
    pods::{Manifests, apply, kubectl, try_kubectl},
};

/// For how long pods come and go, in seconds.
const SECONDS: &str = "WINDLASS_E2E_SECONDS";

const DEFAULT: Duration = Duration::from_secs(60);

/// How many pods there are at once: more than eight GPUs are enough for.
const PODS: usize = 14;

/// How many are made at once.
const BATCH: usize = 6;

/// What is done to them, in turn, and how long after each other.
const TROUBLES: [Trouble; 6] = [
    Trouble::AgentKilled,
    Trouble::PodForced,
    Trouble::SlicesDeleted,
    Trouble::AgentKilled,
    Trouble::PodForced,
    Trouble::KubeletRestarted,
];
const BETWEEN: Duration = Duration::from_secs(6);

#[derive(Clone, Copy)]
enum Trouble {
    AgentKilled,
    PodForced,
    SlicesDeleted,
    KubeletRestarted,
}

/// Numbers that are the same at every run (splitmix64).
struct Random(u64);

// === impl Random ===

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
            mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
        }
        (mixed ^ (mixed >> 31)) % limit
    }

    fn pod(&mut self, number: usize) -> Short {
        let way = if self.below(2) == 0 { Way::Plugin } else { Way::Claim };
        let gpus = [1, 1, 2, 3][usize::try_from(self.below(4)).expect("small")];
        let name = format!("windlass-e2e-short-{number}");
        Short { name, way, gpus, tenths: 5 + self.below(45) }
    }
}

fn duration() -> Duration {
    let seconds = env::var(SECONDS).ok();
    seconds.map_or(DEFAULT, |text| Duration::from_secs(text.parse().expect("seconds")))
}

/// Pods that live, by name; those that have ended are deleted.
fn living() -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.phase}{\"\\n\"}{end}";
    let listed = kubectl(&["get", "pods", "-l", APP, "-o", path]);
    let lines = listed.lines().filter_map(|line| line.split_once(' '));
    let (ended, living): (Vec<_>, Vec<_>) =
        lines.partition(|(_, phase)| ["Succeeded", "Failed"].contains(phase));
    if !ended.is_empty() {
        let names = ended.iter().map(|(name, _)| *name);
        let how = ["delete", "pod", "--now", "--wait=false", "--ignore-not-found"];
        kubectl(&how.into_iter().chain(names).collect::<Vec<_>>());
    }
    living.into_iter().map(|(name, _)| name.to_owned()).collect()
}

impl Trouble {
    fn befall(self, rig: &mut Rig, victim: Option<&String>) {
        match (self, victim) {
            (Self::AgentKilled, _) => rig.replace_agent(),
            (Self::SlicesDeleted, _) => drop(kubectl(&["delete", "resourceslices", "--all"])),
            (Self::KubeletRestarted, _) => drop(restart()),
            // It may have ended by now.
            (Self::PodForced, Some(pod)) => {
                drop(try_kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]));
            }
            (Self::PodForced, None) => {}
        }
    }
}

#[tokio::test]
async fn device_plugin_and_claims_side_by_side_never_have_one_gpu_at_once() {
    if !has_cluster() {
        return;
    }
    let mut rig = Rig::start("dgx-h100", "dra: {offer: beside}\n").expect("a cluster");
    rig.published(16).await;
    let manifests = Manifests::apply(&objects());
    let logs = Logs::on(&rig.node);
    let (mut random, mut made, begun) = (Random(6), 0, Instant::now());
    let mut troubles = TROUBLES.into_iter().cycle().zip(1..);
    let mut next = troubles.next().expect("endless");
    while begun.elapsed() < duration() {
        let living = living();
        let more = (0..PODS.saturating_sub(living.len()).min(BATCH)).map(|n| made + n);
        let pods: Vec<_> = more.map(|number| logs.pod(&random.pod(number))).collect();
        made += pods.len();
        if !pods.is_empty() {
            apply(&pods.join("---\n"));
        }
        if begun.elapsed() > BETWEEN * next.1 {
            look_again(&["-l", APP]);
            next.0.befall(&mut rig, living.first());
            next = troubles.next().expect("endless");
        }
        assert_eq!(in_two_hands(&rig.node), Vec::<String>::new());
    }
    rig.published(16).await;
    look_again(&["-l", APP]);
    eventually(LET_GO, 0, async || living().len()).await;
    let spans = logs.spans();
    let ran = spans.iter().map(|span| &span.pod).collect::<BTreeSet<_>>().len();
    eprintln!("{ran} of {made} pods ran, {} hand-outs, {} troubles", spans.len(), next.1 - 1);
    assert_eq!(at_once(&spans), [], "a GPU was in two hands");
    assert!(ran > made / 2, "the others were refused, or deleted before they ran");
    kubectl(&["delete", "pod", "--now", "--ignore-not-found", "-l", APP]);
    rig.nothing_is_held().await;
    drop(manifests);
}
