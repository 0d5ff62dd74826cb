//! Tests of the semantics of NVIDIA's file, as tables.

use std::{collections::BTreeSet, path::Path};

use proptest::prelude::*;
use windlass_config::{
    DeviceListStrategy, Feature, HostPaths, LabelOutput, PerContainer, ResourceRule, Resources,
    Sharing, SharingMethod, Unmatched, to_yaml,
};
use windlass_core::placement;

use super::*;
use crate::{Format, LoadedConfig, parse};

fn loaded(text: &str) -> Result<LoadedConfig, String> {
    let parsed = parse(Path::new("v1.yaml"), text, &NvidiaPluginFlags::default());
    parsed.map_err(|error| error.to_string())
}

fn policy(text: &str) -> Policy {
    loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}")).config.policy
}

fn warnings(text: &str) -> Vec<(u64, String)> {
    let warnings = loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}")).warnings;
    warnings.into_iter().map(|Diagnostic { line, text }| (line, text)).collect()
}

/// Text of a rule in one line: name, kind, selector, sharing.
fn line(rule: &ResourceRule) -> String {
    let devices = &rule.devices;
    let mut text = format!("{} {}", rule.name, devices.kind.expect("a kind"));
    let index: Vec<_> = devices.index.iter().map(ToString::to_string).collect();
    for set in [
        index,
        devices.ids.iter().cloned().collect(),
        devices.mig_profiles.iter().cloned().collect(),
        devices.expression.iter().map(|it| it.as_str().to_owned()).collect(),
    ] {
        if !set.is_empty() {
            text = format!("{text} {}", set.join(","));
        }
    }
    let Sharing::Shared(shared) = rule.sharing else { return text };
    let method = match shared.method {
        SharingMethod::TimeSlicing | SharingMethod::Driver | SharingMethod::Dmem => "slices",
        SharingMethod::Shared => "shared",
        SharingMethod::Mps => "mps",
    };
    let per_container = match shared.per_container {
        PerContainer::One => "one",
        PerContainer::Any => "any",
    };
    format!("{text} {method} {} {per_container}", shared.replicas.get())
}

fn rules(text: &str) -> Vec<String> {
    match policy(text).resources {
        Resources::Default => Vec::new(),
        Resources::Rules(rules) => rules.iter().map(line).collect(),
    }
}

/// The example of the plugin's documentation, with every flag.
const FULL_EXAMPLE: &str = r"version: v1
flags:
  migStrategy: none
  failOnInitError: true
  mpsRoot: /mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.example.com/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: false
    noTimestamp: true
    sleepInterval: 30s
    outputFile: /f
    machineTypeFile: /t
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
imex: {channelIDs: [0], required: true}
";

#[test]
fn every_key_is_read() {
    let loaded = loaded(FULL_EXAMPLE).expect("valid");
    assert_eq!(loaded.format, Format::Nvidia);
    let lines: Vec<_> = loaded.warnings.iter().map(|warning| warning.line).collect();
    assert_eq!(lines, [4, 22, 24], "{:?}", loaded.warnings);
    let Config { places: HostPaths { driver, mps_dir, .. }, policy, .. } = loaded.config;
    assert_eq!(driver.root, Path::new("/run/nvidia/driver"));
    assert_eq!((driver.mounted_at, driver.dev_root), (Some("/driver-root".into()), None));
    assert_eq!(mps_dir, Path::new("/mps"));
    let delivery = policy.delivery;
    assert_eq!(
        delivery.strategies,
        BTreeSet::from([DeviceListStrategy::CdiCri, DeviceListStrategy::Envvar])
    );
    assert_eq!(delivery.features, BTreeSet::from([Feature::Gds, Feature::Mofed, Feature::Gdrcopy]));
    assert_eq!(delivery.ids, DeviceIdStrategy::Index);
    assert_eq!(delivery.imex.channels, BTreeSet::from([0]));
    assert_eq!(policy.labels.output, LabelOutput::File("/f".into()));
    assert!(!policy.labels.timestamp);
    let Resources::Rules(rules) = policy.resources else { panic!("it is shared") };
    let Sharing::Shared(shared) = rules[0].sharing else { panic!("it is shared") };
    assert_eq!((shared.replicas.get(), rules[0].placement()), (10, placement::Policy::Packed));
}

#[test]
fn absent_keys_have_the_plugins_defaults() {
    let policy = policy("version: v1\n");
    assert_eq!(policy.delivery.strategies, BTreeSet::from([DeviceListStrategy::Envvar]));
    assert_eq!((policy.mig, policy.resources), (MigStrategy::None, Resources::Default));
    assert_eq!(policy.labels.output, LabelOutput::None);
    let with_labels = self::policy("version: v1\nflags: {gfd: {}}\n").labels;
    assert_eq!((with_labels.output, with_labels.timestamp), (LabelOutput::NodeFeature, true));
    let places = loaded("flags: {nvidiaDriverRoot: /d}\n").expect("valid").config.places.driver;
    assert_eq!(places.dev_root.as_deref(), Some(Path::new("/d")), "as the driver root");
}

