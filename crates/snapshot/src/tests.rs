//! Tests of a snapshot: files to read, replaced text, limits.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tempfile::TempDir;
use windlass_config::Config;

use super::*;

fn host(files: &[(&str, &str)]) -> (TempDir, Host) {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("created");
        fs::write(path, text).expect("written");
    }
    let host = Host::new(root.path(), "/");
    (root, host)
}

fn snapshot(host: &Host) -> Snapshot {
    Snapshot::capture(host, &ExtraFiles::default(), SnapshotLimits::default(), &mut |_| {})
}

fn text<'a>(snapshot: &'a Snapshot, path: &str) -> Option<&'a str> {
    match snapshot.entries.get(Path::new(path))? {
        Entry::Text(text) => Some(text),
        _ => None,
    }
}

const FUNCTION: &str = "sys/devices/pci0000:00/0000:00:01.0";

#[test]
fn the_tree_is_complete_and_only_listed_files_have_text() {
    let (root, host) = host(&[
        (&format!("{FUNCTION}/vendor"), "0x10de\n"),
        (&format!("{FUNCTION}/config"), "with a serial number in it"),
        (&format!("{FUNCTION}/power/control"), "on\n"),
        (&format!("{FUNCTION}/drm/card0/uevent"), "DEVNAME=dri/card0\n"),
        ("sys/class/dmi/id/product_serial", "S3CR3T"),
        ("dev/dri/card0", "content of a device node is not read"),
    ]);
    let bus = root.path().join("sys/bus/pci/devices");
    fs::create_dir_all(&bus).expect("created");
    symlink("../../../devices/pci0000:00/0000:00:01.0", bus.join("0000:00:01.0")).expect("linked");
    symlink("/etc", root.path().join("sys/class/out")).expect("linked");
    symlink("../../../../etc", root.path().join("sys/class/dmi/up")).expect("linked");
    let captured = snapshot(&host);
    assert_eq!(text(&captured, &format!("{FUNCTION}/vendor")), Some("0x10de\n"));
    assert_eq!(
        text(&captured, &format!("{FUNCTION}/drm/card0/uevent")),
        Some("DEVNAME=dri/card0\n")
    );
    assert_eq!(captured.entries[Path::new("dev/dri/card0")], Entry::Node);
    let link = &captured.entries[Path::new("sys/bus/pci/devices/0000:00:01.0")];
    assert_eq!(*link, Entry::Link("../../../devices/pci0000:00/0000:00:01.0".into()));
    for absent in ["config", "power", "power/control"] {
        assert!(!captured.entries.contains_key(&Path::new(FUNCTION).join(absent)), "{absent}");
    }
    for absent in ["sys/class/out", "sys/class/dmi/up", "sys/class/dmi/id/product_serial"] {
        assert!(!captured.entries.contains_key(Path::new(absent)), "{absent}");
    }
}

#[test]
fn a_hanging_file_is_omitted_and_does_not_affect_others() {
    let (root, host) = host(&[(&format!("{FUNCTION}/vendor"), "0x10de\n")]);
    let hanging = root.path().join(FUNCTION).join("device");
    mknodat(CWD, &hanging, FileType::Fifo, Mode::RUSR, 0).expect("a pipe without a writer");
    let limits =
        SnapshotLimits { file_timeout: Duration::from_millis(20), ..SnapshotLimits::default() };
    let captured = Snapshot::capture(&host, &ExtraFiles::default(), limits, &mut |_| {});
    assert_eq!(text(&captured, &format!("{FUNCTION}/vendor")), Some("0x10de\n"));
    let [omission] = captured.omissions.as_slice() else { panic!("{:?}", captured.omissions) };
    assert_eq!(omission.path, Path::new("/").join(FUNCTION).join("device"));
    assert_eq!(omission.why, "no answer within 20ms");
}

