//! `darwin3-device-plugin`. It has no configuration file, so the import reads its manifest.

use windlass_config::{
    DeviceProfile, DiscoveryRule,
    document::{Diagnostics, Spanned, YamlNode},
};

use super::{Imported, manifest};

/// The plugin's name, as part of its image's name.
const IMAGE: &str = "darwin3-device-plugin";

/// Folder of board files in the plugin's container.
const FOLDER: &str = "/etc/darwin3";

/// True for a workload that runs the plugin.
pub(super) fn is_manifest(root: &YamlNode) -> bool {
    let image = |container: &YamlNode| container.child("image").and_then(YamlNode::text);
    let is_plugin_image = |image: String| image.to_ascii_lowercase().contains(IMAGE);
    manifest::containers(root).iter().filter_map(image).any(is_plugin_image)
}

pub(super) fn read(root: &YamlNode, diagnostics: &mut Diagnostics) -> Imported {
    diagnostics.warn(root.line, FOLDER_WARNING);
    let profile: DeviceProfile = "darwin3-files".parse().expect("a shipped profile");
    let mut rule = profile.rule();
    rule.find = DiscoveryRule::Files(folder(root).into());
    Imported { sources: vec![Spanned { line: root.line, value: rule }], ..Imported::default() }
}

/// Folder of board files on the host, by the manifest's volumes.
fn folder(root: &YamlNode) -> String {
    let mounts = manifest::containers(root)
        .iter()
        .filter_map(|container| container.child("volumeMounts"))
        .flat_map(YamlNode::items);
    let value = |mount: &YamlNode, key: &str| mount.child(key).and_then(YamlNode::text);
    let volume = mounts
        .filter(|mount| value(mount, "mountPath").is_some_and(|path| path == FOLDER))
        .find_map(|mount| value(mount, "name"));
    let paths = manifest::host_paths(root).into_iter();
    let path = volume.and_then(|volume| paths.into_iter().find(|(name, _)| *name == volume));
    path.map_or_else(|| FOLDER.to_owned(), |(_, path)| path)
}

const FOLDER_WARNING: &str = "the boards are the files of the folder; Windlass's pod needs it mounted at the \
    same path. Containers get both variables, Darwin3 and darwin3";
