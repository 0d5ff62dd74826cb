//! Preparation of a pod's claims, before its containers start.
//!
//! ```text
//!  find all drivers ─> add the pod to its claims' users, write checkpoint
//!                   ─> call each driver, store the prepared devices
//!                   ─> mark the claims as prepared, write checkpoint
//! ```
//!
//! After a failure, the stored users and devices stay. The pod's next attempt runs all steps again. If
//! the pod ends first, its claims are released.

use std::collections::BTreeMap;

use super::{
    ClaimCall, ClaimError, ClaimId,
    driver::{ClaimResults, Driver},
};
use crate::{
    event::Event,
    fault::ClaimFault,
    manager_task::{ManagerHandle, ManagerTask},
    plugin::RpcError,
    pod::Pod,
};

/// One call to a driver, with all claims of a pod that the driver serves.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) call: ClaimCall,
    pub(super) pod: String,
    pub(super) driver: Driver,
    pub(super) claims: Vec<ClaimId>,
}

/// Prepares the pod's claims. Skips claims that were prepared since the kubelet's start.
pub(crate) async fn prepare(handle: &ManagerHandle, pod: &Pod) -> Result<(), ClaimError> {
    let pod_copy = pod.clone();
    let (batches, claims) = handle.update(move |task| task.plan_prepare(&pod_copy)).await??;
    for batch in batches {
        let results = batch.run(handle).await?;
        handle.update(move |task| task.store_devices(&batch, results)).await??;
    }
    let uid = pod.uid.clone();
    handle.update(move |task| task.claims_prepared(&uid, &claims)).await?
}

// === impl Batch ===

impl Batch {
    /// Makes the call, and logs call and answer as events.
    pub(super) async fn run(&self, handle: &ManagerHandle) -> Result<ClaimResults, ClaimError> {
        let call_event = Event::DriverCalled {
            call: self.call,
            pod: self.pod.clone(),
            driver: self.driver.name.clone(),
            endpoint: self.driver.endpoint().to_owned(),
            claims: self.claims.clone(),
        };
        handle.read(move |task| task.events.push(call_event)).await?;
        let outcome = match self.call {
            ClaimCall::Prepare => self.driver.prepare(&self.claims).await,
            ClaimCall::Unprepare => self.driver.unprepare(&self.claims).await,
        };
        let answer_event = self.answer_event(&outcome);
        handle.read(move |task| task.events.push(answer_event)).await?;
        outcome.map_err(|error| ClaimError::Call { call: self.call, error })
    }

    fn answer_event(&self, outcome: &Result<ClaimResults, RpcError>) -> Event {
        let error = match outcome {
            Ok(results) => results.values().find_map(|result| result.clone().err()),
            Err(error) => Some(error.to_string()),
        };
        let (driver, pod) = (self.driver.name.clone(), self.pod.clone());
        Event::DriverAnswered { call: self.call, pod, driver, error }
    }

    /// Passes each answered claim and its result to `store`. Fails at the first error or unknown claim,
    /// and finally if a claim has no answer.
    pub(super) fn check_answer<T>(
        &self,
        results: BTreeMap<String, Result<T, String>>,
        mut store: impl FnMut(&ClaimId, T) -> Result<(), ClaimError>,
    ) -> Result<(), ClaimError> {
        let call = self.call;
        let count = self.claims.len().saturating_sub(results.len());
        for (uid, result) in results {
            let claim = self.claims.iter().find(|claim| claim.uid == uid);
            let claim = claim.ok_or(ClaimError::UnknownUid { call, uid })?;
            let name = claim.name.clone();
            store(claim, result.map_err(|message| ClaimError::Claim { call, name, message })?)?;
        }
        if count == 0 { Ok(()) } else { Err(ClaimError::Skipped { call, count }) }
    }
}

// === impl ManagerTask, for preparing claims ===

impl ManagerTask {
    /// Adds the pod to the users of its claims. Returns the calls to make, one per driver, and the claims
    /// that these calls prepare.
    fn plan_prepare(&mut self, pod: &Pod) -> Result<(Vec<Batch>, Vec<ClaimId>), ClaimError> {
        let names = pod.claims.iter().flat_map(|claim| &claim.drivers);
        let lookups = names.map(|name| Ok((name.clone(), self.dra.drivers.find(name)?)));
        let drivers: BTreeMap<String, Driver> = lookups.collect::<Result<_, ClaimError>>()?;
        let mut batches = BTreeMap::<String, Batch>::new();
        let mut unprepared = Vec::new();
        for pod_claim in &pod.claims {
            let claim = self.dra.claims.add_user(pod_claim, &pod.uid)?.clone();
            self.write_claims_checkpoint("cache")?;
            if claim.is_prepared {
                continue;
            }
            unprepared.push(claim.id());
            for name in claim.state.drivers.keys() {
                let Some(driver) = drivers.get(name) else { continue };
                let batch = batches.entry(name.clone()).or_insert_with(|| Batch {
                    call: ClaimCall::Prepare,
                    pod: pod.uid.clone(),
                    driver: driver.clone(),
                    claims: Vec::new(),
                });
                batch.claims.push(claim.id());
            }
        }
        self.crash_if_injected(ClaimFault::CrashBeforePrepare)?;
        Ok((batches.into_values().collect(), unprepared))
    }

    fn store_devices(&mut self, batch: &Batch, results: ClaimResults) -> Result<(), ClaimError> {
        let claims = &mut self.dra.claims;
        let store =
            |claim: &ClaimId, devices| claims.add_devices(claim, &batch.driver.name, devices);
        batch.check_answer(results, store)
    }

    /// Marks the claims as prepared, writes the checkpoint, and records the pod's sandbox.
    fn claims_prepared(&mut self, pod: &str, claims: &[ClaimId]) -> Result<(), ClaimError> {
        self.crash_if_injected(ClaimFault::CrashBeforeRecord)?;
        claims.iter().try_for_each(|claim| self.dra.claims.set_prepared(claim))?;
        self.write_claims_checkpoint("state")?;
        self.manager.set_sandbox(pod);
        self.events.push(Event::PodPrepared { pod: pod.to_owned() });
        Ok(())
    }
}
