//! Attributes of devices near each other, compared with the matrix of `windlass topo` on every machine.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_machine::MachineProfile;

use crate::program::{folder, machine, run, text};

fn json(command: &str, host: &[String]) -> Value {
    let host = host.iter().map(String::as_str);
    let output = run(&[command].into_iter().chain(host).chain(["-o", "json"]).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Positions that links connect with the first one, directly or through others.
fn linked_with(first: usize, matrix: &[Vec<String>]) -> Vec<bool> {
    let mut is_linked = vec![false; matrix.len()];
    let mut pending = vec![first];
    while let Some(position) = pending.pop() {
        if std::mem::replace(&mut is_linked[position], true) {
            continue;
        }
        let is_link = |cell: &String| cell.starts_with("NV") || cell == "XGMI";
        let row = matrix[position].iter().enumerate();
        pending.extend(row.filter(|(_, cell)| is_link(cell)).map(|(column, _)| column));
    }
    is_linked
}

#[test]
fn devices_of_one_switch_and_of_one_island_are_those_that_the_matrix_shows() {
    let (mut switches, mut islands) = (0, 0);
    for profile in MachineProfile::names() {
        let folder = folder();
        let host = machine(&folder, profile);
        let (topology, inventory) = (json("topo", &host), json("devices", &host));
        let matrix: Vec<Vec<String>> =
            serde_json::from_value(topology["connections"].clone()).expect("a matrix");
        let devices = inventory["devices"].as_array().expect("devices").iter();
        let attributes: BTreeMap<_, _> =
            devices.map(|device| (device["id"].as_str(), &device["attributes"])).collect();
        let ids = topology["devices"].as_array().expect("devices").iter();
        let ids: Vec<_> = ids.map(|device| device["id"].as_str()).collect();
        let value =
            |position: usize, name: &str| attributes[&ids[position]][name]["string"].as_str();
        for row in 0..ids.len() {
            let is_linked = linked_with(row, &matrix);
            for column in (0..ids.len()).filter(|column| *column != row) {
                let is_same =
                    |name| value(row, name).is_some() && value(row, name) == value(column, name);
                let pair = || format!("{profile}: {:?} and {:?}", ids[row], ids[column]);
                // Bridges without a switch are PIX too.
                if matrix[row][column] == "PIX" && value(row, "windlass.dev/pcieSwitch").is_some() {
                    assert!(is_same("windlass.dev/pcieSwitch"), "{}", pair());
                }
                if is_same("windlass.dev/pcieSwitch") {
                    // NVLink and xGMI hide the PCIe level.
                    let is_near = ["PIX", "PSB", "DEV"].contains(&matrix[row][column].as_str());
                    assert!(is_near || is_linked[column], "{}", pair());
                    switches += 1;
                }
                assert_eq!(is_same("windlass.dev/island"), is_linked[column], "{}", pair());
                islands += usize::from(is_linked[column]);
            }
        }
    }
    assert!(switches > 0 && islands > 0, "{switches} pairs of one switch, {islands} of one island");
}
