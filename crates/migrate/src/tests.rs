//! Tests of the import: files of other plugins, and the converted documents.

use std::path::Path;

use insta::assert_snapshot;
use proptest::prelude::*;
use windlass_config::{Diagnostic, MissingNodes, Resources, to_yaml};

use crate::{Format, LoadedConfig, NvidiaPluginFlags, Plugin, parse};

fn loaded(text: &str) -> Result<LoadedConfig, String> {
    let parsed = parse(Path::new("plugin.conf"), text, &NvidiaPluginFlags::default());
    parsed.map_err(|error| error.to_string())
}

/// Converts a file, and returns its diagnostics and the document.
fn converted(plugin: Plugin, text: &str) -> String {
    let loaded = loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(loaded.format, Format::Imported(plugin), "{text}");
    let yaml = to_yaml(&loaded.config);
    let reparsed = parse(Path::new("w.yaml"), &yaml, &NvidiaPluginFlags::default());
    let reparsed = reparsed.unwrap_or_else(|error| panic!("{yaml}\n{error}"));
    assert_eq!((reparsed.config, reparsed.format), (loaded.config, Format::Windlass), "{yaml}");
    let comment = |Diagnostic { line, text }: &Diagnostic| format!("# line {line}: {text}\n");
    loaded.warnings.iter().map(comment).collect::<String>() + &yaml
}

fn errors(text: &str) -> String {
    loaded(text).expect_err(text).replace("plugin.conf:", "")
}

/// JSON with tabs, as programs in Go write it.
const RDMA_SHARED: &str = r#"{
	"periodicUpdateInterval": 300,
	"configList": [
		{
			"resourceName": "fabric_a",
			"rdmaHcaMax": 200,
			"selectors": {
				"vendors": ["15B3"], "drivers": ["mlx5_core"], "ifNames": ["ib0", "ib1"],
				"linkTypes": ["infiniband"]
			}
		},
		{
			"resourceName": "storage", "resourcePrefix": "lab.example",
			"rdmaHcaMax": 5000, "Devices": ["eth4"]
		},
		{"resourceName": "again", "rdmaHcaMax": 1, "devices": ["eth4"], "comment": "none left"}
	]
}
"#;

const SRIOV: &str = r#"{
  "resourceList": [
    {
      "resourceName": "fast-net",
      "resourcePrefix": "lab.example",
      "excludeTopology": true,
      "additionalInfo": {"*": {"token": "a"}, "0000:3b:02.0": {"vlan": "7"}},
      "selectors": {
        "vendors": ["8086"], "devices": ["154c", "1889"], "drivers": ["iavf", "vfio-pci"],
        "pfNames": ["ens1f0#0,2-4", "ens1f1"], "linkTypes": ["ether"], "needVhostNet": true
      }
    },
    {
      "resourceName": "rdma_net",
      "selectors": [
        {"rootDevices": ["0000:AF:00.0#0-100"], "isRdma": true},
        {"pciAddresses": ["0000:b0:02.1"], "isRdma": true, "pKeys": ["0x8001"]},
        {"ddpProfiles": ["GTPv1-C/U IPv4/IPv6 payload"]}
      ]
    },
    {"resourceName": "vdpa", "selectors": {"vdpaType": "vhost"}},
    {
      "resourceName": "subfunctions", "deviceType": "auxNetDevice",
      "selectors": [{"vendors": ["15b3"], "auxTypes": ["sf"], "pfNames": ["p0#0-3", "p1"]}]
    },
    {"resourceName": "plain", "deviceType": "", "selectors": {"pfNames": ["LAN1"]}},
    {"resourceName": "onboard", "selectors": {"acpiIndexes": ["101", "102"]}},
    {
      "resourceName": "fec", "deviceType": "accelerator",
      "selectors": {"vendors": ["8086"], "devices": ["0d5d"], "drivers": ["vfio-pci"]}
    },
    {"resourceName": "nothing"}
  ]
}
"#;

const GENERIC: &str = r#"
domain: lab.example
devices:
- name: serial
  groups:
  - paths: [{path: /dev/ttyUSB*}]
  - paths: [{path: /dev/ttyACM*, mountPath: /dev/serial/, permissions: rw}]
- name: fuse
  groups: [{count: 10, paths: [{path: /dev/fuse, permissions: mrw}]}]
- name: capture
  groups:
  - paths:
    - {path: /dev/snd/controlC1, mountPath: /dev/snd/controlC0}
    - {path: /dev/snd/pcmC1D0c, mountPath: /dev/snd/pcmC0D0c}
    - {path: /dev/snd/timer, optional: true}
    - {path: /etc/asound.conf, type: Mount, readOnly: true}
