//! Both ways at once: pods of the device plugin and pods with claims come and go at random on the same GPUs,
//! while agent, kubelet and slices are taken away under them. No GPU that a claim has is ever in other hands.
//!
//! Nobody is asked for the owners meanwhile: a kubelet 1.36 that is asked over pod resources while it allocates
//! may forget that allocation, and give the device to a second container of the device plugin.

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use super::{
    LET_GO,
    objects::objects,
    rig::{Rig, look_again},
    rng::Rng,
    spans::{Logs, Short, Span, Way, at_once},
};
use crate::cluster::{
    eventually,
    kubelet::restart,
    pods::{Manifests, apply, kubectl, try_kubectl},
};

/// For how long pods come and go, in seconds.
const SECONDS: &str = "WINDLASS_E2E_SECONDS";

const DEFAULT: Duration = Duration::from_secs(60);

/// The names of the device plugin's pods begin so. Which of them gets what the kubelet alone decides.
const BY_PLUGIN: &str = "windlass-e2e-plugin-";

/// Number of simultaneous pods, more than eight GPUs can serve.
const PODS: usize = 14;

/// Number of pods that are created at once.
const BATCH: usize = 6;

/// Faults in turn, with their interval.
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

// === impl Trouble ===

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

fn drawn(rng: &mut Rng, number: usize) -> Short {
    let way = if rng.below(2) == 0 { Way::Plugin } else { Way::Claim };
    let gpus = [1, 1, 2, 3][rng.below(4)];
    let name = match way {
        Way::Plugin => format!("{BY_PLUGIN}{number}"),
        Way::Claim => format!("windlass-e2e-claim-{number}"),
    };
    Short { name, way, gpus, tenths: 5 + rng.below(45) as u64 }
}

fn duration() -> Duration {
    let seconds = env::var(SECONDS).ok();
    seconds.map_or(DEFAULT, |text| Duration::from_secs(text.parse().expect("seconds")))
}

/// Pods that live, by name; those that have ended are deleted.
fn living(logs: &Logs) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.phase}{\"\\n\"}{end}";
    let listed = kubectl(&["get", "pods", "-l", &logs.label, "-o", path]);
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

/// Fills up what lives with new pods, and gives how many were made.
fn fill_up(living: usize, logs: &Logs, made: usize, rng: &mut Rng) -> usize {
    let more = PODS.saturating_sub(living).min(BATCH);
    let pods: Vec<_> = (made..made + more).map(|n| logs.pod(&drawn(rng, n))).collect();
    if !pods.is_empty() {
        apply(&pods.join("---\n"));
    }
    more
}

#[tokio::test]
async fn what_a_claim_has_is_never_in_other_hands_beside_the_device_plugin() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.published(16).await;
    let manifests = Manifests::apply(&objects());
    let logs = Logs::on(&rig.node, "beside");
    let (mut rng, mut made, begun) = (Rng::new(6), 0, Instant::now());
    let mut troubles = TROUBLES.into_iter().cycle().zip(1..).peekable();
    while begun.elapsed() < duration() {
        let living = living(&logs);
        made += fill_up(living.len(), &logs, made, &mut rng);
        let due = |(_, number): &(Trouble, u32)| begun.elapsed() > BETWEEN * *number;
        if let Some((trouble, _)) = troubles.next_if(due) {
            look_again(&["-l", &logs.label]);
            trouble.befall(&mut rig, living.first());
        }
    }
    rig.published(16).await;
    look_again(&["-l", &logs.label]);
    eventually(LET_GO, 0, async || living(&logs).len()).await;
    let spans = logs.spans();
    let ran = spans.iter().map(|span| &span.pod).collect::<BTreeSet<_>>().len();
    eprintln!("{ran} of {made} pods ran, and had {} GPUs in all", spans.len());
    let is_plugins = |span: &Span| span.pod.starts_with(BY_PLUGIN);
    let (by_kubelet, ours): (Vec<_>, Vec<_>) =
        at_once(&spans).into_iter().partition(|(one, other)| is_plugins(one) && is_plugins(other));
    eprintln!("the kubelet gave away twice: {by_kubelet:?}");
    assert_eq!(ours, [], "a claim's GPU was in other hands");
    assert!(ran > made / 2, "the others were refused, or deleted before they ran");
    drop(logs);
    rig.nothing_is_held().await;
    drop(manifests);
}
