//! `windlass devices` and `windlass topo` on machines with devices of every kind.

use std::fs;

use serde_json::Value;

#[expect(dead_code, reason = "the agent is for other tests")]
mod program;

use program::{folder, machine, run, text};

/// What a command says of a machine.
fn ask(profile: &str, words: &[&str]) -> String {
    let folder = folder();
    let host = machine(&folder, profile);
    let host: Vec<_> = host.iter().map(String::as_str).collect();
    let output = run(&[words, &host[..]].concat());
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The tables: each with its heading.
fn tables(shown: &str) -> Vec<&str> {
    shown.split("\n\n").filter(|part| part.trim_start().starts_with("NAME ")).collect()
}

#[test]
fn each_kind_has_a_table_with_the_columns_that_mean_something_for_it() {
    let shown = ask("dgx-h100", &["devices"]);
    let tables = tables(&shown);
    assert!(tables[0].starts_with("NAME") && tables[0].contains("MEMORY"), "{shown}");
    assert!(tables[0].contains("H100 80GB HBM3  81559Mi"), "{shown}");
    assert!(tables[1].contains("NETDEV") && !tables[1].contains("MEMORY"), "{shown}");
    assert!(tables[1].contains("ib0     InfiniBand  400 Gb/sec"), "{shown}");
    assert!(!shown.contains("XGMI"), "a column with nothing in it is left out: {shown}");
}

#[test]
fn kinds_and_sources_narrow_what_is_shown() {
    let shown = ask("dgx-h100", &["devices", "--kind", "nic"]);
    assert_eq!(tables(&shown).len(), 1, "{shown}");
    let shown = ask("dgx-h100", &["devices", "--source", "nvidia", "-o", "json"]);
    let document: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(document["devices"].as_array().map(Vec::len), Some(8));
    assert_eq!(document["sources"].as_object().map(serde_json::Map::len), Some(1));
    let shown = ask("dgx-h100", &["topo", "--kind", "gpu,nic", "-o", "json"]);
    let document: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(document["devices"].as_array().map(Vec::len), Some(16));
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let output = run(&["devices", "--source", "coral", &host[0], &host[1]]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("there are "), "{}", text(&output.stderr));
}

#[test]
fn a_matrix_that_is_too_wide_is_told_in_several_with_gpus_first() {
    let shown = ask("dgx-h100", &["topo"]);
    let long = shown.lines().find(|line| line.chars().count() > 120);
    assert_eq!(long, None, "{shown}");
    let columns: Vec<_> = shown.lines().filter(|line| line.trim_end().ends_with("NUMA")).collect();
    assert!(columns[0].contains("GPU7") && !columns[0].contains("mlx5_0"), "{shown}");
    assert!(columns[1].contains("mlx5_0"), "{shown}");
    assert!(shown.contains("NV# NVLinks, PSB"), "{shown}");
    let shown = ask("rdma", &["topo"]);
    assert!(!shown.contains("NVLinks"), "the legend is of what is there: {shown}");
}

#[test]
fn what_a_source_of_the_configuration_finds_has_a_name_and_a_product() {
    let folder = folder();
    let config = folder.path().join("w.yaml");
    fs::write(
        &config,
        "sources:\n- name: bridge\n  resource: example.com/bridge\n  find: {bus: pci}\n  \
         match: 'device.attributes[\"windlass.dev\"].pciClass.startsWith(\"0x0604\")'\n  \
         give: {env: {BRIDGE: '{pci}'}}\n",
    )
    .expect("written");
    let config = config.display().to_string();
    let shown =
        ask("t4-edge", &["devices", "-o", "wide", "--source", "bridge", "--config", &config]);
    assert!(shown.contains("bridge0"), "{shown}");
    assert!(shown.contains("BRIDGE=0000:"), "{shown}");
    assert!(shown.contains("example.com/bridge"), "{shown}");
}

#[test]
fn a_machine_with_devices_of_other_makers_is_told_in_their_names() {
    let shown = ask("mi300x", &["devices", "--kind", "gpu"]);
    assert!(shown.contains("AMD0  amd-"), "{shown}");
    assert!(shown.contains("XGMI") && !shown.contains("NVLINK"), "{shown}");
    let shown = ask("mi300x", &["topo", "--kind", "gpu"]);
    assert!(shown.contains("AMD0  X     XGMI"), "{shown}");
    assert!(shown.contains("XGMI AMD's links") && !shown.contains("NVLinks"), "{shown}");
    let shown = ask("alveo", &["devices", "--kind", "fpga"]);
    assert!(shown.contains("FPGA0  fpga-"), "{shown}");
    let shown = ask("flex-170", &["devices", "--kind", "gpu"]);
    assert!(shown.contains("Data Center GPU Flex 170"), "the product is looked up: {shown}");
}

#[test]
fn a_question_about_other_devices_calls_them_by_their_names() {
    let folder = folder();
    let host = machine(&folder, "mi300x");
    let host: Vec<_> = host.iter().map(String::as_str).collect();
    let question = ["explain", "--resource", "amd.com/gpu", "--size", "2", "--free", "0-3"];
    let output = run(&[&question[..], &host].concat());
    let shown = text(&output.stdout);
    assert!(shown.contains("AMD0 AMD1 AMD2 AMD3"), "{shown}{}", text(&output.stderr));
    assert!(!shown.contains("GPU0"), "{shown}");
}

#[test]
fn who_has_a_device_is_told_with_the_way_in_which_it_was_given_away() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let mut host: Vec<_> = host.iter().map(String::as_str).collect();
    let dir = folder.path().display().to_string();
    host.extend(["--kubelet-dir", &dir, "--state-dir", &dir]);
    let ask =
        |words: &[&str]| text(&run(&[&["devices", "--kind", "gpu"], words, &host].concat()).stdout);
    let document: Value = serde_json::from_str(&ask(&["-o", "json"])).expect("JSON");
    assert!(document["holders"].is_null(), "nobody has anything");
    let gpu = document["devices"][0]["id"].as_str().expect("an id").to_owned();
    let claim = serde_json::json!({
        "ref": {"namespace": "team", "name": "train", "uid": "u"},
        "devices": [{"device": gpu}],
    });
    let claims = serde_json::json!({"version": 1, "boot": null, "claims": {"u": claim}});
    fs::write(folder.path().join("claims.json"), claims.to_string()).expect("written");
    let document: Value = serde_json::from_str(&ask(&["-o", "json"])).expect("JSON");
    let expected =
        serde_json::json!([{"api": "dra", "namespace": "team", "claim": "train", "uid": "u"}]);
    assert_eq!(document["holders"][gpu], expected);
    let shown = ask(&[]);
    assert!(tables(&shown)[0].contains("HELD BY"), "{shown}");
    assert!(shown.contains("GPU0 is for no container now: held by claim team/train"), "{shown}");
    assert!(shown.contains("who holds what: "), "no kubelet answers: {shown}");
}
