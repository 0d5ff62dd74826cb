//! Validation of a CDI document: each finding makes a runtime refuse the document or a container.

use std::{collections::BTreeSet, fmt, path::Path};

use super::{ContainerEdits, Hook, Spec, SpecDevice, SpecMount, SpecNode, version};

/// One mistake of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Path of keys, `devices[0].containerEdits`.
    pub path: String,
    /// The problem and its correction.
    pub message: String,
}

/// Longest class of a kind, and longest label of a vendor, in characters.
const MAX_LABEL: usize = 63;

/// Longest vendor, in characters.
const MAX_VENDOR: usize = 253;

/// Mount options that make the source a host path.
const BIND_OPTIONS: [&str; 2] = ["bind", "rbind"];

/// All mistakes of a document, in document order; empty for a valid document.
pub fn check(spec: &Spec) -> Vec<SpecError> {
    let mut validator = Validator::default();
    validator.version(spec);
    validator.kind(&spec.kind);
    if spec.devices.is_empty() {
        validator.add("devices", "a document without devices is refused: delete the file");
    }
    let mut names = BTreeSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        let path = format!("devices[{index}]");
        if !names.insert(&device.name) {
            validator
                .add(&path, format!("the name {:?} is taken by an earlier device", device.name));
        }
        validator.device(&path, device);
    }
    validator.edits("containerEdits", &spec.container_edits);
    validator.0
}

#[derive(Default)]
struct Validator(Vec<SpecError>);

// === impl Validator ===

impl Validator {
    fn add(&mut self, path: impl fmt::Display, message: impl fmt::Display) {
        self.0.push(SpecError { path: path.to_string(), message: message.to_string() });
    }

    fn version(&mut self, spec: &Spec) {
        let (min_version, feature) = version::min_version(spec);
        let declared = &spec.cdi_version;
        match version::release_index(declared) {
            None => self.add(
                "cdiVersion",
                format!(
                    "{declared:?} is not a released version: write {min_version:?} or a newer one"
                ),
            ),
            Some(rank) if Some(rank) < version::release_index(min_version) => self.add(
                "cdiVersion",
                format!("{feature} came with {min_version}: write that instead of {declared:?}"),
            ),
            Some(_) => {}
        }
    }

    fn kind(&mut self, kind: &str) {
        let Some((vendor, class)) = kind.split_once('/') else {
            return self.add("kind", format!("{kind:?} has no slash: write vendor.com/class"));
        };
        if !is_vendor(vendor) {
            self.add("kind", format!("{vendor:?} is not a domain such as vendor.com"));
        }
        let starts_with_letter = class.starts_with(|letter: char| letter.is_ascii_alphabetic());
        if !starts_with_letter || !is_name(class, "-_.") || class.len() > MAX_LABEL {
            let rule = "a letter, then letters, digits, '-', '_' and '.', 63 at the most";
            self.add("kind", format!("{class:?} is not a class: use {rule}"));
        }
    }

    fn device(&mut self, path: &str, device: &SpecDevice) {
        if !is_name(&device.name, "-_.:") {
            let rule = "letters and digits, with '-', '_', '.' and ':' between";
            self.add(path, format!("{:?} is not a device name: use {rule}", device.name));
        }
        if device.container_edits.is_empty() {
            self.add(path, "a device without containerEdits makes a runtime refuse the document");
        }
        self.edits(&format!("{path}.containerEdits"), &device.container_edits);
    }

    fn edits(&mut self, path: &str, edits: &ContainerEdits) {
        self.env(&format!("{path}.env"), &edits.env);
        for (index, node) in edits.device_nodes.iter().enumerate() {
            self.node(&format!("{path}.deviceNodes[{index}]"), node);
        }
        for (index, mount) in edits.mounts.iter().enumerate() {
            self.mount(&format!("{path}.mounts[{index}]"), mount);
        }
        for (index, hook) in edits.hooks.iter().enumerate() {
            self.hook(&format!("{path}.hooks[{index}]"), hook);
        }
        if edits.additional_gids.contains(&0) {
            self.add(format!("{path}.additionalGids"), "group 0 is ignored: leave it out");
        }
    }

    fn env(&mut self, path: &str, env: &[String]) {
        for (index, pair) in env.iter().enumerate() {
            if pair.find('=').is_none_or(|position| position == 0) {
                self.add(format!("{path}[{index}]"), format!("{pair:?} is not NAME=value"));
            }
        }
    }

    fn node(&mut self, key_path: &str, node: &SpecNode) {
        self.absolute(&format!("{key_path}.path"), &node.path);
        if let Some(path) = &node.host_path {
            self.absolute(&format!("{key_path}.hostPath"), path);
        }
        let types = ["c", "b", "u", "p"];
        if let Some(kind) = node.node_type.as_deref().filter(|kind| !types.contains(kind)) {
            let message = format!("{kind:?} is not a type of device node: use \"c\" or \"b\"");
            self.add(format!("{key_path}.type"), message);
        }
        let permissions = node.permissions.as_deref().unwrap_or_default();
        if permissions != "none" && permissions.contains(|letter| !"rwm".contains(letter)) {
            let message = format!("{permissions:?} has letters other than r, w and m");
            self.add(format!("{key_path}.permissions"), message);
        }
    }

