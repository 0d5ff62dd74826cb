//! docs/events.md has a row for each reason of the events that Windlass writes, and no other row.

use super::{page, troubleshooting::agent_sources};

/// File of all reasons. Their field is private, so no other file makes one.
const REASONS: &str = "core/src/event_reason.rs";

/// The reasons in the page's tables of own events; each has type, action, cause and remedy.
fn documented_reasons() -> Vec<String> {
    let page = page("docs/events.md");
    let (own_events, _) = page.split_once("\n## Of Kubernetes\n").expect("the section");
    let rows = own_events.lines().filter(|line| line.starts_with("| `"));
    let reason = |row: &str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert!(cells.len() == 7 && cells[1..6].iter().all(|cell| !cell.is_empty()), "{row}");
        cells[1].trim_matches('`').to_owned()
    };
    rows.map(reason).collect()
}

#[test]
fn every_reason_of_an_event_has_a_row_and_every_row_a_reason() {
    let sources = agent_sources();
    let (_, source) = sources.iter().find(|(name, _)| name == REASONS).expect("the file");
    let literals = source.split("Self(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut declared: Vec<_> = literals.map(str::to_owned).collect();
    let mut documented = documented_reasons();
    declared.sort();
    documented.sort();
    assert!(!declared.is_empty(), "no reason was found in {REASONS}");
    assert_eq!(documented, declared, "docs/events.md on the left, {REASONS} on the right");
}

#[test]
fn every_event_has_a_declared_reason() {
    // The API server accepts no event without this field.
    let fields = ["reporting_controller: ", "\"reportingController\""];
    let mut sources = agent_sources();
    sources.retain(|(_, source)| fields.iter().any(|field| source.contains(field)));
    assert!(sources.len() >= 3, "only {} files make events", sources.len());
    for (name, source) in sources {
        let is_declared =
            ["Some(reason.as_str()", "Some(self.reason.as_str()", "Some(EventReason::"]
                .iter()
                .any(|value| source.contains(&format!(" reason: {value}")));
        assert!(is_declared, "{name}: the event's reason is no `EventReason`");
    }
}
