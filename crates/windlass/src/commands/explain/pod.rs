//! `windlass explain --pod`: the recorded choices behind a pod's devices, and today's answers.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde::Serialize;
use windlass_allocations::podresources::{Holder, HoldersByDevice, client};
use windlass_config::Config;
use windlass_core::{
    device::DeviceId,
    replica::{ReplicaId, token_number},
};
use windlass_deviceplugin::history::{self, RecordedChoice};
use windlass_node::PodHoldings;
use windlass_resources::NodeState;

use super::{
    past,
    placement_request::PlacementRequest,
    report::{Outcome, Report, ResourceAnswer, answer_request},
    request::ExplainRequest,
    shares::{ShareInUse, shares_in_use},
    show,
};
use crate::{
    cli::{OutputArg, PodName},
    commands::{Origin, print_origin_notice, print_output, short_name},
    screen::{Paint, Style, print_line},
};

/// Output in JSON and YAML.
#[derive(Serialize)]
struct PodDocument<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    pod: String,
    /// Shares of GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<ShareInUse>,
    containers: Vec<ContainerDevices<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerDevices<'a> {
    container: String,
    resource: String,
    ids: BTreeSet<String>,
    /// Newest recorded choice of exactly these devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<RecordedAnswer<'a>>,
}

/// Recorded choice with today's answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordedAnswer<'a> {
    at: Timestamp,
    /// Uncertainty about the choice.
    caveat: &'static str,
    /// Reason why today's answer differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// Answer to the same request today.
    today: Report<'a, PlacementRequest, ResourceAnswer>,
}

/// Caveat of a recorded choice. The kubelet requests no preference without alternatives, so the choice may belong to an
/// earlier pod.
const EARLIER_POD_CAVEAT: &str = "an earlier pod's, if the kubelet had no alternative for this one";

/// Reason for a missing choice. The kubelet requests a preference only if there are alternatives, and the agent keeps
/// only the newest choices.
const NO_RECORDED_CHOICE: &str =
    "no recorded choice: the kubelet had no alternative, or the record has expired";

pub(super) async fn run(config: &Config, pod: &PodName, output: OutputArg) -> Result<()> {
    let node_pods = client::pods(&config.places.kubelet_dir).await;
    let node_pods = node_pods
        .context("cannot read the devices of the pod (--kubelet-dir names its kubelet's folder)")?;
    let claims = client::pods_by_claim(&node_pods).into_iter();
    let pod_claims = claims
        .filter(|((namespace, _), pods)| *namespace == pod.namespace && pods.contains(&pod.name));
    let claims: BTreeSet<_> = pod_claims.map(|((_, name), _)| name).collect();
    let holders = client::holders_by_device(node_pods);
    let devices = holdings(&holders, pod);
    let has_any = !devices.is_empty() || !claims.is_empty();
    ensure!(has_any, "{pod} has no device of this node; {}", pods(&holders));
    let PodName { namespace, name } = pod.clone();
    let holdings = PodHoldings { namespace, name, devices, claims };
    let choices = history::read(&config.places.state_dir)?;
    let (node, shares) = shares_in_use(config, &holdings).await?;
    let container_devices = |((container, resource), ids): ((String, String), BTreeSet<String>)| {
        let has_same_devices = |choice: &&RecordedChoice| {
            choice.resource.as_str() == resource && ids_of(choice) == ids
        };
        let past =
            choices.iter().find(has_same_devices).map(|choice| RecordedAnswer::of(&node, choice));
        ContainerDevices { container, resource, ids, past }
    };
    let origin = Origin::of(&node.inventory);
    let containers = holdings.devices.into_iter().map(container_devices).collect();
    let document = PodDocument { origin, pod: pod.to_string(), shares, containers };
    print_output(output, &document, || document.table(&node))?;
    let is_past = document.containers.iter().any(|container| container.past.is_some());
    let is_explained = is_past || !document.shares.is_empty();
    ensure!(
        is_explained,
        "{pod}: {NO_RECORDED_CHOICE}; searched {}",
        config.places.state_dir.display()
    );
    Ok(())
}

fn ids_of(choice: &RecordedChoice) -> BTreeSet<String> {
    choice.chosen().into_iter().collect()
}

/// Device ids of a pod, by container and resource.
fn holdings(
    holders: &HoldersByDevice,
    pod: &PodName,
) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut holdings: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (device, holders) in holders {
        let is_of_pod =
            |holder: &&Holder| holder.namespace == pod.namespace && holder.pod == pod.name;
        for Holder { container, resource, replica, .. } in holders.iter().filter(is_of_pod) {
            let id = match replica {
                Some(number) => ReplicaId { device: device.clone(), number: *number }.to_string(),
                None => device.to_string(),
            };
            holdings.entry((container.clone(), resource.clone())).or_default().insert(id);
        }
    }
    holdings
}

