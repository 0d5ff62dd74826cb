//! Rules of udev: what becomes of them.

use std::path::Path;

use insta::assert_snapshot;
use proptest::prelude::*;
use windlass_config::{Find, Remark, SourceRule, to_yaml};

use crate::{Format, Loaded, PeerFlags, parse};

fn loaded(text: &str) -> Result<Loaded, String> {
    let parsed = parse(Path::new("x.rules"), text, &PeerFlags::default());
    parsed.map_err(|error| error.to_string().replace("x.rules:", ""))
}

fn sources(text: &str) -> Vec<SourceRule> {
    let loaded = loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(loaded.format, Format::UdevRules, "{text}");
    loaded.config.policy.sources
}

/// What is told of a file, but for the domain of all resources.
fn told(text: &str) -> Vec<String> {
    let warnings = loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}")).warnings;
    let of_rules = warnings
        .into_iter()
        .filter(|it| !it.text.starts_with("rules name no resources") && it.text != super::NOTHING);
    of_rules.map(|Remark { line, text }| format!("{line}: {text}")).collect()
}

/// A source in a line: where, and what for, attributes by their names alone.
fn short(source: &SourceRule) -> String {
    let find = match &source.find {
        Find::Bus(name) => format!("bus {name}"),
        Find::Class(name) => format!("class {name}"),
        Find::Nodes(patterns) => patterns.join(" "),
        other => format!("{other:?}"),
    };
    let asked = source.expression.as_ref().map_or("", |it| it.as_str());
    let asked = asked
        .replace("device.attributes[\"windlass.dev\"].?", "")
        .replace("device.attributes[\"windlass.dev\"].", "")
        .replace("device.attributes[\"resource.kubernetes.io\"].?", "")
        .replace(".orValue(\"\")", "");
    let files =
        source.attributes.iter().map(|(name, file)| format!(" {}={}", name.name(), file.display()));
    format!("{find}: {asked}{}", files.collect::<String>())
}

/// Rules, and the sources that they become.
fn check(cases: &[(&str, &[&str])]) {
    for (text, expected) in cases {
        let found: Vec<_> = sources(text).iter().map(short).collect();
        assert_eq!(found, *expected, "{text}\n{:#?}", told(text));
    }
}

