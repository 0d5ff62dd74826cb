//! What the kubelet's record has and the kubelet does not tell of.
//!
//! The record keeps a pod that is gone: the kubelet forgets in memory what such pods had, whenever it is asked who
//! holds what, and its record follows when it is next written. It is written at an Allocate, which may never come, and
//! whenever a plugin sends a list of its devices. So a list is sent again where the record has had for a while what
//! the kubelet does not tell of, and the record alone decides. What a plain init container holds, of which pod
//! resources do not tell, and what pods hold of which a kubelet was not told yet that has just started, is in the
//! record that is written then.
//!
//! Where the kubelet reads no list of ours, it is believed after the same while about what it told of before in the
//! same life.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use windlass_kubelet_api::socket::SocketIdentity;

use super::Holders;
use crate::Held;

/// A resource, and an id of it.
pub(super) type HeldId = (String, String);

/// What the kubelet does not tell of, since when.
pub(super) type Untold = BTreeMap<HeldId, Instant>;

/// What is in doubt.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Which kubelet answered last.
    kubelet: Option<SocketIdentity>,
    /// All that it told of.
    told: BTreeSet<HeldId>,
    /// What the record has, and it does not tell of.
    open: BTreeMap<HeldId, Doubt>,
}

/// One that the kubelet does not tell of.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Instant,
    /// When the record is to be written anew, if it still has it by then, and the kubelet does not tell of it.
    due: Instant,
}

/// How many looks in a row must not find a holder before the record is doubted: a pod whose object was deleted by
/// force is told of no longer while its containers end, for half a minute by default.
const LOOKS: u32 = 3;

/// For how long a holder must not be told of, where is looked so often.
pub(crate) fn patience(look_interval: Duration) -> Duration {
    look_interval * LOOKS
}

// === impl Doubts ===

impl Doubts {
    /// Notes what a kubelet tells of: another one has not told of anything yet.
    pub(super) fn told(&mut self, kubelet: Option<SocketIdentity>, holders: &Holders) {
        if self.kubelet != kubelet {
            *self = Self { kubelet, ..Self::default() };
        }
        self.told.extend(holders.ids());
    }

    /// Nothing is known of a kubelet that does not answer.
    pub(super) fn forget(&mut self) {
        self.open.clear();
    }

    /// Takes in what the record has; gives whether it is to be written anew.
    pub(super) fn fold(
        &mut self,
        recorded: &Held,
        holders: &Holders,
        (now, patience): (Instant, Duration),
    ) -> bool {
        let all = recorded.iter().flat_map(|(name, ids)| ids.iter().map(move |id| (name, id)));
        let untold = all.filter(|(name, id)| !holders.holds(name.as_str(), id));
        let mut known = std::mem::take(&mut self.open);
        let mut is_due = false;
        for (name, id) in untold {
            let key = (name.to_string(), id.clone());
            let new = Doubt { since: now, due: now + patience };
            let mut doubt = known.remove(&key).unwrap_or(new);
            if doubt.due <= now {
                is_due = true;
                doubt.due = now + patience;
            }
            self.open.insert(key, doubt);
        }
        is_due
    }

    /// What this kubelet told of before and does not tell of any more.
    pub(super) fn let_go(&self) -> Untold {
        let told_before = self.open.iter().filter(|(id, _)| self.told.contains(*id));
        told_before.map(|(id, doubt)| (id.clone(), doubt.since)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::holder, *};

    const LOOK: Duration = Duration::from_secs(10);

    fn recorded(ids: &[&str]) -> Held {
        let ids = ids.iter().map(ToString::to_string).collect();
        Held::from([(holder().resource.parse().expect("a name"), ids)])
    }

    fn telling(ids: &[&str]) -> Holders {
        let held_by = |id: &&str| (id.parse().expect("an id"), [holder()].into());
        let by_device = ids.iter().map(held_by).collect();
        Holders { answered: Some(Ok(())), by_device, ..Holders::default() }
    }

    #[test]
    fn a_record_is_doubted_after_three_looks_and_then_after_three_more() {
        let (mut doubts, begun) = (Doubts::default(), Instant::now());
        let mut is_due = |told: &[&str], seconds| {
            let now = begun + Duration::from_secs(seconds);
            doubts.fold(&recorded(&["a", "b"]), &telling(told), (now, patience(LOOK)))
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
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        doubts.told(None, &telling(&["a"]));
        doubts.fold(&recorded(&["a", "init"]), &telling(&[]), (now, patience(LOOK)));
        let let_go = doubts.let_go();
        let ids: Vec<_> = let_go.keys().map(|(_, id)| id.as_str()).collect();
        assert_eq!(ids, ["a"], "of an init container it never told");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = windlass_kubelet_api::socket::SocketPath::new(folder.path().join("s"));
        let socket = socket.expect("it fits");
        let _listener = std::os::unix::net::UnixListener::bind(socket.as_path()).expect("bound");
        doubts.told(socket.identity(), &telling(&[]));
        doubts.fold(&recorded(&["a", "init"]), &telling(&[]), (now, patience(LOOK)));
        assert!(doubts.let_go().is_empty());
    }
}
