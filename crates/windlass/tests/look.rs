//! `windlass devices` and `windlass topo` on machines with devices of every kind.

use std::{fs, path::PathBuf, process::Output};

use serde_json::Value;
use tempfile::TempDir;
use windlass_node::documents::Document;

use crate::program::{folder, machine, run, text};

/// Output of a command for a simulated machine.
fn query(profile: &str, arguments: &[&str]) -> String {
    let folder = folder();
    let host = machine(&folder, profile);
    let host: Vec<_> = host.iter().map(String::as_str).collect();
    let output = run(&[arguments, &host[..]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The tables: each with its heading.
fn tables(output: &str) -> Vec<&str> {
    output.split("\n\n").filter(|block| block.trim_start().starts_with("NAME ")).collect()
}

#[test]
fn each_kind_has_a_table_with_its_own_columns() {
    let stdout = query("dgx-h100", &["devices"]);
    let tables = tables(&stdout);
    assert!(tables[0].starts_with("NAME") && tables[0].contains("MEMORY"), "{stdout}");
    assert!(tables[0].contains("H100 80GB HBM3  81559Mi"), "{stdout}");
    assert!(tables[1].contains("NETDEV") && !tables[1].contains("MEMORY"), "{stdout}");
    assert!(tables[1].contains("ib0     InfiniBand  400 Gb/sec"), "{stdout}");
    assert!(!stdout.contains("XGMI"), "an empty column is omitted: {stdout}");
}

#[test]
fn kinds_and_sources_filter_devices() {
    let stdout = query("dgx-h100", &["devices", "--kind", "nic"]);
    assert_eq!(tables(&stdout).len(), 1, "{stdout}");
    let stdout = query("dgx-h100", &["devices", "--source", "nvidia", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["devices"].as_array().map(Vec::len), Some(8));
    assert_eq!(document["sources"].as_object().map(serde_json::Map::len), Some(1));
    let stdout = query("dgx-h100", &["topo", "--kind", "gpu,nic", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["devices"].as_array().map(Vec::len), Some(16));
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let output = run(&["devices", "--source", "coral", &host[0], &host[1]]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("known: "), "{}", text(&output.stderr));
}

#[test]
fn a_wide_matrix_is_split_with_gpus_first() {
    let stdout = query("dgx-h100", &["topo"]);
    let long_line = stdout.lines().find(|line| line.chars().count() > 120);
    assert_eq!(long_line, None, "{stdout}");
    let columns: Vec<_> = stdout.lines().filter(|line| line.trim_end().ends_with("NUMA")).collect();
    assert!(columns[0].contains("GPU7") && !columns[0].contains("mlx5_0"), "{stdout}");
    assert!(columns[1].contains("mlx5_0"), "{stdout}");
    assert!(stdout.contains("NV# NVLinks, PSB"), "{stdout}");
    let stdout = query("rdma", &["topo"]);
    assert!(
        !stdout.contains("NVLinks"),
        "the legend has only the connections of the machine: {stdout}"
    );
}

#[test]
fn devices_of_a_configured_source_have_names_and_resources() {
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
    let stdout =
        query("t4-edge", &["devices", "-o", "wide", "--source", "bridge", "--config", &config]);
    assert!(stdout.contains("bridge0"), "{stdout}");
    assert!(stdout.contains("BRIDGE=0000:"), "{stdout}");
    assert!(stdout.contains("example.com/bridge"), "{stdout}");
}

#[test]
fn devices_of_other_vendors_are_shown_in_the_terms_of_the_vendor() {
    let stdout = query("mi300x", &["devices", "--kind", "gpu"]);
    assert!(stdout.contains("AMD0  amd-"), "{stdout}");
    assert!(stdout.contains("XGMI") && !stdout.contains("NVLINK"), "{stdout}");
    let stdout = query("mi300x", &["topo", "--kind", "gpu"]);
    assert!(stdout.contains("AMD0  X     XGMI"), "{stdout}");
    assert!(stdout.contains("XGMI AMD's links") && !stdout.contains("NVLinks"), "{stdout}");
    let stdout = query("alveo", &["devices", "--kind", "fpga"]);
    assert!(stdout.contains("FPGA0  fpga-"), "{stdout}");
    let stdout = query("flex-170", &["devices", "--kind", "gpu"]);
    assert!(stdout.contains("Data Center GPU Flex 170"), "the product is looked up: {stdout}");
    assert!(stdout.contains("MEMORY") && stdout.contains("16Gi"), "{stdout}");
}

#[test]
fn explain_names_devices_of_other_vendors() {
    let folder = folder();
    let host = machine(&folder, "mi300x");
    let host: Vec<_> = host.iter().map(String::as_str).collect();
    let question = ["explain", "--resource", "amd.com/gpu", "--size", "2", "--free", "0-3"];
    let output = run(&[&question[..], &host].concat());
    let stdout = text(&output.stdout);
    assert!(stdout.contains("AMD0 AMD1 AMD2 AMD3"), "{stdout}{}", text(&output.stderr));
    assert!(!stdout.contains("GPU0"), "{stdout}");
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

/// Machine with the files of these sources.
struct SourcesFixture {
    folder: TempDir,
    host: Vec<String>,
}

impl SourcesFixture {
    fn new() -> Self {
        let folder = folder();
        let host = machine(&folder, "t4-edge");
        let fixture = Self { folder, host };
        for node in ["tx0", "tx1", "rx0", "sda", "spare0"] {
            fixture.write(&format!("dev/{node}"), "");
        }
        fixture.write("etc/boards/a", "{state: up, cores: 8}\n");
        fixture.write("etc/boards/b", "{state: up, cores: 2}\n");
        fixture.write("etc/boards/c", "{state: up, croes: 8}\n");
        fixture.write("etc/boards/d", "{state: down}\n");
        fixture.write("etc/w.yaml", SOURCES);
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("machine/host").join(path)
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.path(path).parent().expect("a folder")).expect("created");
        fs::write(self.path(path), content).expect("written");
    }

    fn explain(&self, flags: &[&str]) -> Output {
        let config = self.path("etc/w.yaml").display().to_string();
        let place = ["explain", "--config", &config, &self.host[0], &self.host[1]];
        run(&[&place, flags].concat())
    }
}

#[test]
fn a_source_explains_every_candidate() {
    let fixture = SourcesFixture::new();
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
        let output = fixture.explain(&["--source", source]);
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for expected in expected {
            assert!(stdout.contains(expected), "{expected} is missing in\n{stdout}");
        }
    }
}

#[test]
fn json_has_the_candidates_of_a_source_and_text_a_limited_number() {
    let fixture = SourcesFixture::new();
    let document = text(&fixture.explain(&["--source", "board", "-o", "json"]).stdout);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let candidates = document["candidates"].as_array().expect("a list");
    assert_eq!((candidates.len(), &document["leftOut"]), (4, &Value::from(0)));
    assert_eq!(candidates[0]["device"], "board-a");
    assert_eq!(candidates[1]["found"], "/etc/boards/b");
    for number in 0..300 {
        fixture.write(&format!("etc/boards/0{number}"), "{state: down}\n");
    }
    let stdout = text(&fixture.explain(&["--source", "board"]).stdout);
    assert!(
        stdout.contains("board-a") && stdout.ends_with("and 104 more candidates\n"),
        "{stdout}"
    );
}

#[test]
fn rules_can_match_every_attribute_of_a_device() {
    for profile in ["dgx-h100", "mig-a100"] {
        let document: Value =
            serde_json::from_str(&query(profile, &["devices", "-o", "json"])).expect("JSON");
        let mut rules = vec!["exclude:".to_owned()];
        for device in document["devices"].as_array().expect("a list") {
            for (name, value) in device["attributes"].as_object().expect("attributes") {
                let (domain, name) = name.split_once('/').expect("a domain");
                let (value_type, value) =
                    value.as_object().and_then(|fields| fields.iter().next()).expect("a value");
                let value = if value_type == "version" {
                    format!("semver({value})")
                } else {
                    value.to_string()
                };
                let expression = format!(r#"device.attributes["{domain}"].{name} == {value}"#);
                rules.push(format!("- {{source: {}, match: '{expression}'}}", device["source"]));
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
    let fixture = SourcesFixture::new();
    for (flags, expected) in [
        (&["--source", "nics"][..], "nics is built in: `windlass devices --source nics`"),
        (&["--source", "cart"], "known: card, pair, "),
        (&["--source", "card", "--size", "1"], "cannot be used with"),
    ] {
        let output = fixture.explain(flags);
        assert_eq!(output.status.code(), Some(64));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn holders_of_devices_are_listed_with_their_api() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let mut host: Vec<_> = host.iter().map(String::as_str).collect();
    let dir = folder.path().display().to_string();
    host.extend(["--kubelet-dir", &dir, "--state-dir", &dir]);
    let query = |arguments: &[&str]| {
        text(&run(&[&["devices", "--kind", "gpu"], arguments, &host].concat()).stdout)
    };
    let document: Value = serde_json::from_str(&query(&["-o", "json"])).expect("JSON");
    assert!(document["holders"].is_null(), "no device has a holder");
    let gpu = document["devices"][0]["id"].as_str().expect("an id").to_owned();
    let claim = serde_json::json!({
        "ref": {"namespace": "team", "name": "train", "uid": "u"}, "state": "PrepareCompleted",
        "devices": [{
            "pool": "n1/nvidia", "name": "gpu", "device": gpu, "usage": "alone", "requests": [], "cdi": [],
        }],
    });
    let claims = serde_json::json!({"version": 1, "boot": null, "claims": {"u": claim}});
    // Add the checksum, as the agent does.
    let claims = Document::Claims.round_trip(claims.to_string().as_bytes()).expect("understood");
    fs::write(folder.path().join("claims.json"), claims).expect("written");
    let document: Value = serde_json::from_str(&query(&["-o", "json"])).expect("JSON");
    let expected =
        serde_json::json!([{"api": "dra", "namespace": "team", "claim": "train", "uid": "u"}]);
    assert_eq!(document["holders"][gpu], expected);
    assert!(document["holdersUnknown"][0].is_string(), "no kubelet answers: {document}");
    let stdout = query(&[]);
    assert!(tables(&stdout)[0].contains("HELD BY"), "{stdout}");
    assert!(
        stdout.contains("GPU0 is withheld from containers: held by claim team/train"),
        "{stdout}"
    );
    assert!(stdout.contains("holders unknown: "), "no kubelet answers: {stdout}");
}
