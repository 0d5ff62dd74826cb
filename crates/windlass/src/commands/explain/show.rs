//! Answer as text: request, choice, scores and topology.

use anyhow::Result;
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
    placement::{
        Connections, Explanation,
        shares::{NextDevice, ShareExplanation, ShareState},
    },
    replica::ReplicaId,
};
use windlass_resources::NodeState;

use super::{
    placement_request::{Answer, CandidateSet, PlacementRequest},
    report::{Outcome, Report, ResourceAnswer},
    request::Unavailable,
};
use crate::{
    commands::{Topology, group_by_reason, print_origin_notice, sorted_by_inventory},
    screen::{Paint, Style, Table, pluralized, print_line, wrapped},
};

type ResourceReport<'a> = Report<'a, PlacementRequest, ResourceAnswer>;

struct ReportText<'a> {
    report: &'a ResourceReport<'a>,
    paint: Paint,
}

/// Maximum number of devices in a matrix; a larger one is unreadable.
const MAX_MATRIX: usize = 16;

/// Prints the answer.
pub(super) fn table(report: &ResourceReport<'_>) -> Result<()> {
    let paint = Paint::for_stdout();
    print(report.node, report.caveat.as_deref(), lines(report, paint), paint)
}

/// Prints caveats, then the lines.
pub(super) fn print(
    node: &NodeState,
    caveat: Option<&str>,
    lines: Vec<String>,
    paint: Paint,
) -> Result<()> {
    print_origin_notice(&node.inventory, paint)?;
    if let Some(caveat) = caveat {
        print_line(paint.styled(Style::Warning, format!("note: {caveat}")))?;
    }
    let has_notice = !node.inventory.is_real() || caveat.is_some();
    let separator = has_notice.then(String::new);
    Ok(separator.into_iter().chain(lines).try_for_each(print_line)?)
}

/// Lines of request, answer, scores and matrix.
pub(super) fn lines(report: &ResourceReport<'_>, paint: Paint) -> Vec<String> {
    let text = ReportText { report, paint };
    join_parts(vec![text.request(), text.answer(), text.scores(), text.matrix()])
}

/// Joins non-empty parts with empty lines.
pub(super) fn join_parts(mut parts: Vec<Vec<String>>) -> Vec<String> {
    parts.retain(|part| !part.is_empty());
    parts.join(&String::new())
}

// === impl ReportText ===

impl ReportText<'_> {
    fn request(&self) -> Vec<String> {
        let request = &self.report.question;
        let (size, resource, policy) = (request.size, &request.resource, request.policy);
        let mut lines =
            vec![self.paint.styled(Style::Heading, format!("{size} of {resource}, {policy}"))];
        match &request.candidates {
            CandidateSet::Devices { available, required, near } => {
                lines.extend(row("free", or_none(&self.listed(available))));
                lines.extend(row("required", &self.listed(required)));
                lines.extend(row("near", &self.listed(near)));
            }
            CandidateSet::Replicas { near, pools, .. } => {
                let replicas = pools.iter().flat_map(|pool| pool.replicas(&pool.required));
                let names: Vec<_> = replicas.map(|replica| self.replica(&replica)).collect();
                lines.extend(row("required", &names.join(" ")));
                lines.extend(row("near", &self.listed(near)));
            }
        }
        lines.extend(not_free(&self.report.unavailable, |ids| self.report.names(ids)));
        lines
    }

    fn answer(&self) -> Vec<String> {
        match self.explanation() {
            Some(Answer::Devices(explanation)) => self.devices(explanation),
            Some(Answer::Replicas(explanation)) => self.replicas(explanation),
            None => Vec::new(),
        }
    }

    fn explanation(&self) -> Option<&Answer> {
        match &self.report.outcome {
            Outcome::Answered(ResourceAnswer { explanation, .. }) => Some(explanation),
            Outcome::Refused(_) => None,
        }
    }

    fn devices(&self, explanation: &Explanation) -> Vec<String> {
        let set_row = |label, ids: &[DeviceId], connections: &Connections| {
            row(label, &format!("{}: {connections}", self.report.names(ids)))
        };
        let mut lines =
            set_row("chosen", &explanation.choice.devices, &explanation.choice.connections);
        match (&explanation.alternative, explanation.deciding_difference()) {
            (Some(alternative), Some(verdict)) => {
                lines.extend(set_row(
                    "alternative",
                    &alternative.devices,
                    &alternative.connections,
                ));
                lines.extend(row("why not", &verdict));
            }
            _ => lines.extend(row("alternative", "there is no other set")),
        }
        lines.extend(self.exactness(explanation.choice.exact, explanation.choice.steps));
        lines
    }

    fn replicas(&self, explanation: &ShareExplanation) -> Vec<String> {
        let share = |state: &ShareState| {
            (state.chosen > 0)
                .then(|| format!("{} of {}", state.chosen, self.report.name(&state.device)))
        };
        let shares: Vec<_> = explanation.devices.iter().filter_map(share).collect();
        let chosen = format!("{}: {}", shares.join(", "), explanation.choice.connections);
        let next = match &explanation.next {
            None => "no replica is left".to_owned(),
            Some(NextDevice { device, equals: 1 }) => {
                format!("{} would give one more", self.report.name(device))
            }
            Some(NextDevice { device, equals }) => {
                let name = self.report.name(device);
                format!("{name} would give one more, of {equals} that are equal by the policy")
            }
        };
        let mut lines = row("chosen", &chosen);
        lines.extend(row("next", &next));
        lines.extend(self.exactness(explanation.choice.exact, explanation.choice.steps));
        lines
    }

    fn exactness(&self, exact: bool, steps: u64) -> Vec<String> {
        let lines = exactness("set", exact, steps);
        if exact { lines } else { lines.into_iter().map(|text| self.warning(text)).collect() }
    }

    /// Scores by term, or shares by device.
    fn scores(&self) -> Vec<String> {
        match self.explanation() {
            Some(Answer::Devices(explanation)) => terms(explanation),
            Some(Answer::Replicas(explanation)) => self.shares(explanation),
            None => Vec::new(),
        }
    }

    fn shares(&self, explanation: &ShareExplanation) -> Vec<String> {
        let mut table = Table::new(["DEVICE", "IN USE", "FREE", "CHOSEN"]);
        for ShareState { device, in_use, free, chosen } in &explanation.devices {
            let [in_use, free, chosen] = [in_use, free, chosen].map(ToString::to_string);
            table.add_row([self.report.name(device), in_use, free, chosen]);
        }
        table.lines("  ")
    }

    /// Connections of the candidates.
    fn matrix(&self) -> Vec<String> {
        let inventory = &self.report.node.inventory;
        let ids = self.report.question.candidates.devices();
        let devices = sorted_by_inventory(ids.iter().filter_map(|id| inventory.get(id.as_str())));
        let is_answered = self.explanation().is_some();
        let has_pairs = devices.len() > 1;
        if is_answered && has_pairs { matrix(inventory, devices, self.paint) } else { Vec::new() }
    }

    fn listed(&self, ids: &[DeviceId]) -> String {
        self.report.names_in_order(ids)
    }

    fn replica(&self, replica: &ReplicaId) -> String {
        format!("{}::{}", self.report.name(&replica.device), replica.number)
    }

    fn warning(&self, text: impl std::fmt::Display) -> String {
        self.paint.styled(Style::Warning, text)
    }
}