- {name: audio, groups: [{count: 4, paths: [{path: /dev/snd}]}]}
- name: pairs
  groups:
  - paths: [{path: /dev/video*}, {path: /dev/media*}, {path: /dev/cec0, limit: 9}]
- name: either
  groups: [{paths: [{path: /dev/ttyS0, optional: true}, {path: /dev/ttyAMA0, optional: true}]}]
- {name: data, groups: [{paths: [{path: /srv/data, type: Mount}]}]}
- name: radio
  groups: [{usb: [{vendor: "0bda", product: "2838"}]}]
- name: kit
  groups: [{usb: [{vendor: "1209", product: "000F"}, {vendor: 1a86, product: 7523, serial: "A1"}]}]
"#;

const SMARTER: &str = r"
- devicematch: ^video[0-9]*$
  nummaxdevices: 20
- devicematch: ^snd$
  nummaxdevices: 4
- devicematch: ^rtc0$|^i2c-[0-9]+$
  nummaxdevices: 1
- devicematch: nvidia-gpu
  nummaxdevices: 10
- devicematch: ^hci0$
";

const DARWIN3: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: darwin3-device-plugin, namespace: kube-system}
spec:
  template:
    spec:
      containers:
      - name: plugin
        image: registry.example/darwin3-device-plugin:1.0
        volumeMounts:
        - {name: boards, mountPath: /etc/darwin3}
      volumes:
      - {name: boards, hostPath: {path: /srv/boards}}
";

#[test]
fn tokens_of_rdma_shared_dev_plugin() {
    assert_snapshot!(converted(Plugin::RdmaShared, RDMA_SHARED));
}

#[test]
fn every_selector_of_sriov_network_device_plugin() {
    assert_snapshot!(converted(Plugin::Sriov, SRIOV));
}

#[test]
fn groups_of_generic_device_plugin() {
    assert_snapshot!(converted(Plugin::Generic, GENERIC));
}

#[test]
fn patterns_of_smarter_device_manager() {
    assert_snapshot!(converted(Plugin::Smarter, SMARTER));
}

#[test]
fn the_manifest_of_darwin3_device_plugin() {
    assert_snapshot!(converted(Plugin::Darwin3, DARWIN3));
}

fn indented(text: &str, by: usize) -> String {
    let lines = text.lines().map(|line| " ".repeat(by) + line + "\n");
    lines.collect()
}

#[test]
fn a_config_map_is_unwrapped_and_its_mistakes_have_the_lines_of_the_file() {
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  config.json: |\n";
    let wrapped = format!("{head}{}", indented(&RDMA_SHARED.replace('\t', "  "), 4));
    let (embedded, plain) = (loaded(&wrapped).expect("valid"), loaded(RDMA_SHARED).expect("valid"));
    assert_eq!((embedded.config, embedded.format), (plain.config, plain.format));
    let lines = |warnings: &[Diagnostic]| warnings.iter().map(|it| it.line).collect::<Vec<_>>();
    let moved: Vec<_> = lines(&plain.warnings).into_iter().map(|line| line + 5).collect();
    assert_eq!(lines(&embedded.warnings), moved);

    let own_format = format!("{head}    mig: none\n    mgi: none\n");
    assert!(errors(&own_format).starts_with("7: unknown field `mgi`"), "{}", errors(&own_format));
    let quoted = "apiVersion: v1\nkind: ConfigMap\ndata: {f: '{\"configList\": []}'}\n";
    assert_eq!(errors(quoted), "3: configList names no resource");
}

#[test]
fn the_one_configuration_of_a_manifest_is_read() {
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\n";
    let manifest = format!("---\n{account}---{DARWIN3}---\n# the end\n");
    assert_eq!(loaded(&manifest).expect("valid").format, Format::Imported(Plugin::Darwin3));
    let no_configuration = "1: this manifest has no known configuration: give the plugin's own \
                            file, its ConfigMap, or the manifest that has the configuration in its \
                            arguments";
    assert_eq!(errors(account), no_configuration);
    let several = errors(&format!("{DARWIN3}---{DARWIN3}"));
    assert!(
        several.contains("several configurations are in this file (DaemonSet, DaemonSet)"),
        "{several}"
    );
    assert_eq!(
        errors("mig: none\n---\nmig: none\n"),
        "3: a second document: a configuration is one document"
    );
    assert!(loaded("---\nmig: none\n").is_ok(), "one document may begin with a separator");
}

