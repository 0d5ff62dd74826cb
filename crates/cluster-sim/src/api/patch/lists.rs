//! Lists that patches merge, with the identity of their entries. All other lists are replaced as a whole.

/// Identity of a list's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// Entries with equal key fields are the same. A strategic merge patch compares only the first key.
    Keyed(&'static [&'static str]),
    /// Equal values are the same entry.
    Set,
}

/// Merged lists (`listMapKey` and `listType` in `k8s.io/api`), by path without indices.
const LISTS: &[(&str, Entries)] = &[
    ("metadata.finalizers", Entries::Set),
    ("metadata.ownerReferences", Entries::Keyed(&["uid"])),
    ("spec.containers", Entries::Keyed(&["name"])),
    ("spec.containers.env", Entries::Keyed(&["name"])),
    ("spec.containers.ports", Entries::Keyed(&["containerPort", "protocol"])),
    ("spec.containers.resources.claims", Entries::Keyed(&["name"])),
    ("spec.containers.volumeDevices", Entries::Keyed(&["devicePath"])),
    ("spec.containers.volumeMounts", Entries::Keyed(&["mountPath"])),
    ("spec.hostAliases", Entries::Keyed(&["ip"])),
    ("spec.imagePullSecrets", Entries::Keyed(&["name"])),
    ("spec.podCIDRs", Entries::Set),
    ("spec.resourceClaims", Entries::Keyed(&["name"])),
    ("spec.schedulingGates", Entries::Keyed(&["name"])),
    ("spec.topologySpreadConstraints", Entries::Keyed(&["topologyKey", "whenUnsatisfiable"])),
    ("spec.volumes", Entries::Keyed(&["name"])),
    ("status.addresses", Entries::Keyed(&["type"])),
    ("status.conditions", Entries::Keyed(&["type"])),
    ("status.devices", Entries::Keyed(&["driver", "device", "pool", "shareID"])),
    ("status.devices.conditions", Entries::Keyed(&["type"])),
    ("status.hostIPs", Entries::Keyed(&["ip"])),
    ("status.podIPs", Entries::Keyed(&["ip"])),
    ("status.reservedFor", Entries::Keyed(&["uid"])),
    ("status.resourceClaimStatuses", Entries::Keyed(&["name"])),
];

/// Lists that server-side apply merges and a strategic merge patch replaces: they have no `patchStrategy`.
const APPLIED_ONLY: [&str; 3] =
    ["spec.containers.resources.claims", "status.devices", "status.devices.conditions"];

/// Identity of entries for server-side apply.
pub(super) fn applied(path: &str) -> Option<Entries> {
    let path = path.replace("initContainers", "containers");
    let path = path.replace("ephemeralContainers", "containers");
    LISTS.iter().find(|(list, _)| *list == path).map(|(_, entries)| *entries)
}

/// Identity of entries for a strategic merge patch.
pub(super) fn merged(path: &str) -> Option<Entries> {
    applied(path).filter(|_| !APPLIED_ONLY.contains(&path))
}

/// Path of a field below an object.
pub(super) fn child_path(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
