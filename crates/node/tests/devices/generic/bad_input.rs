//! Invalid input is refused or limited, with a reason, and affects no other device.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use windlass_config::{
    Config, Policy,
    family_attributes::{self, AttributeType},
};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    device::{Device, SourceName},
};
use windlass_machine::MachineProfile;
use windlass_resources::NodeState;
use windlass_testkit::until_allocatable;

use super::STICK;
use crate::devices::world::{config_error, device, node, node_of, source};

/// A configuration with one source with these keys.
fn source_with(keys: &str) -> String {
    format!("sources:\n- {{name: x, {keys}}}\n")
}

#[test]
fn dangerous_sources_are_refused_with_the_reason_unless_allowed() {
    for (keys, expected) in [
        ("find: {nodes: /dev/mem}", "/dev/mem: it exposes the memory of the whole machine"),
        ("find: {nodes: '/dev/*'}", "/dev/* fits /dev/mem"),
        ("find: {nodes: /dev/sda}", "/dev/sda: a block device exposes the data"),
        (
            "find: {nodes: '/dev/nvme*'}",
            "/dev/nvme* fits /dev/nvme-fabrics: it makes block devices",
        ),
        ("find: {class: block}", "class block: a block device"),
        ("find: {files: /var/lib/kubelet/pods}", "the kubelet's sockets and every pod's secrets"),
        ("find: {bus: pci}", "without match it is every device of the pci bus"),
        ("find: {nodes: /dev/kvm}, give: {nodes: [{path: '/dev/{name}'}]}", "/dev/* fits /dev/mem"),
        ("find: {nodes: /dev/kvm}, give: {mounts: [{host: /}]}", "/ has the kubelet's sockets"),
        ("find: {nodes: /dev/kvm}, give: {mounts: [{host: /proc}]}", "exposes the whole machine"),
        (
            "find: {nodes: /dev/kvm}, give: {mounts: [{host: /var/run/docker.sock}]}",
            "container runtime",
        ),
    ] {
        let text = config_error(&source_with(keys));
        assert!(text.contains(expected), "{keys}: {text}");
        let allowed = source_with(&format!("{keys}, allowDangerous: true"));
        let path = std::path::Path::new("test.yaml");
        Config::parse(path, &allowed).unwrap_or_else(|error| panic!("{keys}: {error}"));
    }
}

#[test]
fn a_node_has_one_notation() {
    for (keys, expected) in [
        ("find: {nodes: /dev/./mem}, allowDangerous: true", "without .., . and //"),
        ("find: {nodes: /dev//sda}", "without .., . and //"),
        ("find: {nodes: /dev/mem/}", "without / at its end"),
        (
            "find: {nodes: /dev/kvm}, give: {nodes: [{path: /dev/./mem}]}",
            "/dev/./mem is not a path from the root",
        ),
    ] {
        let text = config_error(&source_with(keys));
        assert!(text.contains(expected), "{keys}: {text}");
    }
    let text = config_error("fpga: {nodes: [/dev/./mem]}\n");
    assert!(text.contains("/dev/./mem is not a path from the root"), "{text}");
}

#[test]
fn impossible_conditions_are_refused_with_a_correction() {
    for (keys, expected) in [
        (
            "find: {bus: pci}, match: 'device.attributes[\"windlass.dev\"].pciClass == 3'",
            "match: column 35: pciClass is a string such as \"0x120000\", and 3 is a number: write a string in quotes",
        ),
        (
            "find: {bus: usb}, match: 'device.attributes[\"windlass.dev\"].usbVendro == \"1\"'",
            "no such device has usbVendro of windlass.dev: did you mean usbVendor?",
        ),
        (
            "find: {endpoints: [h]}, match: 'device.attributes[\"windlass.dev\"].driver == \"1\"'",
            "no such device has driver of windlass.dev: there are endpoint, host, name, port",
        ),
        (
            "find: {bus: pci}, facts: {cores: 5}, match: 'device.attributes[\"windlass.dev\"].cores in [\"5\"]'",
            "cores is a number, and \"5\" is a string: write 5, without quotes",
        ),
    ] {
        let text = config_error(&source_with(keys));
        assert!(text.contains(expected), "{keys}: {text}");
    }
}

