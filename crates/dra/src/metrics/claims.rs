//! Metrics of claims: registration of the driver, prepared claims, and outcomes of calls.

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use windlass_host::counters::{CounterFamily, Labels};

use crate::{Records, RegistrationState, Stage};

/// Metrics of claims.
#[derive(Clone, Debug, Default)]
pub struct ClaimMetrics {
    registration: Family<Labels, Gauge>,
    claims: Family<Labels, Gauge>,
    calls: CounterFamily,
}

/// Calls of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimCall {
    /// `NodePrepareResources`.
    Prepare,
    /// `NodeUnprepareResources`.
    Release,
}

// === impl ClaimMetrics ===

impl ClaimMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Registration state of the DRA driver: 1 for the current state";
        registry.register("dra_driver_state", help, metrics.registration.clone());
        let help = "Claims that the DRA driver has begun to prepare, and that are prepared";
        registry.register("dra_claims", help, metrics.claims.clone());
        let help = "Claims in the kubelet's prepare and unprepare calls, by outcome";
        registry.register("dra_calls", help, metrics.calls.clone());
        for call in [ClaimCall::Prepare, ClaimCall::Release] {
            for result in ["done", "failed"] {
                metrics.calls.get_or_create_owned(&outcome(call, result));
            }
        }
        metrics.set_registration(&RegistrationState::Off);
        metrics.set_claims(&Records::new());
        metrics
    }

    pub(crate) fn set_registration(&self, state: &RegistrationState) {
        for name in RegistrationState::NAMES {
            let gauge = self.registration.get_or_create_owned(&vec![("state", name.to_owned())]);
            gauge.set(i64::from(state.name() == name));
        }
    }

    /// Sets the number of claims by stage.
    pub(crate) fn set_claims(&self, records: &Records) {
        for (name, stage) in
            [("started", Stage::PrepareStarted), ("completed", Stage::PrepareCompleted)]
        {
            let count = records.values().filter(|record| record.state == stage).count();
            let gauge = self.claims.get_or_create_owned(&vec![("state", name.to_owned())]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts the outcome of a call for one claim, and returns it.
    pub(crate) fn count_outcome<T>(
        &self,
        call: ClaimCall,
        answer: Result<T, String>,
    ) -> Result<T, String> {
        let result = if answer.is_ok() { "done" } else { "failed" };
        self.calls.get_or_create_owned(&outcome(call, result)).inc();
        answer
    }
}

fn outcome(call: ClaimCall, result: &str) -> Labels {
    let call = match call {
        ClaimCall::Prepare => "prepare",
        ClaimCall::Release => "unprepare",
    };
    vec![("call", call.to_owned()), ("result", result.to_owned())]
}
