//! Both allocation APIs at once: random pods of the device plugin and with claims use the same GPUs, while agent,
//! kubelet and slices are restarted or deleted. A GPU of a claim never has another owner.
//!
//! The test does not query the owners while pods start: a kubelet 1.36 that answers pod resources during an allocation
//! may forget that allocation, and give the device to a second container of the device plugin.

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, Instant},
};

use super::{
    RELEASE_LIMIT,
    objects::objects,
    rig::{Rig, trigger_sync},
    rng::Rng,
    spans::{AllocationApi, Logs, ShortPod, Span, overlapping_pairs},
};
use crate::cluster::{
    eventually,
    kubelet::restart,
    pods::{Manifests, apply, kubectl, try_kubectl},
};

/// Variable with the duration of the test, in seconds.
const DURATION_VARIABLE: &str = "WINDLASS_E2E_SECONDS";

const DEFAULT_DURATION: Duration = Duration::from_secs(60);

/// Name prefix of the device plugin's pods. The kubelet alone chooses their devices.
const PLUGIN_PREFIX: &str = "windlass-e2e-plugin-";

/// Number of simultaneous pods, more than eight GPUs can serve.
const PODS: usize = 14;

/// Number of pods that are created at once.
const BATCH: usize = 6;

/// Disruptions in turn, and their interval.
const DISRUPTIONS: [Disruption; 6] = [
    Disruption::AgentKilled,
    Disruption::PodForceDeleted,
    Disruption::SlicesDeleted,
    Disruption::AgentKilled,
    Disruption::PodForceDeleted,
    Disruption::KubeletRestarted,
];
const INTERVAL: Duration = Duration::from_secs(6);

#[derive(Clone, Copy)]
enum Disruption {
    AgentKilled,
    PodForceDeleted,
    SlicesDeleted,
    KubeletRestarted,
}

// === impl Disruption ===

impl Disruption {
    fn apply_to(self, rig: &mut Rig, victim: Option<&String>) {
        match (self, victim) {
            (Self::AgentKilled, _) => rig.replace_agent(),
            (Self::SlicesDeleted, _) => drop(kubectl(&["delete", "resourceslices", "--all"])),
            (Self::KubeletRestarted, _) => drop(restart()),
            // The pod may have ended.
            (Self::PodForceDeleted, Some(pod)) => {
                drop(try_kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]));
            }
            (Self::PodForceDeleted, None) => {}
        }
    }
}

fn random_pod(rng: &mut Rng, number: usize) -> ShortPod {
    let api = if rng.below(2) == 0 { AllocationApi::Plugin } else { AllocationApi::Claim };
    let gpus = [1, 1, 2, 3][rng.below(4)];
    let name = match api {
        AllocationApi::Plugin => format!("{PLUGIN_PREFIX}{number}"),
        AllocationApi::Claim => format!("windlass-e2e-claim-{number}"),
    };
    ShortPod { name, api, gpus, duration_tenths: 5 + rng.below(45) as u64 }
}

fn duration() -> Duration {
    let seconds = env::var(DURATION_VARIABLE).ok();
    seconds.map_or(DEFAULT_DURATION, |text| Duration::from_secs(text.parse().expect("seconds")))
}

/// Deletes the pods that have ended, and returns the names of the others.
fn running_pods(logs: &Logs) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.phase}{\"\\n\"}{end}";
    let listed = kubectl(&["get", "pods", "-l", &logs.label, "-o", path]);
    let lines = listed.lines().filter_map(|line| line.split_once(' '));
    let (ended_pods, running_pods): (Vec<_>, Vec<_>) =
        lines.partition(|(_, phase)| ["Succeeded", "Failed"].contains(phase));
    if !ended_pods.is_empty() {
        let names = ended_pods.iter().map(|(name, _)| *name);
        let command = ["delete", "pod", "--now", "--wait=false", "--ignore-not-found"];
        kubectl(&command.into_iter().chain(names).collect::<Vec<_>>());
    }
    running_pods.into_iter().map(|(name, _)| name.to_owned()).collect()
}

/// Creates pods up to `PODS`, and at most `BATCH`. Returns the number of new pods.
fn create_missing_pods(
    running_count: usize,
    logs: &Logs,
    created_count: usize,
    rng: &mut Rng,
) -> usize {
    let missing = PODS.saturating_sub(running_count).min(BATCH);
    let pods: Vec<_> = (created_count..created_count + missing)
        .map(|number| logs.pod(&random_pod(rng, number)))
        .collect();
    if !pods.is_empty() {
        apply(&pods.join("---\n"));
    }
    missing
}

#[tokio::test]
async fn a_claimed_gpu_never_has_another_owner_beside_the_device_plugin() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.wait_for_published(16).await;
    let manifests = Manifests::apply(&objects());
    let logs = Logs::on(&rig.node, "beside");
    let (mut rng, mut created_count, start) = (Rng::new(6), 0, Instant::now());
    let mut disruptions = DISRUPTIONS.into_iter().cycle().zip(1..).peekable();
    while start.elapsed() < duration() {
        let running_names = running_pods(&logs);
        created_count += create_missing_pods(running_names.len(), &logs, created_count, &mut rng);
        let is_due = |(_, number): &(Disruption, u32)| start.elapsed() > INTERVAL * *number;
        if let Some((disruption, _)) = disruptions.next_if(is_due) {
            trigger_sync(&["-l", &logs.label]);
            disruption.apply_to(&mut rig, running_names.first());
        }
    }
    rig.wait_for_published(16).await;
    trigger_sync(&["-l", &logs.label]);
    eventually(RELEASE_LIMIT, 0, async || running_pods(&logs).len()).await;
    let spans = logs.spans();
    let ran_count = spans.iter().map(|span| &span.pod).collect::<BTreeSet<_>>().len();
    eprintln!("{ran_count} of {created_count} pods ran, and had {} GPUs in all", spans.len());
    let is_of_plugin = |span: &Span| span.pod.starts_with(PLUGIN_PREFIX);
    let (kubelet_overlaps, claim_overlaps): (Vec<_>, Vec<_>) = overlapping_pairs(&spans)
        .into_iter()
        .partition(|(first, second)| is_of_plugin(first) && is_of_plugin(second));
    eprintln!("allocated twice by the kubelet: {kubelet_overlaps:?}");
    assert_eq!(claim_overlaps, [], "a GPU of a claim had another owner");
    assert!(ran_count > created_count / 2, "most pods were refused, or deleted before they ran");
    drop(logs);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
