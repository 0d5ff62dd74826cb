//! Choices that the agent made earlier: listed, or explained anew for the pod that has the devices.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use jiff::{Timestamp, Unit};
use serde::Serialize;
use windlass_core::{device::DeviceId, replica::ReplicaId};
use windlass_node::{
    Config,
    choices::{self, Among, Remembered},
    holders::{self, ByDevice, Holder},
    state::NodeState,
};

use super::{
    ask::Asked,
    question::Question,
    report::{Outcome, Report, name},
    show, survey,
};
use crate::{
    cli::{OutputArg, PodName},
    commands::{answer, short_name, simulated},
    screen::{Paint, Table, Tone, line},
};

/// What a container has of a resource.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Held<'a> {
    container: String,
    resource: String,
    ids: BTreeSet<String>,
    /// The choice that gave it that, where it is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<Past<'a>>,
}

/// A choice, and what it would be today.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Past<'a> {
    at: Timestamp,
    /// Why the answer would be another today; `None` where it would be the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// The same question, answered today.
    today: Report<'a>,
}

/// The kubelet asks where it has a choice only, and the agent remembers the newest.
const FORGOTTEN: &str = "the choice is not remembered: there was none, or it was long ago";

/// Lists what is remembered.
pub(super) async fn list(config: &Config, output: OutputArg) -> Result<()> {
    let remembered = choices::read(&config.state_dir)?;
    let node = survey(config).await?;
    answer(output, &remembered, || {
        simulated(&node.inventory, Paint::for_stdout())?;
        if remembered.is_empty() {
            return Ok(line(nothing(config))?);
        }
        Ok(listed(&node, &remembered).lines("").into_iter().try_for_each(line)?)
    })
}

/// Explains what a pod has.
pub(super) async fn pod(config: &Config, pod: &PodName, output: OutputArg) -> Result<()> {
    let holders = holders::ask(&config.kubelet_dir).await;
    let holders = holders.context("cannot find out which devices the pod has")?;
    let holdings = holdings(&holders, pod);
    ensure!(!holdings.is_empty(), "{pod} has no device of this node; {}", pods(&holders));
    let remembered = choices::read(&config.state_dir)?;
    ensure!(!remembered.is_empty(), nothing(config));
    let node = survey(config).await?;
    let held = |((container, resource), ids): ((String, String), BTreeSet<String>)| {
        let is_it = |then: &&Remembered| then.resource.as_str() == resource && ids_of(then) == ids;
        let past = remembered.iter().find(is_it).map(|then| Past::of(&node, then));
        Held { container, resource, ids, past }
    };
    let held: Vec<_> = holdings.into_iter().map(held).collect();
    answer(output, &held, || table(&node, pod, &held))?;
    ensure!(held.iter().any(|held| held.past.is_some()), "{pod}: {FORGOTTEN}");
    Ok(())
}

fn nothing(config: &Config) -> String {
    format!("no choice is remembered in {}", config.state_dir.display())
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

fn listed(node: &NodeState, remembered: &[Remembered]) -> Table {
    let mut table = Table::new(["TIME", "RESOURCE", "POLICY", "SIZE", "OF", "CHOSEN", ""]);
    for then in remembered {
        let of = match &then.among {
            Among::Devices { available, .. } => available.len(),
            Among::Replicas { pools, .. } => {
                pools.iter().map(|pool| pool.free.iter().count()).sum()
            }
        };
        let exact = if then.exact { "" } else { "not exact" };
        table.row([
            second(then.at),
            then.resource.to_string(),
            then.policy.to_string(),
            then.size.to_string(),
            of.to_string(),
            chosen(node, &then.among),
            exact.to_owned(),
        ]);
    }
    table
}

/// `GPU0 GPU1`, and of replicas `2 of GPU0, 1 of GPU1`.
fn chosen(node: &NodeState, among: &Among) -> String {
    match among {
        Among::Devices { chosen, .. } => {
            let names: Vec<_> = chosen.iter().map(|id| name(node, id)).collect();
            names.join(" ")
        }
        Among::Replicas { pools, .. } => {
            let given = pools.iter().filter(|pool| !pool.chosen.is_empty());
            let shares = given.map(|pool| {
                format!("{} of {}", pool.chosen.iter().count(), name(node, &pool.device))
            });
            shares.collect::<Vec<_>>().join(", ")
        }
    }
}

fn table(node: &NodeState, pod: &PodName, held: &[Held<'_>]) -> Result<()> {
    let paint = Paint::for_stdout();
    simulated(&node.inventory, paint)?;
    for (nth, Held { container, resource, ids, past }) in held.iter().enumerate() {
        if nth > 0 || node.inventory.simulated.is_some() {
            line("")?;
        }
        let title = format!("{pod}, container {container}, {resource}: {}", called(node, ids));
        line(paint.text(Tone::Strong, title))?;
        match past {
            None => line(format!("  {FORGOTTEN}"))?,
            Some(past) => past.lines(paint).into_iter().try_for_each(line)?,
        }
    }
    Ok(())
}

/// Devices by their names, replicas with their numbers, in the inventory's order; what is gone is last.
fn called(node: &NodeState, ids: &BTreeSet<String>) -> String {
    let parts = |id| match ReplicaId::split(id) {
        Some((device, number)) => (device, format!("::{number}")),
        None => (id, String::new()),
    };
    let mut parts: Vec<_> = ids.iter().map(|id| parts(id)).collect();
    let position = |device: &str| node.topology.position(device).unwrap_or(usize::MAX);
    parts.sort_by_key(|(device, _)| position(device));
    let name = |id: &str| node.inventory.get(id).map_or_else(|| id.to_owned(), short_name);
    let names = parts.iter().map(|(device, number)| name(device) + number);
    names.collect::<Vec<_>>().join(" ")
}

fn second(at: Timestamp) -> String {
    at.round(Unit::Second).map_or_else(|_| at.to_string(), |at| at.to_string())
}

// === impl Past ===

impl<'a> Past<'a> {
    fn of(node: &'a NodeState, then: &Remembered) -> Self {
        let (question, unavailable) = (Question::of(then), Vec::new());
        let today = Report::new(node, Asked { question, unavailable, caveat: None });
        Self { at: then.at, change: change(then, &today), today }
    }

    fn lines(&self, paint: Paint) -> Vec<String> {
        let change = match &self.change {
            None => "the answer is the same today".to_owned(),
            Some(change) => {
                paint.text(Tone::Notable, format!("the answer is another today: {change}"))
            }
        };
        let mut lines = vec![format!("  chosen at {}; {change}", second(self.at)), String::new()];
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
