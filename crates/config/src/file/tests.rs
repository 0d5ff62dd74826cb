//! The configuration file: every key is read, every mistake has its line, a written file is read back.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;
use serde_json::Value;
use windlass_core::{device::DeviceKind, placement};

use super::*;
use crate::{
    DeviceListStrategy, Disclosed, DraOffer, Feature, HealthPolicy, Imex, LabelOutput, NicIds,
    PerContainer, RdmaNode, Replicas, ResourceRule, Resources, Selector, Shared, Sharing,
    SharingMethod, UnlistedXids, Unmatched,
};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("w.yaml"), text).map_err(|error| error.to_string())
}

/// Every key.
const EVERYTHING: &str = r#"kubeletDir: /k
hostRoot: /h
hostRootOnNode: /n
nvmlLibrary: /l
driver: {root: /run/nvidia/driver, mountedAt: /driver, devRoot: /}
cdiDir: /c
stateDir: /s
mpsDir: /m
mps: {shmDir: /dev/shm/windlass, users: together}
deviceInfoDir: /d
listen: 127.0.0.1:9400
probeSocket: /p
disclose: [pods, serials]
cluster: {kubeconfig: /kc, nodeName: n1, namespace: gpu, events: true}
nvFractions: {enabled: true, socket: /nri, annotationPrefix: a.com/c.}
mig: single
deviceList: [envvar, cdi-annotations]
deviceIds: index
passDeviceSpecs: true
cdiAnnotationPrefix: cdi.example.com/
hooks: {program: /usr/bin/nvidia-ctk, disabled: [chmod]}
features: [gds, mofed, gdrcopy]
imex: {channels: [0, 2047], required: true}
gpu: {prepare: [{command: [/opt/scrub, "{id}"]}], release: [{processes: none, timeout: 20s}]}
amd: {naming: mixed}
intel: {renderAs128: true}
fpga:
  {mode: regiondevel, managementNodes: true, hottest: 95, nodes: ["/dev/uio*"],
   prepare: [{command: [/opt/program, "{pci}"], timeout: 15s}], release: [{write: reset, text: "1"}],
   expect: {fpga.intel.com/afuId: d842}}
