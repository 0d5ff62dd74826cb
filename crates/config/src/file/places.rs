//! The file's keys for places: the driver's installation, the API server.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_host::DriverPlaces;

use crate::{ClusterAccess, MpsSettings, MpsUsers};

/// Where the driver's installation lies.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct DriverEntry {
    /// The root that libraries, binaries and firmware lie under, as the host names it: `/`, or
    /// `/run/nvidia/driver` with a driver container.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<PathBuf>,
    /// Where the agent finds that root, if not below `hostRoot`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mounted_at: Option<PathBuf>,
    /// The root that `/dev` lies under, as the host names it, if not the host's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    dev_root: Option<PathBuf>,
}

/// How the API server is reached. Nothing is asked of it unless a part needs it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ClusterEntry {
    /// A kubeconfig; left out, the pod's own account is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig: Option<PathBuf>,
    /// The name of this node's object; left out, `NODE_NAME` or the host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    /// The namespace of objects that belong to one; left out, the pod's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Whether changes of health become events of the Node object.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    events: bool,
}

/// How MPS daemons are run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct MpsEntry {
    /// What the host calls the folder that the daemons see as `/dev/shm`; containers get it as theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    shm_dir: Option<PathBuf>,
    /// Whose programs one server takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<MpsUsers>,
}

// === impl MpsEntry ===

impl MpsEntry {
    pub(super) fn apply(self, settings: &mut MpsSettings) {
        settings.shm_dir = self.shm_dir.unwrap_or_else(|| settings.shm_dir.clone());
        settings.users = self.users.unwrap_or(settings.users);
    }

    pub(super) fn of(settings: &MpsSettings) -> Option<Self> {
        let usual = MpsSettings::default();
        let shm_dir = (settings.shm_dir != usual.shm_dir).then(|| settings.shm_dir.clone());
        let users = (settings.users != usual.users).then_some(settings.users);
        (shm_dir.is_some() || users.is_some()).then_some(Self { shm_dir, users })
    }
}

// === impl DriverEntry ===

impl DriverEntry {
    pub(super) fn apply(self, driver: &mut DriverPlaces) {
        if let Some(root) = self.root {
            driver.root = root;
        }
        driver.mounted_at = self.mounted_at;
        driver.dev_root = self.dev_root;
    }

    pub(super) fn of(driver: &DriverPlaces) -> Option<Self> {
        let DriverPlaces { nvml_library, root, mounted_at, dev_root } = driver.clone();
        let usual = DriverPlaces { nvml_library, ..DriverPlaces::default() };
        let root = Some(root).filter(|root| *root != usual.root);
        (*driver != usual).then_some(Self { root, mounted_at, dev_root })
    }
}

// === impl ClusterEntry ===

impl ClusterEntry {
    pub(super) fn of(access: &ClusterAccess) -> Option<Self> {
        let ClusterAccess { kubeconfig, node_name, namespace, events, pod: _ } = access.clone();
        let entry = Self { kubeconfig, node_name, namespace, events };
        (*access != ClusterAccess::default()).then_some(entry)
    }
}

impl From<ClusterEntry> for ClusterAccess {
    fn from(entry: ClusterEntry) -> Self {
        let ClusterEntry { kubeconfig, node_name, namespace, events } = entry;
        // Which pod the agent runs in, the pod knows.
        Self { kubeconfig, node_name, namespace, events, pod: None }
    }
}
