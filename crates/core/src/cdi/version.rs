//! The CDI version that a document needs.
//!
//! Runtimes refuse a document that uses a feature newer than its declared version, and a version newer than their own.

use super::{ContainerEdits, Spec};

/// A version and the feature that it introduced.
pub(super) type Requirement = (&'static str, &'static str);

/// Released versions, oldest first.
pub(super) const RELEASED: &[&str] =
    &["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// The oldest version that runtimes accept.
const EARLIEST: Requirement = ("0.3.0", "a document");

/// Test for a feature in a document.
type FeatureTest = fn(&Spec) -> bool;

/// Features by version, newest first (SPEC.md, "Released versions").
const FEATURES: &[(Requirement, FeatureTest)] = &[
    (("1.1.0", "netDevices"), |spec| any_edits(spec, |edits| !edits.net_devices.is_empty())),
    (("1.1.0", "schemata and enableMonitoring of intelRdt"), |spec| {
        let rdt = |edits: &ContainerEdits| edits.intel_rdt.clone().unwrap_or_default();
        any_edits(spec, |edits| !rdt(edits).schemata.is_empty() || rdt(edits).enable_monitoring)
    }),
    (("0.7.0", "intelRdt"), |spec| any_edits(spec, |edits| edits.intel_rdt.is_some())),
    (("0.7.0", "additionalGids"), |spec| {
        any_edits(spec, |edits| !edits.additional_gids.is_empty())
    }),
    (("0.6.0", "annotations"), |spec| {
        let devices = spec.devices.iter().map(|device| &device.annotations);
        devices.chain([&spec.annotations]).any(|annotations| !annotations.is_empty())
    }),
    (("0.6.0", "a dot in the class"), |spec| {
        spec.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))
    }),
    (("0.5.0", "hostPath of a device node"), |spec| {
        any_edits(spec, |edits| edits.device_nodes.iter().any(|node| node.host_path.is_some()))
    }),
    (("0.5.0", "a device name that begins with a digit"), |spec| {
        spec.devices.iter().any(|device| device.name.starts_with(|c: char| c.is_ascii_digit()))
    }),
    (("0.4.0", "type of a mount"), |spec| {
        any_edits(spec, |edits| edits.mounts.iter().any(|mount| mount.mount_type.is_some()))
    }),
];

/// The lowest version that supports the document, and the feature that requires it.
pub(super) fn min_version(spec: &Spec) -> Requirement {
    let newest = FEATURES.iter().find(|(_, test)| test(spec));
    newest.map_or(EARLIEST, |(requirement, _)| *requirement)
}

/// Position among [`RELEASED`]; Go's `v` prefix is accepted.
pub(super) fn release_index(version: &str) -> Option<usize> {
    let version = version.strip_prefix('v').unwrap_or(version);
    RELEASED.iter().position(|released| *released == version)
}

fn any_edits(spec: &Spec, test: impl Fn(&ContainerEdits) -> bool) -> bool {
    test(&spec.container_edits) || spec.devices.iter().any(|device| test(&device.container_edits))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Kind, NetDevice, SpecDevice, SpecMount, SpecNode},
        *,
    };

    fn version_for(change: impl FnOnce(&mut Spec)) -> &'static str {
        let edits = ContainerEdits { env: vec!["A=b".into()], ..ContainerEdits::default() };
        let devices = vec![SpecDevice::new("a", edits)];
        let mut spec = Spec::new(&Kind::new("gpu"), devices, ContainerEdits::default());
        change(&mut spec);
        min_version(&spec).0
    }

    #[test]
    fn a_document_is_in_the_lowest_version_that_has_all_it_uses() {
        assert_eq!(version_for(|_| ()), "0.3.0");
        assert_eq!(version_for(|spec| spec.devices[0].name = "0:1".into()), "0.5.0");
        assert_eq!(version_for(|spec| spec.kind = "v.com/a.b".into()), "0.6.0");
        assert_eq!(version_for(|spec| spec.container_edits.additional_gids = vec![44]), "0.7.0");
        assert_eq!(
            version_for(|spec| spec.devices[0].annotations = [("a".into(), "b".into())].into()),
            "0.6.0"
        );
        assert_eq!(
            version_for(|spec| {
                let node = SpecNode { host_path: Some("/x".into()), ..SpecNode::new("/dev/a") };
                spec.devices[0].container_edits.device_nodes.push(node);
            }),
            "0.5.0"
        );
        assert_eq!(
            version_for(|spec| {
                let mount =
                    SpecMount { mount_type: Some("tmpfs".into()), ..SpecMount::socket("/a", "/a") };
                spec.container_edits.mounts.push(mount);
            }),
            "0.4.0"
        );
        assert_eq!(
            version_for(|spec| {
                let net_device = NetDevice { host_interface_name: "a".into(), name: "b".into() };
                spec.container_edits.net_devices.push(net_device);
                spec.container_edits.additional_gids.push(44);
            }),
            "1.1.0"
        );
    }

    #[test]
    fn versions_have_an_order() {
        assert!(
            release_index("0.5.0") < release_index("v1.0.0") && release_index("0.5.0").is_some()
        );
        assert_eq!(release_index("0.9.0"), None);
    }
}
