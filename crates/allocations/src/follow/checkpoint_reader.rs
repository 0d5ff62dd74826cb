//! Reader of the kubelet's checkpoint, to which its device manager writes the devices of each pod.
//!
//! An Allocate call does not name the pod. The checkpoint, which the kubelet writes before the container starts, has
//! its UID. A new pod under the same name has another UID.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
};
use windlass_core::{device::DeviceId, replica::ReplicaId, resource::ResourceName};
use windlass_host::{
    deadline,
    files::{MAX_BYTES, Symlinks, read_regular_text},
};
use windlass_kubelet_api::{
    checkpoint::{Checkpoint, CheckpointError, FILE_NAME, PodDevices},
    deviceplugin::PLUGIN_DIR,
};

use crate::HeldIds;

/// UIDs of the pods that hold each device.
pub(super) type PodsByDevice = BTreeMap<DeviceId, BTreeSet<String>>;

/// Ids of a resource in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerIds {
    /// UID of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// The resource.
    pub resource: ResourceName,
    /// The ids.
    pub ids: BTreeSet<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointReadError {
    #[error("cannot read the kubelet's checkpoint")]
    Read(#[from] io::Error),
    #[error("cannot parse the kubelet's checkpoint")]
    Parse(#[from] CheckpointError),
    #[error("the disk has not answered for {DEADLINE:?}")]
    DeadlineExceeded,
}

/// Reads the checkpoint on a blocking thread, one read at a time. A read that hangs is awaited before the next.
#[derive(Debug)]
pub(super) struct CheckpointReader {
    path: PathBuf,
    /// Read that exceeded its deadline.
    overdue_read: Option<JoinHandle<()>>,
}

/// Deadline of a read.
const DEADLINE: Duration = Duration::from_secs(5);

// === impl CheckpointReader ===

impl CheckpointReader {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, overdue_read: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn read(&mut self) -> Result<Checkpoint, CheckpointReadError> {
        if let Some(overdue_read) = &mut self.overdue_read {
            // The result of the overdue read is outdated.
            let _ = deadline::timeout(DEADLINE, overdue_read)
                .await
                .map_err(|_| CheckpointReadError::DeadlineExceeded)?;
        }
        self.overdue_read = None;
        let (path, (sender, receiver)) = (self.path.clone(), oneshot::channel());
        // The receiver is dropped after the deadline.
        let read_task = spawn_blocking(move || drop(sender.send(checkpoint(&path))));
        if let Ok(result) = deadline::timeout(DEADLINE, receiver).await {
            return result.expect("reading neither panics nor is cancelled");
        }
        self.overdue_read = Some(read_task);
        Err(CheckpointReadError::DeadlineExceeded)
    }
}

/// Reads the checkpoint. A missing file counts as empty: the kubelet has not written it yet.
fn checkpoint(path: &Path) -> Result<Checkpoint, CheckpointReadError> {
    match read_regular_text(path, Symlinks::Refused, MAX_BYTES) {
        Ok(text) => Ok(Checkpoint::parse(text.trim_end())?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Checkpoint { pods: None, registered: None })
        }
        Err(error) => Err(error.into()),
    }
}

/// Ids that containers hold, by resource.
pub(super) fn held_ids(checkpoint: &Checkpoint) -> HeldIds {
    let names = checkpoint.pods.iter().flatten().map(|entry| entry.resource_name.as_str());
    let names: BTreeSet<&str> = names.collect();
    let ids_of_resource = |name: &str| {
        let ids = checkpoint.allocated_ids(name).map(str::to_owned).collect();
        Some((name.parse().ok()?, ids))
    };
    names.into_iter().filter_map(ids_of_resource).collect()
}

/// Ids of each container.
pub(super) fn container_ids(checkpoint: &Checkpoint) -> Vec<ContainerIds> {
    let entries = checkpoint.pods.iter().flatten();
    let ids = |entry: &PodDevices| {
        Some(ContainerIds {
            pod: entry.pod_uid.clone(),
            container: entry.container_name.clone(),
            resource: entry.resource_name.parse().ok()?,
            ids: entry.device_ids.values().flatten().cloned().collect(),
        })
    };
    entries.filter_map(ids).collect()
}

/// Ids of each container, from the kubelet's checkpoint; none if it cannot be read. Blocks.
pub fn read_container_ids(kubelet_dir: &Path) -> Vec<ContainerIds> {
    let checkpoint = checkpoint(&kubelet_dir.join(PLUGIN_DIR).join(FILE_NAME));
    checkpoint.map(|checkpoint| container_ids(&checkpoint)).unwrap_or_default()
}

pub(super) fn pods_by_device(checkpoint: Checkpoint) -> PodsByDevice {
    let mut by_device = PodsByDevice::new();
    for entry in checkpoint.pods.into_iter().flatten() {
        for id in entry.device_ids.values().flatten() {
            let replica = id.parse::<ReplicaId>().ok().map(|replica| replica.device);
            let Some(device) = replica.or_else(|| id.parse().ok()) else { continue };
            by_device.entry(device).or_default().insert(entry.pod_uid.clone());
        }
    }
    by_device
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_api::checkpoint::NO_NUMA_NODE;

    use super::*;

    #[test]
    fn the_checkpoint_names_pods_and_replicas_count_as_their_device() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("record");
        let read = || checkpoint(&path).ok().map(pods_by_device);
        assert_eq!(read(), Some(PodsByDevice::new()));
        let entry = |pod: &str, id: &str| PodDevices {
            pod_uid: pod.to_owned(),
            container_name: "main".to_owned(),
            resource_name: "zj.com/darwin3".to_owned(),
            device_ids: [(NO_NUMA_NODE, vec![id.to_owned()])].into(),
            allocate_response: Vec::new(),
        };
        let entries = vec![entry("a", "board::0"), entry("b", "board::1"), entry("a", "other")];
        let written = Checkpoint { pods: Some(entries), registered: None };
        std::fs::write(&path, written.to_json()).expect("written");
        let device_pods = |id: &str, pods: &[&str]| {
            (id.parse().expect("an id"), pods.iter().map(ToString::to_string).collect())
        };
        let expected = [device_pods("board", &["a", "b"]), device_pods("other", &["a"])];
        assert_eq!(read(), Some(expected.into()));
        std::fs::write(&path, "{}").expect("written");
        assert_eq!(read(), None);
    }
}
