//! `windlass devices` and `windlass topo` on machines with devices of every kind.

use std::{fs, path::PathBuf, process::Output};

use serde_json::Value;
use tempfile::TempDir;
use windlass_node::documents::Document;

use crate::program::{folder, machine, run, text};

/// Output of a command about a machine.
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
    assert!(text(&output.stderr).contains("known: "), "{}", text(&output.stderr));
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
    assert!(shown.contains("MEMORY") && shown.contains("16Gi"), "{shown}");
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

/// Sources that pick a function of the bus, nodes with and without a partner, a disk, files, and a node that
/// another source has.
const SOURCES: &str = r#"
sources:
- name: card
  resource: example.com/card
  find: {bus: pci}
  match: 'device.attributes["windlass.dev"].pciVendor == "10de" && device.attributes["windlass.dev"].driver == "vfio-pci"'
- {name: pair, resource: example.com/pair, find: {nodes: ["/dev/tx*", "/dev/rx*"]}, unit: zipped}
- {name: lone, resource: example.com/lone, find: {nodes: ["/dev/tx*", "/dev/zz*"]}, unit: zipped}
- {name: disk, resource: example.com/disk, find: {nodes: ["/dev/sd*"]}, match: 'device.index >= 0'}
- {name: twin, resource: example.com/twin, find: {nodes: ["/dev/tx0"]}}
- {name: spare, find: {nodes: ["/dev/spare0"]}}
- name: board
  resource: example.com/board
  find: {files: /etc/boards}
  give: {env: {BOARD: "{id}"}}
  match: 'device.attributes["windlass.dev"].state == "up" && device.attributes["windlass.dev"].cores > 4'
"#;

/// A machine with what those sources look at, and how one of them is explained.
struct Explained {
    folder: TempDir,
    host: Vec<String>,
}

impl Explained {
    fn new() -> Self {
        let folder = folder();
        let host = machine(&folder, "t4-edge");
        let explained = Self { folder, host };
        for node in ["tx0", "tx1", "rx0", "sda", "spare0"] {
            explained.write(&format!("dev/{node}"), "");
        }
        explained.write("etc/boards/a", "{state: up, cores: 8}\n");
        explained.write("etc/boards/b", "{state: up, cores: 2}\n");
        explained.write("etc/boards/c", "{state: up, croes: 8}\n");
        explained.write("etc/boards/d", "{state: down}\n");
        explained.write("etc/w.yaml", SOURCES);
        explained
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("machine/host").join(path)
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.path(path).parent().expect("a folder")).expect("made");
        fs::write(self.path(path), content).expect("written");
    }

    fn explain(&self, flags: &[&str]) -> Output {
        let config = self.path("etc/w.yaml").display().to_string();
        let place = ["explain", "--config", &config, &self.host[0], &self.host[1]];
        run(&[&place, flags].concat())
    }
}

#[test]
fn a_source_explains_what_it_made_of_everything_that_it_looked_at() {
    let explained = Explained::new();
    let driver =
        r#"device.attributes["windlass.dev"].driver == "vfio-pci" is false: driver is "nvidia""#;
    for (source, expected) in [
        ("card", &[driver, "examined /sys/bus/pci/devices"][..]),
        (
            "pair",
            &[
                "/dev/tx0  pair-tx0  example.com/pair  offered",
                "/dev/tx1  pair-tx1",
                "/dev/rx1 is not there",
            ],
        ),
        ("lone", &["/dev/tx0  -  ", "another pattern has none"]),
        ("disk", &["disk-sda", "withheld: /dev/sda: "]),
        ("twin", &["withheld: pair-tx0 of pair is the same device, by /dev/tx0"]),
        ("spare", &["no resource: add `resource`"]),
        (
            "board",
            &[
                "/etc/boards/a  board-a  example.com/board  offered",
                "cores > 4 is false: cores is 2",
                "it has no cores: did you mean croes?",
                r#"state == "up" is false: state is "down""#,
            ],
        ),
    ] {
        let output = explained.explain(&["--source", source]);
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for expected in expected {
            assert!(shown.contains(expected), "{expected} is missing in\n{shown}");
        }
    }
}

