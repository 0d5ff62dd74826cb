//! Tests of udev rules: simple rules are converted, other rules are refused.

use std::path::Path;

use insta::assert_snapshot;
use proptest::prelude::*;
use windlass_config::{Diagnostic, DiscoveryRule, SourceRule, to_yaml};

use crate::{Format, LoadedConfig, NvidiaPluginFlags, parse};

fn loaded(text: &str) -> Result<LoadedConfig, String> {
    let parsed = parse(Path::new("x.rules"), text, &NvidiaPluginFlags::default());
    parsed.map_err(|error| error.to_string().replace("x.rules:", ""))
}

fn sources(text: &str) -> Vec<SourceRule> {
    let loaded = loaded(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(loaded.format, Format::UdevRules, "{text}");
    loaded.config.policy.sources
}

/// Text of a source in one line: place and expression, with short names of attributes.
fn short(source: &SourceRule) -> String {
    let find = match &source.find {
        DiscoveryRule::Bus(name) => format!("bus {name}"),
        DiscoveryRule::Class(name) => format!("class {name}"),
        DiscoveryRule::Nodes(patterns) => patterns.join(" "),
        other => format!("{other:?}"),
    };
    let expression = source.expression.as_ref().map_or("", |it| it.as_str());
    let expression = expression
        .replace("device.attributes[\"windlass.dev\"].?", "")
        .replace("device.attributes[\"windlass.dev\"].", "")
        .replace(".orValue(\"\")", "");
    let files =
        source.attributes.iter().map(|(name, file)| format!(" {}={}", name.name(), file.display()));
    format!("{find}: {expression}{}", files.collect::<String>())
}

/// Checks that each rule becomes the expected sources.
fn check(cases: &[(&str, &[&str])]) {
    for (text, expected) in cases {
        let found: Vec<_> = sources(text).iter().map(short).collect();
        assert_eq!(found, *expected, "{text}");
    }
}

#[test]
fn a_rule_becomes_a_source_at_the_place_of_its_devices() {
    check(&[
        (r#"SUBSYSTEM=="usb", ATTR{idVendor}=="0403""#, &[r#"bus usb: usbVendor == "0403""#]),
        (r#"KERNEL=="ttyUSB*""#, &[r#"/dev/ttyUSB*: name.matches("^(ttyUSB.*)$")"#]),
        (
            r#"KERNEL=="video[0-9]*|media?""#,
            &[r#"/dev/video* /dev/media?: name.matches("^(video[0-9].*|media.)$")"#],
        ),
        (r#"KERNEL=="dma0""#, &[r#"/dev/dma0: name == "dma0""#]),
        (
            r#"KERNEL=="event*", ATTR{device/name}=="Pad""#,
            &[
                r#"/dev/input/event*: name.matches("^(event.*)$") && file_device_name == "Pad" file_device_name=device/name"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="tty|hidraw", ATTRS{idVendor}=="1234""#,
            &[r#"class tty: usbVendor == "1234""#, r#"class hidraw: usbVendor == "1234""#],
        ),
        (
            r#"SUBSYSTEM=="drm", KERNEL=="renderD*""#,
            &[r#"class drm: name.matches("^(renderD.*)$")"#],
        ),
        (r#"SUBSYSTEM=="accel""#, &["class accel: "]),
        (
            r#"SUBSYSTEM=="pci", KERNEL=="0000:3b:00.*""#,
            &[r#"bus pci: name.matches("^(0000\\:3b\\:00\\..*)$")"#],
        ),
        (
            r#"ATTRS{idVendor}=="0403", ATTRS{idProduct}=="6001|6010""#,
            &[r#"bus usb: usbVendor == "0403" && usbProduct in ["6001", "6010"]"#],
        ),
        (
            r#"KERNEL=="ttyACM?" , ATTRS{manufacturer}=="Arduino*",,ATTRS{serial}=="A1""#,
            &[
                r#"/dev/ttyACM?: name.matches("^(ttyACM.)$") && usbManufacturer.matches("^(Arduino.*)$") && usbSerial == "A1""#,
            ],
        ),
    ]);
}

#[test]
fn conditions_on_a_device_become_conditions_on_its_attributes() {
    check(&[
        (
            r#"SUBSYSTEM=="pci", ATTR{vendor}=="0x10ee|0x1ac1", ATTR{class}=="0x1200*""#,
            &[
                r#"bus pci: file_vendor in ["0x10ee", "0x1ac1"] && file_class.matches("^(0x1200.*)$") file_class=class file_vendor=vendor"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="pci", ATTR{fw-version}!="1.*", ATTR{driver}=="*""#,
            &[
                r#"bus pci: has(file_fw_version) && !(file_fw_version.matches("^(1\\..*)$")) && has(file_driver) && file_driver.matches("^(.*)$") file_driver=driver file_fw_version=fw-version"#,
            ],
        ),
        (
            r#"SUBSYSTEM=="tty", KERNEL!="ttyS*""#,
            &[r#"class tty: has(name) && !(name.matches("^(ttyS.*)$"))"#],
        ),
        (
            r#"SUBSYSTEM=="sound", ATTR{vendor}=="Great Vendor""#,
            &[r#"class sound: file_vendor == "Great Vendor" file_vendor=vendor"#],
        ),
    ]);
}

#[test]
fn an_unsupported_term_is_refused_with_its_line_and_replacement() {
    for (keys, expected) in [
        (r#"GOTO="end""#, "GOTO: write every condition into each rule"),
        (r#"LABEL="end""#, "LABEL: write every condition"),
        (r#"ENV{ID_BUS}=="usb""#, "ENV{ID_BUS}: udev sets it: match"),
        (r#"TAGS=="mine""#, "TAGS: udev sets it"),
        (r#"PROGRAM=="/bin/x""#, "PROGRAM: rules match the device alone: write match or probe"),
        (r#"IMPORT{program}="x""#, "IMPORT{program}: rules match the device alone"),
        (r#"RESULT=="1""#, "RESULT: rules match the device alone"),
        (r#"TEST=="/x""#, "TEST: rules match the device alone"),
        (r#"RUN+="/bin/x""#, "RUN: a source assigns nothing: leave it in udev's file"),
        (r#"MODE="0666""#, "MODE: a source assigns nothing"),
        (r#"SYMLINK+="x""#, "SYMLINK: a source assigns nothing"),
        (r#"ATTR{power/control}="on""#, "ATTR{power/control}: a source assigns nothing"),
        (r#"ACTION=="add""#, "ACTION: leave it out: a source finds present devices"),
        (r#"DRIVERS=="ftdi_sio""#, "DRIVERS: write driver in match of a source"),
        (r#"SUBSYSTEMS=="usb""#, "SUBSYSTEMS: write ATTRS{idVendor} alone"),
        (r#"KERNELS=="1-1.4""#, "KERNELS: write usbPort or the PCI address in match"),
        (r#"ATTRS{idVendor}!="0403""#, "ATTRS{idVendor}: write the intended values, with =="),
        (r#"ATTRS{bInterfaceNumber}=="00""#, "ATTRS{bInterfaceNumber}: of parent devices"),
        (r#"ATTRS=="1""#, "ATTRS: write the file in braces"),
        (r#"SUBSYSTEM!="usb""#, "SUBSYSTEM: write the intended values, with =="),
        (r#"SUBSYSTEM=="usb""#, "SUBSYSTEM appears twice"),
        (r#"KERNAL=="x""#, "KERNAL: unknown key"),
        (r#"ATTR{idVendor}=="1""#, "ATTR{idVendor}: write ATTRS{idVendor}"),
        (r#"ATTR{[net/eth0]x}=="1""#, "ATTR{[net/eth0]x}: write one file"),
        (r#"ATTR{a-b}=="1", ATTR{a.b}=="1""#, "ATTR{a.b}: write one file, with other letters"),
        (r#"KERNEL=="%k""#, "KERNEL: write the value without \\, $ and %"),
        (r#"ATTR{x}=="a\"b""#, "ATTR{x}: write the value without \\, $ and %"),
        (r#"KERNEL==i"TTY*""#, "\"KERNEL==i\\\"TTY*\\\"\": write KEY"),
        (r#"KERNEL=="[[:digit:]]""#, "KERNEL: \"[[:digit:]]\": write letters, digits and ranges"),
    ] {
        let error =
            loaded(&format!("KERNEL==\"kept\"\nSUBSYSTEM==\"tty\", {keys}")).expect_err(keys);
        assert!(error.starts_with(&format!("2: {expected}")), "{error}");
        assert!(error.ends_with("; see docs/devices/migrating.md#rules-of-udev"), "{error}");
    }
}

#[test]
fn a_rule_without_a_place_is_refused_with_its_line() {
    for (text, expected) in [
        ("KERNEL==\"a\"\nKERNEL==\"b\n", "2: \"KERNEL==\\\"b\": write KEY==\"value\""),
        (
            "KERNEL==\"a\", \\\n  SUBSYSTEM==\"b\"\n",
            "1: \"\\\\\": write KEY==\"value\", a rule on one line",
        ),
        ("KERNEL==\"a\" # c", "1: \"# c\": write KEY==\"value\", a rule on one line, and comments"),
        ("\nKERNEL \"a\"\n", "2: \"KERNEL \\\"a\\\"\": write KEY"),
        ("ATTR{a==\"b\"", "1: \"ATTR{a==\\\"b\\\"\": write KEY"),
        (
            r#"SUBSYSTEM=="net", KERNEL=="eth*""#,
            "1: SUBSYSTEM: write a rule of resources with kind: nic",
        ),
        (r#"SUBSYSTEM=="usb*""#, "1: SUBSYSTEM: \"usb*\": name each, with |"),
        (r#"SUBSYSTEM=="usb""#, "1: SUBSYSTEM: the rule fits every device of the bus"),
        (
            r#"SUBSYSTEM=="usb", ATTR{bInterfaceClass}=="ff""#,
            "1: ATTR{bInterfaceClass}: it belongs to a USB interface: write usbInterfaceClass",
        ),
        (r#"ATTR{x}=="1""#, "1: the rule does not say where to search"),
        (r#"KERNEL=="*""#, "1: KERNEL: \"*\" does not say where to search"),
        (r#"KERNEL=="0000:3b:00.0""#, "1: KERNEL: \"0000:3b:00.0\" does not say where to search"),
        (r#"KERNEL=="a[b""#, "1: KERNEL: \"a[b\": write letters, digits and ranges in brackets"),
        (r#"KERNEL=="a[z-a]""#, "1: KERNEL: "),
    ] {
        let error = loaded(text).expect_err(text);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn plain_rules_become_a_configuration() {
    let text = "
# Instruments
SUBSYSTEM==\"usb\", ATTR{idVendor}==\"1ab1\"
KERNEL==\"video[0-9]*\", ATTR{name}==\"HD Cam*\"
SUBSYSTEM==\"tty\", ATTRS{idVendor}==\"0403\", ATTRS{idProduct}==\"6001\"
";
    let loaded = loaded(text).expect("valid");
    let comment = |Diagnostic { line, text }: &Diagnostic| format!("# line {line}: {text}\n");
    let comments = loaded.warnings.iter().map(comment).collect::<String>();
    assert_snapshot!(comments + &to_yaml(&loaded.config));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}(\n\\PC{0,40}){0,2}") {
        let _ = loaded(&text);
    }

    #[test]
    fn a_configuration_from_any_rules_can_be_read_again(
        terms in proptest::collection::vec(term(), 1..4),
    ) {
        if let Ok(loaded) = loaded(&terms.join(", ")) {
            let yaml = to_yaml(&loaded.config);
            let reparsed = parse(Path::new("w.yaml"), &yaml, &NvidiaPluginFlags::default());
            let is_withheld = loaded.warnings.iter().any(|it| it.text.contains("it is withheld"));
            let is_same = reparsed.is_ok_and(|reparsed| reparsed.config == loaded.config);
            prop_assert!(is_same || is_withheld, "{:?}\n{}", terms, yaml);
        }
    }
}

/// Random terms. Most are supported.
fn term() -> impl Strategy<Value = String> {
    let key = proptest::sample::select(vec![
        "KERNEL",
        "SUBSYSTEM",
        "ATTR{idVendor}",
        "ATTR{vendor}",
        "ATTR{x/y}",
        "ATTRS{idVendor}",
        "ATTRS{serial}",
        "ENV{X}",
    ]);
    let operator = proptest::sample::select(vec!["==", "==", "==", "!=", "+="]);
    let value = prop_oneof![
        proptest::sample::select(vec!["usb", "pci", "tty", "a", "b", "0x10ee", "c[0-9]*|d?"])
            .prop_map(str::to_owned),
        "[a-z0-9*?!|.:/\\[\\]^&~-]{0,12}",
    ];
    (key, operator, value).prop_map(|(key, operator, value)| format!("{key}{operator}\"{value}\""))
}
