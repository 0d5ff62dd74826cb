//! Text of an answer with GPUs and NICs: the pairs with their distance.

use anyhow::Result;
use windlass_core::placement::joint::{JointChoice, Pair};

use super::{JointAnswer, JointReport};
use crate::{
    commands::{
        explain::{
            report::Outcome,
            show::{exactness, join_parts, matrix, not_free, or_none, print, row},
        },
        sorted_by_inventory,
    },
    screen::{Paint, Style, Table, pluralized},
};

/// Prints the answer.
pub(in crate::commands::explain) fn table(report: &JointReport<'_>) -> Result<()> {
    let paint = Paint::for_stdout();
    let mut parts = vec![report.request(paint)];
    if let Outcome::Answered(JointAnswer { choice }) = &report.outcome {
        parts.extend([report.chosen(choice), report.paired(choice), scores(choice)]);
        parts.push(report.matrix(choice, paint));
    }
    print(report.node, report.caveat.as_deref(), join_parts(parts), paint)
}

// === impl JointReport ===

impl JointReport<'_> {
    fn request(&self, paint: Paint) -> Vec<String> {
        let request = &self.question;
        let (gpus, nics) = (request.gpus.size, pluralized(request.nics.size, "NIC"));
        let max_level = request.within.map(|level| format!(", paired within {level}"));
        let title =
            format!("{gpus} of {} and {nics}{}", request.resource, max_level.unwrap_or_default());
        let mut lines = vec![paint.styled(Style::Heading, title)];
        lines.extend(row("free", or_none(&self.names_in_order(&request.gpus.available))));
        lines.extend(row("free NICs", or_none(&self.names_in_order(&request.nics.available))));
        let required = [&request.gpus.required[..], &request.nics.required].concat();
        lines.extend(row("required", &self.names_in_order(&required)));
        lines.extend(not_free(&self.unavailable, |ids| self.names_in_order(ids)));
        lines
    }

    fn chosen(&self, choice: &JointChoice) -> Vec<String> {
        let gpus = format!("{}: {}", self.names_in_order(&choice.gpus), choice.connections);
        let mut lines = row("chosen", &gpus);
        lines.extend(row("", &self.names_in_order(&choice.nics)));
        lines.extend(exactness("choice", choice.exact, choice.steps));
        lines
    }

    fn paired(&self, choice: &JointChoice) -> Vec<String> {
        let mut table = Table::new(["GPU", "NIC", "OVER"]);
        for Pair { gpu, nic, level } in &choice.pairs {
            table.add_row([self.name(gpu), self.name(nic), level.to_string()]);
        }
        table.lines("  ")
    }

    /// Connections of the chosen devices.
    fn matrix(&self, choice: &JointChoice, paint: Paint) -> Vec<String> {
        let inventory = &self.node.inventory;
        let ids = choice.gpus.iter().chain(&choice.nics);
        matrix(
            inventory,
            sorted_by_inventory(ids.filter_map(|id| inventory.get(id.as_str()))),
            paint,
        )
    }
}

fn scores(choice: &JointChoice) -> Vec<String> {
    let mut table = Table::new(["TERM", "CHOSEN"]);
    for (term, value) in choice.score.terms() {
        table.add_row([term.title().to_owned(), value.to_string()]);
    }
    table.lines("  ")
}
