//! What of the kubelet's record is still held.

use std::time::Duration;

use tokio::time::Instant;
use windlass_core::replica::{device_of, token};

use crate::{
    Held,
    ledger::Ledger,
    podresources::{Holders, patience},
};

/// What of the record is held still. What the kubelet does not tell of is, unless no record can be had that says
/// more: see [`Holders::has_let_go`].
pub(super) fn still_held(
    mut record: Held,
    told: &Holders,
    ledger: &Ledger,
    (now, look_interval): (Instant, Duration),
) -> Held {
    for (resource, ids) in &mut record {
        ids.retain(|id| {
            let given = match device_of(id).filter(|_| token(id).is_none()) {
                Some(device) => ledger.given(&device),
                None => ledger.given_as(resource),
            };
            !told.has_let_go((resource, id), given, (now, patience(look_interval)))
        });
    }
    record.retain(|_, ids| !ids.is_empty());
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{
        LedgerDesk,
        tests::{alone, resource},
    };

    const LOOK: Duration = Duration::from_secs(10);

    #[test]
    fn what_the_record_has_is_held_unless_nothing_better_can_be_known() {
        let (ledger, now) = (LedgerDesk::default(), Instant::now());
        let record = || Held::from([(resource(), ["GPU-a".to_owned()].into())]);
        let is_held = |told: &Holders, seconds| {
            let at = now + Duration::from_secs(seconds);
            let known = ledger.watch().borrow().clone();
            !still_held(record(), told, &known, (at, LOOK)).is_empty()
        };
        assert!(is_held(&Holders::default(), 1_000), "though nobody tells of it");
        let gone = Holders::of_one_let_go(&resource(), "GPU-a", now);
        assert!(is_held(&gone, 29));
        assert!(!is_held(&gone, 30));
        ledger.take_for_container(&resource(), &[alone("GPU-a")]).expect("free");
        assert!(is_held(&gone, 1_000), "it was given away since");
    }
}
