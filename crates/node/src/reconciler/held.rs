//! Who holds what, by the kubelet's own record, and who has let go since.
//!
//! The record keeps a pod that is gone until the kubelet next writes it. A device that is kept back for its holder may
//! be what an Allocate waits for, so the kubelet is made to write it: see `holders/doubts`.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use windlass_allocations::{
    Held,
    podresources::{self, Holders, RecordReader, patience},
};
use windlass_core::{
    device::DeviceId,
    replica::{ReplicaId, device_of},
    resource::ResourceName,
};
use windlass_host::{causes, deadline::Deadline};

/// What containers hold, as far as it matters.
#[derive(Debug, Default)]
pub(super) struct Holdings(Held);

/// Reads the kubelet's record while the reconciler goes on.
pub(super) struct Reading {
    /// Lent while it reads.
    reader: Option<RecordReader>,
    path: PathBuf,
    tasks: JoinSet<(RecordReader, Purpose, Result<Held, String>)>,
    /// Whether it is to be read once more.
    again: bool,
    /// Why it could not be read, as it was said last.
    trouble: Option<String>,
}

/// What the record is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To know who holds what, and who does no longer.
    Look,
    /// By this moment it has every Allocate that was answered before the policy changed.
    Settle(Deadline),
}

// === impl Holdings ===

impl Holdings {
    pub(super) fn new(held: Held) -> Self {
        Self(held)
    }

    pub(super) fn held(&self) -> &Held {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The devices that are held, whole or in part.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.0.values().flatten().filter_map(|id| device_of(id))
    }

    /// The devices of which replicas are held.
    pub(super) fn shared_devices(&self) -> BTreeSet<DeviceId> {
        let ids = self.0.values().flatten();
        ids.filter_map(|id| Some(id.parse::<ReplicaId>().ok()?.device)).collect()
    }

    /// Forgets what the record has no longer.
    pub(super) fn retain_recorded(&mut self, recorded: &Held) {
        self.retain(|name, id| recorded.get(name).is_some_and(|held| held.contains(id)));
    }

    /// Forgets what the kubelet does not tell of any more, where it has to be believed.
    pub(super) fn retain_told(&mut self, told: &Holders, now: Instant, look_interval: Duration) {
        let now = (now, patience(look_interval));
        self.retain(|name, id| !told.has_let_go((name, id), None, now));
    }

    fn retain(&mut self, mut keep: impl FnMut(&ResourceName, &String) -> bool) {
        self.0.retain(|name, ids| {
            ids.retain(|id| keep(name, id));
            !ids.is_empty()
        });
    }
}

// === impl Reading ===

impl Reading {
    pub(super) fn new(path: PathBuf) -> Self {
        let reader = Some(RecordReader::new(path.clone()));
        Self { reader, path, tasks: JoinSet::new(), again: false, trouble: None }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.reader.is_some()
    }

    /// Has the record read, once more if it is being read.
    pub(super) fn begin(&mut self, purpose: Purpose) {
        let Some(mut reader) = self.reader.take() else {
            self.again = true;
            return;
        };
        self.again = false;
        self.tasks.spawn(async move {
            let read = reader.read().await;
            let read =
                read.map(|record| podresources::held(&record)).map_err(|error| causes(&error));
            (reader, purpose, read)
        });
    }

    /// Waits for what is being read: what containers hold. Without a record nothing is held; `None` for one that
    /// cannot be read, which is no reason not to serve.
    pub(super) async fn next(&mut self) -> Option<(Purpose, Option<Held>)> {
        let done = self.tasks.join_next().await?;
        let (reader, purpose, read) = done.expect("reading neither panics nor is cancelled");
        self.reader = Some(reader);
        let (held, trouble) = match read {
            Ok(held) => (Some(held), None),
            Err(error) => (None, Some(error)),
        };
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            tracing::warn!(path = %self.path.display(), error, "ignoring the kubelet's record");
        }
        self.trouble = trouble;
        if self.again {
            self.begin(Purpose::Look);
        }
        Some((purpose, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_record_has_no_longer_is_released_whatever_is_told() {
        let held = |ids: &[&str]| {
            let ids = ids.iter().map(ToString::to_string).collect();
            Held::from([("nvidia.com/gpu".parse().expect("valid"), ids)])
        };
        let mut holdings = Holdings::new(held(&["a", "b::1"]));
        holdings.retain_told(&Holders::default(), Instant::now(), Duration::ZERO);
        holdings.retain_recorded(&held(&["a"]));
        assert_eq!(holdings.held(), &held(&["a"]));
        holdings.retain_recorded(&Held::new());
        assert!(holdings.is_empty());
    }

    #[tokio::test]
    async fn a_record_that_changes_while_it_is_read_is_read_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut reading = Reading::new(folder.path().join("record"));
        reading.begin(Purpose::Look);
        reading.begin(Purpose::Look);
        for _ in 0..2 {
            assert_eq!(reading.next().await, Some((Purpose::Look, Some(Held::new()))));
        }
        assert_eq!(reading.next().await, None);
    }
}
