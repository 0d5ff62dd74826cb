//! The kubelet's own record of which pods have which devices, as its device manager keeps it on disk.
//!
//! The kubelet names no pod when it announces the start of a container. Its record, which it writes before
//! that, has every pod's UID, so that a pod that was made anew under the same name is another one.

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
use windlass_core::{device::DeviceId, replica::ReplicaId};
use windlass_host::{
    deadline,
    files::{Links, MOST_BYTES, read_regular_text},
};
use windlass_kubelet_api::checkpoint::{Checkpoint, CheckpointError};

use crate::Held;

/// The UIDs of the pods that have each device.
pub(super) type ByPod = BTreeMap<DeviceId, BTreeSet<String>>;

/// Why the record says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("cannot read the kubelet's record")]
    Read(#[from] io::Error),
    #[error("the kubelet's record is not understood")]
    Parse(#[from] CheckpointError),
    #[error("the disk has not answered for {DEADLINE:?}")]
    Late,
}

/// Reads the record on a thread of its own. One that the disk keeps is waited for, and no other is begun meanwhile.
#[derive(Debug)]
pub(super) struct RecordReader {
    path: PathBuf,
    late: Option<JoinHandle<()>>,
}

/// How long a read may take before that is said.
const DEADLINE: Duration = Duration::from_secs(5);

// === impl RecordReader ===

impl RecordReader {
    /// A reader of the record at this path.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, late: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The record as it is now, or why not in time. One at a time.
    pub(super) async fn read(&mut self) -> Result<Checkpoint, RecordError> {
        if let Some(late) = &mut self.late {
            // What it came to is old.
            let _ = deadline::timeout(DEADLINE, late).await.map_err(|_| RecordError::Late)?;
        }
        self.late = None;
        let (path, (sender, receiver)) = (self.path.clone(), oneshot::channel());
        // Who gave up does not listen.
        let reading = spawn_blocking(move || drop(sender.send(checkpoint(&path))));
        if let Ok(read) = deadline::timeout(DEADLINE, receiver).await {
            return read.expect("reading neither panics nor is cancelled");
        }
        self.late = Some(reading);
        Err(RecordError::Late)
    }
}

/// The record. Before the kubelet first writes it, nobody has anything.
fn checkpoint(path: &Path) -> Result<Checkpoint, RecordError> {
    match read_regular_text(path, Links::Refused, MOST_BYTES) {
        Ok(text) => Ok(Checkpoint::parse(text.trim_end())?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Checkpoint { pods: None, registered: None })
        }
        Err(error) => Err(error.into()),
    }
}

/// The ids that the record has, by their resource.
pub(super) fn held(record: &Checkpoint) -> Held {
    let names = record.pods.iter().flatten().map(|entry| entry.resource_name.as_str());
    let names: BTreeSet<&str> = names.collect();
    let held = |name: &str| {
        let ids = record.held(name).map(str::to_owned).collect();
        Some((name.parse().ok()?, ids))
    };
    names.into_iter().filter_map(held).collect()
}

/// The pods that have each device.
pub(super) fn by_pod(record: Checkpoint) -> ByPod {
    let mut all = ByPod::new();
    for entry in record.pods.into_iter().flatten() {
        for id in entry.device_ids.values().flatten() {
            let replica = id.parse::<ReplicaId>().ok().map(|replica| replica.device);
            let Some(device) = replica.or_else(|| id.parse().ok()) else { continue };
            all.entry(device).or_default().insert(entry.pod_uid.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_api::checkpoint::{NO_NUMA_NODE, PodDevices};

    use super::*;

    #[test]
    fn the_record_names_pods_and_replicas_lead_to_their_device() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("record");
        let read = || checkpoint(&path).ok().map(by_pod);
        assert_eq!(read(), Some(ByPod::new()));
        let entry = |pod: &str, id: &str| PodDevices {
            pod_uid: pod.to_owned(),
            container_name: "main".to_owned(),
            resource_name: "zj.com/darwin3".to_owned(),
            device_ids: [(NO_NUMA_NODE, vec![id.to_owned()])].into(),
            allocate_response: Vec::new(),
        };
        let entries = vec![entry("a", "board::0"), entry("b", "board::1"), entry("a", "other")];
        let record = Checkpoint { pods: Some(entries), registered: None };
        std::fs::write(&path, record.to_json()).expect("written");
        let named = |id: &str, pods: &[&str]| {
            (id.parse().expect("an id"), pods.iter().map(ToString::to_string).collect())
        };
        let expected = [named("board", &["a", "b"]), named("other", &["a"])];
        assert_eq!(read(), Some(expected.into()));
        std::fs::write(&path, "{}").expect("written");
        assert_eq!(read(), None);
    }
}