#[test]
fn impossible_values_are_refused_with_their_line() {
    for (keys, expected) in [
        ("find: {nodes: /etc/shadow}", "/etc/shadow is not a device node"),
        ("find: {nodes: /dev/../etc/shadow}", "without .."),
        ("find: {bus: ../../etc}, match: 'true'", "is not a bus"),
        ("find: {endpoints: ['http://h']}", "is not an endpoint"),
        ("find: {endpoints: [h, h]}", "endpoint h is there twice"),
        ("find: {class: drm}, unit: zipped", "zipped puts matches of several patterns together"),
        (
            "find: {class: drm}, give: {env: {A: '{serail}'}}",
            "{serail} is not a placeholder: there are {id}",
        ),
        ("find: {class: drm}, probe: {http: 'https://h/'}", "only plain HTTP is supported"),
        ("find: {class: drm}, probe: {tcp: h}", "is not an address: write host:port"),
        ("find: {class: drm}, probe: {command: [sh, -c, x]}", "is not an absolute path"),
        (
            "find: {class: drm}, probe: {attribute: ../x, equals: 1}",
            "is not a file in the device's folder",
        ),
        ("find: {endpoints: [h]}, attributes: {a: state}", "have no folder in sysfs"),
        (
            "find: {class: drm}, match: 'device.attributes[\"windlass.dev\"].driver > 5'",
            "driver is a string, and 5 is a number",
        ),
        (
            "find: {class: drm}, match: 'device.index'",
            "it gives a value of type int, not true or false",
        ),
    ] {
        let text = config_error(&source_with(keys));
        assert!(
            text.starts_with("test.yaml:2: source x: ") && text.contains(expected),
            "{keys}: {text}"
        );
    }
    assert!(
        config_error(&source_with("find: {nodes: []}")).contains("write a node or an endpoint")
    );
    let shared = "sources:\n- {name: a, resource: a.com/x, find: {nodes: /dev/a}}\n\
                  - {name: b, resource: a.com/x, find: {nodes: /dev/b}, sharing: {method: shared, replicas: 2}}\n";
    assert!(
        config_error(shared)
            .starts_with("test.yaml:3: source b: resource a.com/x is shared in another way")
    );
}

/// Type of an attribute or a capacity in the tables of the source's family.
fn declared_type(source: &SourceName, name: &AttributeName) -> AttributeType {
    let mut declared = family_attributes::STANDARD.iter().chain(family_attributes::of(source));
    let attribute = declared
        .find(|attribute| (attribute.domain, attribute.name) == (name.domain(), name.name()));
    attribute.unwrap_or_else(|| panic!("{source} declares no {name}")).value_type
}

/// True if a declared type permits this value.
fn permits(value_type: AttributeType, value: &AttributeValue) -> bool {
    match value {
        AttributeValue::String(_) => {
            matches!(value_type, AttributeType::Text | AttributeType::VersionOrText)
        }
        AttributeValue::Version(_) => {
            matches!(value_type, AttributeType::Version | AttributeType::VersionOrText)
        }
        AttributeValue::Int(_) => value_type == AttributeType::Int,
        AttributeValue::Bool(_) => value_type == AttributeType::Bool,
    }
}