/// Label with wrapped text; empty without text.
pub(super) fn row(label: &str, text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    wrapped(&format!("  {label:<13}"), text.split_whitespace())
}

/// Row that says if the search was exhaustive, with its number of steps.
pub(super) fn exactness(noun: &str, exact: bool, steps: u64) -> Vec<String> {
    let steps = pluralized(usize::try_from(steps).unwrap_or(usize::MAX), "step");
    if exact {
        row("exact", &format!("no {noun} is better; {steps}"))
    } else {
        row("not exact", &format!("the best of {steps}; another may be better"))
    }
}

/// Connection matrix of up to `MAX_MATRIX` devices; empty if one is a partition, which shares its parent's location.
pub(super) fn matrix(inventory: &Inventory, devices: Vec<&Device>, paint: Paint) -> Vec<String> {
    if devices.len() > MAX_MATRIX || devices.iter().any(|device| device.parent.is_some()) {
        return Vec::new();
    }
    let topology = Topology::of_devices(inventory, devices);
    let mut lines = topology.matrix().lines("  ");
    lines.push(String::new());
    lines.push(paint.styled(Style::Muted, format!("  {}", topology.legend())));
    lines
}

pub(super) fn or_none(names: &str) -> &str {
    if names.is_empty() { "none" } else { names }
}

pub(super) fn not_free(
    unavailable: &[Unavailable],
    names: impl Fn(&[DeviceId]) -> String,
) -> Vec<String> {
    let labels = std::iter::once("not free").chain(std::iter::repeat(""));
    let entries = unavailable.iter().map(|entry| (entry.why.as_str(), entry.device.clone()));
    let groups = labels.zip(group_by_reason(entries));
    groups
        .flat_map(|(label, (reason, ids))| row(label, &format!("{}: {reason}", names(&ids))))
        .collect()
}

/// Scores of choice and alternative; empty for policies without scores.
fn terms(explanation: &Explanation) -> Vec<String> {
    let alternative = explanation.alternative.as_ref();
    let mut alternative_terms = alternative.into_iter().flat_map(|other| other.score.terms());
    let deciding_term = alternative.map(|other| other.lost_by);
    let mut table = Table::new(["TERM", "CHOSEN", "ALTERNATIVE", ""]);
    for (term, value) in explanation.choice.score.terms() {
        let other = alternative_terms.next();
        let other = other.map_or_else(|| "-".to_owned(), |(_, value)| value.to_string());
        let mark = if deciding_term == Some(term) { "decides" } else { "" };
        table.add_row([term.title().to_owned(), value.to_string(), other, mark.to_owned()]);
    }
    if explanation.choice.score.terms().next().is_none() { Vec::new() } else { table.lines("  ") }
}
