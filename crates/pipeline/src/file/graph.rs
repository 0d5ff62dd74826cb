//! Topological order of the stages. Reports cycles and unreachable stages.

use std::collections::BTreeMap;

use windlass_config::{Diagnostic, document::Spanned};

use super::{Diagnostics, LinkEntry};
use crate::{
    document::suggestion,
    pipeline::{Link, Stage},
    quantity::Bytes,
};

/// Sorts the stages so that each link leads from an earlier to a later one. `lines` has the line of each stage's name.
pub(super) fn sorted(
    stages: Vec<Stage>,
    entries: &[Spanned<LinkEntry>],
    lines: &BTreeMap<String, u64>,
    errors: &mut Diagnostics,
) -> (Vec<Stage>, Vec<Link>) {
    let links = links(&stages, entries, errors);
    let order = topological(stages.len(), &links);
    if order.len() < stages.len() {
        let names = in_cycles(stages.len(), &links, &order);
        let names: Vec<_> = names.iter().map(|position| stages[*position].name.as_str()).collect();
        let line = lines.get(names[0]).copied().unwrap_or(1);
        let text = format!("stages form a cycle: {}: remove a link", names.join(", "));
        errors.push(Diagnostic::new(line, text));
        return (stages, Vec::new());
    }
    let roots = (0..stages.len()).filter(|stage| !links.iter().any(|link| link.to == *stage));
    for position in roots.skip(1) {
        let name = &stages[position].name;
        let line = lines.get(name).copied().unwrap_or(1);
        let root = &stages[order[0]].name;
        let text = format!(
            "no item reaches stage {name:?}: the first stage is {root:?}; add a link to {name:?}, or remove the stage"
        );
        errors.push(Diagnostic::new(line, text));
    }
    reordered(stages, links, &order)
}

fn links(stages: &[Stage], entries: &[Spanned<LinkEntry>], errors: &mut Diagnostics) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for Spanned { line, value: entry } in entries {
        let mut position = |name: &str| {
            let position = stages.iter().position(|stage| stage.name == *name);
            if position.is_none() {
                let names = stages.iter().map(|stage| stage.name.as_str());
                let text = format!(
                    "there is no stage {name:?}{}",
                    suggestion(name, names).unwrap_or_default()
                );
                errors.push(Diagnostic::new(*line, text));
            }
            position
        };
        let (Some(from), Some(to)) = (position(&entry.from), position(&entry.to)) else { continue };
        if links.iter().any(|link| (link.from, link.to) == (from, to)) {
            let text = format!("there is already a link from {} to {}", entry.from, entry.to);
            errors.push(Diagnostic::new(*line, text));
        } else {
            let bytes = stages[from].output.unwrap_or_else(|| {
                let name = &entry.from;
                let text = format!(
                    "stage {name:?} has an outgoing link: write `output`, the size of its results"
                );
                errors.push(Diagnostic::new(*line, text));
                Bytes::default()
            });
            links.push(Link { from, to, bytes });
        }
    }
    links
}

/// Positions in topological order; ties go to the stage that is first in the file. Stages on or after a cycle are
/// missing.
fn topological(stages: usize, links: &[Link]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    let is_next = |order: &[usize], stage: usize| {
        let is_satisfied = |link: &Link| link.to != stage || order.contains(&link.from);
        !order.contains(&stage) && links.iter().all(is_satisfied)
    };
    while let Some(next_stage) = (0..stages).find(|stage| is_next(&order, *stage)) {
        order.push(next_stage);
    }
    order
}

/// The stages on a cycle, and those on a path from one cycle to another. `order` has the stages that no cycle reaches.
fn in_cycles(stages: usize, links: &[Link], order: &[usize]) -> Vec<usize> {
    let mut candidates: Vec<usize> = (0..stages).filter(|stage| !order.contains(stage)).collect();
    loop {
        let has_successor = |stage: &usize| {
            links.iter().any(|link| link.from == *stage && candidates.contains(&link.to))
        };
        let with_successor: Vec<_> = candidates.iter().copied().filter(has_successor).collect();
        if with_successor.len() == candidates.len() {
            return with_successor;
        }
        candidates = with_successor;
    }
}

fn reordered(stages: Vec<Stage>, mut links: Vec<Link>, order: &[usize]) -> (Vec<Stage>, Vec<Link>) {
    let new_position = |old_position: usize| {
        order.iter().position(|position| *position == old_position).expect("the order is complete")
    };
    for link in &mut links {
        (link.from, link.to) = (new_position(link.from), new_position(link.to));
    }
    links.sort_by_key(|link| (link.from, link.to));
    let mut stages: Vec<_> = stages.into_iter().map(Some).collect();
    let stages = order
        .iter()
        .map(|position| stages[*position].take().expect("each position is in the order once"))
        .collect();
    (stages, links)
}
