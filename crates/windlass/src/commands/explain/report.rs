//! Request and answer, in JSON and YAML.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Serialize;
use windlass_core::device::DeviceId;
use windlass_resources::NodeState;

use super::{
    question::{Answer, Question},
    request::{ExplainRequest, Unavailable},
};
use crate::commands::{Origin, short_name};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    pub(super) question: Question,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unavailable: Vec<Unavailable>,
    /// Assumption behind the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) caveat: Option<String>,
    /// Short names of the devices.
    names: BTreeMap<DeviceId, String>,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// Reason against the alternative.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(skip)]
    pub(super) node: &'a NodeState,
}

/// Answer or refusal.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    Explanation(Answer),
    /// Reason for the refusal.
    Refused(String),
}

// === impl Report ===

impl<'a> Report<'a> {
    pub(super) fn new(node: &'a NodeState, request: ExplainRequest) -> Self {
        let ExplainRequest { question, unavailable, caveat, refused } = request;
        let answer = match refused {
            Some(why) => Err(why),
            None => question.explain(&node.topology).map_err(|refusal| refusal.to_string()),
        };
        let (verdict, outcome) = match answer {
            Ok(answer) => (answer.verdict(), Outcome::Explanation(answer)),
            Err(why) => (None, Outcome::Refused(why)),
        };
        let ids = question.stock.devices().into_iter().chain(question.stock.required());
        let ids = ids.chain(unavailable.iter().map(|entry| &entry.device));
        let names = ids.map(|id| (id.clone(), name(node, id))).collect();
        let origin = Origin::of(&node.inventory);
        Self { origin, question, unavailable, caveat, names, outcome, verdict, node }
    }

    /// Short names of these devices.
    pub(super) fn names(&self, ids: &[DeviceId]) -> String {
        let names: Vec<_> = ids.iter().map(|id| self.name(id)).collect();
        names.join(" ")
    }

    pub(super) fn name(&self, id: &DeviceId) -> String {
        name(self.node, id)
    }

    /// Turns a refusal into the command's error.
    pub(super) fn result(&self) -> Result<()> {
        match &self.outcome {
            Outcome::Explanation(_) => Ok(()),
            Outcome::Refused(why) => bail!("{why}"),
        }
    }
}

/// Short names in the order of the inventory.
pub(super) fn listed(node: &NodeState, ids: &[DeviceId]) -> String {
    let mut ids: Vec<_> = ids.iter().collect();
    ids.sort_by_key(|id| node.topology.position(id.as_str()));
    ids.into_iter().map(|id| name(node, id)).collect::<Vec<_>>().join(" ")
}

/// Short name; the id of a device that is gone.
pub(super) fn name(node: &NodeState, id: &DeviceId) -> String {
    node.inventory.get(id.as_str()).map_or_else(|| id.to_string(), short_name)
}
