//! docs/labels.md has a row for each label that a machine gets, and no row for another label.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use windlass_machine::MachineProfile;

use super::page;
use crate::program::{folder, machine, run, text};

/// Rows for facts that no simulated machine has: those of a hypervisor, of a shared fabric, and of two products
/// of AMD in one machine.
const NOT_SIMULATED: [&str; 9] = [
    "amd.com/gpu.cu-count.*",
    "amd.com/gpu.device-id.*",
    "amd.com/gpu.family.*",
    "amd.com/gpu.product-name.*",
    "amd.com/gpu.simd-count.*",
    "amd.com/gpu.vram.*",
    "nvidia.com/vgpu.host-driver-version",
    "nvidia.com/vgpu.host-driver-branch",
    "nvidia.com/gpu.clique",
];

/// Shared GPUs, and a timestamp.
const CONFIG: &str = "labels: {timestamp: true}\nresources:\n- {name: nvidia.com/gpu, devices: {kind: gpu}, \
                      sharing: {method: timeSlicing, replicas: 4}}\n";

/// Keys in the first column of the page's tables. `*` stands for a part that varies.
fn documented_keys() -> BTreeSet<String> {
    let page = page("docs/labels.md");
    let (mut keys, mut domain) = (BTreeSet::new(), "");
    for line in page.lines() {
        if let Some(header) = line.strip_prefix("| label under `") {
            domain = header.split('`').next().unwrap_or_default();
        } else if line.starts_with("| `") {
            let cell = line.split(" | ").next().unwrap_or_default();
            for pattern in cell.split('`').skip(1).step_by(2) {
                keys.extend(alternatives(&format!("{domain}{pattern}")));
            }
        }
    }
    keys
}

/// The keys of a pattern: `{a,b}` stands for either, `<x>` for any text.
fn alternatives(pattern: &str) -> Vec<String> {
    if let Some((prefix, rest)) = pattern.split_once('{') {
        let (names, suffix) = rest.split_once('}').expect("a closing brace");
        let names = names.split(',');
        return names.flat_map(|name| alternatives(&format!("{prefix}{name}{suffix}"))).collect();
    }
    let mut parts = pattern.split('<');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('>').expect("a closing bracket").1);
    vec![rest.fold(first, |key, suffix| format!("{key}*{suffix}"))]
}

/// True if the key is the pattern, with any text for each `*`, and `gpu` or a MIG resource for `R`.
fn matches(pattern: &str, key: &str) -> bool {
    if let Some((prefix, suffix)) = pattern.split_once("/R.") {
        let is_match = |name| matches(&format!("{prefix}/{name}.{suffix}"), key);
        return ["gpu", "mig-*"].into_iter().any(is_match);
    }
    match pattern.split_once('*') {
        None => pattern == key,
        Some((prefix, suffix)) => key.strip_prefix(prefix).is_some_and(|rest| {
            (1..=rest.len()).any(|end| rest.get(end..).is_some_and(|rest| matches(suffix, rest)))
        }),
    }
}

/// Labels of every machine, each with one of its machines.
fn labels_of_all_machines() -> BTreeMap<String, &'static str> {
    let mut labels = BTreeMap::new();
    for profile in MachineProfile::names() {
        let folder = folder();
        let host = machine(&folder, profile);
        let config = folder.path().join("w.yaml").display().to_string();
        std::fs::write(&config, CONFIG).expect("written");
        for flags in [&[][..], &["--config", &config]] {
            let host = host.iter().map(String::as_str);
            let arguments: Vec<_> =
                ["labels", "-o", "json"].into_iter().chain(host).chain(flags.to_vec()).collect();
            let output = run(&arguments);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let keys = document.as_object().expect("labels").keys();
            labels.extend(keys.map(|key| (key.clone(), profile)));
        }
    }
    labels
}

#[test]
fn every_label_has_a_row_and_every_row_a_label() {
    let (documented, labels) = (documented_keys(), labels_of_all_machines());
    for (key, machine) in &labels {
        let is_documented = documented.iter().any(|pattern| matches(pattern, key));
        assert!(is_documented, "{machine} has {key}, of which docs/labels.md says nothing");
    }
    for pattern in &documented {
        let is_found = labels.keys().any(|key| matches(pattern, key));
        // The exceptions end when a machine has such a label.
        let is_exception = NOT_SIMULATED.contains(&pattern.as_str());
        assert!(is_found != is_exception, "{pattern}: found {is_found}");
    }
}
