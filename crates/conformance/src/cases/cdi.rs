//! Device names in the CDI specs of a list of folders.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Qualified device name, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// `vendor/class`.
    pub(super) kind: &'a str,
    pub(super) device: &'a str,
}

/// Part of a spec that names devices. The YAML parser reads JSON specs too.
#[derive(Deserialize)]
struct Spec {
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
}

/// Qualified names of all devices. Unreadable files are skipped.
pub(super) fn device_names(folders: &[PathBuf]) -> BTreeSet<String> {
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let specs = files.filter_map(|file| spec(&file.path()));
    let names = |spec: Spec| {
        let kind = spec.kind;
        spec.devices.into_iter().map(move |device| format!("{kind}={}", device.name))
    };
    specs.flat_map(names).collect()
}

fn spec(path: &Path) -> Option<Spec> {
    let is_spec =
        path.extension().is_some_and(|extension| extension == "json" || extension == "yaml");
    let text = is_spec.then(|| fs::read_to_string(path).ok())??;
    serde_saphyr::from_str(&text).ok()
}

// === impl Name ===

impl<'a> Name<'a> {
    /// Parses `vendor/class=device`, with the characters that the specification allows.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (kind, device) = text.split_once('=')?;
        let (vendor, class) = kind.split_once('/')?;
        let has_only = |text: &str, punctuation: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || punctuation.contains(c);
            !text.is_empty() && text.chars().all(is_allowed)
        };
        let starts_with_letter = |text: &str| text.starts_with(|c: char| c.is_ascii_alphabetic());
        let is_vendor = starts_with_letter(vendor) && has_only(vendor, "_-.");
        let is_class = starts_with_letter(class) && has_only(class, "_-");
        (is_vendor && is_class && has_only(device, "_-.:")).then_some(Self { kind, device })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_vendor_a_class_and_a_device() {
        let name = Name::parse("example.com/gpu=a:0").expect("a name");
        assert_eq!(name, Name { kind: "example.com/gpu", device: "a:0" });
        for text in ["gpu=a", "example.com/gpu", "example.com/gpu=", "1.com/gpu=a", "a/b/c=d"] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn devices_are_found_in_json_and_yaml_specs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("the folder is writable");
        };
        write("a.json", r#"{"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": [{"name": "x"}]}"#);
        write("b.yaml", "cdiVersion: 0.5.0\nkind: a.b/d\ndevices:\n- name: '0'\n");
        write("c.json", "no spec");
        let device_names = device_names(&[folder.path().to_owned(), folder.path().join("none")]);
        assert_eq!(device_names.into_iter().collect::<Vec<_>>(), ["a.b/c=x", "a.b/d=0"]);
    }
}