#[test]
fn a_host_with_too_many_entries_is_truncated_with_an_omission() {
    let files: Vec<_> = (0..300).map(|n| format!("sys/class/misc/device{n}/uevent")).collect();
    let files: Vec<_> = files.iter().map(|path| (path.as_str(), "")).collect();
    let (root, host) = host(&files);
    symlink("..", root.path().join("sys/class/misc/device0/loop")).expect("linked");
    let start = Instant::now();
    let limits = SnapshotLimits { max_entries: 100, ..SnapshotLimits::default() };
    let captured = Snapshot::capture(&host, &ExtraFiles::default(), limits, &mut |_| {});
    assert!(captured.len() <= 101, "{}", captured.len());
    assert_eq!(captured.omissions.len(), 1, "{:?}", captured.omissions);
    assert!(
        captured.omissions[0].why.contains("no more than 100 entries"),
        "{:?}",
        captured.omissions
    );
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn identifying_text_has_the_same_substitute_everywhere() {
    let (root, host) = host(&[
        ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
        ("sys/devices/usb1/1-4/serial", "FT9X Y0Z77\n"),
        ("sys/devices/usb1/1-4/uevent", "PRODUCT=403/6001/600\nHID_UNIQ=0a1b2c3d4e\n"),
        ("sys/devices/net/eth0/address", "0c:42:a1:00:11:22\n"),
        ("sys/devices/kfd/nodes/1/properties", "simd_count 304\nunique_id 9876543210987654321\n"),
        ("sys/devices/gpu/unique_id", "891087b8e3b70cb1\n"),
        (
            "proc/1/net/route",
            "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0101A8C0\t0003\n",
        ),
        ("dev/serial/readme", ""),
    ]);
    let name = "dev/serial/by-id/usb-FTDI_FT9X_Y0Z77-if00";
    fs::create_dir_all(root.path().join("dev/serial/by-id")).expect("created");
    symlink("../../ttyUSB0", root.path().join(name)).expect("linked");
    let mut anonymiser = Anonymiser::for_host(&host);
    let anonymised = anonymiser.anonymise(snapshot(&host));
    let again = Anonymiser::for_host(&host).anonymise(snapshot(&host));
    assert_eq!(anonymised, again, "a machine has the same substitutes each time");
    let debug_text = format!("{anonymised:?}");
    for secret in
        ["FT9X", "Y0Z77", "0a1b2c3d4e", "0c:42:a1", "9876543210987654321", "0101A8C0", "01234567"]
    {
        assert!(!debug_text.contains(secret), "{secret} is in {debug_text}");
    }
    for kept in ["PRODUCT=403/6001/600", "simd_count 304", "00000000", "usb-FTDI_"] {
        assert!(debug_text.contains(kept), "{kept} is not in {debug_text}");
    }
    let serial =
        text(&anonymised, "sys/devices/usb1/1-4/serial").expect("recorded").trim().to_owned();
    assert_eq!(serial.len(), "FT9X Y0Z77".len());
    let renamed = format!("dev/serial/by-id/usb-FTDI_{}-if00", serial.replace(' ', "_"));
    assert!(
        anonymised.entries.contains_key(Path::new(&renamed)),
        "{renamed} is not in {debug_text}"
    );

    let [gpu, properties] = ["gpu/unique_id", "kfd/nodes/1/properties"]
        .map(|path| text(&anonymised, &format!("sys/devices/{path}")).expect("recorded").trim());
    let number = u64::from_str_radix(gpu, 16).expect("hexadecimal digits");
    assert_eq!(properties, format!("simd_count 304\nunique_id {number}"), "the same in KFD's way");

    let mut document =
        json!({"id": "usb-FT9X Y0Z77", "nvidia.com/serial": {"string": "1323020000123"}});
    anonymiser.anonymise_document(&mut document);
    assert_eq!(document["id"], format!("usb-{serial}"));
    assert_ne!(document["nvidia.com/serial"]["string"], "1323020000123");
}

#[test]
fn the_serial_number_of_a_root_hub_is_an_address_and_stays() {
    let hubs = [("usb1", "0000:00:14.0\n"), ("usb2", "xhci-hcd.1.auto\n")];
    let files =
        hubs.map(|(hub, serial)| (format!("sys/devices/0000:00:14.0/{hub}/serial"), serial));
    let stick = ("sys/devices/0000:00:14.0/usb1/1-4/serial", "0000:00:14.0\n");
    let (_root, host) = host(&[(&files[0].0, files[0].1), (&files[1].0, files[1].1), stick]);
    let plain = snapshot(&host);
    assert_eq!(Anonymiser::for_host(&host).anonymise(plain.clone()), plain);
}

#[test]
fn a_short_serial_number_is_replaced_in_names_that_contain_serial_numbers() {
    let (root, host) = host(&[
        ("sys/devices/usb1/1-4/serial", "AB12C\n"),
        ("sys/devices/usb1/1-5/serial", "X  1#ä\n"),
        ("sys/devices/usb1/AB12C/uevent", "DEVNAME=AB12C\n"),
    ]);
    fs::create_dir_all(root.path().join("dev/serial/by-id")).expect("created");
    for name in ["usb-FTDI_AB12C-if00", "usb-FTDI_X_1#ä-if00", "usb-AB12CD-if00"] {
        symlink("../../ttyUSB0", root.path().join("dev/serial/by-id").join(name)).expect("linked");
    }
    let mut anonymiser = Anonymiser::for_host(&host);
    let anonymised = anonymiser.anonymise(snapshot(&host));
    let serial = |port: &str| {
        let text = text(&anonymised, &format!("sys/devices/usb1/{port}/serial")).expect("recorded");
        text.trim().to_owned()
    };
    let (plain, odd) = (serial("1-4"), serial("1-5").replace("  ", "_"));
    for name in
        [&format!("usb-FTDI_{plain}-if00"), &format!("usb-FTDI_{odd}-if00"), "usb-AB12CD-if00"]
    {
        let path = Path::new("dev/serial/by-id").join(name);
        assert!(anonymised.entries.contains_key(&path), "no {name} in {anonymised:?}");
    }
    let elsewhere = text(&anonymised, "sys/devices/usb1/AB12C/uevent");
    assert_eq!(elsewhere, Some("DEVNAME=AB12C\n"), "in other texts a short secret stays");
    let mut document = json!({
        "id": "stick-AB12C", "origin": "AB12C", "windlass.dev/usbSerial": {"string": "AB12C"}
    });
    anonymiser.anonymise_document(&mut document);
    let anonymised = json!({
        "id": format!("stick-{plain}"), "origin": "AB12C",
        "windlass.dev/usbSerial": {"string": plain}
    });
    assert_eq!(document, anonymised);
    let part = |serial: &str| {
        let link = format!("/dev/serial/by-id/usb-FTDI_{serial}-if00");
        json!({
            "id": format!("tty-{serial}-ttyUSB0"), "parent": format!("stick-{serial}"),
            "origin": link, "nodes": [{"path": "/dev/ttyUSB0", "inside": link}],
            "withheld": format!("{link} is not there"), "extras": {"env": {"TTY": link}}
        })
    };
    let mut document = part("AB12C");
    anonymiser.anonymise_document(&mut document);
    assert_eq!(document, part(&plain));
}

#[test]
fn a_serial_number_within_another_does_not_change_the_others_name() {
    let (_root, host) = host(&[
        ("sys/devices/usb1/1-4/serial", "AB12C\n"),
        ("sys/devices/usb1/1-5/serial", "AB12C-77\n"),
        ("sys/devices/usb1/1-6/serial", "X 1#9Z\n"),
    ]);
    let mut anonymiser = Anonymiser::for_host(&host);
    let anonymised = anonymiser.anonymise(snapshot(&host));
    let serial = |port: &str| {
        let text = text(&anonymised, &format!("sys/devices/usb1/{port}/serial")).expect("recorded");
        text.trim().to_owned()
    };
    let mut document = json!([{"id": "tty-AB12C-77-ttyUSB0"}, {"id": "tty-X-1-9Z-a0"}]);
    anonymiser.anonymise_document(&mut document);
    assert_eq!(document[0]["id"], format!("tty-{}-ttyUSB0", serial("1-5")));
    let odd = serial("1-6").replace([' ', '#'], "-");
    assert_eq!(document[1]["id"], format!("tty-{odd}-a0"));
}

#[test]
fn storage_names_chosen_by_administrators_are_not_recorded() {
    let (root, host) = host(&[
        ("dev/dm-0", ""),
        ("dev/md127", ""),
        ("dev/rbd0", ""),
        ("dev/rtc0", ""),
        ("dev/md/web01:0", ""),
    ]);
    fs::create_dir_all(root.path().join("dev/web01-vg")).expect("created");
    fs::create_dir_all(root.path().join("dev/mapper")).expect("created");
    for (link, target) in [
        ("web01-vg/root", "../mapper/web01--vg-root"),
        ("mapper/web01--vg-root", "../dm-0"),
        ("web01-data", "md127"),
        ("web01-gone", "rbd1"),
        ("rtc", "rtc0"),
    ] {
        symlink(target, root.path().join("dev").join(link)).expect("linked");
    }
    let captured = snapshot(&host);
    let names: Vec<_> = captured.entries.keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["dev", "dev/dm-0", "dev/md127", "dev/rbd0", "dev/rtc", "dev/rtc0"]);
}

