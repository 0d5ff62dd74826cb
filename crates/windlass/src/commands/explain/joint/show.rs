//! GPUs and NICs in words, for people: which go together, and where each pair meets.

use anyhow::Result;
use windlass_core::{
    device::DeviceId,
    placement::joint::{JointChoice, Pair},
};

use super::{Outcome, Report};
use crate::{
    commands::{
        LEGEND, Topology,
        explain::{
            report::name,
            show::{MATRIX, not_free, or_none, row},
        },
        ordered, simulated,
    },
    screen::{Paint, Table, Tone, count, line},
};

/// The whole answer of a command.
pub(in crate::commands::explain) fn table(report: &Report<'_>) -> Result<()> {
    let paint = Paint::for_stdout();
    simulated(&report.node.inventory, paint)?;
    if let Some(caveat) = &report.caveat {
        line(paint.text(Tone::Notable, format!("note: {caveat}")))?;
    }
    let before = report.simulated.is_some() || report.caveat.is_some();
    let space = before.then(String::new);
    let mut parts = vec![report.asked(paint)];
    if let Outcome::Choice(choice) = &report.outcome {
        parts.extend([report.chosen(choice), report.paired(choice), scores(choice)]);
        parts.push(report.matrix(choice, paint));
    }
    parts.retain(|part| !part.is_empty());
    Ok(space.into_iter().chain(parts.join(&String::new())).try_for_each(line)?)
}

// === impl Report ===

impl Report<'_> {
    fn asked(&self, paint: Paint) -> Vec<String> {
        let question = &self.question;
        let (gpus, nics) = (question.gpus.size, count(question.nics.size, "NIC"));
        let within = question.within.map(|level| format!(", paired within {level}"));
        let title =
            format!("{gpus} of {} and {nics}{}", question.resource, within.unwrap_or_default());
        let mut lines = vec![paint.text(Tone::Strong, title)];
        lines.extend(row("free", or_none(&self.listed(&question.gpus.available))));
        lines.extend(row("free NICs", or_none(&self.listed(&question.nics.available))));
        let required = [&question.gpus.required[..], &question.nics.required].concat();
        lines.extend(row("required", &self.listed(&required)));
        lines.extend(not_free(&self.unavailable, |ids| self.listed(ids)));
        lines
    }

    fn chosen(&self, choice: &JointChoice) -> Vec<String> {
        let gpus = format!("{}: {}", self.listed(&choice.gpus), choice.connections);
        let mut lines = row("chosen", &gpus);
        lines.extend(row("", &self.listed(&choice.nics)));
        let steps = count(usize::try_from(choice.steps).unwrap_or(usize::MAX), "step");
        lines.extend(if choice.exact {
            row("exact", &format!("no choice is better; {steps}"))
        } else {
            row("not exact", &format!("the best of {steps}; another may be better"))
        });
        lines
    }

    fn paired(&self, choice: &JointChoice) -> Vec<String> {
        let mut table = Table::new(["GPU", "NIC", "OVER"]);
        for Pair { gpu, nic, level } in &choice.pairs {
            table.row([self.name(gpu), self.name(nic), level.to_string()]);
        }
        table.lines("  ")
    }

    /// How the chosen devices are connected, where that has room. Parts are where their whole is.
    fn matrix(&self, choice: &JointChoice, paint: Paint) -> Vec<String> {
        let inventory = &self.node.inventory;
        let ids = choice.gpus.iter().chain(&choice.nics);
        let devices = ordered(ids.filter_map(|id| inventory.get(id.as_str())));
        if devices.len() > MATRIX || devices.iter().any(|device| device.parent.is_some()) {
            return Vec::new();
        }
        let mut lines = Topology::among(inventory, devices).matrix().lines("  ");
        lines.push(String::new());
        lines.push(paint.text(Tone::Quiet, format!("  {LEGEND}")));
        lines
    }

    fn listed(&self, ids: &[DeviceId]) -> String {
        let mut ids: Vec<_> = ids.iter().collect();
        ids.sort_by_key(|id| self.node.topology.position(id.as_str()));
        ids.into_iter().map(|id| self.name(id)).collect::<Vec<_>>().join(" ")
    }

    fn name(&self, id: &DeviceId) -> String {
        name(self.node, id)
    }
}

fn scores(choice: &JointChoice) -> Vec<String> {
    let mut table = Table::new(["TERM", "CHOSEN"]);
    for (term, value) in choice.score.terms() {
        table.row([term.title().to_owned(), value.to_string()]);
    }
    table.lines("  ")
}