/// Names of the pods that hold devices, as a clause.
fn pods(holders: &HoldersByDevice) -> String {
    let pods =
        holders.values().flatten().map(|holder| format!("{}/{}", holder.namespace, holder.pod));
    let pods: Vec<_> = pods.collect::<BTreeSet<_>>().into_iter().collect();
    match pods.as_slice() {
        [] => "no pod has".to_owned(),
        [pod] => format!("{pod} has"),
        pods => format!("{} have", pods.join(", ")),
    }
}

/// Names of devices and replicas in the order of the inventory, missing devices last. Tokens of a pool have no names:
/// the text is their number.
fn device_names(node: &NodeState, ids: &BTreeSet<String>) -> String {
    let tokens = ids.iter().filter(|id| token_number(id).is_some()).count();
    if tokens > 0 {
        return format!("{tokens} units");
    }
    let split = |id| match ReplicaId::split(id) {
        Some((device, number)) => (device, Some(number)),
        None => (id, None),
    };
    let mut parts: Vec<_> = ids.iter().map(|id| split(id)).collect();
    let position = |device: &str| node.topology.position(device).unwrap_or(usize::MAX);
    parts.sort_by_key(|&(device, number)| (position(device), device, number));
    let name = |id: &str| node.inventory.get(id).map_or_else(|| id.to_owned(), short_name);
    let names = parts.into_iter().map(|(device, number)| match number {
        Some(number) => format!("{}::{number}", name(device)),
        None => name(device),
    });
    names.collect::<Vec<_>>().join(" ")
}

// === impl PodDocument ===

impl PodDocument<'_> {
    fn table(&self, node: &NodeState) -> Result<()> {
        let paint = Paint::for_stdout();
        print_origin_notice(&node.inventory, paint)?;
        for share in &self.shares {
            print_line(
                paint.styled(Style::Heading, format!("{}, {}", self.pod, share.title(node))),
            )?;
            share.lines().into_iter().try_for_each(print_line)?;
        }
        for (nth, ContainerDevices { container, resource, ids, past }) in
            self.containers.iter().enumerate()
        {
            if nth > 0 || !self.shares.is_empty() || !node.inventory.is_real() {
                print_line("")?;
            }
            let title = format!(
                "{}, container {container}, {resource}: {}",
                self.pod,
                device_names(node, ids)
            );
            print_line(paint.styled(Style::Heading, title))?;
            match past {
                None if ids.iter().any(|id| token_number(id).is_some()) => {}
                None => print_line(format!("  {NO_RECORDED_CHOICE}"))?,
                Some(past) => past.lines(paint).into_iter().try_for_each(print_line)?,
            }
        }
        Ok(())
    }
}

// === impl RecordedAnswer ===

impl<'a> RecordedAnswer<'a> {
    fn of(node: &'a NodeState, choice: &RecordedChoice) -> Self {
        let request = ExplainRequest {
            request: PlacementRequest::of(choice),
            unavailable: Vec::new(),
            caveat: None,
            refusal: None,
        };
        let today = answer_request(node, request);
        Self { at: choice.at, caveat: EARLIER_POD_CAVEAT, change: change(choice, &today), today }
    }

    fn lines(&self, paint: Paint) -> Vec<String> {
        let change = match &self.change {
            None => "today's answer is the same".to_owned(),
            Some(change) => {
                paint.styled(Style::Warning, format!("today's answer differs: {change}"))
            }
        };
        let at = past::whole_seconds(self.at);
        let newest = format!("  newest choice of exactly these devices, at {at}; {}", self.caveat);
        let mut lines = vec![newest, format!("  {change}"), String::new()];
        lines.extend(show::lines(&self.today, paint));
        lines
    }
}

/// Reason why today's answer differs.
fn change(
    choice: &RecordedChoice,
    today: &Report<'_, PlacementRequest, ResourceAnswer>,
) -> Option<String> {
    let is_missing = |id: &&DeviceId| today.node.inventory.get(id.as_str()).is_none();
    let missing = today.question.candidates.devices().into_iter().filter(is_missing);
    let missing: Vec<_> = missing.map(DeviceId::as_str).collect();
    match &today.outcome {
        Outcome::Answered(answer) if answer.explanation.ids() == ids_of(choice) => None,
        _ if !missing.is_empty() => Some(format!("gone since: {}", missing.join(" "))),
        Outcome::Refused(reason) => Some(reason.clone()),
        Outcome::Answered(_) => Some("topology or placement rules have changed since".to_owned()),
    }
}