#[test]
fn unknown_keys_and_capitals_are_accepted() {
    let text = "version: v1\nflags:\n  MigStrategy: single\n  magic: true\nmore: [1]\n";
    assert_eq!(policy(text).mig, MigStrategy::Single);
    let lines: Vec<_> = warnings(text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [4, 5]);
}

/// A section `sharing` for one resource.
fn slices(mig: &str, resource: &str, more: &str) -> String {
    format!(
        "flags: {{migStrategy: {mig}}}\nsharing:\n  timeSlicing:\n    {more}\n    resources:\n    - {resource}\n"
    )
}

fn check_rules<const N: usize>(cases: [(String, Vec<&str>); N]) {
    for (text, expected) in cases {
        assert_eq!(rules(&text), expected, "{text}");
    }
}

#[test]
fn sharing_becomes_rules() {
    let gpu = "{name: gpu, replicas: 4}";
    check_rules([
        (slices("none", gpu, ""), vec!["nvidia.com/gpu gpu slices 4 any"]),
        (
            slices("single", gpu, ""),
            vec!["nvidia.com/gpu gpu slices 4 any", "nvidia.com/gpu mig slices 4 any"],
        ),
        (slices("mixed", gpu, ""), vec!["nvidia.com/gpu gpu slices 4 any"]),
        (
            slices("mixed", "{name: nvidia.com/mig-1g.10gb.me, replicas: 2}", ""),
            vec!["nvidia.com/mig-1g.10gb.me mig 1g.10gb+me slices 2 any", "nvidia.com/gpu gpu"],
        ),
        (
            slices("none", gpu, "renameByDefault: true"),
            vec!["nvidia.com/gpu.shared gpu slices 4 any"],
        ),
        (
            slices("none", gpu, "failRequestsGreaterThanOne: true"),
            vec!["nvidia.com/gpu gpu slices 4 one"],
        ),
        (
            slices("none", "{name: gpu, rename: example.com/part, replicas: 4}", ""),
            vec!["example.com/part gpu slices 4 any"],
        ),
    ]);
    let unmatched = |mig| policy(&slices(mig, gpu, "")).unmatched;
    assert_eq!(unmatched("none"), Unmatched::Withheld);
    assert_eq!(
        unmatched("mixed"),
        Unmatched::Default,
        "instances keep the names of their profiles"
    );
}

#[test]
fn a_subset_of_devices_is_shared_under_another_name() {
    check_rules([
        (
            slices("none", "{name: gpu, devices: 2, replicas: 4}", ""),
            vec!["nvidia.com/gpu.shared gpu 0,1 slices 4 any", "nvidia.com/gpu gpu"],
        ),
        (
            slices("none", "{name: gpu, devices: [3, '5', GPU-1], rename: part, replicas: 4}", ""),
            vec![
                "nvidia.com/part gpu 3,5 slices 4 any",
                "nvidia.com/part gpu GPU-1 slices 4 any",
                "nvidia.com/gpu gpu",
            ],
        ),
        (
            slices("mixed", "{name: mig-1g.5gb, devices: ['0:1'], replicas: 4}", ""),
            vec![
                "nvidia.com/mig-1g.5gb.shared mig 0 1g.5gb \
                 device.attributes[\"nvidia.com\"].instanceIndex == 1 slices 4 any",
                "nvidia.com/gpu gpu",
            ],
        ),
    ]);
}

#[test]
fn mps_takes_precedence_with_one_replica_per_container_by_default() {
    let text = "sharing:\n  timeSlicing:\n    resources: [{name: gpu, replicas: 4}]\n  mps:\n    \
                resources: [{name: gpu, replicas: 8}]\n";
    assert_eq!(rules(text), ["nvidia.com/gpu gpu mps 8 one"]);
    assert_eq!(warnings(text)[0].0, 3);
    let any = text.replace("mps:\n", "mps:\n    failRequestsGreaterThanOne: false\n");
    assert_eq!(rules(&any), ["nvidia.com/gpu gpu mps 8 any"]);
}

#[test]
fn patterns_apply_in_order() {
    let text = "resources:\n  gpus:\n  - {pattern: 'NVIDIA A100*', name: a100}\n  - {pattern: '*', name: gpu}\n";
    let a100 = "has(device.attributes[\"nvidia.com\"].productName) && \
                device.attributes[\"nvidia.com\"].productName.matches(\"(?s)^NVIDIA A100.*$\")";
    assert_eq!(rules(text), [format!("nvidia.com/a100 gpu {a100}"), "nvidia.com/gpu gpu".into()]);
    assert_eq!(warnings(text).len(), 1, "the plugin itself ignores them");
    let mixed =
        format!("flags: {{migStrategy: mixed}}\n{}", text.replace("pattern: '*'", "pattern: 'T4'"));
    let excluded = &policy(&mixed).exclude[0];
    let expression = excluded.expression.as_ref().expect("GPUs without a pattern").as_str();
    assert!(expression.starts_with(&format!("!(({a100}) || (has(")), "{expression}");
    let profiles = "flags: {migStrategy: mixed}\nresources:\n  mig:\n  - {pattern: 1g.5gb, name: small}\n  \
                    - {pattern: '*', name: large}\n";
    assert_eq!(
        rules(profiles),
        ["nvidia.com/gpu gpu", "nvidia.com/small mig 1g.5gb", "nvidia.com/large mig"]
    );
}