/// Rules check the type of an attribute, which therefore must not differ on a machine.
#[tokio::test]
async fn every_attribute_of_a_device_is_declared_and_may_be_used_in_a_rule() {
    let mut rules = BTreeSet::new();
    for name in MachineProfile::names() {
        let world = node_of(&MachineProfile::named(name).expect("a profile"), "");
        let inventory = world.scan_host().await.inventory;
        let built_in = |device: &&Device| device.source.is_built_in();
        for device in inventory.devices.iter().filter(built_in) {
            for (attribute, value) in &device.attributes {
                let value_type = declared_type(&device.source, attribute);
                assert!(permits(value_type, value), "{name}: {attribute} is {value:?}");
            }
            for capacity in device.capacity.keys() {
                assert_eq!(declared_type(&device.source, capacity), AttributeType::Amount);
            }
            let conditions = device.attributes.iter().map(|(name, value)| {
                let attribute = format!("device.attributes[\"{}\"].{}", name.domain(), name.name());
                match value {
                    AttributeValue::String(_) => format!("{attribute}.contains(\"a\")"),
                    AttributeValue::Version(_) => {
                        format!("{attribute}.isGreaterThan(semver(\"1.0.0\"))")
                    }
                    AttributeValue::Int(_) => format!("{attribute} > 1"),
                    AttributeValue::Bool(_) => format!("!{attribute}"),
                }
            });
            let source = &device.source;
            rules.extend(conditions.map(|it| format!("- {{source: {source}, match: '{it}'}}\n")));
        }
    }
    let text = format!("exclude:\n{}", rules.into_iter().collect::<String>());
    let config = Config::parse(std::path::Path::new("test.yaml"), &text);
    config.unwrap_or_else(|error| panic!("{error}:\n{text}"));
}

#[tokio::test]
async fn a_block_device_that_matches_a_pattern_is_withheld() {
    let disk = r#"
- {name: disk, folder: virtual/block/board9, class: block, number: "7:0", node: board9}
- {name: board, folder: virtual/misc/board0, class: misc, number: "10:9", node: board0}
"#;
    let world =
        node(disk, "sources:\n- {name: b, resource: a.com/b, find: {nodes: '/dev/board*'}}\n");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "a.com/b", 1).await;
    let reason = obstacle(&agent.state.borrow(), "b-board9");
    assert!(reason.starts_with("/dev/board9: a block device exposes"), "{reason}");
}

#[tokio::test]
async fn a_node_is_checked_at_the_target_of_its_links() {
    let config = r"
sources:
- {name: log, find: {nodes: /dev/here/kmsg}}
- {name: etc, find: {nodes: '/dev/etcdir/*'}}
- {name: tty, find: {nodes: /dev/ttyUSB0}, give: {nodes: [{path: /dev/here/port}]}}
";
    let world = node(STICK, config);
    for file in ["/dev/kmsg", "/dev/port", "/etc/shadow"] {
        world.write(file, "");
    }
    symlink(".", world.host_path("/dev/here")).expect("linked");
    symlink("../etc", world.host_path("/dev/etcdir")).expect("linked");
    let state = world.scan_host().await;
    assert!(obstacle(&state, "log-kmsg").starts_with("/dev/kmsg: it exposes the kernel's log"));
    assert!(obstacle(&state, "tty-FT4X9-ttyUSB0").starts_with("/dev/port: it exposes"));
    let text = source(&state, "etc");
    assert!(text.contains("/dev/etcdir/shadow leads to no device node"), "{text}");
}

#[tokio::test]
async fn a_mount_is_checked_at_the_target_of_its_links() {
    let config = "sources:\n- {name: tty, resource: a.com/tty, find: {nodes: /dev/ttyUSB0}, \
                  give: {mounts: [{host: /opt/fw/etc}]}}\n";
    let world = node(STICK, config);
    fs::create_dir_all(world.host_path("/opt")).expect("created");
    fs::create_dir_all(world.host_path("/etc")).expect("created");
    symlink("/", world.host_path("/opt/fw")).expect("linked");
    let reason = obstacle(&world.scan_host().await, "tty-FT4X9-ttyUSB0");
    assert_eq!(reason, "/etc exposes the whole machine: name what is needed in it");
}

