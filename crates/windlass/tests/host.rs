//! Host snapshots (`windlass host record`): commands find the same devices in a snapshot as on its host.

use std::{fs, path::Path};

use serde_json::Value;
use windlass_machine::{Attached, MachineProfile};

use crate::program::{folder, machine, run, text};

const USAGE: Option<i32> = Some(64);

/// Device profiles without a test: snapshots omit file contents (docs/devices/snapshots.md), and a board has one of two
/// drivers.
const SKIPPED_PROFILES: [&str; 2] = ["darwin3-files", "darwin3-board-axidma"];

/// JSON output of a command.
fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn record(snapshot: &Path, flags: &[&str]) -> String {
    let snapshot = snapshot.display().to_string();
    let output = run(&[&["host", "record", &snapshot], flags].concat());
    assert!(output.status.success(), "{flags:?}: {}", text(&output.stderr));
    snapshot
}

/// Fails with the first line in which two documents differ.
fn assert_same(subject: &str, live: &Value, recorded: &Value) {
    let [live, recorded] =
        [live, recorded].map(|inventory| serde_json::to_string_pretty(inventory).expect("JSON"));
    let difference = live.lines().zip(recorded.lines()).find(|(live, recorded)| live != recorded);
    assert!(live == recorded, "{subject}: {difference:?}");
}

/// Inventory without values that differ between a host and its snapshot: times, and the mark of a snapshot. The result
/// of source `nvidia` is omitted too, because a snapshot has no driver libraries.
fn comparable(mut inventory: Value) -> Value {
    for key in ["recorded", "lacks"] {
        inventory.as_object_mut().expect("an object").remove(key);
    }
    inventory["sources"].as_object_mut().expect("an object").remove("nvidia");
    remove_times(&mut inventory);
    inventory
}

fn remove_times(document: &mut Value) {
    let is_time = |value: &Value| {
        value.as_str().is_some_and(|text| text.contains('T') && text.ends_with('Z'))
    };
    match document {
        Value::Object(fields) => {
            fields.retain(|_, value| !is_time(value));
            fields.values_mut().for_each(remove_times);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_times),
        _ => {}
    }
}

/// Devices in the order of their places, which does not depend on anonymised ids.
fn by_place(inventory: &Value) -> Value {
    let mut devices = inventory["devices"].as_array().expect("a list").clone();
    devices.sort_by_key(|device| (device["place"].to_string(), device["id"].to_string()));
    devices.into()
}

#[test]
fn every_machine_has_the_same_inventory_in_its_snapshot() {
    for profile in MachineProfile::names() {
        let folder = folder();
        let host = machine(&folder, profile);
        let host: Vec<_> = host.iter().map(String::as_str).collect();
        let snapshot =
            record(&folder.path().join("snapshot"), &[&host[..], &["--with-serials"]].concat());
        let snapshot_flags = ["--host-root", &snapshot, "--nvml-library", host[3]];
        let query = |host: &[&str]| json(&[&["devices"], host].concat());
        let [live, recorded] = [&host[..], &snapshot_flags].map(query);
        assert!(recorded["recorded"].is_string(), "{profile}");
        assert_same(profile, &comparable(live), &comparable(recorded));
    }
}

#[test]
fn a_snapshot_and_its_inventory_have_the_same_anonymised_ids() {
    for profile in MachineProfile::names() {
        let folder = folder();
        let host = machine(&folder, profile);
        // Without NVIDIA's library, whose answers are not in the snapshot.
        let missing_library = folder.path().join("none").display().to_string();
        let host = ["--host-root", &host[1], "--nvml-library", &missing_library];
        let snapshot = folder.path().join("snapshot");
        let snapshot_root = record(&snapshot, &host);
        let inventory = fs::read(snapshot.join("inventory.json")).expect("written");
        let inventory = comparable(serde_json::from_slice(&inventory).expect("JSON"));
        let recorded =
            json(&["devices", "--host-root", &snapshot_root, "--nvml-library", &missing_library]);
        assert_same(profile, &by_place(&inventory), &by_place(&comparable(recorded)));
    }
}

#[test]
fn this_machine_has_the_same_inventory_in_its_snapshot() {
    let folder = folder();
    let config = folder.path().join("w.yaml");
    fs::write(
        &config,
        "sources:\n- {name: fuse, resource: example.com/fuse, find: {nodes: [/dev/fuse, /dev/net/*]}}\n",
    )
    .expect("written");
    let config = config.display().to_string();
    let snapshot =
        record(&folder.path().join("snapshot"), &["--with-serials", "--config", &config]);
    let [live, recorded] = ["/", snapshot.as_str()]
        .map(|root| comparable(json(&["devices", "--host-root", root, "--config", &config])));
    assert_same("this machine", &live, &recorded);
}

