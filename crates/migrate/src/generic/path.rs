//! One path of a group: a device node, or a file to mount.

use serde::Deserialize;
use windlass_config::{MountTemplate, NodeTemplate};
use windlass_core::device::Access;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PathEntry {
    path: String,
    mount_path: Option<String>,
    permissions: Option<String>,
    read_only: Option<bool>,
    #[serde(rename = "type")]
    kind: Kind,
    limit: Option<u64>,
    optional: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum Kind {
    #[default]
    Device,
    Mount,
}

// === impl PathEntry ===

impl PathEntry {
    /// True if the plugin lets containers create (mknod) the node by default.
    pub(super) fn allows_mknod_by_default(&self) -> bool {
        self.is_node() && self.permissions.as_deref().unwrap_or_default().is_empty()
    }

    pub(super) fn is_node(&self) -> bool {
        self.kind == Kind::Device
    }

    pub(super) fn is_optional(&self) -> bool {
        self.optional == Some(true)
    }

    /// True if `limit` repeats the match of this path, so that several devices of the group share it.
    pub(super) fn is_repeated(&self) -> bool {
        self.limit.unwrap_or(1) > 1
    }

    pub(super) fn is_below_dev(&self) -> bool {
        self.path().starts_with("/dev/")
    }

    pub(super) fn is_pattern(&self) -> bool {
        self.path().contains(['*', '?', '['])
    }

    pub(super) fn pattern(&self) -> String {
        self.path().to_owned()
    }

    /// Path in the container, if it differs.
    pub(super) fn container_path(&self) -> Option<String> {
        let path = self.mount_path.as_deref().map(str::trim)?;
        (!path.is_empty() && path != self.path()).then(|| path.to_owned())
    }

    pub(super) fn access(&self) -> Access {
        let permissions = self.permissions.as_deref().unwrap_or_default();
        // `Access` has `m` only together with `r` and `w`.
        match (permissions.contains('r'), permissions.contains('w'), permissions.contains('m')) {
            (true, true, true) => Access::ReadWriteMake,
            (true, false, _) => Access::Read,
            (false, true, _) => Access::Write,
            (true, true, false) | (false, false, _) => Access::ReadWrite,
        }
    }

    pub(super) fn into_node(self) -> NodeTemplate {
        NodeTemplate {
            path: self.pattern(),
            inside: self.container_path(),
            access: self.access(),
            optional: self.is_optional(),
            shared: self.is_repeated(),
        }
    }

    pub(super) fn into_mount(self) -> MountTemplate {
        let name = self.path().rsplit('/').next().unwrap_or_default();
        // A path in the container that ends with `/` is the folder of the mount.
        let container = self
            .container_path()
            .map(|path| if path.ends_with('/') { format!("{path}{name}") } else { path });
        MountTemplate {
            host: self.path().to_owned(),
            container,
            writable: self.read_only != Some(true),
        }
    }

    fn path(&self) -> &str {
        let path = self.path.trim();
        let trimmed = path.trim_end_matches('/');
        if trimmed.is_empty() { path } else { trimmed }
    }
}