#[tokio::test]
async fn of_two_devices_of_one_source_with_one_node_the_second_is_withheld() {
    let functions = r#"
- name: first
  pci: {path: "pci0000:15/0000:15:01.0/0000:1b:00.0", id: "1ac1:089a", class: 0x120000, group: 12}
  driver: vfio-pci
- name: second
  pci: {path: "pci0000:15/0000:15:01.0/0000:1b:00.1", id: "1ac1:089a", class: 0x120000, group: 12}
  driver: vfio-pci
"#;
    let config = "sources:\n- {name: card, resource: a.com/card, find: {bus: pci}, \
                  match: 'device.attributes[\"windlass.dev\"].driver == \"vfio-pci\"'}\n";
    let state = node(functions, config).scan_host().await;
    let reason = obstacle(&state, "card-0000-1b-00-1");
    let owner = "/dev/vfio/12 also belongs to card-0000-1b-00-0";
    assert_eq!(reason, format!("{owner}: group them, or write shared: true"));
    assert_eq!(state.device_offers()["card-0000-1b-00-0"].obstacle, None);
}

/// Reason for a device's withholding.
fn obstacle(state: &NodeState, id: &str) -> String {
    state.device_offers().remove(id).and_then(|offer| offer.obstacle).expect("it is withheld")
}

#[tokio::test]
async fn of_two_sources_that_find_one_device_one_offers_it_and_the_other_gives_a_reason() {
    let config = r"
sources:
- {name: one, resource: a.com/one, find: {nodes: /dev/ttyUSB0}}
- {name: two, resource: a.com/two, find: {class: tty}}
";
    let world = node(STICK, config);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "a.com/one", 1).await;
    let reason = obstacle(&agent.state.borrow(), "two-FT4X9-ttyUSB0");
    assert!(
        reason.contains("one-FT4X9-ttyUSB0 of one is the same device, by /dev/ttyUSB0"),
        "{reason}"
    );
}

#[tokio::test]
async fn loops_long_lists_and_failing_selectors_are_reported_and_affect_no_other() {
    let config = r#"
sources:
- {name: crowd, find: {class: crowd}}
- {name: files, find: {files: /etc/boards}, match: 'device.attributes["windlass.dev"].slot < 4'}
- {name: loops, find: {class: loops}}
- {name: well, resource: a.com/well, find: {class: tty}}
"#;
    let world = node(STICK, config);
    world.create_many_links("/sys/class/crowd", "", 100_000);
    world.write("/etc/boards/good", "slot: 3");
    world.write("/etc/boards/bad", "slot: three");
    fs::create_dir_all(world.host_path("/sys/class/loops")).expect("created");
    symlink("b", world.host_path("/sys/class/loops/a")).expect("linked");
    symlink("a", world.host_path("/sys/class/loops/b")).expect("linked");
    symlink("/", world.host_path("/sys/class/loops/root")).expect("linked");
    // The checks below are meaningful only if the scan of the source has ended.
    let state = world.scan_host().await;
    let expected = "failing: /sys/class/crowd has more than 10000 entries: none is scanned";
    assert_eq!(source(&state, "crowd"), expected);
    assert!(source(&state, "files").starts_with("failing: "), "{}", source(&state, "files"));
    assert!(source(&state, "files").contains("files-bad"), "{}", source(&state, "files"));
    device(&state.inventory, "files-good");
    assert!(source(&state, "loops").starts_with("absent: /sys/class/loops/a leads nowhere"));
    assert_eq!(source(&state, "well"), "ready: 1 device");
}

#[test]
fn the_resource_names_of_sources_are_known_before_a_scan() {
    let policy: Policy =
        crate::devices::world::policy(&source_with("resource: a.com/x, find: {nodes: /dev/kvm}"));
    let names: Vec<_> =
        policy.resource_names().iter().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(names, ["nvidia.com/gpu", "a.com/x"]);
}
