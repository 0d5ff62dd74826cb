//! Lists that patches merge, with the identity of their entries. All other lists are replaced as a whole.

/// Identity of a list's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryIdentity {
    /// Entries with equal key fields are the same. A strategic merge patch compares only the first key.
    Keyed(&'static [&'static str]),
    /// Equal values are the same entry.
    Set,
}

/// All merged lists (`listMapKey` and `listType` in `k8s.io/api`), by path without indices.
const MERGED_LISTS: &[(&str, EntryIdentity)] = &[
    ("metadata.finalizers", EntryIdentity::Set),
    ("metadata.ownerReferences", EntryIdentity::Keyed(&["uid"])),
    ("spec.containers", EntryIdentity::Keyed(&["name"])),
    ("spec.containers.env", EntryIdentity::Keyed(&["name"])),
    ("spec.containers.ports", EntryIdentity::Keyed(&["containerPort", "protocol"])),
    ("spec.containers.resources.claims", EntryIdentity::Keyed(&["name"])),
    ("spec.containers.volumeDevices", EntryIdentity::Keyed(&["devicePath"])),
    ("spec.containers.volumeMounts", EntryIdentity::Keyed(&["mountPath"])),
    ("spec.hostAliases", EntryIdentity::Keyed(&["ip"])),
    ("spec.imagePullSecrets", EntryIdentity::Keyed(&["name"])),
    ("spec.podCIDRs", EntryIdentity::Set),
    ("spec.resourceClaims", EntryIdentity::Keyed(&["name"])),
    ("spec.schedulingGates", EntryIdentity::Keyed(&["name"])),
    ("spec.topologySpreadConstraints", EntryIdentity::Keyed(&["topologyKey", "whenUnsatisfiable"])),
    ("spec.volumes", EntryIdentity::Keyed(&["name"])),
    ("status.addresses", EntryIdentity::Keyed(&["type"])),
    ("status.conditions", EntryIdentity::Keyed(&["type"])),
    ("status.devices", EntryIdentity::Keyed(&["driver", "device", "pool", "shareID"])),
    ("status.devices.conditions", EntryIdentity::Keyed(&["type"])),
    ("status.hostIPs", EntryIdentity::Keyed(&["ip"])),
    ("status.podIPs", EntryIdentity::Keyed(&["ip"])),
    ("status.reservedFor", EntryIdentity::Keyed(&["uid"])),
    ("status.resourceClaimStatuses", EntryIdentity::Keyed(&["name"])),
];

/// Lists that server-side apply merges and a strategic merge patch replaces: they have no `patchStrategy`.
const APPLIED_ONLY: [&str; 3] =
    ["spec.containers.resources.claims", "status.devices", "status.devices.conditions"];

/// Identity of entries for server-side apply.
pub(super) fn apply_identity(path: &str) -> Option<EntryIdentity> {
    let path = as_container(path);
    MERGED_LISTS.iter().find(|(list, _)| *list == path).map(|(_, identity)| *identity)
}

/// Identity of entries for a strategic merge patch.
pub(super) fn merge_identity(path: &str) -> Option<EntryIdentity> {
    apply_identity(path).filter(|_| !APPLIED_ONLY.contains(&&*as_container(path)))
}

/// Path with `containers` for each kind of containers: all kinds have the same lists.
fn as_container(path: &str) -> String {
    path.replace("initContainers", "containers").replace("ephemeralContainers", "containers")
}

/// Path of a field below an object.
pub(super) fn child_path(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_replaces_the_claims_of_every_kind_of_containers() {
        for containers in ["containers", "initContainers", "ephemeralContainers"] {
            let path = format!("spec.{containers}.resources.claims");
            assert!(apply_identity(&path).is_some() && merge_identity(&path).is_none(), "{path}");
        }
    }
}