#[test]
fn two_machines_share_no_identifying_text() {
    let anonymised = |id| {
        let serial = ("sys/devices/usb1/1-4/serial", "A10K2J3\n");
        let (_root, host) = host(&[("etc/machine-id", id), serial]);
        Anonymiser::for_host(&host).anonymise(snapshot(&host))
    };
    assert_ne!(anonymised(&"01".repeat(16)), anonymised(&"02".repeat(16)));
}

#[test]
fn files_of_configured_sources_are_read() {
    let config = Config::parse(
        Path::new("w.yaml"),
        "sources:\n- name: board\n  find: {class: misc}\n  attributes: {cores: board/cores_count}\n  \
         probe: {attribute: chip_state, equals: ok}\n- name: files\n  find: {files: /etc/boards}\n",
    );
    let policy = config.expect("valid").policy;
    let (_root, host) = host(&[
        ("sys/devices/virtual/misc/board/cores_count", "576\n"),
        ("sys/devices/virtual/misc/board/chip_state", "ok\n"),
        ("etc/boards/first", "its text is not read"),
    ]);
    let captured = Snapshot::capture(
        &host,
        &ExtraFiles::for_policy(&policy),
        SnapshotLimits::default(),
        &mut |_| {},
    );
    assert_eq!(text(&captured, "sys/devices/virtual/misc/board/cores_count"), Some("576\n"));
    assert_eq!(text(&captured, "sys/devices/virtual/misc/board/chip_state"), Some("ok\n"));
    assert_eq!(captured.entries[Path::new("etc/boards/first")], Entry::Node);
}

