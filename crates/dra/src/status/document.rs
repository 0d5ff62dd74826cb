//! The driver's part of a claim's status, as values and as the document for server-side apply.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use serde_json::{Value, json};
use windlass_allocations::ledger::ClaimRef;
use windlass_config::DriverName;
use windlass_core::{
    attribute::AttributeName,
    device::Device,
    health::{Health, HealthState},
    inventory::Inventory,
};

use super::super::{
    excess::{MemoryExcess, MemoryExcesses},
    plan::variables,
    record::{PreparedClaim, PreparedDevice, Stage},
};

/// A device of a claim: pool, name, and share.
pub(super) type DeviceKey = (String, String, Option<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceReport {
    conditions: [Condition; 2],
    /// Condition `MemoryExceeded`, if the claim uses more memory than its share.
    exceeded: Option<Condition>,
    /// Name and hardware address of a network interface.
    network: Option<(String, Option<String>)>,
}

/// Sources of the reports about a claim's devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusInputs<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) excesses: &'a MemoryExcesses,
    /// Reason of a failed preparation.
    pub(super) prepare_error: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// A condition, with the time of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    kind: &'static str,
    /// `True`, `False` or `Unknown`.
    status: &'static str,
    reason: String,
    message: String,
    last_transition: Timestamp,
}

/// Condition: the device is prepared for the claim.
const READY: &str = "Ready";

/// Condition: the device is healthy.
const HEALTHY: &str = "Healthy";

/// Condition: the claim's containers use more of the device's memory than their share.
const EXCEEDED: &str = "MemoryExceeded";

/// The API server's limit for a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// Reports about the devices of a claim.
pub(super) fn devices(
    record: &PreparedClaim,
    inputs: &StatusInputs<'_>,
) -> BTreeMap<DeviceKey, DeviceReport> {
    let StatusInputs { inventory, excesses, prepare_error, now } = *inputs;
    let report = |prepared: &PreparedDevice| {
        let device = prepared.find_in(inventory);
        let conditions = [ready(record, prepare_error, now), healthy(device, now)];
        let excess =
            device.and_then(|device| excesses.get(&(record.claim.uid.clone(), device.id.clone())));
        let exceeded = excess.map(|excess| exceeded(excess, now));
        let key = (prepared.pool.clone(), prepared.name.clone(), prepared.share.clone());
        (key, DeviceReport { conditions, exceeded, network: device.and_then(network) })
    };
    record.devices.iter().map(report).collect()
}

/// True if both reports are equal, apart from times.
pub(super) fn is_same(
    written: &BTreeMap<DeviceKey, DeviceReport>,
    desired: &BTreeMap<DeviceKey, DeviceReport>,
) -> bool {
    *written == with_transition_times(desired.clone(), written)
}

/// Keeps the times of unchanged conditions. An interface that moved into a container keeps the name under
/// which it was found.
pub(super) fn with_transition_times(
    mut desired: BTreeMap<DeviceKey, DeviceReport>,
    written: &BTreeMap<DeviceKey, DeviceReport>,
) -> BTreeMap<DeviceKey, DeviceReport> {
    for (key, report) in &mut desired {
        let Some(previous) = written.get(key) else { continue };
        let conditions = report.conditions.iter_mut().zip(&previous.conditions);
        for (condition, previous) in
            conditions.chain(report.exceeded.iter_mut().zip(&previous.exceeded))
        {
            if condition.status == previous.status {
                condition.last_transition = previous.last_transition;
            }
        }
        report.network = report.network.take().or_else(|| previous.network.clone());
    }
    desired
}

/// Document for server-side apply. Without devices its status is empty, which removes the driver's part.
pub(super) fn document(
    claim: &ClaimRef,
    driver: &DriverName,
    devices: &BTreeMap<DeviceKey, DeviceReport>,
) -> Value {
    let device = |((pool, name, share), report): (&DeviceKey, &DeviceReport)| {
        let mut device = json!({
            "driver": driver.as_str(), "pool": pool, "device": name,
            "conditions": report.conditions().map(Condition::document).collect::<Vec<_>>(),
        });
        if let Some(share) = share {
            device["shareID"] = share.as_str().into();
        }
        if let Some((interface, address)) = &report.network {
            device["networkData"] = json!({"interfaceName": interface});
            if let Some(address) = address {
                device["networkData"]["hardwareAddress"] = address.as_str().into();
            }
        }
        device
    };
    let mut status = json!({});
    if !devices.is_empty() {
        status["devices"] = devices.iter().map(device).collect();
    }
    let ClaimRef { namespace, name, uid } = claim;
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": namespace, "name": name, "uid": uid}, "status": status,
    })
}

/// Reads the reports that an earlier agent wrote.
pub(super) fn read(
    claim: &ResourceClaim,
    driver: &DriverName,
) -> BTreeMap<DeviceKey, DeviceReport> {
    let devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
    let own_devices = devices.filter(|device| device.driver == driver.as_str());
    own_devices
        .filter_map(|device| {
            let conditions =
                [previous_condition(device, READY)?, previous_condition(device, HEALTHY)?];
            let network = device.network_data.as_ref();
            let network = network.and_then(|data| {
                Some((data.interface_name.clone()?, data.hardware_address.clone()))
            });
            let key = (device.pool.clone(), device.device.clone(), device.share_id.clone());
            let exceeded = previous_condition(device, EXCEEDED);
            Some((key, DeviceReport { conditions, exceeded, network }))
        })
        .collect()
}