#[test]
fn a_rule_is_a_source_where_its_devices_are() {
    check(&[
        (
            r#"SUBSYSTEM=="usb", ATTR{idVendor}=="0403", MODE="0666""#,
            &[r#"bus usb: usbVendor == "0403""#],
        ),
        (r#"KERNEL=="ttyUSB*""#, &[r#"/dev/ttyUSB*: name.matches("^ttyUSB.*$")"#]),
        (
            r#"KERNEL=="video[0-9]*|media?""#,
            &[r#"/dev/video* /dev/media?: name.matches("^(video[0-9].*|media.)$")"#],
        ),
        (r#"KERNEL=="dma0""#, &["/dev/dma0: "]),
        (
            r#"KERNEL=="event*", ATTR{device/name}=="Pad""#,
            &[
                r#"/dev/input/event*: name.matches("^event.*$") && device_name == "Pad" device_name=device/name"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="tty|hidraw", ATTRS{idVendor}=="1234""#,
            &[r#"class tty: usbVendor == "1234""#, r#"class hidraw: usbVendor == "1234""#],
        ),
        (r#"SUBSYSTEM=="drm", KERNEL=="renderD*""#, &[r#"class drm: name.matches("^renderD.*$")"#]),
        (r#"SUBSYSTEM=="accel""#, &["class accel: "]),
        (r#"KERNEL=="0000:3b:00.*""#, &[r#"bus pci: name.matches("^0000:3b:00\\..*$")"#]),
        (
            r#"ATTRS{idVendor}=="0403", ATTRS{idProduct}=="6001|6010""#,
            &[r#"bus usb: usbVendor == "0403" && usbProduct in ["6001", "6010"]"#],
        ),
        (
            r#"ENV{ID_VENDOR_ID}=="0403", ENV{ID_SERIAL_SHORT}=="A1""#,
            &[r#"bus usb: usbVendor == "0403" && usbSerial == "A1""#],
        ),
        (
            r#"SUBSYSTEM=="usb", ENV{DEVTYPE}=="usb_device", ATTR{manufacturer}=="Acme*""#,
            &[r#"bus usb: usbManufacturer.matches("^Acme.*$")"#],
        ),
    ]);
}

#[test]
fn what_is_asked_of_a_device_is_asked_of_its_attributes() {
    check(&[
        (
            r#"SUBSYSTEM=="pci", ATTR{vendor}=="0x10ee|0x1ac1", ATTR{class}=="0x1200*", DRIVER!="vfio-pci""#,
            &[
                r#"bus pci: pciVendor in ["10ee", "1ac1"] && pciClass.matches("^0x1200.*$") && driver != "vfio-pci""#,
            ],
        ),
        (
            r#"ENV{PCI_ID}=="10EE:50*", ENV{PCI_CLASS}=="120000""#,
            &[
                r#"bus pci: pciVendor == "10ee" && pciDevice.matches("^50.*$") && pciClass.matches("^0x0*120000$")"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="pci", ATTR{vendor}=="0x1ac1", ATTR{fw-version}!="1.*", ATTR{driver}=="?*""#,
            &[
                r#"bus pci: pciVendor == "1ac1" && has(fw_version) && !(fw_version.matches("^1\\..*$")) && has(file_driver) file_driver=driver fw_version=fw-version"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="usb", DRIVER=="ftdi_*""#,
            &[r#"bus usb: driver.matches("(^| )ftdi_[^ ]*( |$)")"#],
        ),
        (
            r#"SUBSYSTEM=="usb", ATTR{bInterfaceClass}=="ff""#,
            &[r#"bus usb: usbInterfaceClass.matches("(^| )ff( |$)")"#],
        ),
        (
            r#"SUBSYSTEM=="tty", ENV{ID_BUS}=="usb", KERNEL!="ttyS*""#,
            &[r#"class tty: has(usbVendor) && !(name.matches("^ttyS.*$"))"#],
        ),
        (
            r#"SUBSYSTEM=="usb", ENV{ID_MODEL}=="My_Scope""#,
            &[r#"bus usb: usbProductName.matches("^My[^0-9A-Za-z]Scope$")"#],
        ),
        (
            r#"SUBSYSTEM=="usb", ATTR{product}==i"scope""#,
            &[r#"bus usb: usbProductName.matches("^(?i)scope$")"#],
        ),
        (
            r#"SUBSYSTEM=="platform", ENV{OF_COMPATIBLE_0}=="xlnx,dpu""#,
            &[r#"bus platform: ofCompatible == "xlnx,dpu""#],
        ),
    ]);
}

#[test]
fn what_is_asked_of_devices_above_is_asked_of_one() {
    check(&[
        (
            r#"SUBSYSTEM=="tty", SUBSYSTEMS=="usb", ATTRS{idVendor}=="0403", ATTRS{serial}=="A1""#,
            &[r#"class tty: usbVendor == "0403" && usbSerial == "A1""#],
        ),
        (
            r#"KERNEL=="ttyUSB*", DRIVERS=="ftdi_sio""#,
            &[r#"/dev/ttyUSB*: name.matches("^ttyUSB.*$") && driver == "ftdi_sio""#],
        ),
        (r#"SUBSYSTEM=="tty", SUBSYSTEMS=="usb""#, &["class tty: has(usbVendor)"]),
        (
            r#"SUBSYSTEM=="drm", KERNELS=="0000:3b:00.0", DRIVERS=="i915""#,
            &[r#"class drm: pciBusID == "0000:3b:00.0" && driver == "i915""#],
        ),
        (r#"SUBSYSTEM=="drm", ATTRS{vendor}=="0x8086""#, &[r#"class drm: pciVendor == "8086""#]),
        (
            r#"SUBSYSTEM=="input", ATTRS{name}=="Pad""#,
            &[
                r#"class input: file_name == "Pad" || device_name == "Pad" device_name=device/name file_name=name"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="tty", ATTRS{serial}=="A1""#,
            &[
                r#"class tty: serial == "A1" || device_serial == "A1" || usbSerial == "A1" device_serial=device/serial serial=serial"#,
            ],
        ),
    ]);
    let alone = |rule: &str| told(rule).join("\n");
    for (keys, why) in [
        (r#"ATTRS{idVendor}=="0403", DRIVERS=="ftdi_sio""#, "no one device above has all"),
        (
            r#"ATTRS{idVendor}=="0403", ATTRS{bInterfaceNumber}=="00""#,
            "no one device above has all",
        ),
        (r#"ATTRS{idVendor}=="0403", KERNELS=="0000:00:14.0""#, "no one device above has all"),
        (r#"ATTRS{bInterfaceNumber}=="00""#, "of one interface nothing is known"),
        (r#"ATTRS{idVendor}!="0403""#, "is so of almost everything"),
        (r#"KERNELS=="1-1.4""#, "names on buses have numbers that change"),
        (r#"SUBSYSTEMS=="i2c""#, "of what is above only usb and pci are known"),
        (r#"ATTRS{idVendor}=="0403", ATTRS{speed}=="480""#, "it is read only where that is found"),
        (r#"TAGS=="mine""#, "only udev knows"),
    ] {
        let text = format!("SUBSYSTEM==\"tty\", {keys}");
        assert!(sources(&text).is_empty(), "{text}");
        assert!(alone(&text).contains(why), "{text}\n{}", alone(&text));
    }
}

#[test]
fn what_cannot_be_asked_here_costs_one_rule_and_is_told() {
    let rule = |keys: &str| format!("SUBSYSTEM==\"tty\", {keys}\nKERNEL==\"kept\"\n");
    for (keys, why) in [
        (r#"PROGRAM=="/bin/x""#, "PROGRAM: no program is run"),
        (r#"IMPORT{program}="x""#, "IMPORT{program}: no program is run"),
        (r#"RESULT=="1""#, "RESULT: no program is run"),
        (r#"TEST=="/x""#, "TEST: it asks the machine"),
        (r#"ENV{MINE}=="1""#, "ENV{MINE}: the property is udev's own"),
        (r#"ATTR{x}=="$attr{y}""#, "ATTR{x} is compared with what udev fills in, \"$attr{y}\""),
        (r#"KERNEL=="%k""#, "KERNEL is compared with what udev fills in"),
        (r#"KERNEL=="[[:digit:]]""#, "KERNEL: write \"[[:digit:]]\" without"),
        (r#"DEVPATH=="*/usb1/*""#, "DEVPATH: it has numbers that change"),
        (r#"SYSFS{idVendor}=="1""#, "SYSFS{idVendor}: udev has given up the key"),
        (r#"KERNAL=="x""#, "KERNAL: udev has no such key"),
        (r#"DRIVER=="x""#, "DRIVER: a device of class tty has none"),
        (r#"ATTR{idVendor}=="1""#, "ATTR{idVendor} is of the USB device"),
        (r#"ATTR{[net/eth0]x}=="1""#, "the file \"[net/eth0]x\" is not of the device"),
        (r#"SUBSYSTEM!="tty""#, "no device that is plugged in gets here and fits"),
        (r#"ACTION=="remove""#, "it is about devices that are removed"),
        (r#"ENV{x}="1""#, "ENV{x} names no device"),
    ] {
        let found = told(&rule(keys));
        let expected = format!("1: {why}");
        assert!(found[0].starts_with(&expected), "{found:?}");
        assert!(found[0].ends_with("this rule is left out"), "{found:?}");
        assert_eq!(sources(&rule(keys)).len(), 1, "{keys}");
    }
    for (text, why) in [
        (r#"MODE="0666""#, "1: it fits every device"),
        (r#"SUBSYSTEM=="net", NAME="x""#, "1: SUBSYSTEM==\"net\": interfaces are offered without"),
        (r#"SUBSYSTEM=="usb*""#, "1: SUBSYSTEM==\"usb*\" may be several"),
        (r#"DRIVER=="x""#, "1: nothing says where to look"),
        (r#"KERNEL=="*""#, "1: KERNEL==\"*\" says nothing of where to look"),
        (r#"SUBSYSTEM=="usb", MODE="0666""#, "1: source usb: without match it is every device"),
        (r#"SUBSYSTEM=="pci", ATTR{vendor}=="10ee""#, "1: vendor is compared with \"10ee\""),
        (r#"KERNEL=="a", GOTO="x""#, "1: GOTO=\"x\": no LABEL below has that name"),
    ] {
        assert!(told(text)[0].starts_with(why), "{:?}", told(text));
    }
}

#[test]
fn a_line_that_udev_cannot_read_is_refused_with_its_number() {
    for (text, expected) in [
        ("KERNEL==\"a\"\nKERNEL==\"b\n", "2: KERNEL: the quotes are not closed"),
        ("KERNEL==\"a\", \\\n  b\n", "1: \"b\" is no key"),
        ("\nKERNEL \"a\"\n", "2: KERNEL has no operator"),
    ] {
        let found = loaded(text).expect_err(text);
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn rules_keep_what_guards_say() {
    let guarded = |rule: &str| {
        format!(
            "ACTION==\"remove\", GOTO=\"end\"\nSUBSYSTEM!=\"usb\", GOTO=\"end\"\n\
             ATTR{{idVendor}}!=\"0403\", GOTO=\"end\"\n{rule}\nLABEL=\"end\"\nKERNEL==\"after\""
        )
    };
    check(&[
        (
            &guarded(r#"ATTR{idProduct}=="6001", MODE="0660""#),
            &[r#"bus usb: usbVendor == "0403" && usbProduct == "6001""#, "/dev/after: "],
        ),
        (&guarded(r#"SYMLINK+="x""#), &[r#"bus usb: usbVendor == "0403""#, "/dev/after: "]),
        (
            "SUBSYSTEM==\"usb\", ATTR{idVendor}==\"1\", GOTO=\"e\"\nSUBSYSTEM==\"usb\", ATTR{idProduct}==\"2\"\nLABEL=\"e\"",
            &[r#"bus usb: has(usbVendor) && usbVendor != "1" && usbProduct == "2""#],
        ),
        ("ENV{SKIP}==\"1\", GOTO=\"e\"\nKERNEL==\"a\"\nLABEL=\"e\"\nKERNEL==\"b\"", &["/dev/b: "]),
    ]);
}

#[test]
fn names_modes_and_rules_of_one_device_become_one_source() {
    let text = "
SUBSYSTEM==\"usb\", ATTR{idVendor}==\"1ab1\", MODE=\"0666\", GROUP=\"plugdev\"
SUBSYSTEM==\"usb\", ATTR{idVendor}==\"1ab1\", SYMLINK+=\"instruments/scope%n other\", TAG+=\"uaccess\"
KERNEL==\"video*\", ATTR{name}==\"HD Cam*\", \\
  MODE=\"0440\", TAG+=\"camera\"
KERNEL==\"media*\", TAG+=\"camera\", RUN+=\"/bin/x\"
SUBSYSTEM==\"tty\", ATTRS{idVendor}==\"0403\"
";
    let loaded = loaded(text).expect("valid");
    let ours = to_yaml(&loaded.config);
    let again = parse(Path::new("w.yaml"), &ours, &PeerFlags::default()).expect("ours");
    assert_eq!(again.config, loaded.config);
    let said = |Remark { line, text }: &Remark| format!("# line {line}: {text}\n");
    assert_snapshot!(loaded.warnings.iter().map(said).collect::<String>() + &ours);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}(\n\\PC{0,40}){0,2}") {
        let _ = loaded(&text);
    }

    #[test]
    fn what_is_made_of_any_rules_can_be_read_again(
        lines in proptest::collection::vec(proptest::collection::vec(term(), 1..5), 1..6),
    ) {
        let text: String = lines.iter().map(|terms| terms.join(", ") + "\n").collect();
        let loaded = loaded(&text).expect("each can be read");
        let ours = to_yaml(&loaded.config);
        let again = parse(Path::new("w.yaml"), &ours, &PeerFlags::default());
        let is_told = loaded.warnings.iter().any(|it| it.text.contains("it is kept back"));
        let is_same = again.is_ok_and(|again| again.config == loaded.config);
        prop_assert!(is_same || is_told, "{}\n{}", text, ours);
    }
}

/// Terms of all sorts.
fn term() -> impl Strategy<Value = String> {
    let key = proptest::sample::select(vec![
        "KERNEL",
        "KERNELS",
        "SUBSYSTEM",
        "SUBSYSTEMS",
        "DRIVER",
        "DRIVERS",
        "ACTION",
        "ATTR{idVendor}",
        "ATTR{vendor}",
        "ATTR{x/y}",
        "ATTRS{idVendor}",
        "ATTRS{serial}",
        "ATTRS{x}",
        "ENV{ID_VENDOR_ID}",
        "ENV{PCI_ID}",
        "ENV{PCI_CLASS}",
        "ENV{ID_BUS}",
        "ENV{DEVNAME}",
        "ENV{X}",
        "SYMLINK",
        "NAME",
        "TAG",
        "MODE",
        "GOTO",
        "LABEL",
        "IMPORT{x}",
        "PROGRAM",
    ]);
    let sign = proptest::sample::select(vec!["==", "!=", "+=", "="]);
    let value = prop_oneof![
        proptest::sample::select(vec![
            "usb", "pci", "tty", "add", "remove", "a", "b", "0x10ee", "10EE:1*", "0444"
        ])
        .prop_map(str::to_owned),
        "[a-z0-9*?!|.:/\\[\\]\\\\^&~-]{0,12}"
            .prop_map(|text| text.trim_end_matches('\\').to_owned()),
    ];
    (key, sign, value).prop_map(|(key, sign, value)| format!("{key}{sign}\"{value}\""))
}
