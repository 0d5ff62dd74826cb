//! Whether a device was let go, by the kubelet's record and by what the kubelet tells.
//!
//! The record keeps a pod that is gone until the kubelet next writes it, so the kubelet is asked as well. It
//! tells of nothing for a moment after it has started, and is believed at the third look.

use std::time::Duration;

use tokio::time::Instant;

/// What was seen of a device's holders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// Whether somebody had it at the last look.
    held: bool,
    /// Since when the kubelet tells of no holder.
    missing: Option<Instant>,
}

/// What one look says of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    /// Whether somebody has it by the record; `None` if that cannot be read.
    pub(crate) recorded: Option<bool>,
    /// Whether somebody has it as the kubelet tells; `None` if it does not answer.
    pub(crate) told: Option<bool>,
    /// How many pods the kubelet tells of.
    pub(crate) pods: usize,
    /// When the look began.
    pub(crate) at: Instant,
}

/// How many looks in a row must not find a holder before a device counts as let go.
const LOOKS_TO_RELEASE: u32 = 3;

/// How much longer a kubelet is waited for that tells of no pod: it may not have reached the API server
/// since it started, while its containers run.
const WITHOUT_PODS: u32 = 10;

/// How long the kubelet, which tells of so many pods, must not tell of a holder before it is believed.
pub(crate) fn patience(look_interval: Duration, pods: usize) -> Duration {
    let patience = look_interval * LOOKS_TO_RELEASE;
    if pods == 0 { patience * WITHOUT_PODS } else { patience }
}

// === impl Sight ===

impl Sight {
    pub(crate) fn new(held: bool) -> Self {
        Self { held, missing: None }
    }

    /// A container starts with it, so that somebody has it.
    pub(crate) fn is_seen(&mut self) {
        *self = Self::new(true);
    }

    /// Whether somebody had it at the last look.
    pub(crate) fn is_held(self) -> bool {
        self.held
    }

    /// Takes in one look at a device's holders; gives whether it was let go.
    pub(crate) fn is_let_go(&mut self, glance: Glance, look_interval: Duration) -> bool {
        let Some(recorded) = glance.recorded else { return false };
        if !recorded {
            self.missing = None;
            return std::mem::take(&mut self.held);
        }
        if glance.told != Some(false) {
            self.is_seen();
            return false;
        }
        let patience = patience(look_interval, glance.pods);
        // At the first look after a start of the agent a holder is taken for one.
        self.held |= self.missing.is_none();
        let is_gone = glance.at - *self.missing.get_or_insert(glance.at) >= patience;
        is_gone && std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_secs(10);

    fn glance(recorded: Option<bool>, told: Option<bool>, pods: usize) -> Glance {
        Glance { recorded, told, pods, at: Instant::now() }
    }

    #[test]
    fn a_device_that_the_record_no_longer_has_is_let_go_at_once_and_once() {
        let mut sight = Sight::new(false);
        let mut look = |recorded| sight.is_let_go(glance(recorded, Some(false), 0), LOOK);
        assert!(!look(Some(true)));
        assert!(!look(None), "a record that cannot be read releases nothing");
        assert!(look(Some(false)));
        assert!(!look(Some(false)));
    }

    #[test]
    fn a_kubelet_that_tells_of_no_holder_is_believed_after_a_while() {
        let begun = Instant::now();
        let mut sight = Sight::new(false);
        let mut look = |told, pods, after: u32| {
            let at = begun + LOOK * after;
            sight.is_let_go(Glance { at, ..glance(Some(true), told, pods) }, LOOK)
        };
        assert!(!look(Some(true), 1, 0));
        assert!(!look(Some(false), 1, 1));
        assert!(!look(None, 0, 2), "no answer: the wait begins anew");
        assert!(!look(Some(false), 1, 3));
        assert!(!look(Some(false), 0, 6), "it tells of no pod at all");
        assert!(look(Some(false), 1, 6));
        assert!(!look(Some(false), 1, 7), "the record is behind, and it was said");
    }
}
