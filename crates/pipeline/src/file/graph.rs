//! The stages in the order of the items; cycles, and stages that no item reaches.

use std::collections::BTreeMap;

use windlass_config::{Diagnostic, document::Spanned};

use super::{Found, LinkEntry};
use crate::{
    document::suggestion,
    pipeline::{Link, Stage},
    quantity::Bytes,
};

/// Orders the stages so that each link leads from an earlier to a later one. `written` has the line of each stage's name.
pub(super) fn ordered(
    stages: Vec<Stage>,
    entries: &[Spanned<LinkEntry>],
    written: &BTreeMap<String, u64>,
    found: &mut Found,
) -> (Vec<Stage>, Vec<Link>) {
    let links = links(&stages, entries, found);
    let order = topological(stages.len(), &links);
    if order.len() < stages.len() {
        let names = in_circles(stages.len(), &links, &order);
        let names: Vec<_> = names.iter().map(|position| stages[*position].name.as_str()).collect();
        let line = written.get(names[0]).copied().unwrap_or(1);
        let text = format!("items go round in a circle: {}: remove a link", names.join(", "));
        found.push(Diagnostic::new(line, text));
        return (stages, Vec::new());
    }
    let roots = (0..stages.len()).filter(|stage| !links.iter().any(|link| link.to == *stage));
    for position in roots.skip(1) {
        let name = &stages[position].name;
        let line = written.get(name).copied().unwrap_or(1);
        let first = &stages[order[0]].name;
        let text = format!(
            "no item reaches stage {name:?}: items come in at {first:?}; add a link to {name:?}, or remove the stage"
        );
        found.push(Diagnostic::new(line, text));
    }
    reordered(stages, links, &order)
}

fn links(stages: &[Stage], entries: &[Spanned<LinkEntry>], found: &mut Found) -> Vec<Link> {
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
                found.push(Diagnostic::new(*line, text));
            }
            position
        };
        let (Some(from), Some(to)) = (position(&entry.from), position(&entry.to)) else { continue };
        if links.iter().any(|link| (link.from, link.to) == (from, to)) {
            let text = format!("{} to {} is linked already", entry.from, entry.to);
            found.push(Diagnostic::new(*line, text));
        } else {
            let bytes = stages[from].output.unwrap_or_else(|| {
                let name = &entry.from;
                let text =
                    format!("stage {name:?} has a link: write the size of its results, output");
                found.push(Diagnostic::new(*line, text));
                Bytes::default()
            });
            links.push(Link { from, to, bytes });
        }
    }
    links
}

/// The positions that can be put in order: all, unless there is a circle. Of several the one that is first in the file.
fn topological(stages: usize, links: &[Link]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    let is_next = |order: &[usize], stage: usize| {
        let is_done = |link: &Link| link.to != stage || order.contains(&link.from);
        !order.contains(&stage) && links.iter().all(is_done)
    };
    while let Some(next) = (0..stages).find(|stage| is_next(&order, *stage)) {
        order.push(next);
    }
    order
}

/// The stages that are left when neither items come in from outside nor leave: those in circles, and those between two.
fn in_circles(stages: usize, links: &[Link], order: &[usize]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..stages).filter(|stage| !order.contains(stage)).collect();
    loop {
        let is_sending =
            |stage: &usize| links.iter().any(|link| link.from == *stage && left.contains(&link.to));
        let rest: Vec<_> = left.iter().copied().filter(is_sending).collect();
        if rest.len() == left.len() {
            return rest;
        }
        left = rest;
    }
}

fn reordered(stages: Vec<Stage>, mut links: Vec<Link>, order: &[usize]) -> (Vec<Stage>, Vec<Link>) {
    let place = |old: usize| order.iter().position(|at| *at == old).expect("each is in the order");
    for link in &mut links {
        (link.from, link.to) = (place(link.from), place(link.to));
    }
    links.sort_by_key(|link| (link.from, link.to));
    let mut stages: Vec<_> = stages.into_iter().map(Some).collect();
    let stages = order.iter().map(|at| stages[*at].take().expect("each is there once")).collect();
    (stages, links)
}