    /// Only bind mounts have a host path; others name a file system, such as `tmpfs`.
    fn mount(&mut self, path: &str, mount: &SpecMount) {
        let is_bind_mount =
            mount.options.iter().any(|option| BIND_OPTIONS.contains(&option.as_str()));
        if is_bind_mount || mount.host_path.as_os_str().is_empty() {
            self.absolute(&format!("{path}.hostPath"), &mount.host_path);
        }
        self.absolute(&format!("{path}.containerPath"), &mount.container_path);
    }

    fn hook(&mut self, path: &str, hook: &Hook) {
        if !Hook::STAGES.contains(&hook.hook_name.as_str()) {
            let stages = Hook::STAGES.join(", ");
            let message = format!("{:?} is none of {stages}", hook.hook_name);
            self.add(format!("{path}.hookName"), message);
        }
        self.absolute(&format!("{path}.path"), &hook.path);
        self.env(&format!("{path}.env"), &hook.env);
        if hook.timeout.is_some_and(|seconds| seconds <= 0) {
            self.add(format!("{path}.timeout"), "leave it out to wait without limit");
        }
    }

    fn absolute(&mut self, key_path: &str, path: &Path) {
        if !path.has_root() {
            self.add(key_path, format!("{:?} is not an absolute path", path.to_string_lossy()));
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// True for alphanumeric text, which may contain the characters of `inner` except at its ends.
fn is_name(text: &str, inner: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric();
    text.starts_with(is_plain)
        && text.ends_with(is_plain)
        && text.chars().all(|letter| is_plain(letter) || inner.contains(letter))
}

fn is_vendor(vendor: &str) -> bool {
    let is_label = |label: &str| is_name(label, "-_") && label.len() <= MAX_LABEL;
    vendor.len() <= MAX_VENDOR
        && vendor.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && vendor.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = r#"{"cdiVersion": "0.6.0", "kind": "vendor.com/gpu",
        "annotations": {"a": "b"},
        "devices": [
            {"name": "0:1", "containerEdits": {"deviceNodes": [
                {"path": "/dev/a", "hostPath": "/x/a", "type": "c", "major": 195, "minor": 0,
                 "fileMode": 438, "permissions": "rwm", "uid": 0, "gid": 44}]}},
            {"name": "GPU-1", "containerEdits": {"env": ["A=b=c"], "mounts": [
                {"hostPath": "/a", "containerPath": "/b", "options": ["rbind"]},
                {"hostPath": "tmpfs", "containerPath": "/c", "type": "tmpfs"}]}}],
        "containerEdits": {"hooks": [{"hookName": "createContainer", "path": "/bin/a",
            "args": ["a"], "env": ["A=b"], "timeout": 5}]}}"#;

    fn mistakes(text: &str) -> Vec<String> {
        let spec = serde_json::from_str(text).expect("the shape of a document");
        check(&spec).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_valid_document_has_no_mistakes() {
        assert_eq!(mistakes(VALID), Vec::<String>::new());
    }

    #[test]
    fn each_mistake_is_named_with_its_place_and_its_correction() {
        for (valid, invalid, expected) in [
            (r#""0.6.0""#, r#""0.9.0""#, "cdiVersion: \"0.9.0\" is not a released version"),
            (r#""0.6.0""#, r#""0.5.0""#, "cdiVersion: annotations came with 0.6.0"),
            ("vendor.com/gpu", "gpu", "kind: \"gpu\" has no slash"),
            ("vendor.com/gpu", "ven dor/gpu", "kind: \"ven dor\" is not a domain"),
            ("vendor.com/gpu", "vendor.com/-gpu", "kind: \"-gpu\" is not a class"),
            ("GPU-1", "0:1", "devices[1]: the name \"0:1\" is taken"),
            ("GPU-1", "GPU/1", "devices[1]: \"GPU/1\" is not a device name"),
            ("A=b=c", "=b", "devices[1].containerEdits.env[0]: \"=b\" is not NAME=value"),
            ("/dev/a", "dev/a", "devices[0].containerEdits.deviceNodes[0].path: \"dev/a\""),
            ("/x/a", "x/a", "devices[0].containerEdits.deviceNodes[0].hostPath: \"x/a\""),
            (r#""c""#, r#""char""#, "deviceNodes[0].type: \"char\" is not a type"),
            ("rwm", "rwx", "deviceNodes[0].permissions: \"rwx\""),
            (r#""/a", "con"#, r#""a", "con"#, "mounts[0].hostPath: \"a\" is not an absolute"),
            ("/c", "c", "mounts[1].containerPath: \"c\" is not an absolute path"),
            ("createContainer", "create", "containerEdits.hooks[0].hookName: \"create\" is none"),
            ("/bin/a", "a", "containerEdits.hooks[0].path: \"a\" is not an absolute path"),
            ("5}", "0}", "containerEdits.hooks[0].timeout"),
        ] {
            let mistakes_found = mistakes(&VALID.replacen(valid, invalid, 1));
            assert_eq!(mistakes_found.len(), 1, "{invalid}: {mistakes_found:?}");
            assert!(mistakes_found[0].contains(expected), "{invalid}: {mistakes_found:?}");
        }
    }

    #[test]
    fn a_document_or_a_device_without_content_is_a_mistake() {
        let empty = r#"{"cdiVersion": "0.3.0", "kind": "v.com/c", "devices": []}"#;
        assert!(mistakes(empty)[0].starts_with("devices: a document without devices"));
        let device = r#"{"cdiVersion": "0.3.0", "kind": "v.com/c", "devices": [{"name": "a"}]}"#;
        assert!(mistakes(device)[0].starts_with("devices[0]: a device without containerEdits"));
    }
}
