//! `windlass explain --pod`: what its containers have, by the choices that are remembered, and what they
//! would get today.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde::Serialize;
use windlass_allocations::podresources::{self, ByDevice, Holder};
use windlass_config::Config;
use windlass_core::{device::DeviceId, replica::ReplicaId};
use windlass_deviceplugin::history::{self, Remembered};
use windlass_resources::NodeState;

use super::{
    ask::Asked,
    past,
    question::Question,
    report::{Outcome, Report},
    show, survey,
};
use crate::{
    cli::{OutputArg, PodName},
    commands::{Origin, answer, short_name, simulated},
    screen::{Paint, Tone, line},
};

/// What a pod has.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    pod: String,
    containers: Vec<Held<'a>>,
}

/// What a container has of a resource.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Held<'a> {
    container: String,
    resource: String,
    ids: BTreeSet<String>,
    /// The newest choice of just that, where one is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<Past<'a>>,
}

/// A choice, and what it would be today.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Past<'a> {
    at: Timestamp,
    /// What is not known of it.
    caveat: &'static str,
    /// Why the answer would be another today; `None` where it would be the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// The same question, answered today.
    today: Report<'a>,
}

/// A kubelet that has no choice does not ask: what is remembered then is a pod's that had the same before.
const MAYBE: &str = "if the kubelet did not ask for this pod, it was an earlier one's";

/// The kubelet asks where it has a choice only, and the agent remembers the newest.
const FORGOTTEN: &str = "the choice is not remembered: there was none, or it was long ago";

pub(super) async fn run(config: &Config, pod: &PodName, output: OutputArg) -> Result<()> {
    let holders = podresources::ask(&config.places.kubelet_dir).await;
    let holders = holders.context(
        "cannot find out which devices the pod has (--kubelet-dir says where its kubelet is)",
    )?;
    let holdings = holdings(&holders, pod);
    ensure!(!holdings.is_empty(), "{pod} has no device of this node; {}", pods(&holders));
    let remembered = history::read(&config.places.state_dir)?;
    let node = survey(config).await?;
    let held = |((container, resource), ids): ((String, String), BTreeSet<String>)| {
        let is_it = |then: &&Remembered| then.resource.as_str() == resource && ids_of(then) == ids;
        let past = remembered.iter().find(is_it).map(|then| Past::of(&node, then));
        Held { container, resource, ids, past }
    };
    let origin = Origin::of(&node.inventory);
    let containers = holdings.into_iter().map(held).collect();
    let document = Document { origin, pod: pod.to_string(), containers };
    answer(output, &document, || document.table(&node))?;
    let is_explained = document.containers.iter().any(|held| held.past.is_some());
    ensure!(is_explained, "{pod}: {FORGOTTEN}; looked in {}", config.places.state_dir.display());
    Ok(())
}

fn ids_of(then: &Remembered) -> BTreeSet<String> {
    then.chosen().into_iter().collect()
}

/// What each container of a pod has, by its name and that of the resource.
fn holdings(holders: &ByDevice, pod: &PodName) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (device, holders) in holders {
        let of_pod = |holder: &&Holder| holder.namespace == pod.namespace && holder.pod == pod.name;
        for Holder { container, resource, replica, .. } in holders.iter().filter(of_pod) {
            let id = match replica {
                Some(number) => ReplicaId { device: device.clone(), number: *number }.to_string(),
                None => device.to_string(),
            };
            all.entry((container.clone(), resource.clone())).or_default().insert(id);
        }
    }
    all
}

/// Which pods have devices.
fn pods(holders: &ByDevice) -> String {
    let pods = holders.values().flatten().map(|of| format!("{}/{}", of.namespace, of.pod));
    let pods: Vec<_> = pods.collect::<BTreeSet<_>>().into_iter().collect();
    match pods.as_slice() {
        [] => "no pod has".to_owned(),
        [pod] => format!("{pod} has"),
        pods => format!("{} have", pods.join(", ")),
    }
}

/// Devices by their names, replicas with their numbers, in the inventory's order; what is gone is last.
fn called(node: &NodeState, ids: &BTreeSet<String>) -> String {
    let parts = |id| match ReplicaId::split(id) {
        Some((device, number)) => (device, Some(number)),
        None => (id, None),
    };
    let mut parts: Vec<_> = ids.iter().map(|id| parts(id)).collect();
    let position = |device: &str| node.topology.position(device).unwrap_or(usize::MAX);
    parts.sort_by_key(|&(device, number)| (position(device), device, number));
    let name = |id: &str| node.inventory.get(id).map_or_else(|| id.to_owned(), short_name);
    let names = parts.into_iter().map(|(device, number)| match number {
        Some(number) => format!("{}::{number}", name(device)),
        None => name(device),
    });
    names.collect::<Vec<_>>().join(" ")
}

// === impl Document ===

impl Document<'_> {
    fn table(&self, node: &NodeState) -> Result<()> {
        let paint = Paint::for_stdout();
        simulated(&node.inventory, paint)?;
        for (nth, Held { container, resource, ids, past }) in self.containers.iter().enumerate() {
            if nth > 0 || !node.inventory.is_real() {
                line("")?;
            }
            let title =
                format!("{}, container {container}, {resource}: {}", self.pod, called(node, ids));
            line(paint.text(Tone::Strong, title))?;
            match past {
                None => line(format!("  {FORGOTTEN}"))?,
                Some(past) => past.lines(paint).into_iter().try_for_each(line)?,
            }
        }
        Ok(())
    }
}

// === impl Past ===

impl<'a> Past<'a> {
    fn of(node: &'a NodeState, then: &Remembered) -> Self {
        let (question, unavailable) = (Question::of(then), Vec::new());
        let today = Report::new(node, Asked { question, unavailable, caveat: None, refused: None });
        Self { at: then.at, caveat: MAYBE, change: change(then, &today), today }
    }

    fn lines(&self, paint: Paint) -> Vec<String> {
        let change = match &self.change {
            None => "the answer is the same today".to_owned(),
            Some(change) => {
                paint.text(Tone::Notable, format!("the answer is another today: {change}"))
            }
        };
        let at = past::second(self.at);
        let newest = format!("  the newest choice of just these devices, at {at}; {}", self.caveat);
        let mut lines = vec![newest, format!("  {change}"), String::new()];
        lines.extend(show::lines(&self.today, paint));
        lines
    }
}

/// Why the answer is another than then.
fn change(then: &Remembered, today: &Report<'_>) -> Option<String> {
    let is_gone = |id: &&DeviceId| today.node.inventory.get(id.as_str()).is_none();
    let gone = today.question.stock.devices().into_iter().filter(is_gone);
    let gone: Vec<_> = gone.map(DeviceId::as_str).collect();
    match &today.outcome {
        Outcome::Explanation(answer) if answer.ids() == ids_of(then) => None,
        _ if !gone.is_empty() => Some(format!("gone since: {}", gone.join(" "))),
        Outcome::Refused(why) => Some(why.clone()),
        Outcome::Explanation(_) => {
            Some("devices are connected, or sets are compared, otherwise than then".to_owned())
        }
    }
}
