//! Request and answer, in JSON and YAML.

use std::collections::BTreeMap;

use anyhow::bail;
use serde::Serialize;
use windlass_core::device::DeviceId;
use windlass_resources::NodeState;

use super::{
    placement_request::{Answer, PlacementRequest},
    request::{ExplainRequest, Unavailable},
};
use crate::commands::{Origin, short_name};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a, Q, A> {
    #[serde(flatten)]
    origin: Origin<'a>,
    pub(super) question: Q,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unavailable: Vec<Unavailable>,
    /// Assumption behind the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) caveat: Option<String>,
    /// Short names of the devices.
    names: BTreeMap<DeviceId, String>,
    #[serde(flatten)]
    pub(super) outcome: Outcome<A>,
    #[serde(skip)]
    pub(super) node: &'a NodeState,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome<A> {
    /// Reason for the refusal.
    Refused(String),
    #[serde(untagged)]
    Answered(A),
}

/// Answer about the devices of one resource.
#[derive(Serialize)]
pub(super) struct ResourceAnswer {
    pub(super) explanation: Answer,
    /// Reason why the second-best choice lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
}

/// Answers a request for devices of one resource.
pub(super) fn answer_request(
    node: &NodeState,
    request: ExplainRequest,
) -> Report<'_, PlacementRequest, ResourceAnswer> {
    let ExplainRequest { request, unavailable, caveat, refusal } = request;
    let answer = match refusal {
        Some(reason) => Err(reason),
        None => request.explain(&node.topology).map_err(|error| error.to_string()),
    };
    let answer =
        answer.map(|explanation| ResourceAnswer { verdict: explanation.verdict(), explanation });
    let ids = request.candidates.devices().into_iter().chain(request.candidates.required());
    let ids: Vec<_> = ids.cloned().collect();
    Report::new(node, request, unavailable, caveat, answer, &ids)
}

// === impl Report ===

impl<'a, Q, A> Report<'a, Q, A> {
    /// Creates a report with the short names of `ids` and of the unavailable devices.
    pub(super) fn new(
        node: &'a NodeState,
        question: Q,
        unavailable: Vec<Unavailable>,
        caveat: Option<String>,
        answer: Result<A, String>,
        ids: &[DeviceId],
    ) -> Self {
        let ids = ids.iter().chain(unavailable.iter().map(|entry| &entry.device));
        let names = ids.map(|id| (id.clone(), name(node, id))).collect();
        let outcome = answer.map_or_else(Outcome::Refused, Outcome::Answered);
        let origin = Origin::of(&node.inventory);
        Self { origin, question, unavailable, caveat, names, outcome, node }
    }

    /// Short names of these devices.
    pub(super) fn names(&self, ids: &[DeviceId]) -> String {
        let names: Vec<_> = ids.iter().map(|id| self.name(id)).collect();
        names.join(" ")
    }

    pub(super) fn name(&self, id: &DeviceId) -> String {
        name(self.node, id)
    }

    /// Short names in the order of the inventory.
    pub(super) fn names_in_order(&self, ids: &[DeviceId]) -> String {
        let mut ids = ids.to_vec();
        ids.sort_by_key(|id| self.node.topology.position(id.as_str()));
        self.names(&ids)
    }

    /// Turns a refusal into the command's error.
    pub(super) fn result(&self) -> anyhow::Result<()> {
        match &self.outcome {
            Outcome::Answered(_) => Ok(()),
            Outcome::Refused(reason) => bail!("{reason}"),
        }
    }
}

/// Short name of a device, or its id if the inventory does not have it.
pub(super) fn name(node: &NodeState, id: &DeviceId) -> String {
    node.inventory.get(id.as_str()).map_or_else(|| id.to_string(), short_name)
}
