//! Which pods have a device, by the kubelet's own record, and whether they have let go since.
//!
//! The kubelet names no pod when it announces the start of a container. Its record, which it writes before
//! that, has every pod's UID, so that a pod that was made anew under the same name is another one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::Instant};
use windlass_core::{device::DeviceId, replica::ReplicaId};
use windlass_kubelet_api::checkpoint::Checkpoint;

use super::state::Tenants;
use crate::holders::Holders;

/// The pods that have each device.
pub(super) type ByDevice = BTreeMap<DeviceId, Tenants>;

/// What was seen of a device's holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// Whether somebody had it at the last look.
    held: bool,
    /// Since when the kubelet tells of no holder.
    missing: Option<Instant>,
}

/// How many looks in a row must not find a holder before a device counts as let go.
const LOOKS_TO_RELEASE: u32 = 3;

/// How much longer a kubelet is waited for that tells of no pod: it may not have reached the API server
/// since it started, while its containers run.
const WITHOUT_PODS: u32 = 10;

/// The pods that have each device by the kubelet's record; `None` if it cannot be read.
pub(super) async fn by_record(path: PathBuf) -> Option<ByDevice> {
    let read = spawn_blocking(move || read(&path)).await;
    read.expect("reading neither panics nor is cancelled")
}

fn read(path: &Path) -> Option<ByDevice> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(ByDevice::new()),
        // The keeper of the state says so.
        Err(_) => return None,
    };
    let record = Checkpoint::parse(text.trim_end()).ok()?;
    let mut all = ByDevice::new();
    for entry in record.pods.into_iter().flatten() {
        for id in entry.device_ids.values().flatten() {
            let replica = id.parse::<ReplicaId>().ok().map(|replica| replica.device);
            let Some(device) = replica.or_else(|| id.parse().ok()) else { continue };
            all.entry(device).or_default().insert(entry.pod_uid.clone());
        }
    }
    Some(all)
}

// === impl Sight ===

impl Sight {
    pub(super) fn new(held: bool) -> Self {
        Self { held, missing: None }
    }

    /// A container starts with it, so that somebody has it.
    pub(super) fn is_seen(&mut self) {
        *self = Self::new(true);
    }

    /// Takes in one look at a device's holders; gives whether it was let go.
    ///
    /// The record keeps a pod that is gone until the kubelet next writes it, so the kubelet is asked as
    /// well. It tells of nothing for a moment after it has started, and is believed at the third look.
    pub(super) fn is_let_go(
        &mut self,
        device: &DeviceId,
        recorded: Option<&ByDevice>,
        told: &Holders,
        (now, look_interval): (Instant, Duration),
    ) -> bool {
        let Some(recorded) = recorded else { return false };
        let tells = matches!(told.answered, Some(Ok(())));
        if !recorded.contains_key(device) {
            self.missing = None;
            return std::mem::take(&mut self.held);
        }
        if !tells || told.by_device.contains_key(device) {
            self.is_seen();
            return false;
        }
        let patience = look_interval * LOOKS_TO_RELEASE;
        let patience = if told.pods == 0 { patience * WITHOUT_PODS } else { patience };
        // At the first look after a start of the agent a holder is taken for one.
        self.held |= self.missing.is_none();
        let is_gone = now - *self.missing.get_or_insert(now) >= patience;
        is_gone && std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use windlass_kubelet_api::checkpoint::{NO_NUMA_NODE, PodDevices};

    use super::*;
    use crate::holders::tests::holder;

    const LOOK: Duration = Duration::from_secs(10);

    fn id() -> DeviceId {
        "board".parse().expect("an id")
    }

    fn held() -> ByDevice {
        [(id(), ["uid".to_owned()].into())].into()
    }

    fn told(ids: &[&str], pods: usize) -> Holders {
        let held_by = |id: &&str| (id.parse().expect("an id"), BTreeSet::from([holder()]));
        Holders { answered: Some(Ok(())), by_device: ids.iter().map(held_by).collect(), pods }
    }

    #[test]
    fn the_record_names_pods_and_replicas_lead_to_their_device() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("record");
        assert_eq!(read(&path), Some(ByDevice::new()));
        let entry = |pod: &str, id: &str| PodDevices {
            pod_uid: pod.to_owned(),
            container_name: "main".to_owned(),
            resource_name: "zj.com/darwin3".to_owned(),
            device_ids: [(NO_NUMA_NODE, vec![id.to_owned()])].into(),
            allocate_response: Vec::new(),
        };
        let pods = vec![entry("a", "board::0"), entry("b", "board::1"), entry("a", "other")];
        let record = Checkpoint { pods: Some(pods), registered: None };
        std::fs::write(&path, record.to_json()).expect("written");
        let shown: Vec<_> = read(&path).expect("readable").into_iter().collect();
        let pods = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Tenants>();
        assert_eq!(
            shown,
            [(id(), pods(&["a", "b"])), ("other".parse().expect("an id"), pods(&["a"]))]
        );
        std::fs::write(&path, "{}").expect("written");
        assert_eq!(read(&path), None);
    }

    #[test]
    fn a_device_that_the_record_no_longer_has_is_let_go_at_once_and_once() {
        let (mut sight, now) = (Sight::new(false), Instant::now());
        let mut look = |recorded: Option<&ByDevice>| {
            sight.is_let_go(&id(), recorded, &told(&[], 0), (now, LOOK))
        };
        assert!(!look(Some(&held())));
        assert!(!look(None), "a record that cannot be read releases nothing");
        assert!(look(Some(&ByDevice::new())));
        assert!(!look(Some(&ByDevice::new())));
    }

    #[test]
    fn a_kubelet_that_tells_of_no_holder_is_believed_after_a_while() {
        let begun = Instant::now();
        let mut sight = Sight::new(false);
        let mut look = |told: &Holders, after: u32| {
            sight.is_let_go(&id(), Some(&held()), told, (begun + LOOK * after, LOOK))
        };
        assert!(!look(&told(&["board"], 1), 0));
        assert!(!look(&told(&["other"], 1), 1));
        assert!(!look(&Holders::default(), 2), "no answer: the wait begins anew");
        assert!(!look(&told(&["other"], 1), 3));
        assert!(!look(&told(&[], 0), 6), "it tells of no pod at all");
        assert!(look(&told(&["other"], 1), 6));
        assert!(!look(&told(&["other"], 1), 7), "the record is behind, and it was said");
    }
}