#[test]
fn refusals_of_the_plugin_have_the_line() {
    let long = "x".repeat(60);
    for (text, line, expected) in [
        ("version: v2\n".to_owned(), 1, "unknown version \"v2\""),
        ("version: v1\nflags: {migStrategy: both}\n".into(), 2, "\"both\" is not a known value"),
        ("flags:\n  plugin: {deviceListStrategy: csv}\n".into(), 2, "device list strategy \"csv\""),
        ("flags:\n  plugin: {deviceIDStrategy: name}\n".into(), 2, "\"name\" is not a known value"),
        ("flags: {deviceDiscoveryStrategy: magic}\n".into(), 1, "\"magic\" is not a known value"),
        ("flags:\n  gfd: {sleepInterval: soon}\n".into(), 2, "\"soon\" is not a duration"),
        ("imex: {channelIDs: [1]}\n".into(), 1, "takes [] or [0]"),
        (slices("none", "{name: gpu, replicas: 1}", ""), 6, "2 or more"),
        (slices("none", "{name: gpu, replicas: 0}", ""), 6, "2 or more"),
        (slices("none", "{name: gpu, replicas: 100000}", ""), 6, "100000 replicas"),
        (slices("none", "{name: gpu}", ""), 6, "the key `replicas` is missing"),
        (slices("none", "{name: gpu, devices: [x], replicas: 2}", ""), 6, "\"x\" is not a device"),
        (slices("none", "{name: gpu, devices: 0, replicas: 2}", ""), 6, "0 devices"),
        (slices("none", &format!("{{name: {long}, replicas: 2}}"), ""), 6, "more than 63"),
        ("sharing:\n  mps:\n    resources: []\n".into(), 3, "needs a list of resources"),
        (
            "flags: {migStrategy: mixed}\nsharing:\n  mps: {resources: [{name: gpu, replicas: 2}]}\n".into(),
            3,
            "MIG strategy mixed",
        ),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}\n".into(), 1, "at most 48 clients"),
        ("resources: {gpus: [{pattern: '', name: x}]}\n".into(), 1, "an empty pattern"),
    ] {
        let error = loaded(&text).expect_err(&text);
        assert!(error.starts_with(&format!("v1.yaml:{line}: ")), "{text}\n{error}");
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn flags_override_the_file_before_resources_are_named() {
    let flags = NvidiaPluginFlags {
        mig: Some(MigStrategy::Single),
        placement: Some(placement::Policy::Packed),
        gds: Some(false),
        ..NvidiaPluginFlags::default()
    };
    let text = format!("{}\n", FULL_EXAMPLE.trim_end());
    let loaded = parse(Path::new("v1.yaml"), &text, &flags).expect("valid");
    let policy = loaded.config.policy;
    assert_eq!(policy.mig, MigStrategy::Single);
    assert!(!policy.delivery.features.contains(&Feature::Gds));
    let Resources::Rules(rules) = policy.resources else { panic!("it is shared") };
    assert_eq!(rules.len(), 2, "GPUs and instances have one name");
    assert!(rules.iter().all(|rule| rule.placement() == placement::Policy::Packed), "{rules:?}");
}

#[test]
fn a_converted_file_is_equivalent() {
    for text in [
        FULL_EXAMPLE,
        "version: v1\n",
        &slices("mixed", "{name: gpu, devices: 2, replicas: 3}", ""),
    ] {
        let config = loaded(text).expect("valid").config;
        let yaml = to_yaml(&config);
        let reparsed = parse(Path::new("w.yaml"), &yaml, &NvidiaPluginFlags::default());
        let reparsed = reparsed.unwrap_or_else(|error| panic!("{yaml}\n{error}"));
        assert_eq!((reparsed.config, reparsed.format), (config, Format::Windlass), "{yaml}");
    }
}

proptest! {
    #[test]
    fn any_pattern_becomes_an_expression(pattern in "[ -~]{1,30}") {
        let quoted = serde_json::to_string(&pattern).expect("text");
        let text = format!("resources: {{gpus: [{{pattern: {quoted}, name: x}}]}}\n");
        let Resources::Rules(rules) = policy(&text).resources else { panic!("a pattern was given") };
        let matches_all = pattern == "*";
        prop_assert_eq!(rules[0].devices.expression.is_none(), matches_all, "{}", pattern);
    }
}
