//! Lists that patches merge: their entries have keys, or are members of a set. Other lists are replaced as a whole.

/// Identity of a list's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// These key fields. A strategic merge patch uses the first alone.
    By(&'static [&'static str]),
    /// The values themselves, each of which occurs once.
    Set,
}

/// `listMapKey` and `listType` of the types in `k8s.io/api`. A path has no indices.
const LISTS: &[(&str, Entries)] = &[
    ("metadata.finalizers", Entries::Set),
    ("metadata.ownerReferences", Entries::By(&["uid"])),
    ("spec.containers", Entries::By(&["name"])),
    ("spec.containers.env", Entries::By(&["name"])),
    ("spec.containers.ports", Entries::By(&["containerPort", "protocol"])),
    ("spec.containers.resources.claims", Entries::By(&["name"])),
    ("spec.containers.volumeDevices", Entries::By(&["devicePath"])),
    ("spec.containers.volumeMounts", Entries::By(&["mountPath"])),
    ("spec.hostAliases", Entries::By(&["ip"])),
    ("spec.imagePullSecrets", Entries::By(&["name"])),
    ("spec.podCIDRs", Entries::Set),
    ("spec.resourceClaims", Entries::By(&["name"])),
    ("spec.schedulingGates", Entries::By(&["name"])),
    ("spec.topologySpreadConstraints", Entries::By(&["topologyKey", "whenUnsatisfiable"])),
    ("spec.volumes", Entries::By(&["name"])),
    ("status.addresses", Entries::By(&["type"])),
    ("status.conditions", Entries::By(&["type"])),
    ("status.devices", Entries::By(&["driver", "device", "pool", "shareID"])),
    ("status.devices.conditions", Entries::By(&["type"])),
    ("status.hostIPs", Entries::By(&["ip"])),
    ("status.podIPs", Entries::By(&["ip"])),
    ("status.reservedFor", Entries::By(&["uid"])),
    ("status.resourceClaimStatuses", Entries::By(&["name"])),
];

/// Lists that server-side apply merges and a strategic merge patch replaces: they have no `patchStrategy`.
const APPLIED_ONLY: [&str; 3] =
    ["spec.containers.resources.claims", "status.devices", "status.devices.conditions"];

/// Identity of entries for server-side apply.
pub(super) fn applied(path: &str) -> Option<Entries> {
    let path = path.replace("initContainers", "containers");
    let path = path.replace("ephemeralContainers", "containers");
    LISTS.iter().find(|(known, _)| *known == path).map(|(_, entries)| *entries)
}

/// Identity of entries for a strategic merge patch.
pub(super) fn merged(path: &str) -> Option<Entries> {
    applied(path).filter(|_| !APPLIED_ONLY.contains(&path))
}

/// Path of a field.
pub(super) fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