fn previous_condition(device: &AllocatedDeviceStatus, kind: &'static str) -> Option<Condition> {
    let condition = device.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
    let status =
        ["True", "False", "Unknown"].into_iter().find(|status| *status == condition.status)?;
    let (reason, message) = (condition.reason.clone(), condition.message.clone());
    Some(Condition {
        kind,
        status,
        reason,
        message,
        last_transition: condition.last_transition_time.0,
    })
}

fn ready(
    record: &PreparedClaim,
    prepare_error: Option<&str>,
    last_transition: Timestamp,
) -> Condition {
    let (status, reason, message) = match (record.state, prepare_error) {
        (Stage::PrepareCompleted, _) => {
            ("True", "Prepared", variables::conflict_warning(&record.devices).unwrap_or_default())
        }
        (Stage::PrepareStarted, Some(prepare_error)) => {
            ("False", "PrepareFailed", prepare_error.to_owned())
        }
        (Stage::PrepareStarted, None) => ("False", "Preparing", String::new()),
    };
    let message = windlass_host::abbreviate::prefix(&message, MAX_MESSAGE_BYTES).to_owned();
    Condition { kind: READY, status, reason: reason.to_owned(), message, last_transition }
}

fn healthy(device: Option<&Device>, now: Timestamp) -> Condition {
    let condition = |status, reason: &str, message: String, last_transition| Condition {
        kind: HEALTHY,
        status,
        reason: reason.to_owned(),
        message,
        last_transition,
    };
    let Some(Device { health, .. }) = device else {
        return condition("False", "Gone", "it is not on this node".to_owned(), now);
    };
    let since = health.since;
    match health.state {
        HealthState::Healthy => condition("True", "Healthy", String::new(), since),
        HealthState::Unknown => condition("Unknown", "NotProbed", String::new(), since),
        HealthState::Unhealthy => condition("False", &reason(health), failure(health), since),
    }
}

fn exceeded(excess: &MemoryExcess, last_transition: Timestamp) -> Condition {
    let MemoryExcess { used_mib, limit_mib } = excess;
    Condition {
        kind: EXCEEDED,
        status: "True",
        reason: "GpuMemoryExceeded".to_owned(),
        message: format!("{used_mib} MiB in use, but the share is {limit_mib} MiB"),
        last_transition,
    }
}

fn failure(health: &Health) -> String {
    health.failure().map(ToString::to_string).unwrap_or_default()
}

/// Class of the failure, spelled as the reason of a condition: `XID79`, `DeviceNodeMissing`.
fn reason(health: &Health) -> String {
    let text = health.failure().map(|failure| failure.reason.to_string()).unwrap_or_default();
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|character| character.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    let reason: String = words.map(word).collect();
    let is_valid = reason.starts_with(|character: char| character.is_ascii_alphabetic());
    if is_valid { reason } else { "Unhealthy".to_owned() }
}

/// Interface of a NIC. A CNI plugin sets its addresses in the container.
fn network(device: &Device) -> Option<(String, Option<String>)> {
    let text = |name: &'static str| {
        let value = device.attributes.get(&AttributeName::new("windlass.dev", name))?;
        Some(value.to_string())
    };
    let interface = device.kind.is_network().then(|| text("ifName"))?;
    Some((interface?, text("mac")))
}

// === impl DeviceReport ===

impl DeviceReport {
    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.conditions.iter().chain(&self.exceeded)
    }
}

// === impl Condition ===

impl Condition {
    fn document(&self) -> Value {
        let Self { kind, status, reason, message, last_transition } = self;
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            // Conditions have whole seconds.
            "lastTransitionTime": last_transition.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of a request, with the variables of its containers.
    fn held(name: &str, request: &str, env: &[&str]) -> PreparedDevice {
        let fields = json!({
            "pool": "n1/boards", "name": name, "device": name, "usage": "alone",
            "requests": [request], "cdi": [], "edits": {"env": env},
        });
        serde_json::from_value(fields).expect("a prepared device")
    }

    #[test]
    fn the_status_of_a_prepared_claim_names_variables_of_several_requests() {
        let claim = ["ns", "c", "u"].map(ToOwned::to_owned);
        let [namespace, name, uid] = claim;
        let record = PreparedClaim {
            claim: ClaimRef { namespace, name, uid },
            state: Stage::PrepareCompleted,
            devices: vec![
                held("b0", "left", &["WINDLASS_CLAIM_C__LEFT__BOARDS=b0", "BOARDS=b0"]),
                held("b1", "right", &["WINDLASS_CLAIM_C__RIGHT__BOARDS=b1", "BOARDS=b1"]),
            ],
            limits: None,
        };
        let inputs = StatusInputs {
            inventory: &Inventory::default(),
            excesses: &MemoryExcesses::new(),
            prepare_error: None,
            now: Timestamp::UNIX_EPOCH,
        };
        let reports = devices(&record, &inputs);
        for report in reports.values() {
            let [ready, _] = &report.conditions;
            assert_eq!((ready.status, &*ready.reason), ("True", "Prepared"));
            assert!(ready.message.starts_with("several requests have BOARDS:"), "{ready:?}");
        }
    }
}
