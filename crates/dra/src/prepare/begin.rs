//! Start of a preparation: compares the record with the ResourceClaim, plans, and takes the devices in the
//! ledger.

use windlass_host::causes;

use super::{Input, Preparer, waiting::PlanError};
use crate::{
    claim::Claim,
    plan::{self, Plan, ledger_uses, named_devices, plan},
    record::{PreparedClaim, Stage},
    status::Failure,
};

// === impl Preparer ===

impl Preparer {
    /// Compares a prepared claim with its ResourceClaim in the API server.
    pub(super) fn compare(&mut self, uid: &str) {
        let (environment, record) = (self.environment.clone(), self.record(uid).cloned());
        self.spawn(uid, async move {
            match record {
                Some(record) if environment.is_reallocated(&record).await => Input::Reallocated,
                _ => Input::Unchanged,
            }
        });
    }

    /// Reads the ResourceClaim from the API server.
    pub(super) fn read(&mut self, uid: &str) {
        let Some(claim) = self.tracked_claims.get(uid).map(|tracked| tracked.claim.clone()) else {
            return;
        };
        let environment = self.environment.clone();
        self.spawn(uid, async move {
            match environment.read(&claim).await {
                Ok(claim) => Input::ClaimRead(claim.into()),
                Err(error) => Input::Failed(causes(&error).into()),
            }
        });
    }

    /// Plans, and takes the devices in the ledger. If the record is of an earlier allocation, no device is taken: the
    /// earlier devices have to be released first.
    pub(super) fn plan(&mut self, claim: Box<Claim>) -> Input {
        let uid = &claim.reference.uid;
        if self.record(uid).is_some_and(|record| !record.matches(&claim)) {
            return Input::Reallocated;
        }
        match self.plan_and_hold(&claim) {
            Ok(()) if self.needs_mig_changes(uid) => Input::NeedsMigChange(claim),
            Ok(()) => Input::Planned,
            Err(error) => self.blocked_input(uid, &error).unwrap_or_else(|| {
                let reason = error.report(&claim.reference);
                Input::Failed(Failure { reason, refused: Some(self.refused_record(&claim)) })
            }),
        }
    }

    /// Record of a refused claim, with the devices that it names.
    fn refused_record(&self, claim: &Claim) -> PreparedClaim {
        let catalog = self.environment.catalog(&self.environment.state.borrow());
        let devices = named_devices(claim, &catalog);
        let claim = claim.reference.clone();
        PreparedClaim { claim, state: Stage::PrepareStarted, devices, limits: None }
    }

    /// Plans the devices of a claim, and takes them in the ledger.
    pub(super) fn plan_and_hold(&mut self, claim: &Claim) -> Result<(), PlanError> {
        let state = self.environment.state.borrow().clone();
        let catalog = self.environment.catalog(&state);
        let (cleanup_states, records) = (self.environment.cleanup.states(), self.records());
        let inputs = plan::PlanInputs {
            driver: &self.environment.driver,
            state: &state,
            catalog: &catalog,
            cleanup_states: &cleanup_states,
            records: &records,
            mps: &self.environment.mps,
            documents: &self.environment.documents,
        };
        let Plan { devices, limits } = plan(claim, &inputs)?;
        self.environment.ledger.take_for_claim(&claim.reference, &ledger_uses(&devices, &state))?;
        let tracked = self.tracked_claims.get_mut(&claim.reference.uid);
        let tracked = tracked.expect("a claim that is not idle stays tracked");
        tracked.record = Some(PreparedClaim {
            claim: claim.reference.clone(),
            state: Stage::PrepareStarted,
            devices,
            limits,
        });
        Ok(())
    }
}