#[test]
fn a_folder_that_is_not_empty_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    Snapshot::create_folder(&folder.path().join("new/deep")).expect("created");
    let error = Snapshot::create_folder(folder.path()).expect_err("it contains a folder");
    assert!(error.to_string().contains("is not empty"), "{error}");
}

#[test]
fn mounts_of_containers_are_present_and_replace_no_entry() {
    let (root, host) = host(&[
        (&format!("{FUNCTION}/vendor"), "0x10de\n"),
        ("opt/firmware/a.bin", "its text is not read"),
    ]);
    let bus = root.path().join("sys/bus/pci/devices");
    fs::create_dir_all(&bus).expect("created");
    symlink("../../../devices/pci0000:00/0000:00:01.0", bus.join("0000:00:01.0")).expect("linked");
    let listed = "sys/bus/pci/devices/0000:00:01.0";
    let mounts = ["opt/firmware", listed, &format!("{listed}/vendor"), "nowhere"];
    let mounts = mounts.map(|path| Path::new("/").join(path));
    let extra = ExtraFiles { mounts: mounts.into(), ..ExtraFiles::default() };
    let captured = Snapshot::capture(&host, &extra, SnapshotLimits::default(), &mut |_| {});
    assert_eq!(captured.entries[Path::new("opt/firmware")], Entry::Folder);
    assert!(matches!(captured.entries[Path::new(listed)], Entry::Link(_)));
    assert_eq!(text(&captured, &format!("{FUNCTION}/vendor")), Some("0x10de\n"));
    let known = |path: &str| captured.entries.contains_key(Path::new(path));
    assert!(!known(&format!("{listed}/vendor")) && !known("nowhere"));
}

#[test]
fn a_short_serial_number_is_not_replaced_in_an_address() {
    let (_root, host) = host(&[("sys/devices/usb1/1-4/serial", "0001\n")]);
    let mut anonymiser = Anonymiser::for_host(&host);
    anonymiser.anonymise(snapshot(&host));
    let mut document = json!({"id": "nic-0001-3b-02-0", "parent": {"id": "tty-0001-ttyUSB0"}});
    anonymiser.anonymise_document(&mut document);
    assert_eq!(document["id"], "nic-0001-3b-02-0");
    assert_ne!(document["parent"]["id"], "tty-0001-ttyUSB0");
}
