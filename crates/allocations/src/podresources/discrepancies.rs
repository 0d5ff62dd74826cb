//! Discrepancies between the kubelet's checkpoint and its pod resources: ids that pod resources omit.
//!
//! The checkpoint keeps a pod that has ended. A pod resources call makes the kubelet forget such pods in memory, and
//! the checkpoint follows at its next write: at an Allocate, which may never come, or when a plugin sends its device
//! list. So if ids have been omitted for a while, the agent sends a list again, and the new checkpoint decides. It
//! contains the ids of plain init containers, which pod resources omit, and of pods that a restarted kubelet has not
//! listed yet.
//!
//! If the kubelet reads no device list of the agent, an id counts as released after the same time, provided that this
//! kubelet once listed it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use windlass_kubelet_api::socket::SocketIdentity;

use super::Holders;
use crate::HeldIds;

/// A resource and one of its ids.
pub(super) type HeldId = (String, String);

/// Omitted ids, with the time of the first omission.
pub(super) type OmittedIds = BTreeMap<HeldId, Instant>;

/// Omitted ids of one kubelet.
#[derive(Debug, Default)]
pub(super) struct Discrepancies {
    /// Kubelet that answered last.
    kubelet: Option<SocketIdentity>,
    /// Ids that this kubelet has ever listed.
    listed: BTreeSet<HeldId>,
    /// Ids in the checkpoint that this kubelet omits.
    omitted: BTreeMap<HeldId, Omission>,
}

/// Omission of an id from pod resources.
#[derive(Clone, Copy, Debug)]
struct Omission {
    since: Instant,
    /// Time of the next request for a new checkpoint.
    due: Instant,
}

/// Number of consecutive checks without a holder before a new checkpoint is requested. A pod that was deleted by force
/// is omitted while its containers end, for half a minute by default.
const MISSED_CHECKS: u32 = 3;

/// Duration of an omission after which an id counts as released.
pub(crate) fn release_delay(check_interval: Duration) -> Duration {
    check_interval * MISSED_CHECKS
}

// === impl Discrepancies ===

impl Discrepancies {
    /// Records an answer. After a restart of the kubelet, no id counts as listed.
    pub(super) fn record_answer(&mut self, kubelet: Option<SocketIdentity>, holders: &Holders) {
        if self.kubelet != kubelet {
            *self = Self { kubelet, ..Self::default() };
        }
        self.listed.extend(holders.ids());
    }

    /// Drops all omissions, because the kubelet does not answer.
    pub(super) fn clear(&mut self) {
        self.omitted.clear();
    }

    /// Compares a checkpoint with an answer; returns true if a new checkpoint is due.
    pub(super) fn update(
        &mut self,
        recorded: &HeldIds,
        holders: &Holders,
        now: Instant,
        delay: Duration,
    ) -> bool {
        let recorded_ids =
            recorded.iter().flat_map(|(name, ids)| ids.iter().map(move |id| (name, id)));
        let mut previous = std::mem::take(&mut self.omitted);
        let mut is_due = false;
        for (name, id) in recorded_ids.filter(|(name, id)| !holders.holds(name.as_str(), id)) {
            let key = (name.to_string(), id.clone());
            let new_omission = Omission { since: now, due: now + delay };
            let mut omission = previous.remove(&key).unwrap_or(new_omission);
            if omission.due <= now {
                is_due = true;
                omission.due = now + delay;
            }
            self.omitted.insert(key, omission);
        }
        is_due
    }

    /// Ids that this kubelet once listed and now omits.
    pub(super) fn released(&self) -> OmittedIds {
        let once_listed = self.omitted.iter().filter(|(id, _)| self.listed.contains(*id));
        once_listed.map(|(id, omission)| (id.clone(), omission.since)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::holder, *};

    const CHECK: Duration = Duration::from_secs(10);

    fn recorded(ids: &[&str]) -> HeldIds {
        let ids = ids.iter().map(ToString::to_string).collect();
        HeldIds::from([(holder().resource.parse().expect("a name"), ids)])
    }

    fn listing(ids: &[&str]) -> Holders {
        let held_by = |id: &&str| (id.parse().expect("an id"), [holder()].into());
        let by_device = ids.iter().map(held_by).collect();
        Holders { last_result: Some(Ok(())), by_device, ..Holders::default() }
    }

    #[test]
    fn a_new_checkpoint_is_requested_after_three_checks_and_again_after_three_more() {
        let (mut discrepancies, start) = (Discrepancies::default(), Instant::now());
        let mut is_due = |reported: &[&str], seconds| {
            let now = start + Duration::from_secs(seconds);
            discrepancies.update(
                &recorded(&["a", "b"]),
                &listing(reported),
                now,
                release_delay(CHECK),
            )
        };
        assert!(!is_due(&["a"], 0));
        assert!(!is_due(&["a"], 29));
        assert!(is_due(&["a"], 30));
        assert!(!is_due(&["a"], 59), "the new checkpoint still has it");
        assert!(is_due(&["a"], 60));
        assert!(!is_due(&["a", "b"], 90));
        assert!(!is_due(&["a"], 100), "the time starts again");
    }

    #[test]
    fn an_id_counts_as_released_only_if_the_same_kubelet_listed_it() {
        let (mut discrepancies, now) = (Discrepancies::default(), Instant::now());
        discrepancies.record_answer(None, &listing(&["a"]));
        discrepancies.update(&recorded(&["a", "init"]), &listing(&[]), now, release_delay(CHECK));
        let released = discrepancies.released();
        let ids: Vec<_> = released.keys().map(|(_, id)| id.as_str()).collect();
        assert_eq!(ids, ["a"], "it never listed the init container's id");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = windlass_kubelet_api::socket::SocketPath::new(folder.path().join("s"));
        let socket = socket.expect("a short path");
        let _listener = std::os::unix::net::UnixListener::bind(socket.as_path()).expect("bound");
        discrepancies.record_answer(socket.identity(), &listing(&[]));
        discrepancies.update(&recorded(&["a", "init"]), &listing(&[]), now, release_delay(CHECK));
        assert!(discrepancies.released().is_empty());
    }
}
