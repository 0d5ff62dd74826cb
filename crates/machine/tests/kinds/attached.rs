//! Devices that a machine profile adds by the name of a device profile.

use std::collections::BTreeMap;

use windlass_machine::{Attached, Fault, MachineProfile, profile::Device};

use crate::kinds::fixture::{check, create, exists, link};

fn machine_with(machine: &str, attached: &str) -> Result<MachineProfile, String> {
    let mut profile = MachineProfile::named(machine).expect("built in");
    let attached: Attached = attached.parse().expect(attached);
    profile.attach(&attached).map_err(|problem| problem.to_string())?;
    Ok(profile)
}

#[test]
fn devices_of_every_profile_can_be_added_to_any_machine() {
    for name in Attached::names() {
        for machine in ["t4-edge", "dgx-h100", "kria"] {
            machine_with(machine, name)
                .unwrap_or_else(|error| panic!("{name} in {machine}: {error}"));
        }
        create(&machine_with("t4-edge", name).expect("checked"));
    }
}

#[test]
fn a_usb_device_brings_its_controller() {
    let (_dir, machine) = create(&machine_with("t4-edge", "coral-usb:2").expect("two of them"));
    check(&machine, "sys/bus/pci/devices/0000:00:14.0/class", "0x0c0330");
    check(&machine, "sys/bus/usb/devices/usb2/idVendor", "1d6b");
    check(&machine, "sys/bus/usb/devices/2-11/idProduct", "9302");
    assert!(exists(&machine, "dev/bus/usb/002/010") && exists(&machine, "dev/bus/usb/002/011"));
}

#[test]
fn a_device_with_a_taken_address_moves_to_another_domain() {
    let (_dir, machine) = create(&machine_with("dgx-h100", "hailo").expect("there is room"));
    assert!(link(&machine, "sys/class/hailo_chardev/hailo0/device").ends_with("0001:50:00.0"));
    check(&machine, "sys/class/hailo_chardev/hailo0/board_location", "0001:50:00.0");
}

#[test]
fn a_profile_can_attach_devices_and_errors_name_the_entry() {
    let yaml = |name: &str| {
        let text = "name: small\ndescription: small\nproduct: Test\n\
                    numa: [{cpus: '0-3', memory_gib: 4}]\n";
        MachineProfile::parse(
            "small.yaml",
            &format!("{text}attached:\n  - {{profile: {name}, count: 2}}\n"),
        )
    };
    let names: Vec<_> =
        yaml("hailo").expect("two").devices.into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["hailo-0", "hailo-1"]);
    let error = yaml("halo").expect_err("no such profile").to_string();
    let expected =
        "small.yaml:6: halo:2: there is no such device profile; there are darwin3-files,";
    assert!(error.starts_with(expected), "{error}");
    let error = machine_with("t4-edge", "hailo:11").expect_err("too many");
    assert_eq!(error, "hailo:11: its count is 11, it must be 1 to 10");
}

#[test]
fn the_documentation_has_a_valid_device_and_valid_faults() {
    let page = include_str!("../../../../docs/devices/simulation.md");
    let yaml = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut profile = MachineProfile::named("t4-edge").expect("built in");
    let example: BTreeMap<String, Vec<Device>> =
        serde_saphyr::from_str(yaml.expect("an example")).expect("devices");
    profile.devices.extend(example["devices"].clone());
    let (_dir, machine) = create(&profile);
    assert!(exists(&machine, "dev/ttyUSB0") && exists(&machine, "dev/bus/usb/001/007"));
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.contains(":N"));
    for fault in rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split(", ")) {
        let fault = fault.trim().trim_matches('`');
        fault.parse::<Fault>().unwrap_or_else(|error| panic!("{error}"));
    }
}