#[test]
fn a_program_is_told_the_same_of_a_source_and_no_more_than_a_person_can_read() {
    let explained = Explained::new();
    let document = text(&explained.explain(&["--source", "board", "-o", "json"]).stdout);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let candidates = document["candidates"].as_array().expect("a list");
    assert_eq!((candidates.len(), &document["leftOut"]), (4, &Value::from(0)));
    assert_eq!(candidates[0]["device"], "board-a");
    assert_eq!(candidates[1]["found"], "/etc/boards/b");
    for number in 0..300 {
        explained.write(&format!("etc/boards/0{number}"), "{state: down}\n");
    }
    let shown = text(&explained.explain(&["--source", "board"]).stdout);
    assert!(shown.contains("board-a") && shown.ends_with("and 104 more candidates\n"), "{shown}");
}

#[test]
fn a_rule_may_ask_for_everything_that_a_device_says() {
    for profile in ["dgx-h100", "mig-a100"] {
        let document: Value =
            serde_json::from_str(&ask(profile, &["devices", "-o", "json"])).expect("JSON");
        let mut rules = vec!["exclude:".to_owned()];
        for device in document["devices"].as_array().expect("a list") {
            for (name, value) in device["attributes"].as_object().expect("attributes") {
                let (domain, name) = name.split_once('/').expect("a domain");
                let (sort, value) = value.as_object().and_then(|it| it.iter().next()).expect("one");
                let value =
                    if sort == "version" { format!("semver({value})") } else { value.to_string() };
                let asked = format!(r#"device.attributes["{domain}"].{name} == {value}"#);
                rules.push(format!("- {{source: {}, match: '{asked}'}}", device["source"]));
            }
        }
        let folder = folder();
        let path = folder.path().join("w.yaml").display().to_string();
        fs::write(&path, rules.join("\n")).expect("written");
        let output = run(&["config", "check", &path]);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
}

#[test]
fn only_a_source_of_the_configuration_is_explained() {
    let explained = Explained::new();
    for (flags, expected) in [
        (&["--source", "nics"][..], "nics is built in: `windlass devices --source nics`"),
        (&["--source", "cart"], "known: card, pair, "),
        (&["--source", "card", "--size", "1"], "cannot be used with"),
    ] {
        let output = explained.explain(flags);
        assert_eq!(output.status.code(), Some(64));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
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
        "ref": {"namespace": "team", "name": "train", "uid": "u"}, "state": "PrepareCompleted",
        "devices": [{
            "pool": "n1/nvidia", "name": "gpu", "device": gpu, "usage": "alone", "requests": [], "cdi": [],
        }],
    });
    let claims = serde_json::json!({"version": 1, "boot": null, "claims": {"u": claim}});
    // With the checksum that an agent gives it.
    let claims = Document::Claims.reread(claims.to_string().as_bytes()).expect("understood");
    fs::write(folder.path().join("claims.json"), claims).expect("written");
    let document: Value = serde_json::from_str(&ask(&["-o", "json"])).expect("JSON");
    let expected =
        serde_json::json!([{"api": "dra", "namespace": "team", "claim": "train", "uid": "u"}]);
    assert_eq!(document["holders"][gpu], expected);
    assert!(document["holdersUnknown"][0].is_string(), "no kubelet answers: {document}");
    let shown = ask(&[]);
    assert!(tables(&shown)[0].contains("HELD BY"), "{shown}");
    assert!(
        shown.contains("GPU0 is withheld from containers: held by claim team/train"),
        "{shown}"
    );
    assert!(shown.contains("holders unknown: "), "no kubelet answers: {shown}");
}
