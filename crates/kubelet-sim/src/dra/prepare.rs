//! Preparation of a pod's claims, before its containers start.
//!
//! ```text
//!  look up all drivers ─> claims refer to the pod, checkpoint ─> one call per driver, answers kept
//!                                                             ─> claims count as prepared, checkpoint
//! ```
//!
//! A failure keeps all earlier entries. The pod's next attempt, or the reconciliation after its
//! end, continues from there.

use std::collections::BTreeMap;

use super::{
    ClaimCall, ClaimError, ClaimId,
    driver::{ClaimAnswers, Driver},
};
use crate::{
    event::Event,
    fault::ClaimFault,
    manager_task::{ManagerHandle, ManagerTask},
    plugin::RpcError,
    pod::Pod,
};

/// One call to a driver.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) call: ClaimCall,
    pub(super) pod: String,
    pub(super) driver: Driver,
    pub(super) claims: Vec<ClaimId>,
}

/// Prepares the pod's claims that are unprepared since the kubelet's start.
pub(crate) async fn prepare(handle: &ManagerHandle, pod: &Pod) -> Result<(), ClaimError> {
    let asking = pod.clone();
    let (batches, prepared) = handle.update(move |task| task.plan_prepare(&asking)).await??;
    for batch in batches {
        let answer = batch.run(handle).await?;
        handle.update(move |task| task.keep_devices(&batch, answer)).await??;
    }
    let uid = pod.uid.clone();
    handle.update(move |task| task.claims_prepared(&uid, &prepared)).await?
}

// === impl Batch ===

impl Batch {
    /// Makes the call, and logs call and answer as events.
    pub(super) async fn run(&self, handle: &ManagerHandle) -> Result<ClaimAnswers, ClaimError> {
        let called = Event::DriverCalled {
            call: self.call,
            pod: self.pod.clone(),
            driver: self.driver.name.clone(),
            endpoint: self.driver.endpoint().to_owned(),
            claims: self.claims.clone(),
        };
        handle.read(move |task| task.events.push(called)).await?;
        let answer = match self.call {
            ClaimCall::Prepare => self.driver.prepare(&self.claims).await,
            ClaimCall::Unprepare => self.driver.unprepare(&self.claims).await,
        };
        let answered = self.answered(&answer);
        handle.read(move |task| task.events.push(answered)).await?;
        answer.map_err(|error| ClaimError::Call { call: self.call, error })
    }

    fn answered(&self, answer: &Result<ClaimAnswers, RpcError>) -> Event {
        let error = match answer {
            Ok(answers) => answers.values().find_map(|answer| answer.clone().err()),
            Err(error) => Some(error.to_string()),
        };
        let (driver, pod) = (self.driver.name.clone(), self.pod.clone());
        Event::DriverAnswered { call: self.call, pod, driver, error }
    }

    /// Passes each claim and its devices to `keep`. Fails at the first defect of the answer.
    pub(super) fn check_answer<T>(
        &self,
        answer: BTreeMap<String, Result<T, String>>,
        mut keep: impl FnMut(&ClaimId, T) -> Result<(), ClaimError>,
    ) -> Result<(), ClaimError> {
        let call = self.call;
        let count = self.claims.len().saturating_sub(answer.len());
        for (uid, result) in answer {
            let asked = self.claims.iter().find(|claim| claim.uid == uid);
            let claim = asked.ok_or(ClaimError::UnknownUid { call, uid })?;
            let name = claim.name.clone();
            keep(claim, result.map_err(|message| ClaimError::Claim { call, name, message })?)?;
        }
        if count == 0 { Ok(()) } else { Err(ClaimError::Skipped { call, count }) }
    }
}

// === impl ManagerTask, for preparing claims ===

impl ManagerTask {
    /// Calls to make, one per driver, and the claims that are prepared after all of them.
    fn plan_prepare(&mut self, pod: &Pod) -> Result<(Vec<Batch>, Vec<ClaimId>), ClaimError> {
        let names = pod.claims.iter().flat_map(|claim| &claim.drivers);
        let found = names.map(|name| Ok((name.clone(), self.dra.drivers.find(name)?)));
        let drivers: BTreeMap<String, Driver> = found.collect::<Result<_, ClaimError>>()?;
        let mut batches = BTreeMap::<String, Batch>::new();
        let mut missing = Vec::new();
        for asked in &pod.claims {
            let claim = self.dra.claims.refer(asked, &pod.uid)?.clone();
            self.save_claims("cache")?;
            if claim.is_prepared {
                continue;
            }
            missing.push(claim.id());
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
        self.dies(ClaimFault::DieBeforePrepare)?;
        Ok((batches.into_values().collect(), missing))
    }

    fn keep_devices(&mut self, batch: &Batch, answer: ClaimAnswers) -> Result<(), ClaimError> {
        let claims = &mut self.dra.claims;
        let keep =
            |claim: &ClaimId, devices| claims.add_devices(claim, &batch.driver.name, devices);
        batch.check_answer(answer, keep)
    }

    fn claims_prepared(&mut self, pod: &str, claims: &[ClaimId]) -> Result<(), ClaimError> {
        self.dies(ClaimFault::DieBeforeRecord)?;
        claims.iter().try_for_each(|claim| self.dra.claims.set_prepared(claim))?;
        self.save_claims("state")?;
        self.manager.set_sandbox(pod);
        self.events.push(Event::PodPrepared { pod: pod.to_owned() });
        Ok(())
    }
}
