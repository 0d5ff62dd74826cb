//! Shipped device profiles are valid, and keys of a source entry override those of its profile.

use std::{collections::BTreeSet, fs, path::Path};

use super::*;
use crate::{Config, DiscoveryRule, Sharing, SourceRule, to_yaml};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("w.yaml"), text).map_err(|error| error.to_string())
}

fn only_source(text: &str) -> SourceRule {
    parse(text).expect(text).policy.sources.remove(0)
}

#[test]
fn every_file_is_shipped_and_every_shipped_profile_is_complete() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/devices");
    let files = fs::read_dir(folder)
        .expect("the profiles")
        .map(|file| file.expect("a folder entry").path());
    let file_names = files.map(|file| file.file_stem().expect("a name").display().to_string());
    let names = DeviceProfile::ALL.iter().map(|profile| profile.name.to_owned());
    assert_eq!(file_names.collect::<BTreeSet<_>>(), names.collect());
    for profile in DeviceProfile::ALL {
        let document = profile.document();
        let keys: Vec<_> = document.keys().collect();
        assert_eq!(keys, ["description", "source", "simulated"], "{}", profile.name);
        assert!(profile.text.starts_with("# "), "{} does not say where it is from", profile.name);
        assert!(profile.text.contains("# Facts: "), "{} has no sources", profile.name);
        assert!(!profile.description().ends_with('.'), "{}", profile.name);
        assert!(profile.rule().resource.is_some(), "{} is offered as nothing", profile.name);
    }
}

#[test]
fn a_source_from_a_profile_survives_a_round_trip() {
    for profile in DeviceProfile::ALL {
        let config = parse(&format!("sources: [{{profile: {}}}]", profile.name)).expect("valid");
        let yaml = to_yaml(&config);
        assert_eq!(parse(&yaml), Ok(config), "{yaml}");
    }
}

#[test]
fn an_entry_wins_over_its_profile_key_by_key() {
    let hailo = "hailo".parse::<DeviceProfile>().expect("shipped").rule();
    let renamed =
        only_source("sources:\n- profile: hailo\n  name: npu\n  resource: hailo.ai/h10\n");
    assert_eq!(renamed.name.as_str(), "npu");
    assert_eq!(renamed.resource.map(|name| name.to_string()).as_deref(), Some("hailo.ai/h10"));
    assert_eq!((&renamed.find, &renamed.expression), (&hailo.find, &hailo.expression));
    let text = "sources:\n- profile: hailo\n  find: {nodes: /dev/hailo0}\n  match:\n";
    let overridden = only_source(text);
    assert_eq!(overridden.find, DiscoveryRule::Nodes(vec!["/dev/hailo0".to_owned()]));
    assert_eq!(overridden.expression, None, "a key without a value removes the profile's value");
    let without_sharing = only_source("sources: [{profile: kvm, sharing: }]");
    assert_eq!(without_sharing.sharing, Sharing::Exclusive);
}

#[test]
fn keys_of_give_are_merged_one_by_one() {
    let text = "sources:\n- {profile: ascend-910, give: {env: {NPU: \"{id}\"}, mounts: []}}\n";
    let give = only_source(text).give;
    assert_eq!(give.nodes.len(), 3, "the nodes of the profile stay");
    assert_eq!((give.env.len(), give.mounts.len()), (1, 0));
}

#[test]
fn several_sources_may_use_one_profile_under_different_names() {
    let entry = "{profile: darwin3-network, find: {endpoints: 10.0.0.1}}";
    let error = parse(&format!("sources:\n- {entry}\n- {entry}\n")).expect_err("one name twice");
    assert!(error.starts_with("w.yaml:3: source darwin3-network is on line 2"), "{error}");
    let renamed = entry.replace("find", "name: lab, find");
    assert!(parse(&format!("sources:\n- {entry}\n- {renamed}\n")).is_ok());
}

#[test]
fn mistakes_in_an_entry_are_reported_once_at_its_own_line() {
    for (entry, line, expected) in [
        ("profile: hailo9", 2, "unknown device profile \"hailo9\"; known: darwin3-files"),
        ("profile: [kvm]", 2, "a list is not valid here"),
        ("profile: kvm\n  finds: {}", 3, "unknown field `finds`"),
        ("profile: kvm\n  resource: kvm", 3, "nvidia.com/gpu"),
        ("profile: kvm\n  find: {bus: usb, class: drm}", 3, "write one of bus, class"),
        ("resource: a.com/x", 2, "the key `name` is missing"),
    ] {
        let error = parse(&format!("sources:\n- {entry}\n")).expect_err(entry);
        assert!(error.starts_with(&format!("w.yaml:{line}: ")), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
