//! What the API server would not take: each claim's status is tried again, later each time, and is in no other's
//! way. An API server that has just started refuses for a moment what it will take.

use std::collections::BTreeMap;

use tokio::time::{Duration, Instant, sleep_until};

use super::{
    Claim,
    document::{Spot, Told, says},
};

/// What was refused, by the claim's UID.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<String, Waiting>);

#[derive(Debug)]
struct Waiting {
    devices: BTreeMap<Spot, Told>,
    why: String,
    /// How often in a row.
    times: u32,
    until: Instant,
}

// === impl Refused ===

impl Refused {
    /// What was to be told of a claim was refused; a reason that goes on is said once.
    pub(super) fn note(
        &mut self,
        (uid, claim): (String, Claim),
        why: String,
        pause: impl FnOnce(u32) -> Duration,
    ) {
        let Claim { reference, devices } = claim;
        let known = self.0.remove(&uid);
        if known.as_ref().is_none_or(|it| it.why != why) {
            tracing::error!(claim = %reference, error = why, "the status of a claim is refused");
        }
        let times = known.map_or(0, |it| it.times).saturating_add(1);
        let until = Instant::now() + pause(times);
        self.0.insert(uid, Waiting { devices, why, times, until });
    }

    /// It was taken, or nobody wants to know of it.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_wanted(uid));
    }

    /// Whether what is to be told now is what was refused a moment ago.
    pub(super) fn waits(&self, uid: &str, devices: &BTreeMap<Spot, Told>, now: Instant) -> bool {
        let refusal = self.0.get(uid).filter(|it| now < it.until);
        refusal.is_some_and(|it| it.devices.len() == devices.len() && says(&it.devices, devices))
    }

    /// Waits until the first of those that waited then may be tried again.
    pub(super) async fn due(&self, now: Instant) {
        match self.0.values().map(|it| it.until).filter(|until| now < *until).min() {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use windlass_allocations::ledger::ClaimRef;

    use super::*;

    fn claim() -> Claim {
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        Claim { reference: ClaimRef { namespace, name, uid }, devices: BTreeMap::new() }
    }

    fn waits(refused: &Refused, uid: &str) -> bool {
        refused.waits(uid, &BTreeMap::new(), Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_is_tried_again_later_each_time() {
        let mut refused = Refused::default();
        let pause = |times| Duration::from_secs(u64::from(times));
        for seconds in 1..4 {
            refused.note(("u".to_owned(), claim()), "forbidden".to_owned(), pause);
            let begun = Instant::now();
            assert!(waits(&refused, "u") && !waits(&refused, "v"));
            refused.due(begun).await;
            assert_eq!(begun.elapsed().as_secs(), seconds);
            assert!(!waits(&refused, "u"), "it is due");
        }
        refused.forget("u");
        refused.note(("u".to_owned(), claim()), "forbidden".to_owned(), pause);
        advance(Duration::from_secs(1)).await;
        assert!(!waits(&refused, "u"), "it is as if it had never been refused");
    }
}