sources:
- name: camera
  resource: a.com/camera
  sharing: {method: shared, replicas: 2}
  find: {nodes: ["/dev/video*", /dev/media0]}
  match: 'device.attributes["windlass.dev"].driver == "uvcvideo"'
  attributes: {firmware: device/fw_version}
  facts: {lenses: 2, colour: true, maker: Acme}
  unit: zipped
  give:
    found: r
    nodes: [{path: /dev/snd/*, as: /dev/snd/, access: rw, optional: true, shared: true}]
    env: {CAMERA: "{id}"}
    mounts: [{host: /opt/camera, container: /camera, writable: true}]
    cdi: [vendor.com/camera=all]
  probe: {attribute: state, equals: [online], every: 20s, timeout: 1s, failures: 3, quietPeriod: 1s}
  prepare: [{http: "http://h/reset", timeout: 2s}, {command: [/bin/true, now]}]
  release: [{write: reset, text: "1"}]
  allowDangerous: true
- {name: board, find: {endpoints: [10.0.0.1]}, probe: {http: "http://{endpoint}/"}, lease: true}
- {name: files, find: {files: /etc/boards}, give: {found: none}, probe: {command: [/bin/true]}}
- {name: stick, find: {bus: usb}, match: "device.index == 0", unit: all, probe: {tcp: "{host}:80"}}
- {name: render, find: {class: drm}}
- {name: tty, resourceDomain: a.com, find: {nodes: /dev/ttyUSB0}}
nics:
  ids: pciAddress
  rdmaNodes: [uverbs, umad]
  vhostNet: true
  programHints: true
  numaHints: false
  quietPeriod: 3s
  release: [{link: up}]
  info: {"*": {a: b}, "0000:3b:02.0": {a: c}}
exclude:
- {kind: gpu, index: [7]}
resources:
- name: a.com/x
  devices: {kind: gpu, index: [1, 2], match: 'device.attributes["nvidia.com"].index > 1'}
  sharing: {method: mps, replicas: 4, perContainer: any}
  placement: packed
- name: a.com/y
  devices: {kind: mig, profiles: [1g.5gb], ids: [MIG-1]}
  sharing: {method: timeSlicing, replicas: 8}
- name: rdma/all
  devices: {kind: nic}
  sharing: {method: shared, replicas: 3, pool: true}
- name: a.com/z
  devices: {kind: gpu, index: [0]}
  sharing: {method: timeSlicing, memory: 10Gi}
unmatched: default
shares: {memory: a.com/m, compute: a.com/c}
memoryLimits: {hook: /opt/windlass-hook, atLeast: watched}
watchdog: {action: kill, interval: 5s}
dra:
  offer: instead
  driver: gpu.nvidia.com
  devices:
  - {kind: gpu, index: [0, 1]}
  taints: none
  shares:
  - {devices: {kind: gpu, index: [0]}, method: mps}
  - {devices: {kind: gpu}, method: timeSlicing, limits: advisory}
  partitions: onDemand
  migMode: onDemand
health:
  quietPeriod: 2m
  probeInterval: 500ms
  callDeadline: 1s
  ignoredXids: [48]
  countedXids: [13]
  unlistedXids: ignored
labels: {to: file, file: /f, timestamp: true, machineTypeFile: /t, devices: true}
"#;

#[test]
fn an_empty_file_is_refused_and_braces_are_the_defaults() {
    assert_eq!(parse("{}"), Ok(Config::default()));
    assert_eq!(parse("health:\nresources:\n"), Ok(Config::default()));
    let empty = "the configuration says nothing: write `{}` for the defaults";
    check_mistakes([
        (String::new(), 1, empty),
        (" \n\n".to_owned(), 2, empty),
        ("\n# nothing yet\n\n".to_owned(), 2, empty),
        ("null\n".to_owned(), 1, empty),
    ]);
}

#[test]
fn every_key_is_read() {
    let config = parse(EVERYTHING).expect("valid");
    assert_eq!(config.places.kubelet_dir, Path::new("/k"));
    assert_eq!(config.places.nvml_library.as_deref(), Some(Path::new("/l")));
    assert_eq!(config.places.driver.root, Path::new("/run/nvidia/driver"));
    assert_eq!(config.listen, Some(([127, 0, 0, 1], 9400).into()));
    assert_eq!(config.probe_socket.as_deref(), Some(Path::new("/p")));
    assert_eq!(config.disclose, [Disclosed::Pods, Disclosed::Serials].into());
    assert!(config.cluster.events);
    let policy = config.policy;
    assert_eq!(
        policy.delivery.strategies,
        [DeviceListStrategy::CdiAnnotations, DeviceListStrategy::Envvar].into()
    );
    let imex = Imex { channels: [0, 2047].into(), required: true };
    assert_eq!(policy.delivery.imex, imex);
    assert_eq!(policy.health.quiet_period, Duration::from_secs(120));
    assert_eq!(policy.health.probe_interval, Duration::from_millis(500));
    assert_eq!(policy.labels.output, LabelOutput::File("/f".into()));
    let Resources::Rules(rules) = policy.resources else { panic!("no rules") };
    assert_eq!(rules[0].devices.index, BTreeSet::from([1, 2]));
    let Sharing::Shared(shared) = rules[0].sharing else { panic!("not shared") };
    assert_eq!(shared.per_container, PerContainer::Any);
    assert_eq!(rules[0].placement(), placement::Policy::Packed);
    let Sharing::Shared(shared) = rules[1].sharing else { panic!("not shared") };
    assert_eq!((shared.replicas.get(), shared.per_container), (8, PerContainer::Any));
    assert_eq!(rules[1].placement(), placement::Policy::Distributed);
    let Sharing::Pooled(pool) = rules[2].sharing else { panic!("not pooled") };
    assert_eq!(pool.tokens.get(), 3);
    let Sharing::Shared(shared) = rules[3].sharing else { panic!("not shared") };
    assert_eq!((shared.replicas.get(), shared.memory_mib), (Replicas::MAX, Some(10_240)));
    assert_eq!(policy.nics.ids, NicIds::PciAddress);
    assert!(policy.labels.devices);
    assert_eq!(
        policy.shares.names().map(ToString::to_string).collect::<Vec<_>>(),
        ["a.com/m", "a.com/c"]
    );
    assert_eq!(policy.nics.rdma_nodes, [RdmaNode::Uverbs, RdmaNode::Umad].into());
    assert_eq!(policy.nics.quiet_period(&policy.health), Duration::from_secs(3));
    assert_eq!(policy.nics.info["0000:3b:02.0"]["a"], "c");
}

/// Checks that each text is refused with an error that contains the expected words.
fn check_refused(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        let error = parse(text).expect_err(text);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_required_limit_without_memory_hook_or_fitting_gpu_is_refused() {
    check_refused(&[
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: driver, replicas: 4}}]",
            "driver and dmem limit memory: write memory: 10Gi",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: driver, memory: 10Gi}}]",
            "methods driver and dmem need the hook",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: dmem, memory: 10Gi}}]",
            "the kernel limits the memory of AMD's and Intel's GPUs only",
        ),
        (
            "dra: {shares: [{devices: {kind: nic, source: nics}, method: timeSlicing}]}",
            "claims share GPUs by amounts only, those of NVIDIA, AMD and Intel",
        ),
        (
            "dra: {shares: [{devices: {kind: gpu, source: amd}, method: mps}]}",
            "MPS shares NVIDIA's GPUs only",
        ),
        (
            "dra: {shares: [{devices: {kind: gpu, source: amd}, method: driver}]}",
            "NVIDIA's driver limits the memory of its GPUs only",
        ),
        (
            "dra: {shares: [{devices: {kind: gpu}, method: dmem}]}",
            "the kernel limits the memory of AMD's and Intel's GPUs only",
        ),
        (
            "dra: {shares: [{devices: {kind: gpu, source: intel}, method: dmem}]}",
            "methods driver and dmem need the hook",
        ),
        (
            "dra: {shares: [{devices: {kind: gpu}, method: driver}]}",
            "methods driver and dmem need the hook",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu, source: amd}, \
             sharing: {method: driver, memory: 10Gi}}]",
            "NVIDIA's driver limits the memory of its GPUs only",
        ),
    ]);
}

#[test]
fn shares_need_a_memory_limiter_and_virtual_gpus_are_nvidias() {
    parse("shares: {source: intel, memory: a.com/m}").expect("valid");
    check_refused(&[
        ("shares: {source: nics, memory: a.com/m}", "source: nics: write nvidia, amd or intel"),
        (
            "shares: {source: amd, gpus: nvidia.com/gpu}",
            "virtual GPUs are for NVIDIA's GPUs only: remove source or gpus",
        ),
    ]);
}

#[test]
fn contradictory_rules_for_nics_and_shares_are_refused() {
    check_refused(&[
        ("nics: {rdmaNodes: [umad]}", "rdmaNodes without uverbs"),
        ("nics: {info: {ens1: {a: b}}}", "write a PCI address such as 0000:3b:02.0, or *"),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: mps, replicas: 2, pool: true}}]",
            "only method: shared pools devices",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: timeSlicing, memory: 255Mi}}]",
            "write memory: 256Mi or more",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: timeSlicing, memory: 10Go}}]",
            "is not an amount of memory",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, \
             sharing: {method: shared, memory: 10Gi}}]",
            "method: shared gives no memory",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: mig}, \
             sharing: {method: timeSlicing, memory: 5Gi}}]",
            "only mps gives parts of a MIG instance's memory",
        ),
        (
            "resources: [{name: a.com/x, devices: {kind: gpu}, sharing: {method: mps}}]",
            "write replicas: 4 or memory: 10Gi",
        ),
    ]);
}

#[test]
fn placement_follows_the_rule_and_has_a_default_without() {
    let text = format!(
        "unmatched: default\nresources:\n{}{}  placement: numa-strict\n{}  sharing: {{method: timeSlicing, \
         replicas: 4}}\n  placement: aligned\n",
        gpus("a.com/x", ", index: [0]"),
        gpus("a.com/y", ", index: [1]"),
        gpus("a.com/z", ", index: [2]"),
    );
    let config = parse(&text).expect("valid");
    let shared = Sharing::Shared(Shared {
        method: SharingMethod::TimeSlicing,
        replicas: Replicas::try_from(4).expect("valid"),
        per_container: PerContainer::Any,
        memory_mib: None,
    });
    let placement = |policy: &Policy, name: &str, sharing| {
        policy.placement(&name.parse().expect("a name"), sharing).to_string()
    };
    for (name, sharing, expected) in [
        ("a.com/x", Sharing::Exclusive, "aligned"),
        ("a.com/y", Sharing::Exclusive, "numa-strict"),
        ("a.com/z", shared, "aligned"),
        ("nvidia.com/gpu", Sharing::Exclusive, "aligned"),
        ("nvidia.com/gpu", shared, "distributed"),
    ] {
        assert_eq!(placement(&config.policy, name, sharing), expected, "{name}");
    }
    assert_eq!(placement(&Policy::default(), "nvidia.com/gpu", Sharing::Exclusive), "aligned");
    assert_eq!(parse(&to_yaml(&config)), Ok(config));
}

#[test]
fn a_key_without_a_value_counts_as_absent_unless_it_is_a_list_or_needed() {
    for text in [
        "kubeletDir:\nlisten:\nmig:\npassDeviceSpecs:\ndra: {driver: , offer: }\n",
        "health: {quietPeriod: , unlistedXids: }\nlabels: {timestamp: , to: }\nfpga:\nnics: {ids: , rdmaNodes: }\n",
    ] {
        assert_eq!(parse(text), Ok(Config::default()), "{text}");
    }
    check_mistakes([
        ("health:\n  ignoredXids:\n".to_owned(), 2, "nothing is written here: write a list"),
        (
            "resources:\n- devices: {kind: gpu}\n  name:\n".to_owned(),
            3,
            "nothing is written here, and `name` cannot be left out",
        ),
    ]);
}

#[test]
fn devices_are_found_in_one_of_the_known_ways() {
    let find = |find: &str| format!("sources:\n- name: s\n  find: {find}\n");
    check_mistakes([
        (find("{}"), 3, "write one of bus, class, nodes, files, endpoints"),
        (find("{class: drm, files: /x}"), 3, "write one of bus, class, nodes, files, endpoints"),
        (find("{class: drm, nods: /x}"), 3, "unknown field `nods`: did you mean `nodes`?"),
        (find("{class: [drm]}"), 3, "a list is not valid here: write a string"),
        (find("drm"), 3, "is not a known value"),
    ]);
}

#[test]
fn every_key_that_differs_is_among_the_changed_ones() {
    let config = parse(EVERYTHING).expect("valid");
    let changed: BTreeSet<_> = config.changed_keys(&Config::default()).into_iter().collect();
    let all_keys = json(EVERYTHING);
    let all_keys: BTreeSet<_> = all_keys.as_object().expect("a map").keys().cloned().collect();
    assert_eq!(changed, all_keys);
    assert!(config.changed_keys(&config).is_empty());
}

#[test]
fn json_is_accepted_too() {
    let text = "{\n  \"mig\": \"none\",\n  \"health\": {\"quiet\": 3}\n}";
    assert!(parse(text).expect_err("a mistake").starts_with("w.yaml:3: unknown field `quiet`"));
}

/// YAML of a rule for GPUs, as two lines.
fn gpus(name: &str, other_keys: &str) -> String {
    format!("- name: {name}\n  devices: {{kind: gpu{other_keys}}}\n")
}

fn rule(name: &str, devices: &str, sharing: &str) -> String {
    format!("resources:\n- name: {name}\n  devices: {{{devices}}}\n  sharing: {{{sharing}}}\n")
}

/// An expression about an attribute.
fn expression_on(domain: &str, condition: &str) -> String {
    format!("device.attributes[\"{domain}\"].{condition}")
}

/// Checks the line and the message of the single error in each document.
fn check_mistakes<const N: usize>(cases: [(String, u64, &str); N]) {
    for (text, line, expected) in cases {
        let error = parse(&text).expect_err(&text);
        assert!(error.starts_with(&format!("w.yaml:{line}: ")), "{text}\n{error}");
        assert!(error.contains(expected), "{text}\n{error}");
        assert_eq!(error.lines().count(), 1, "one mistake is reported once: {text}\n{error}");
    }
}

/// A document whose nested aliases multiply its size by a thousand several times.
fn alias_bomb() -> String {
    let levels = (1..9).map(|level| {
        let references = format!("*a{}, ", level - 1).repeat(10);
        format!("a{level}: &a{level} [{references}]\n")
    });
    ["a0: &a0 [x]\n".to_owned()].into_iter().chain(levels).collect()
}

#[test]
fn mistakes_are_refused_with_line_and_correction() {
    check_mistakes([
        (
            "kubeletDir: /k\nkubletDir: /x\n".to_owned(),
            2,
            "unknown field `kubletDir`: did you mean `kubeletDir`?",
        ),
        ("kubeletDir: /k\nkubeletDir: /x\n".to_owned(), 2, "already on line 1"),
        ("health:\n  quiet: 3s\n".to_owned(), 2, "quietPeriod"),
        ("health:\n  quietPeriod: soon\n".to_owned(), 2, "500ms, 60s or 5m"),
        ("health:\n  quietPeriod: 0s\n".to_owned(), 2, "between 10ms and 24h"),
        ("health:\n  probeInterval: 9999h\n".to_owned(), 2, "between 10ms and 24h"),
        ("health:\n  ignoredXids: [79]\n  countedXids: [79]\n".to_owned(), 2, "keep one"),
        (
            rule("a.com/x", "kind: gpu, profiles: [1g.5gb]", "method: mps, replicas: 2"),
            3,
            "only MIG",
        ),
        (format!("resources:\n{}", gpus("a.com/x", ", ids: [a b]")), 3, "cannot name a device"),
        ("dra:\n  migMode: onDemand\n".to_owned(), 2, "write partitions: onDemand too"),
        ("deviceList: csv\n".to_owned(), 1, "envvar"),
        ("deviceList: []\n".to_owned(), 1, "no way to name devices"),
        ("cdiAnnotationPrefix: cdi\n".to_owned(), 1, "a domain and a slash"),
        ("listen: here\n".to_owned(), 1, "0.0.0.0:9400"),
        ("imex: {channels: [0,\n  2048]}\n".to_owned(), 2, "channel 2048 does not exist"),
        ("imex: {channels: [-1]}\n".to_owned(), 1, "channel -1 does not exist"),
        ("labels: {to: node, file: /x}\n".to_owned(), 1, "for `to: file` only"),
        ("fpga:\n  nodes: /dev/*\n".to_owned(), 2, "it exposes the memory of the whole machine"),
        ("fpga: {nodes: uio0}\n".to_owned(), 1, "uio0 is not a device node"),
        (
            "fpga: {prepare: [{command: [program]}]}\n".to_owned(),
            1,
            "fpga: \"program\" is not an absolute",
        ),
        (
            "fpga: {release: [{write: ../x, text: a}]}\n".to_owned(),
            1,
            "is not a file in the device's",
        ),
        ("fpga: {expect: {shell: a}}\n".to_owned(), 1, "expect lists attributes after prepare"),
        (
            "gpu: {release: [{memory: overwrite, atMost: 1Mi}]}\n".to_owned(),
            1,
            "atMost belongs to memory: free",
        ),
        ("nics: {release: [{memory: overwrite}]}\n".to_owned(), 1, "write them under gpu"),
        ("unmatched: default\n".to_owned(), 1, "there are no rules"),
        ("kubeletDir: [\n".to_owned(), 1, ""),
        ("kubeletDir: [a]\n".to_owned(), 1, "a list is not valid here: write a path"),
        (
            "exclude: [{index: [-1]}]\n".to_owned(),
            1,
            "-1 is not valid here: write a number from 0 to 4294967295",
        ),
        ("exclude:\n".to_owned(), 1, "nothing is written here: write a list"),
        (
            rule("a.com/x", "kind: gpu", "method: mps, replicas: -1"),
            4,
            "-1 is not valid here: write a whole number, 0 or more",
        ),
        ("migg: mixed\n".to_owned(), 1, "unknown field `migg`: did you mean `mig`?"),
        ("mig: mixd\n".to_owned(), 1, "\"mixd\" is not a known value: did you mean mixed?"),
        ("mig: both\n".to_owned(), 1, "\"both\" is not a known value: write none, single or mixed"),
        (
            format!("a: {}1{}\n", "[".repeat(40), "]".repeat(40)),
            1,
            "too deep: more than 32 lists and groups",
        ),
        (
            format!("exclude: [{}]\n", "1,".repeat(250_001)),
            1,
            "too large: more than 250,000 values",
        ),
        (alias_bomb(), 7, "too large: more than 250,000 values"),
        ("just text\n".to_owned(), 1, "\"just text\" is not valid here: write keys with values"),
    ]);
}

#[test]
fn resources_of_amounts_have_distinct_names() {
    let used_twice = "is the name of another resource already";
    check_mistakes([
        (
            "shares: {memory: a.com/m, compute: a.com/m}".to_owned(),
            1,
            "memory and compute have the same resource name",
        ),
        ("mig: none\nshares: {memory: nvidia.com/gpu}".to_owned(), 2, used_twice),
        (
            "resources: [{name: a.com/m, devices: {kind: gpu}}]\nshares: {compute: a.com/m}\n"
                .to_owned(),
            2,
            used_twice,
        ),
        ("shares: {gpus: nvidia.com/gpu, memory: nvidia.com/gpu}".to_owned(), 1, used_twice),
        (
            "shares: {gpus: nvidia.com/gpu, perGpu: 1001}".to_owned(),
            1,
            "perGpu: 1001: write a number from 1 to 1000",
        ),
    ]);
    let config =
        parse("shares: {gpus: nvidia.com/gpu}").expect("the name of whole GPUs is replaced");
    assert_eq!(config.policy.shares.per_gpu.get(), 10);
}

#[test]
fn memory_is_not_overwritten_on_gpus_under_mps() {
    let step = "gpu: {release: [{memory: overwrite, timeout: 1m}]}\n";
    let sliced = rule("a.com/x", "kind: gpu", "method: timeSlicing, replicas: 2");
    let config =
        parse(&format!("{step}{sliced}")).expect("no container has the GPU during the step");
    assert!(config.policy.families.gpu.overwrites());
    assert!(to_yaml(&config).contains("memory: overwrite"), "{}", to_yaml(&config));
    let by_mps = rule("a.com/x", "kind: gpu", "method: mps, replicas: 2");
    let by_claims = "dra: {offer: beside, shares: [{devices: {kind: gpu}, method: mps}]}\n";
    check_mistakes([
        (format!("{step}{by_mps}"), 1, "share by time slices, or leave the step out"),
        (format!("{step}{by_claims}"), 1, "MPS keeps its own on those that it shares"),
    ]);
}

#[test]
fn mistakes_in_rules_are_refused_with_line_and_correction() {
    check_mistakes([
        (format!("resources:\n{}", gpus("gpu", "")), 2, "write it like nvidia.com/gpu"),
        (format!("resources:\n{}", gpus(&format!("a.com/{}", "x".repeat(64)), "")), 2, "1 to 63"),
        ("resources:\n- name: a.com/x\n  devices: {kind: tpu}\n".to_owned(), 3, "gpu"),
        ("resources:\n- name: a.com/x\n".to_owned(), 2, "the key `devices` is missing"),
        (
            "resources:\n- name: a.com/x\n  devices: {kind: mig, profiles: [9g.80gb]}\n".to_owned(),
            3,
            "not a MIG profile of any GPU",
        ),
        (
            format!("resources:\n{}", gpus("a.com/x", ", match: 'device.'")),
            3,
            "selects no devices: column 8",
        ),
        (rule("a.com/x", "kind: gpu", "method: mps, replicas: 0"), 4, "0 replicas: write a number"),
        (
            rule("a.com/x", "kind: gpu", "method: timeSlicing, replicas: 100000"),
            4,
            "100000 replicas",
        ),
        (rule("a.com/x", "kind: gpu", "method: mps, replicas: 49"), 4, "at most 48 clients"),
        (rule("a.com/x", "kind: nic", "method: timeSlicing, replicas: 2"), 4, "no time slices"),
        (
            format!("resources:\n{}  placement: tight\n", gpus("a.com/x", "")),
            4,
            "\"tight\" is not a placement policy: write aligned, packed, distributed, numa-strict or first",
        ),
        (
            rule("a.com/x", "kind: gpu", "method: mps, replicas: 2, spread: packed"),
            4,
            "unknown field `spread`",
        ),
        (
            format!("resources:\n{}{}", gpus("a.com/x", ""), gpus("a.com/y", ", index: [0]")),
            4,
            "a.com/x on line 2 takes every such gpu first",
        ),
        (
            format!("exclude: [{{kind: gpu}}]\nresources:\n{}", gpus("a.com/x", ", index: [0]")),
            3,
            "exclude on line 1",
        ),
    ]);
}

#[test]
fn an_expression_without_an_answer_for_any_device_is_refused() {
    check_mistakes([
        (
            format!(
                "resources:\n{}",
                gpus(
                    "a.com/x",
                    &format!(", match: '{}'", expression_on("nvidia.com", "brand > 5"))
                )
            ),
            3,
            "brand is a string, and 5 is a number: write a string in quotes",
        ),
        (
            format!(
                "exclude:\n- {{kind: nic, match: '{}'}}\n",
                expression_on("windlass.dev", "driver > 5")
            ),
            2,
            "driver is a string, and 5 is a number: write a string in quotes",
        ),
        (
            format!(
                "resources:\n- name: a.com/x\n  devices: {{source: fpga, match: '{}'}}\n",
                expression_on("amd.com", "shell > 5")
            ),
            3,
            "shell is a string, and 5 is a number: write a string in quotes",
        ),
    ]);
}

/// A rule with an expression, beside a source of the configuration.
fn rule_with_expression(devices: &str, expression: &str) -> String {
    format!(
        "sources:\n- {{name: s, find: {{bus: pci}}, match: 'true', attributes: {{firmware: fw}}}}\n\
         resources:\n- name: a.com/x\n  devices: {{{devices}, match: '{expression}'}}\n"
    )
}

#[test]
fn values_of_another_type_and_misspelt_names_are_refused_with_a_correction() {
    let standard = |expression: &str| expression_on("resource.kubernetes.io", expression);
    let cuda = expression_on("nvidia.com", "cudaComputeCapability == \"9.0\"");
    let memory = "device.capacity[\"nvidia.com\"].memory == 80".to_owned();
    let wrong_domain = expression_on("nvidia.co", "brand == \"x\"");
    for (devices, expression, expected) in [
        (
            "kind: gpu",
            &standard("numaNode == \"0\""),
            "numaNode is a number, and \"0\" is a string: write 0, without quotes",
        ),
        (
            "kind: gpu",
            &expression_on("nvidia.com", "migCapable != \"true\""),
            "migCapable is a boolean, and \"true\" is a string: write true, without quotes",
        ),
        (
            "kind: gpu",
            &cuda,
            "cudaComputeCapability is a version, and \"9.0\" is a string: write semver(",
        ),
        ("kind: gpu", &memory, "memory is a quantity, and 80 is a number: write quantity("),
        (
            "kind: gpu",
            &"device.kind in [\"gpu\", 3]".to_owned(),
            "kind is a string, and 3 is a number",
        ),
        (
            "kind: gpu",
            &expression_on("nvidia.com", "prodctName == \"x\""),
            "column 33: no such device has prodctName of nvidia.com: did you mean productName?",
        ),
        (
            "kind: gpu",
            &wrong_domain,
            "no such device has attributes of nvidia.co: did you mean nvidia.com?",
        ),
        (
            "source: s",
            &expression_on("windlass.dev", "firmware == 2"),
            "match: column 35: firmware is a string, and 2 is a number",
        ),
        ("source: s", &expression_on("windlass.dev", "firmwre == \"2\""), "did you mean firmware?"),
    ] {
        check_mistakes([(rule_with_expression(devices, expression), 5, expected)]);
    }
}

#[test]
fn expressions_may_use_attributes_of_some_devices_only() {
    let standard = |expression: &str| expression_on("resource.kubernetes.io", expression);
    for (devices, expression) in [
        ("kind: gpu", expression_on("nvidia.com", "whatever == 3")),
        ("kind: gpu", expression_on("nvidia.com", "driverVersion == \"580\"")),
        ("kind: gpu", standard("numaNode == 0.0")),
        ("source: nics", expression_on("windlass.dev", "pciClass == \"0x020000\"")),
        ("source: s", format!("has({})", expression_on("windlass.dev", "usbSerial"))),
    ] {
        let text = rule_with_expression(devices, &expression);
        parse(&text).expect(&text);
    }
}

#[test]
fn rules_that_contradict_each_other_are_refused_with_both_lines() {
    check_mistakes([
        (
            format!(
                "resources:\n{}  sharing: {{method: timeSlicing, replicas: 4}}\n{}",
                gpus("a.com/x", ", index: [0]"),
                gpus("a.com/x", ", index: [1]")
            ),
            5,
            "exclusive here and time-sliced by 4 (any number per container) on line 2",
        ),
        (
            format!(
                "resources:\n{}  placement: packed\n{}",
                gpus("a.com/x", ", index: [0]"),
                gpus("a.com/x", ", index: [1]")
            ),
            5,
            "placement of a.com/x is aligned here and packed on line 2",
        ),
        (
            format!(
                "unmatched: default\n{}",
                rule("nvidia.com/gpu", "kind: gpu, index: [0]", "method: timeSlicing, replicas: 4")
            ),
            3,
            "under the same name unshared",
        ),
    ]);
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = "kubletDir: /x\nmig: both\nhealth:\n  quietPeriod: soon\n  ignoredXids: [a, 79, b]\n\
                resources:\n- name: gpu\n  devices: {kind: tpu}\n- name: a.com/x\n  devices: {kind: gpu}\n  \
                sharing: {method: mps, replicas: 0}\n- name: a.com/y\n  devices: {kind: gpu}\n";
    let error = parse(text).expect_err("many mistakes");
    let lines: Vec<_> = error.lines().filter_map(|line| line.split(':').nth(1)).collect();
    assert_eq!(lines, ["1", "2", "4", "5", "5", "7", "8", "11", "12"], "{error}");
}

#[test]
fn rules_with_different_devices_are_accepted() {
    let text = format!(
        "resources:\n{}{}{}- name: a.com/z\n  devices: {{kind: nic}}\n",
        gpus("a.com/x", ", index: [0]"),
        gpus("a.com/x", ", index: [1]"),
        gpus("a.com/y", "")
    );
    assert_eq!(parse(&text).map(drop), Ok(()));
}

#[test]
fn a_text_may_look_like_a_number() {
    let config =
        parse("cluster: {nodeName: 0123}\nhooks: {disabled: [1.10, true]}").expect("valid");
    assert_eq!(config.cluster.node_name.as_deref(), Some("0123"));
    assert_eq!(config.policy.delivery.hooks.disabled, ["1.10".into(), "true".into()].into());
}

fn json(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).expect("YAML")
}

#[test]
fn the_schema_has_every_key_and_refuses_the_same_documents_as_the_reader() {
    let schema = schema();
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let errors: Vec<_> =
        schema.iter_errors(&json(EVERYTHING)).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    for invalid in [
        "kubletDir: /k",
        "mig: both",
        "deviceList: csv",
        "imex: {channels: [2048]}",
        "health: {quietPeriod: 5}",
        "resources: [{name: gpu, devices: {kind: gpu}}]",
        "resources: [{name: a.com/x, devices: {kind: tpu}}]",
        "resources: [{name: a.com/x, devices: {kind: mig, profiles: [9g.80gb]}}]",
        "resources: [{name: a.com/x, devices: {kind: gpu}, sharing: {method: mps, replicas: 0}}]",
        "resources: [{name: a.com/x, devices: {kind: gpu}, sharing: {replicas: 2}}]",
        "resources: [{name: a.com/x, devices: {kind: gpu}, placement: tight}]",
        "sources: [{name: , find: {nodes: /dev/x}, profile: }]",
        "sources: [{name: a, find: }]",
    ] {
        assert!(!schema.is_valid(&json(invalid)), "{invalid}");
        assert!(parse(invalid).is_err(), "{invalid}");
    }
}

#[test]
fn the_schema_describes_every_key() {
    let schema = schema();
    let properties = schema["properties"].as_object().expect("properties");
    for (key, property) in properties {
        assert!(property["description"].is_string(), "{key} has no description: {property}");
    }
    let all_keys: Vec<_> = json(EVERYTHING).as_object().expect("a map").keys().cloned().collect();
    assert!(properties.keys().all(|key| all_keys.contains(key)), "the test's file lacks a key");
}

#[test]
fn the_documentation_shows_every_key_and_each_is_accepted() {
    let page = include_str!("../../../../docs/configuration.md");
    let section = page.split_once("\n## Every key\n").map(|(_, text)| text);
    let block = section.and_then(|text| text.split_once("```yaml\n"));
    let block = block.and_then(|(_, text)| text.split_once("```"));
    let (example, _) = block.expect("an example");
    let config = parse(example).unwrap_or_else(|error| panic!("{error}"));
    assert_ne!(config, Config::default());
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let errors: Vec<_> =
        validator.iter_errors(&json(example)).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let documented = json(example);
    for key in schema["properties"].as_object().expect("properties").keys() {
        assert!(documented.get(key).is_some(), "{key} is not documented");
    }
}

/// The code of a page: blocks between fences, and spans between backticks.
fn code(page: &str) -> String {
    let mut code = String::new();
    for (position, part) in page.split("```").enumerate() {
        let is_block = position % 2 == 1;
        let spans = part.split('`').skip(1).step_by(2);
        code.extend(
            if is_block { vec![part] } else { spans.collect() }
                .iter()
                .flat_map(|span| [span, "\n"]),
        );
    }
    code
}

fn words(code: &str) -> BTreeSet<&str> {
    code.split(|letter: char| !letter.is_ascii_alphanumeric()).collect()
}

/// Adds every key below a node of the schema to `keys_found`.
fn keys_below<'a>(
    schema: &'a Value,
    node: &'a Value,
    seen: &mut BTreeSet<&'a str>,
    keys_found: &mut BTreeSet<&'a str>,
) {
    match node {
        Value::Array(nodes) => {
            for node in nodes {
                keys_below(schema, node, seen, keys_found);
            }
        }
        Value::Object(fields) => {
            for (keyword, value) in fields {
                match (keyword.as_str(), value) {
                    ("default" | "examples" | "enum" | "const", _) => {}
                    ("$ref", Value::String(reference)) if seen.insert(reference) => {
                        let reference =
                            schema.pointer(reference.trim_start_matches('#')).expect("defined");
                        keys_below(schema, reference, seen, keys_found);
                    }
                    ("properties", Value::Object(keys)) => {
                        keys_found.extend(keys.keys().map(String::as_str));
                        for key in keys.values() {
                            keys_below(schema, key, seen, keys_found);
                        }
                    }
                    _ => keys_below(schema, value, seen, keys_found),
                }
            }
        }
        _ => {}
    }
}

/// The pages that the example names beside a section: `# docs/shares.md`.
fn pages_of<'a>(page: &'a str, section: &str) -> impl Iterator<Item = &'a str> {
    let (_, text) = page.split_once(&format!("\n{section}:")).unwrap_or_default();
    let lines = text.lines().enumerate();
    let lines = lines.take_while(|(number, line)| *number == 0 || line.starts_with([' ', '#']));
    let words = lines.flat_map(|(_, line)| line.split([' ', ',', ';', '#']));
    words.filter(|word| word.starts_with("docs/"))
}

#[test]
fn the_documentation_shows_every_nested_key_of_a_section() {
    let page = include_str!("../../../../docs/configuration.md");
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let schema = schema();
    let mut missing = Vec::new();
    for (section, node) in schema["properties"].as_object().expect("properties") {
        let mut text = code(page);
        for linked in pages_of(page, section) {
            text += &code(&std::fs::read_to_string(root.join(linked)).expect(linked));
        }
        let (words_shown, mut keys) = (words(&text), BTreeSet::new());
        keys_below(&schema, node, &mut BTreeSet::new(), &mut keys);
        let absent = keys.into_iter().filter(|key| !words_shown.contains(key));
        missing.extend(absent.map(|key| format!("{section}: {key}")));
    }
    assert!(missing.is_empty(), "neither docs/configuration.md nor its page: {missing:#?}");
}

#[test]
fn every_feature_is_listed_once() {
    let schema = schema();
    let features = schema.pointer("/$defs/Feature").expect("defined");
    let words = features.get("oneOf").or(features.get("enum")).expect("words");
    assert_eq!(words.as_array().expect("a list").len(), Feature::ALL.len());
}

#[test]
fn claims_get_no_devices_by_default() {
    assert_eq!(parse("dra: {offer: off}"), Ok(Config::default()));
    let config = parse("dra: {offer: beside}").expect("valid");
    assert_eq!(config.policy.dra.offer, DraOffer::Beside);
}

#[test]
fn a_written_configuration_is_read_back() {
    let config = parse(EVERYTHING).expect("valid");
    assert_eq!(parse(&to_yaml(&config)), Ok(config));
    assert_eq!(parse(&to_yaml(&Config::default())), Ok(Config::default()));
}

prop_compose! {
    fn sharing()(
        mps in any::<bool>(), replicas in 1_u64..=48, any in any::<bool>(),
        memory_mib in proptest::option::of(256_u64..1 << 20),
    ) -> Sharing {
        Sharing::Shared(Shared {
            method: if mps { SharingMethod::Mps } else { SharingMethod::TimeSlicing },
            replicas: Replicas::try_from(replicas).expect("in range"),
            per_container: if any { PerContainer::Any } else { PerContainer::One },
            memory_mib,
        })
    }
}

prop_compose! {
    fn gpu_rule(number: u32)(
        id in "[A-Za-z0-9._:-]{1,63}", sharing in sharing(), text in "[ -~]{0,20}",
        placement in proptest::sample::select(&placement::Policy::ALL[..]),
    ) -> ResourceRule {
        let literal = format!("{text:?}");
        ResourceRule {
            name: format!("a.com/r{number}").parse().expect("valid"),
            devices: Selector {
                index: [number].into(),
                ids: [id].into(),
                expression: format!("device.driver == {literal}").parse().ok(),
                ..Selector::all(DeviceKind::Gpu)
            },
            sharing,
            placement: Some(placement),
        }
    }
}

prop_compose! {
    fn policy()(
        first in gpu_rule(0), second in gpu_rule(1), pause in 10_u64..100_000, disabled in "[ -~]{1,12}",
        xids in proptest::collection::btree_set(0_u64..200, 0..5), path in "/[ -~]{0,20}",
    ) -> Policy {
        let mut policy = Policy {
            resources: Resources::Rules(vec![first, second]),
            unmatched: Unmatched::Default,
            health: HealthPolicy {
                quiet_period: Duration::from_millis(pause),
                ignored_xids: xids,
                unlisted_xids: UnlistedXids::Counted,
                ..HealthPolicy::default()
            },
            ..Policy::default()
        };
        policy.labels.output = LabelOutput::File(path.into());
        policy.delivery.hooks.disabled.insert(disabled);
        policy
    }
}

#[test]
fn endless_nesting_is_refused_before_the_stack_overflows() {
    for (open, repetitions) in [("{a: ", 200), ("[", 5000), ("- ", 5000), ("{a\n: ", 100_000)] {
        let error = parse(&format!("sources: {}", open.repeat(repetitions))).expect_err(open);
        assert!(error.starts_with("w.yaml:"), "{open}: {error}");
    }
}

proptest! {
    #[test]
    fn any_written_policy_is_read_back(policy in policy()) {
        let config = Config { policy, ..Config::default() };
        let text = to_yaml(&config);
        prop_assert_eq!(parse(&text), Ok(config), "{}", text);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[ -~\n]{0,200}") {
        let _ = parse(&text);
        let _ = parse(&format!("resources:\n- {text}\n"));
    }
}
