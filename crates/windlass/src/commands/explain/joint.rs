//! Request for GPUs together with NICs, and its answer.

mod show;

use anyhow::{Result, anyhow};
use serde::Serialize;
use windlass_core::{
    device::{Device, DeviceId},
    placement::joint::{
        Alignment, DeviceRequest, JointChoice, JointError, JointRequest, choose_joint,
    },
    resource::ResourceName,
    topology::PcieLevel,
};
use windlass_resources::NodeState;

pub(super) use show::table;

use super::{
    live::KubeletState,
    names::take_nics,
    placement_request::{CandidateSet, id_strs},
    report::{Report, name},
    request::{ExplainRequest, NOT_IN_FREE_LIST, Unavailable, not_free_error},
    resource::Member,
};
use crate::{cli::RequestArgs, exit::UsageError};

/// Request for NICs in addition to the GPUs.
pub(super) struct NicRequest {
    size: usize,
    max_level: Option<PcieLevel>,
    /// NICs named by `--free`; if it names none, all NICs without obstacle are free.
    free: Vec<DeviceId>,
    required: Vec<DeviceId>,
    /// Assumption behind the answer.
    caveat: Option<&'static str>,
}

pub(super) type JointReport<'a> = Report<'a, JointPlacementRequest, JointAnswer>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JointPlacementRequest {
    resource: ResourceName,
    gpus: KindRequest,
    nics: KindRequest,
    /// Maximum distance within a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<PcieLevel>,
}

/// Number of devices of one kind, with its candidates.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KindRequest {
    size: usize,
    available: Vec<DeviceId>,
    required: Vec<DeviceId>,
}

#[derive(Serialize)]
pub(super) struct JointAnswer {
    choice: Box<JointChoice>,
}

/// Caveat of `--free`, with which the command does not ask the pod resources API for holders.
const ALL_NICS: &str = "--free names no NIC, so all healthy NICs are free";

/// Removes the NICs from the arguments, which then describe the GPUs only.
pub(super) fn take_nic_request(
    node: &NodeState,
    args: &mut RequestArgs,
) -> Result<Option<NicRequest>> {
    let Some(size) = args.nics else { return Ok(None) };
    let devices = &node.inventory.devices;
    let required = take_nics(devices, &mut args.require);
    let free = args.free.as_mut().map(|words| take_nics(devices, words));
    if args.free.as_ref().is_some_and(Vec::is_empty) {
        let problem = anyhow!("no GPU is named; name the GPUs beside the NICs, such as 0-3,mlx5_0");
        return Err(UsageError(problem.context("--free")).into());
    }
    let caveat = free.as_ref().is_some_and(Vec::is_empty).then_some(ALL_NICS);
    let free = free.unwrap_or_default();
    Ok(Some(NicRequest { size, max_level: args.within, free, required, caveat }))
}

/// Answers the request for GPUs and NICs.
pub(super) fn answer_joint_request<'a>(
    node: &'a NodeState,
    kubelet: &KubeletState,
    request: ExplainRequest,
    nic_request: NicRequest,
) -> Result<JointReport<'a>> {
    let ExplainRequest { request, mut unavailable, caveat, refusal } = request;
    let CandidateSet::Devices { available, required, .. } = request.candidates else {
        let problem =
            anyhow!("{} is shared, and replicas cannot be paired with NICs", request.resource);
        return Err(UsageError(problem.context("--nics")).into());
    };
    let within = nic_request.max_level;
    let caveat = caveat.or_else(|| nic_request.caveat.map(ToOwned::to_owned));
    let nics = nics(node, kubelet, nic_request, &mut unavailable);
    let refusal = refusal.or_else(|| nics.refusal(node, &unavailable));
    let gpus = KindRequest { size: request.size, available, required };
    let request = JointPlacementRequest { resource: request.resource, gpus, nics, within };
    let choice = match refusal {
        Some(reason) => Err(reason),
        None => request.choose(node).map_err(|error| error.to_string()),
    };
    let answer = choice.map(|choice| JointAnswer { choice: Box::new(choice) });
    let ids = [&request.gpus, &request.nics].into_iter();
    let ids = ids.flat_map(|kind| kind.available.iter().chain(&kind.required));
    let ids: Vec<_> = ids.cloned().collect();
    Ok(Report::new(node, request, unavailable, caveat, answer, &ids))
}

/// NICs named by `--free`, else the NICs without obstacle.
fn nics(
    node: &NodeState,
    kubelet: &KubeletState,
    nic_request: NicRequest,
    unavailable: &mut Vec<Unavailable>,
) -> KindRequest {
    let NicRequest { size, free, required, .. } = nic_request;
    if !free.is_empty() {
        return KindRequest { size, available: free, required };
    }
    let offers = node.device_offers();
    let obstacle = |device: &Device| {
        let offer = offers.get(&device.id).cloned();
        match offer.and_then(|offer| Some((offer.resource?, offer.shared, offer.obstacle))) {
            Some((resource, shared, obstacle)) => {
                kubelet.obstacle(&resource, &Member { device, shared, obstacle }, None)
            }
            // Only offered devices have holders.
            None => (!device.health.is_healthy()).then(|| device.health.to_string()),
        }
    };
    let mut available = Vec::new();
    for device in node.inventory.devices.iter().filter(|device| device.kind.is_network()) {
        let id = device.id.clone();
        match obstacle(device) {
            Some(why) => unavailable.push(Unavailable { device: id, why }),
            None => available.push(id),
        }
    }
    KindRequest { size, available, required }
}

// === impl JointPlacementRequest ===

impl JointPlacementRequest {
    fn choose(&self, node: &NodeState) -> Result<JointChoice, JointError> {
        let (gpus, required_gpus) = (id_strs(&self.gpus.available), id_strs(&self.gpus.required));
        let (nics, required_nics) = (id_strs(&self.nics.available), id_strs(&self.nics.required));
        let request = JointRequest {
            gpus: DeviceRequest {
                available: &gpus,
                required: &required_gpus,
                size: self.gpus.size,
            },
            nics: DeviceRequest {
                available: &nics,
                required: &required_nics,
                size: self.nics.size,
            },
            alignment: self.within.map_or(Alignment::Preferred, Alignment::Required),
        };
        choose_joint(&node.topology, request)
    }
}

// === impl KindRequest ===

impl KindRequest {
    /// Reason for which a required device is not free.
    fn refusal(&self, node: &NodeState, unavailable: &[Unavailable]) -> Option<String> {
        let missing = self.required.iter().find(|id| !self.available.contains(id))?;
        let reason = unavailable.iter().find(|entry| entry.device == *missing);
        let reason = reason.map_or(NOT_IN_FREE_LIST, |entry| entry.why.as_str());
        Some(not_free_error(name(node, missing), reason))
    }
}
