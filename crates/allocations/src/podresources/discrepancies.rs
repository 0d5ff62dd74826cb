//! Discrepancies between the kubelet's checkpoint and its pod resources: ids that pod resources omit.
//!
//! The checkpoint keeps a pod that is gone. A pod resources call makes the kubelet forget such pods in
//! memory, and the checkpoint follows at its next write: at an Allocate, which may never come, or when a
//! plugin sends its device list. So if ids have been omitted for a while, a list is sent again, and the new
//! checkpoint decides. It contains the ids of plain init containers, which pod resources omit, and of pods
//! that a restarted kubelet has not listed yet.
//!
//! If the kubelet reads no list of ours, an id counts as released after the same while, provided that this
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

/// Omitted ids, with the time.
pub(super) type OmittedIds = BTreeMap<HeldId, Instant>;

/// Omitted ids of one kubelet.
#[derive(Debug, Default)]
pub(super) struct Discrepancies {
    /// Kubelet that answered last.
    kubelet: Option<SocketIdentity>,
    /// Ids that it ever listed.
    listed: BTreeSet<HeldId>,
    /// Recorded ids that it omits.
    omitted: BTreeMap<HeldId, Omission>,
}

/// A recorded id that pod resources omit.
#[derive(Clone, Copy, Debug)]
struct Omission {
    since: Instant,
    /// Time of the next request for a new checkpoint.
    due: Instant,
}

/// Looks in a row without a holder before the checkpoint is doubted. A pod that was deleted by force is
/// omitted while its containers end, for half a minute by default.
const MISSED_CHECKS: u32 = 3;

/// Time of omission after which an id counts as released.
pub(crate) fn release_delay(check_interval: Duration) -> Duration {
    check_interval * MISSED_CHECKS
}

// === impl Discrepancies ===

impl Discrepancies {
    /// Notes an answer. A new kubelet starts without any listed id.
    pub(super) fn answered(&mut self, kubelet: Option<SocketIdentity>, holders: &Holders) {
        if self.kubelet != kubelet {
            *self = Self { kubelet, ..Self::default() };
        }
        self.listed.extend(holders.ids());
    }

    /// Forgets all omissions of a kubelet that does not answer.
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
        let all = recorded.iter().flat_map(|(name, ids)| ids.iter().map(move |id| (name, id)));
        let mut known = std::mem::take(&mut self.omitted);
        let mut is_due = false;
        for (name, id) in all.filter(|(name, id)| !holders.holds(name.as_str(), id)) {
            let key = (name.to_string(), id.clone());
            let new = Omission { since: now, due: now + delay };
            let mut omission = known.remove(&key).unwrap_or(new);
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

    fn telling(ids: &[&str]) -> Holders {
        let held_by = |id: &&str| (id.parse().expect("an id"), [holder()].into());
        let by_device = ids.iter().map(held_by).collect();
        Holders { answered: Some(Ok(())), by_device, ..Holders::default() }
    }

    #[test]
    fn a_record_is_doubted_after_three_looks_and_then_after_three_more() {
        let (mut discrepancies, begun) = (Discrepancies::default(), Instant::now());
        let mut is_due = |told: &[&str], seconds| {
            let now = begun + Duration::from_secs(seconds);
            discrepancies.update(&recorded(&["a", "b"]), &telling(told), now, release_delay(CHECK))
        };
        assert!(!is_due(&["a"], 0));
        assert!(!is_due(&["a"], 29));
        assert!(is_due(&["a"], 30));
        assert!(!is_due(&["a"], 59), "it was written, and has it still");
        assert!(is_due(&["a"], 60));
        assert!(!is_due(&["a", "b"], 90));
        assert!(!is_due(&["a"], 100), "the while begins anew");
    }

    #[test]
    fn a_kubelet_is_believed_of_what_it_told_before_and_a_new_one_told_nothing() {
        let (mut discrepancies, now) = (Discrepancies::default(), Instant::now());
        discrepancies.answered(None, &telling(&["a"]));
        discrepancies.update(&recorded(&["a", "init"]), &telling(&[]), now, release_delay(CHECK));
        let released = discrepancies.released();
        let ids: Vec<_> = released.keys().map(|(_, id)| id.as_str()).collect();
        assert_eq!(ids, ["a"], "of an init container it never told");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = windlass_kubelet_api::socket::SocketPath::new(folder.path().join("s"));
        let socket = socket.expect("it fits");
        let _listener = std::os::unix::net::UnixListener::bind(socket.as_path()).expect("bound");
        discrepancies.answered(socket.identity(), &telling(&[]));
        discrepancies.update(&recorded(&["a", "init"]), &telling(&[]), now, release_delay(CHECK));
        assert!(discrepancies.released().is_empty());
    }
}
