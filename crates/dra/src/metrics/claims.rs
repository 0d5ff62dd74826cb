//! Claims: how the DRA driver stands with the kubelet, how many it has prepared, what came of its calls.

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use windlass_host::counters::{CounterFamily, Labels};

use crate::{Records, Stage, Standing};

/// What the DRA driver counts with.
#[derive(Clone, Debug)]
pub struct ClaimMetrics {
    standing: Family<Labels, Gauge>,
    claims: Family<Labels, Gauge>,
    calls: CounterFamily,
}

/// What is asked of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimCall {
    /// `NodePrepareResources`.
    Prepare,
    /// `NodeUnprepareResources`.
    Release,
}

// === impl ClaimMetrics ===

impl ClaimMetrics {
    /// Metrics in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let (standing, claims, calls) = Default::default();
        let metrics = Self { standing, claims, calls };
        let help = "How the DRA driver stands with the kubelet: 1 for the state it is in";
        registry.register("dra_driver_state", help, metrics.standing.clone());
        let help = "Claims that the DRA driver has begun to prepare, and that are prepared";
        registry.register("dra_claims", help, metrics.claims.clone());
        let help = "Claims that the kubelet had prepared or released, by outcome";
        registry.register("dra_calls", help, metrics.calls.clone());
        for call in [ClaimCall::Prepare, ClaimCall::Release] {
            for result in ["done", "failed"] {
                metrics.calls.get_or_create_owned(&outcome(call, result));
            }
        }
        metrics.stands(&Standing::Off);
        metrics.holds(&Records::new());
        metrics
    }

    /// How the driver stands now.
    pub(crate) fn stands(&self, standing: &Standing) {
        for name in Standing::NAMES {
            let gauge = self.standing.get_or_create_owned(&vec![("state", name.to_owned())]);
            gauge.set(i64::from(standing.name() == name));
        }
    }

    /// What is prepared now.
    pub(crate) fn holds(&self, records: &Records) {
        for (name, stage) in
            [("started", Stage::PrepareStarted), ("completed", Stage::PrepareCompleted)]
        {
            let count = records.values().filter(|entry| entry.state == stage).count();
            let gauge = self.claims.get_or_create_owned(&vec![("state", name.to_owned())]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts the outcome of a call for one claim, and passes it on.
    pub(crate) fn answered<T>(
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
