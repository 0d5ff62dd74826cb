//! Device health on disk, so that it survives agent restarts.
//!
//! A GPU that failed right before a restart waits out its quiet period. A reboot resets every device, so
//! records from before the reboot are only history.
//!
//! A fault that the driver reported by an event cannot be read again. So the writer reserves disk space at its start,
//! for use on a full disk.

use std::{collections::BTreeMap, path::Path, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_core::{device::DeviceId, health::HealthRecord};
use windlass_host::{
    Host, blocking,
    state_file::{Boot, Format, StateFile},
};

/// Health record of each device that had failures.
pub type HealthRecords = BTreeMap<DeviceId, HealthRecord>;

#[derive(Clone, Debug)]
pub(crate) struct HealthFile(StateFile<HealthRecords>);

/// Format of `health-*.json`.
pub const FORMAT: Format = Format { name: "health history", content_key: "devices" };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteCause {
    /// The records changed.
    Change,
    /// The last write failed.
    Retry,
}

/// Age of its last failure at which a record is dropped: the device may have moved to another machine since.
const RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Delay before a failed write is retried, for example on a full disk.
const RETRY_DELAY: Duration = Duration::from_secs(10);

// === impl HealthFile ===

impl HealthFile {
    pub(crate) fn new(state_dir: &Path, source: &str, host: Host) -> Self {
        let path = state_dir.join(format!("health-{source}.json"));
        Self(StateFile::new(path, FORMAT, host))
    }

    /// Records of an earlier agent process; empty without a readable file. Drops old records. Blocks.
    pub(crate) fn load(&self, now: Timestamp) -> HealthRecords {
        let Some(earlier) = self.0.load() else { return HealthRecords::new() };
        // An unknown boot counts as the same boot: an unnecessary quiet period is safer than a missing one.
        let rebooted = earlier.boot == Boot::Earlier;
        let recent_records =
            earlier.content.into_iter().filter(|(_, record)| is_recent(record, now));
        recent_records
            .map(|(id, record)| (id, if rebooted { record.into_history() } else { record }))
            .collect()
    }

    /// Writes changed records until stopped, and retries failed writes. A write runs on its own thread; changes
    /// during a write are combined into the next one.
    pub(crate) async fn persist(
        self,
        mut records: watch::Receiver<HealthRecords>,
        stop: CancellationToken,
    ) {
        let file = self.0.clone();
        let prepare = move || {
            file.set_aside();
            file.reserve()
        };
        if let Err(error) = blocking(prepare).await {
            let path = self.0.path().display();
            tracing::warn!(%path, %error, "disk space for health records not reserved: free some");
        }
        let mut failure = None;
        loop {
            let (is_ended, cause) = tokio::select! {
                () = stop.cancelled() => (true, WriteCause::Change),
                changed = records.changed() => (changed.is_err(), WriteCause::Change),
                () = sleep(RETRY_DELAY), if failure.is_some() => (false, WriteCause::Retry),
            };
            if !is_ended || failure.is_some() || records.has_changed().unwrap_or(false) {
                let newest_records = records.borrow_and_update().clone();
                failure = self.write(newest_records, cause, failure).await;
            }
            if is_ended {
                return;
            }
        }
    }

    /// Writes the records, and changed records into the reserve if the write fails. Returns the error that requires a
    /// retry. An error equal to `last_error` is not logged again, unless the reserve was used.
    async fn write(
        &self,
        records: HealthRecords,
        cause: WriteCause,
        last_error: Option<String>,
    ) -> Option<String> {
        let file = self.0.clone();
        let write = move || {
            let error = match file.write(&records) {
                // Without a new reserve the next write has no space, so it is retried.
                Ok(()) => return file.reserve().err().map(|error| (error, None)),
                Err(error) => error,
            };
            let reserve_result =
                (cause == WriteCause::Change).then(|| file.write_into_reserve(&records));
            Some((error, reserve_result))
        };
        let (error, reserve_result) = blocking(write).await?;
        let (error, path) = (error.to_string(), self.0.path().display());
        match reserve_result {
            Some(Ok(())) => {
                tracing::warn!(%path, error, "health records written into reserved space: disk is full");
            }
            Some(Err(_)) if last_error.as_ref() != Some(&error) => {
                tracing::warn!(%path, error, "health records not written: a restart forgets them");
            }
            Some(Err(_)) | None => {}
        }
        Some(error)
    }
}

fn is_recent(record: &HealthRecord, now: Timestamp) -> bool {
    let last_failure = record.failures.iter().map(|failure| failure.last).max();
    last_failure.is_some_and(|last| now.duration_since(last) < RETENTION)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tokio::task::JoinSet;
    use windlass_core::health::{HealthState, HealthTracker, Observation, Reason};
    use windlass_host::state_file::BOOT_ID;

    use super::*;

    const ID: &str = "GPU-1";

    fn timestamp(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number")
    }

    /// A file below its own host, and records of a GPU that failed at second 10.
    fn failed_gpu() -> (TempDir, HealthFile, HealthRecords) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(folder.path(), folder.path());
        let file = HealthFile::new(&folder.path().join("state"), "nvidia", host);
        let mut tracker = HealthTracker::new(Duration::from_secs(60), timestamp(0));
        let fault = Observation::Fault(Reason::Xid(79), "fell off".to_owned());
        tracker.observe(&fault, timestamp(10));
        let records = [(ID.parse().expect("an id"), tracker.record())].into();
        (folder, file, records)
    }

    fn set_boot(folder: &TempDir, id: &str) {
        let path = folder.path().join(BOOT_ID.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("the path has a parent")).expect("made");
        fs::write(path, id).expect("written");
    }

    #[test]
    fn records_read_back_as_they_were_and_old_ones_are_dropped() {
        let (_folder, file, records) = failed_gpu();
        assert_eq!(file.load(timestamp(11)), HealthRecords::new(), "no file, no failures");
        file.0.write(&records).expect("written");
        assert_eq!(file.load(timestamp(11)), records);
        assert_eq!(file.load(timestamp(31 * 24 * 3600)), HealthRecords::new());
    }

    #[test]
    fn after_a_reboot_records_are_history() {
        let (folder, file, records) = failed_gpu();
        set_boot(&folder, "one");
        file.0.write(&records).expect("written");
        assert_eq!(file.load(timestamp(11)), records, "the same boot");
        set_boot(&folder, "two");
        let loaded = file.load(timestamp(11)).into_values().next().expect("still there");
        assert_eq!((loaded.state, loaded.last_failure), (HealthState::Unknown, None));
        assert_eq!(loaded.failures.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_retried_until_it_succeeds() {
        let (folder, file, records) = failed_gpu();
        let state = folder.path().join("state");
        fs::write(&state, "a file where the folder should be").expect("written");
        let (sender, receiver) = watch::channel(HealthRecords::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(file.clone().persist(receiver, CancellationToken::new()));
        sender.send_replace(records.clone());
        sleep(RETRY_DELAY / 2).await;
        assert_eq!(file.load(timestamp(11)), HealthRecords::new());
        fs::remove_file(&state).expect("there");
        sleep(RETRY_DELAY).await;
        assert_eq!(file.load(timestamp(11)), records);
    }

    #[tokio::test]
    async fn records_are_written_into_reserved_space_on_a_full_disk() {
        let (_folder, file, records) = failed_gpu();
        let (sender, receiver) = watch::channel(HealthRecords::new());
        let stop = CancellationToken::new();
        stop.cancel();
        file.clone().persist(receiver.clone(), stop.clone()).await;
        // Folders block the drafts, as a full disk does.
        for name in ["", ".spare", ".spare2"] {
            let dots = if name.is_empty() { "." } else { ".." };
            let draft = format!("{dots}health-nvidia.json{name}.draft");
            fs::create_dir(file.0.path().with_file_name(draft)).expect("made");
        }
        // One change per device, each with a new writer, as after a restart of the agent.
        let mut expected = HealthRecords::new();
        for id in [ID, "GPU-2", "GPU-3"] {
            expected.insert(id.parse().expect("an id"), records[ID].clone());
            sender.send_replace(expected.clone());
            file.clone().persist(receiver.clone(), stop.clone()).await;
            assert_eq!(file.load(timestamp(11)), expected);
        }
    }

    #[tokio::test]
    async fn an_unreadable_file_is_set_aside_and_a_change_is_written() {
        let (_folder, file, records) = failed_gpu();
        file.0.write(&HealthRecords::new()).expect("written");
        fs::write(file.0.path(), r#"{"version": 2}"#).expect("written");
        assert_eq!(file.load(timestamp(11)), HealthRecords::new());
        let (sender, receiver) = watch::channel(HealthRecords::new());
        let stop = CancellationToken::new();
        sender.send_replace(records.clone());
        stop.cancel();
        file.clone().persist(receiver, stop).await;
        assert!(file.0.path().with_extension("json.unreadable").exists(), "kept for inspection");
        assert_eq!(file.load(timestamp(11)), records, "the last change is written before the end");
    }
}
