//! From a claim that is asked for to one that is begun, or refused: what it has by the record, what its object
//! says, and what it gets.

use windlass_host::causes;

use super::{Event, Preparer, slot::Work, waiting::NotBegun};
use crate::{
    claim::Claim,
    plan::{self, named, plan, takes},
    record::{Entry, Stage},
    status::Trouble,
};

// === impl Preparer ===

impl Preparer {
    /// Sees whether a claim that is completed was allocated anew since.
    pub(super) fn compare(&mut self, entry: Entry) {
        let Some(slot) = self.slots.get_mut(&entry.claim.uid) else { return };
        slot.work = Some(Work::Reading);
        let ground = self.ground.clone();
        self.tasks.spawn(async move {
            let allocation = ground.allocation(&entry).await;
            Event::Compared(entry.claim.uid, allocation)
        });
    }

    /// Reads what a claim is to get.
    pub(super) fn read(&mut self, uid: &str) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.work = Some(Work::Reading);
        let (ground, claim) = (self.ground.clone(), slot.claim.clone());
        self.tasks.spawn(async move {
            let read = ground.read(&claim).await.map_err(|error| causes(&error));
            Event::Read(claim.uid, Box::new(read))
        });
    }

    /// Begins a claim, unless it has other devices still, which are let go first.
    pub(super) fn take_up(&mut self, uid: &str, claim: Claim) {
        let entry = self.slots.get(uid).and_then(|slot| slot.entry.as_ref());
        if entry.is_some_and(|entry| !entry.is_for(&claim)) {
            return self.remove(uid);
        }
        match self.begin(&claim) {
            Ok(()) if self.needs_forms(uid) => self.make(uid, claim),
            Ok(()) => self.act(uid),
            Err(cause) if self.waits(uid, &cause) => {}
            Err(cause) => {
                let why = cause.told(&claim.reference);
                self.refuse(uid, Trouble { why, refused: Some(self.wanted(&claim)) });
            }
        }
    }

    /// What a refused claim was to get.
    fn wanted(&self, claim: &Claim) -> Entry {
        let catalog = self.ground.catalog(&self.ground.state.borrow());
        let devices = named(claim, &catalog);
        Entry { claim: claim.reference.clone(), state: Stage::PrepareStarted, devices }
    }

    /// Decides what a claim gets, takes it, and has that written down.
    pub(super) fn begin(&mut self, claim: &Claim) -> Result<(), NotBegun> {
        let state = self.ground.state.borrow().clone();
        let catalog = self.ground.catalog(&state);
        let (handovers, records) = (self.ground.handovers.states(), self.records());
        let ground = plan::Ground {
            driver: &self.ground.driver,
            state: &state,
            catalog: &catalog,
            handovers: &handovers,
            records: &records,
            mps: &self.ground.mps,
        };
        let devices = plan(claim, &ground)?;
        self.ground.ledger.take_for_claim(&claim.reference, &takes(&devices, &state))?;
        let slot = self.slots.get_mut(&claim.reference.uid);
        let slot = slot.expect("a slot that is worked on stays");
        slot.work = Some(if slot.entry.is_none() { Work::Beginning } else { Work::Acting });
        slot.entry =
            Some(Entry { claim: claim.reference.clone(), state: Stage::PrepareStarted, devices });
        Ok(())
    }
}
