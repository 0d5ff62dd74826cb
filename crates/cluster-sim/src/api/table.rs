//! Tables for kubectl: objects as rows, with a subset of the real server's columns.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{kind::Kind, shape};

/// Column between the name and the age.
#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    cell: fn(&Value) -> String,
}

// === impl Column ===

impl Column {
    const fn new(name: &'static str, cell: fn(&Value) -> String) -> Self {
        Self { name, cell }
    }
}

/// A `Table` of objects of one kind, with the metadata of their list.
pub(crate) fn of(kind: &Kind, objects: &[&Value], metadata: &Value) -> Value {
    let columns = columns(kind);
    let now = Timestamp::now();
    let rows: Vec<_> = objects.iter().map(|object| row(columns, object, now)).collect();
    let definition = |name: &str, format: &str| json!({"name": name, "type": "string", "format": format, "description": "", "priority": 0});
    let kind_definitions = columns.iter().map(|column| definition(column.name, ""));
    let definitions: Vec<_> = [definition("Name", "name")]
        .into_iter()
        .chain(kind_definitions)
        .chain([definition("Age", "")])
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

fn row(columns: &[Column], object: &Value, now: Timestamp) -> Value {
    let kind_cells = columns.iter().map(|column| (column.cell)(object));
    let name = [text(&object["metadata"]["name"])];
    let cells: Vec<_> = name.into_iter().chain(kind_cells).chain([age(object, now)]).collect();
    json!({"cells": cells, "object": shape::metadata_only(object)})
}

/// Columns of a kind (`pkg/printers/internalversion` in Kubernetes).
fn columns(kind: &Kind) -> &'static [Column] {
    const NAMESPACES: &[Column] =
        &[Column::new("Status", |object| text(&object["status"]["phase"]))];
    const LEASES: &[Column] =
        &[Column::new("Holder", |object| text(&object["spec"]["holderIdentity"]))];
    const NODES: &[Column] = &[
        Column::new("Status", readiness),
        Column::new("Version", |object| text(&object["status"]["nodeInfo"]["kubeletVersion"])),
    ];
    const PODS: &[Column] = &[Column::new("Status", |object| text(&object["status"]["phase"]))];
    const CLAIMS: &[Column] = &[Column::new("State", state)];
    const SLICES: &[Column] = &[
        Column::new("Node", |object| text(&object["spec"]["nodeName"])),
        Column::new("Driver", |object| text(&object["spec"]["driver"])),
        Column::new("Pool", |object| text(&object["spec"]["pool"]["name"])),
    ];
    match kind.resource {
        "namespaces" => NAMESPACES,
        "leases" => LEASES,
        "nodes" => NODES,
        "pods" => PODS,
        "resourceclaims" => CLAIMS,
        "resourceslices" => SLICES,
        _ => &[],
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn readiness(node: &Value) -> String {
    let conditions = node["status"]["conditions"].as_array();
    let condition = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    let readiness = match condition {
        None => "Unknown",
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
    };
    readiness.to_owned()
}

fn state(claim: &Value) -> String {
    let is_deleted = claim["metadata"]["deletionTimestamp"].is_string();
    let is_allocated = claim["status"]["allocation"].is_object();
    let is_reserved =
        claim["status"]["reservedFor"].as_array().is_some_and(|consumers| !consumers.is_empty());
    let states = [
        (is_deleted, "deleted"),
        (!is_allocated && !is_deleted, "pending"),
        (is_allocated, "allocated"),
        (is_allocated && is_reserved, "reserved"),
    ];
    let states: Vec<_> =
        states.iter().filter(|(applies, _)| *applies).map(|(_, word)| *word).collect();
    states.join(",")
}

/// Age of an object, as `duration.HumanDuration` of `k8s.io/apimachinery` up to two days, then in whole days.
fn age(object: &Value, now: Timestamp) -> String {
    let creation_time = object["metadata"]["creationTimestamp"].as_str();
    let Some(creation_time) = creation_time.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = now.duration_since(creation_time).max(SignedDuration::ZERO).as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match (seconds, minutes, hours) {
        (..120, ..) => format!("{seconds}s"),
        (_, ..10, _) if seconds % 60 > 0 => format!("{minutes}m{}s", seconds % 60),
        (_, ..180, _) => format!("{minutes}m"),
        (_, _, ..8) if minutes % 60 > 0 => format!("{hours}h{}m", minutes % 60),
        (_, _, ..48) => format!("{hours}h"),
        _ => format!("{}d", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_format_of_the_real_server() {
        let now: Timestamp = "2026-01-03T00:00:00Z".parse().expect("a time");
        for (creation_time, expected) in [
            ("2026-01-02T23:59:55Z", "5s"),
            ("2026-01-02T23:57:30Z", "2m30s"),
            ("2026-01-02T23:56:00Z", "4m"),
            ("2026-01-02T22:30:00Z", "90m"),
            ("2026-01-02T20:00:00Z", "4h"),
            ("2026-01-02T19:50:00Z", "4h10m"),
            ("2025-12-30T00:00:00Z", "4d"),
            ("", "<unknown>"),
        ] {
            assert_eq!(
                age(&json!({"metadata": {"creationTimestamp": creation_time}}), now),
                expected
            );
        }
    }

    #[test]
    fn the_state_of_a_claim_lists_its_conditions() {
        for (claim, expected) in [
            (json!({}), "pending"),
            (json!({"status": {"allocation": {}}}), "allocated"),
            (json!({"status": {"allocation": {}, "reservedFor": [{}]}}), "allocated,reserved"),
            (json!({"metadata": {"deletionTimestamp": "t"}}), "deleted"),
        ] {
            assert_eq!(state(&claim), expected);
        }
    }
}