#[test]
fn devices_of_every_profile_are_the_same_in_a_snapshot() {
    let folder = folder();
    let profiles: Vec<_> =
        Attached::names().filter(|name| !SKIPPED_PROFILES.contains(name)).collect();
    let dir = folder.path().join("machine").display().to_string();
    let device_flags = profiles.iter().flat_map(|name| ["--device", name]);
    let create = ["machine", "create", &dir, "--machine", "kria"];
    let output = run(&create.into_iter().chain(device_flags).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let config = folder.path().join("w.yaml");
    let sources: Vec<_> = profiles.iter().map(|name| format!("{{profile: {name}}}")).collect();
    fs::write(&config, format!("sources: [{}]", sources.join(", "))).expect("written");
    let (config, root) = (config.display().to_string(), format!("{dir}/host"));
    let flags = ["--host-root", &root, "--config", &config, "--with-serials"];
    let snapshot = record(&folder.path().join("snapshot"), &flags);
    let [live, recorded] = [&root, &snapshot]
        .map(|root| comparable(json(&["devices", "--host-root", root, "--config", &config])));
    let devices = live["devices"].as_array().expect("a list").len();
    assert!(devices >= profiles.len(), "{live:#}");
    assert_same("every profile", &live, &recorded);
}

#[test]
fn a_recording_is_marked_and_no_agent_serves_it() {
    let folder = folder();
    let host = machine(&folder, "t4-edge");
    let host: Vec<_> = host.iter().map(String::as_str).collect();
    let snapshot = record(&folder.path().join("snapshot"), &host);
    for command in [&["devices"][..], &["topo"], &["labels"], &["explain", "--size", "1"]] {
        let output =
            run(&[command, &["--host-root", &snapshot, "--nvml-library", host[3]]].concat());
        let stdout = text(&output.stdout);
        assert!(
            stdout.contains("RECORDED host, 20"),
            "{command:?}: {stdout}{}",
            text(&output.stderr)
        );
        assert!(stdout.contains("SIMULATED machine t4-edge"), "{command:?}: {stdout}");
        let flags = ["--host-root", &snapshot, "--nvml-library", host[3]];
        let document = json(&[command, &flags].concat());
        let is_marked = document["recorded"].is_string() || command == ["labels"];
        assert!(is_marked, "{command:?}: {document}");
        // A kubelet of this machine knows nothing of the recorded devices.
        let caveat = document["caveat"].as_str().unwrap_or_default();
        let kubelet_dir = format!("{snapshot}/var/lib/kubelet");
        assert!(command[0] != "explain" || caveat.contains(&kubelet_dir), "{caveat}");
    }
    let output = run(&["doctor", "--all", "--host-root", &snapshot, "--nvml-library", host[3]]);
    let findings = text(&output.stdout);
    assert!(findings.contains("the host is a recording"), "{findings}{}", text(&output.stderr));
    // The formats of these documents have no field for the mark.
    for command in [&["cdi", "generate"][..], &["labels", "-o", "json"], &["labels", "-o", "nfd"]] {
        let output =
            run(&[command, &["--host-root", &snapshot, "--nvml-library", host[3]]].concat());
        let stderr = text(&output.stderr);
        assert!(stderr.contains("windlass: RECORDED host, 20"), "{command:?}: {stderr}");
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    let places = ["--kubelet-dir", &path("k"), "--cdi-dir", &path("c"), "--state-dir", &path("s")];
    let output = run(&[&["node", "--host-root", &snapshot], &places[..]].concat());
    assert_eq!(output.status.code(), USAGE);
    assert!(text(&output.stderr).contains("is a recording"), "{}", text(&output.stderr));
    assert!(!folder.path().join("k").exists(), "the agent has created a folder");
}

#[test]
fn a_snapshot_is_readable_and_anonymised() {
    let folder = folder();
    let host = machine(&folder, "dgx-h100");
    let host: Vec<_> = host.iter().map(String::as_str).collect();
    let snapshot = folder.path().join("snapshot");
    let snapshot_root = record(&snapshot, &host);
    let read_file = |name: &str| fs::read_to_string(snapshot.join(name)).expect("written");
    assert!(read_file("README.txt").contains("were replaced"), "{}", read_file("README.txt"));
    let manifest: Value = serde_json::from_str(&read_file("manifest.json")).expect("JSON");
    assert_eq!(manifest["replaced"], true);
    assert_eq!(manifest["leftOut"], serde_json::json!([]));
    let inventory = read_file("inventory.json");
    let live = json(&[&["devices"], &host[..]].concat());
    for device in live["devices"].as_array().expect("a list") {
        let id = device["id"].as_str().expect("text");
        let is_unique = id.starts_with("GPU-");
        assert!(!is_unique || !inventory.contains(id), "{id} is in inventory.json");
        let serial = &device["attributes"]["nvidia.com/serial"]["string"];
        assert!(serial.as_str().is_none_or(|serial| !inventory.contains(serial)), "{serial}");
    }
    let second_output = run(&[&["host", "record", &snapshot_root], &host[..]].concat());
    assert_eq!(second_output.status.code(), USAGE);
    assert!(
        text(&second_output.stderr).contains("is not empty"),
        "{}",
        text(&second_output.stderr)
    );
}

#[test]
fn a_machines_folder_is_refused_as_host_root() {
    let folder = folder();
    machine(&folder, "t4-edge");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (root, snapshot) = (path("machine"), path("snapshot"));
    let record = ["host", "record", &snapshot];
    for command in [&["devices"][..], &["topo"], &["explain", "--size", "1"], &record] {
        let output = run(&[command, &["--host-root", &root]].concat());
        assert_eq!(output.status.code(), USAGE, "{command:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("there is no /sys in the host root"), "{stderr}");
        assert!(stderr.contains(&format!("did you mean {root}/host?")), "{stderr}");
    }
}