#[test]
fn a_node_of_two_resources_gets_a_warning() {
    let text = "devices:
- {name: audio, groups: [{count: 4, paths: [{path: /dev/snd}]}]}
- name: capture
  groups:
  - {paths: [{path: /dev/snd/pcmC0D0c}, {path: /dev/snd/timer}]}
- {name: other, groups: [{paths: [{path: /dev/snd0}]}]}
";
    let warnings = loaded(text).expect("valid").warnings;
    let overlaps: Vec<_> =
        warnings.iter().filter(|it| it.text.contains("squat.ai/audio too")).collect();
    assert_eq!(overlaps.len(), 1);
    assert_eq!(overlaps[0].line, 5);
    assert!(overlaps[0].text.starts_with("/dev/snd/pcmC0D0c is in"), "{}", overlaps[0].text);
}

#[test]
fn devices_among_the_arguments_of_a_manifest_have_the_lines_of_the_file() {
    let text = "apiVersion: apps/v1
kind: DaemonSet
spec:
  template:
    spec:
      containers:
      - args:
        - --domain=lab.example
        - --device
        - |
          name: video
          groups:
          - paths: [{path: /dev/video0}]
        - '--device={\"name\": \"kvm\", \"groups\": [{\"paths\": [{\"path\": \"/dev/kvm\"}]}]}'
";
    let offered = |text: &str| {
        let sources = loaded(text).expect("valid").config.policy.sources.into_iter();
        sources.filter_map(|it| it.resource).map(|it| it.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(offered(text), ["lab.example/video", "lab.example/kvm"]);
    let invalid = text.replace("name: video", "name: Video");
    assert_eq!(errors(&invalid), "11: name \"Video\": use small letters, digits and '-'");
}

#[test]
fn only_named_devices_are_offered() {
    for text in [RDMA_SHARED, SRIOV, GENERIC, SMARTER, DARWIN3] {
        let policy = loaded(text).expect("valid").config.policy;
        assert!(
            matches!(policy.resources, Resources::Rules(_)),
            "GPUs are not offered: another plugin may offer them"
        );
    }
}

/// The warnings about an accepted file.
fn warnings(text: &str) -> Vec<String> {
    let loaded = loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    loaded.warnings.iter().map(|Diagnostic { line, text }| format!("{line}: {text}")).collect()
}

#[test]
fn usb_devices_of_one_description_get_a_warning_and_others_not() {
    let group = |name: &str, product: &str| {
        format!("- {{name: {name}, groups: [{{usb: [{{vendor: 1a86, product: {product}}}]}}]}}\n")
    };
    let count = |second: &str| {
        let text = format!("devices:\n{}{}", group("one", "'7523'"), group("two", second));
        warnings(&text).iter().filter(|it| it.contains("is in squat.ai/one too")).count()
    };
    assert_eq!((count("'7523'"), count("'5523'")), (1, 0));
}

#[test]
fn entries_that_windlass_refuses_get_a_warning() {
    let paths = |paths: &str| format!("devices:\n- name: a\n  groups: [{{paths: [{paths}]}}]\n");
    let withheld =
        "it is withheld: convert the file, and write allowDangerous: true if it is intended";
    for (text, expected, offered) in [
        (paths("{path: /dev/sdb}"), format!("3: source a: /dev/sdb: a block device exposes the \
            data of its file systems; {withheld}"), 1),
        (paths("{path: /dev/x}, {path: /etc, type: Mount}"), format!("3: source a: /etc exposes \
            the whole machine: name what is needed in it; {withheld}"), 1),
        (paths("{path: /dev/x}, {path: /, type: Mount}"), format!("3: source a: / has the kubelet's sockets and every pod's secrets; {withheld}"), 1),
        (paths("{path: /dev/x, mountPath: x}"), "3: source a: x is not a path from the root: write it \
            from / on, without .., . and //; it is left out".to_owned(), 0),
        (
            "- {devicematch: ^a$, nummaxdevices: 1}\n- {devicematch: ^a$, nummaxdevices: 2}\n".to_owned(),
            "2: source a-2: resource smarter-devices/a is shared in another way by source a: a pod \
             cannot tell which it gets; it is left out".to_owned(),
            1,
        ),
    ] {
        let found = warnings(&text);
        assert!(found.contains(&expected), "{text}\n{found:#?}");
        let sources = loaded(&text).expect("valid").config.policy.sources;
        assert_eq!(sources.len(), offered, "{text}");
        let yaml = to_yaml(&loaded(&text).expect("valid").config);
        let reparsed = parse(Path::new("w.yaml"), &yaml, &NvidiaPluginFlags::default());
        assert_eq!(reparsed.is_err(), expected.ends_with(withheld), "{text}");
    }
    let folder = DARWIN3.replace("/srv/boards", "/etc");
    let is_reported = warnings(&folder)
        .iter()
        .any(|it| it.ends_with("name what is needed in it; it is left out"));
    assert!(is_reported, "{:?}", warnings(&folder));
}

#[test]
fn an_entry_of_smarter_device_manager_that_matches_too_much_does_not_affect_others() {
    let text = "- {devicematch: .*, nummaxdevices: 1}\n- {devicematch: (?i)^v$, nummaxdevices: 1}\n\
                - {devicematch: '(^video[0-9]+$)|(^i2c-[0-9]+$)', nummaxdevices: 1}\n";
    assert_eq!(
        warnings(text),
        [
            "1: \".*\" matches nodes of all kinds: begin it with letters of a name; this entry is left out",
            "2: \"(?i)^v$\": flags such as \"(?i)\" are not supported; this entry is left out",
        ]
    );
    assert_eq!(loaded(text).expect("valid").config.policy.sources.len(), 2);
}

#[test]
fn entries_of_rdma_shared_dev_plugin_for_one_interface_get_a_warning() {
    let file = |first: &str, second: &str| {
        let entry =
            |name: &str, keys: &str| format!("- {{resourceName: {name}, rdmaHcaMax: 9, {keys}}}\n");
        format!("configList:\n{}{}", entry("a", first), entry("b", second))
    };
    let overlap = |first: &str, second: &str| {
        let found = warnings(&file(first, second));
        found.into_iter().find(|it| it.contains("may select the same interface"))
    };
    let (by_driver, by_name) = ("selectors: {drivers: [mlx5_core]}", "devices: [ib0]");
    let text = overlap(by_driver, by_name).expect("an interface may match both");
    assert!(text.starts_with("3: rdma/a on line 2 may select the same interface: "), "{text}");
    assert_eq!(overlap("devices: [ib1]", by_name), None);
    assert_eq!(overlap("selectors: {ifNames: [ib1], drivers: [x]}", by_name), None);
    assert_eq!(overlap(by_driver, "selectors: {drivers: [mlx4_core]}"), None);
    assert_eq!(
        overlap(by_name, by_name),
        None,
        "another warning says that the second gets nothing"
    );
}

#[test]
fn rdma_nodes_depend_on_the_selectors_and_mixed_ones_get_a_warning() {
    let file = |first: &str, second: &str| {
        let text = "resourceList:\n- {resourceName: a, selectors: {F}}\n\
                    - {resourceName: b, selectors: {S}}\n\
                    - {resourceName: c, deviceType: accelerator, selectors: {}}\n";
        text.replace("{F}", first).replace("{S}", second)
    };
    let (with, without) = ("{isRdma: true}", "{pfNames: [p0]}");
    for (first, second, nodes, expected) in [
        (without, without, 0, [false; 2]),
        (with, with, 4, [true, false]),
        (with, without, 4, [true; 2]),
    ] {
        let text = file(first, second);
        let policy = loaded(&text).expect("valid").config.policy.nics;
        let left_out = policy.missing_nodes == MissingNodes::LeftOut;
        assert_eq!((policy.rdma_nodes.len(), left_out), (nodes, nodes > 0), "{text}");
        let has_warning = |phrase: &str| warnings(&text).iter().any(|it| it.contains(phrase));
        assert_eq!(
            [has_warning("umad and issm"), has_warning("isRdma applies to the whole node")],
            expected,
            "{text}"
        );
    }
}

/// Checks that each document is refused with an error that begins with the expected text.
fn check(cases: impl IntoIterator<Item = (String, &'static str)>) {
    for (text, expected) in cases {
        let found = errors(&text);
        assert!(found.starts_with(expected), "{text}\n{found}");
    }
}

#[test]
fn refusals_of_rdma_plugins_have_the_line() {
    let entry = |keys: &str| format!("configList:\n- {{{keys}}}\n");
    check([
        ("configList: []".to_owned(), "1: configList names no resource"),
        (entry(""), "2: an entry without resourceName"),
        (entry("resourceName: a-b"), "2: resourceName \"a-b\": use letters, digits and '_'"),
        (entry("resourceName: a_"), "2: resource name \"rdma/a_\" has a last part"),
        (entry("resourceName: a, rdmaHcaMax: -1, devices: [x]"), "2: rdmaHcaMax cannot be"),
        (entry("resourceName: a, rdmaHcaMax: 1"), "2: selectors and devices are both missing"),
        (
            entry("resourceName: a, rdmaHcaMax: 1, devices: [x], selectors: {drivers: [y]}"),
            "2: selectors and devices: write selectors alone",
        ),
        (
            entry("resourceName: a, rdmaHcaMax: 1, selectors: {vendors: [Mellanox]}"),
            "2: \"Mellanox\" is not a PCI id",
        ),
        (
            entry("resourceName: a, rdmaHcaMax: x, devices: [y]"),
            "2: \"x\" is not valid here: write a whole number",
        ),
    ]);
}

#[test]
fn refusals_of_sriov_network_device_plugin_have_the_line() {
    let entry = |keys: &str| format!("resourceList:\n- {{resourceName: a, {keys}}}\n");
    let selectors = |keys: &str| entry(&format!("selectors: {{{keys}}}"));
    check([
        (entry("deviceType: gpu"), "2: \"gpu\" is not a known value"),
        (selectors("isRdma: true, vdpaType: vhost"), "2: isRdma and vdpaType exclude"),
        (selectors("vdpaType: vduse"), "2: vdpaType \"vduse\" is unknown"),
        (selectors("pfNames: ['p0#1-']"), "2: \"p0#1-\": write a parent"),
        (entry("deviceType: auxNetDevice, selectors: {}"), "2: auxNetDevice: write auxTypes"),
        ("resourceList: [{resourceName: 1.5}]".to_owned(), "1: resourceName \"1.5\""),
        (
            "resourceList: [{resourceName: a}, {resourceName: a}]".to_owned(),
            "1: resource intel.com/a appears twice",
        ),
    ]);
}

#[test]
fn refusals_of_node_plugins_have_the_line() {
    let device = |groups: &str| format!("devices:\n- name: a\n  groups: [{groups}]\n");
    let entry = |keys: &str| format!("- {{{keys}}}");
    check([
        (
            device("{paths: [{path: /dev/x}], usb: [{vendor: a, product: b}]}"),
            "3: a group has paths or usb",
        ),
        (device("{usb: [{vendor: Acme, product: b}]}"), "3: \"Acme\" is not a USB id"),
        (device("{count: -1, paths: [{path: /dev/x}]}"), "3: count cannot be negative"),
        (
            device("{count: 2, paths: [{path: /dev/x}]}, {paths: [{path: /dev/y}]}"),
            "3: squat.ai/a has another count on line 3",
        ),
        ("devices: [{name: A, groups: []}]".to_owned(), "1: name \"A\": use small letters"),
        (entry("devicematch: '^tty[', nummaxdevices: 1"), "1: "),
        (entry("devicematch: a, nummaxdevices: -1"), "1: nummaxdevices cannot be negative"),
    ]);
}

/// Keys and values of all plugins' files.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "configList", "resourceList", "resourceName", "rdmaHcaMax", "selectors", "pfNames", "mode",
    "devices", "name", "groups", "paths", "path", "usb", "vendor", "product", "count", "limit",
    "devicematch", "nummaxdevices", "additionalInfo", "deviceType", "apiVersion", "kind", "data",
    "spec", "args", "ConfigMap", "DaemonSet", "--device", "p0#1-2", "^a[0-9]|b(", "/dev/*",
];

/// Random documents of these words.
fn document() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    let word = || proptest::sample::select(WORDS);
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| json!(number)),
        any::<bool>().prop_map(|truth| json!(truth)),
        Just(Value::Null),
        word().prop_map(|word| json!(word)),
        "\\PC{0,12}".prop_map(|text| json!(text)),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(|items| json!(items)),
            proptest::collection::btree_map(word().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn any_document_is_read_or_refused(document in document()) {
        let text = document.to_string();
        if let Ok(loaded) = loaded(&text) {
            let yaml = to_yaml(&loaded.config);
            let reparsed = parse(Path::new("w.yaml"), &yaml, &NvidiaPluginFlags::default());
            let is_withheld = loaded.warnings.iter().any(|it| it.text.contains("it is withheld"));
            let is_same = reparsed.is_ok_and(|reparsed| reparsed.config == loaded.config);
            prop_assert!(is_same || is_withheld, "{}\n{}", text, yaml);
        }
    }

    #[test]
    fn any_regular_expression_is_read_or_refused(regex in "[a-z0-9/^$|()\\[\\]{}.*+?\\\\-]{0,24}") {
        let entry = serde_json::json!([{"devicematch": regex, "nummaxdevices": 2}]);
        if let Ok(loaded) = loaded(&entry.to_string()) {
            let yaml = to_yaml(&loaded.config);
            let is_withheld = loaded.warnings.iter().any(|it| it.text.contains("it is withheld"));
            let reparsed = parse(Path::new("w.yaml"), &yaml, &NvidiaPluginFlags::default());
            prop_assert!(reparsed.is_ok() || is_withheld, "{}", yaml);
        }
    }
}
