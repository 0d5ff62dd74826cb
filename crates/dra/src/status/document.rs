//! The driver's part of a claim's status, as values and as the API server keeps it.

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
};
use windlass_resources::NodeState;

use super::super::{
    plan::variables,
    record::{Entry, Held, Stage},
};

/// Which of a claim's devices: pool, name, and share where it has one.
pub(super) type Spot = (String, String, Option<String>);

/// What is told of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    conditions: [Condition; 2],
    /// The interface that it is, and its hardware address.
    network: Option<(String, Option<String>)>,
}

/// What is so, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    kind: &'static str,
    /// `True`, `False` or `Unknown`.
    status: &'static str,
    reason: String,
    message: String,
    since: Timestamp,
}

/// Whether what the claim asks for is done to the device.
const READY: &str = "Ready";

/// Whether the device works.
const HEALTHY: &str = "Healthy";

/// The API server takes no longer messages, in bytes.
const LONGEST_MESSAGE: usize = 32 * 1024;

/// What is to be told of the devices that a claim has; `why` it is not prepared, if that failed.
pub(super) fn devices(
    entry: &Entry,
    state: &NodeState,
    (why, now): (Option<&str>, Timestamp),
) -> BTreeMap<Spot, Told> {
    let told = |held: &Held| {
        let device = held.found(&state.inventory);
        let conditions = [ready(entry, why, now), healthy(device, now)];
        let spot = (held.pool.clone(), held.name.clone(), held.share.clone());
        (spot, Told { conditions, network: device.and_then(network) })
    };
    entry.devices.iter().map(told).collect()
}

/// Whether both say the same, whenever it began.
pub(super) fn says(known: &BTreeMap<Spot, Told>, wanted: &BTreeMap<Spot, Told>) -> bool {
    *known == since(wanted.clone(), known)
}

/// What was so before has been so since then. An interface that was moved into a container keeps the name
/// that it was found under.
pub(super) fn since(
    mut wanted: BTreeMap<Spot, Told>,
    known: &BTreeMap<Spot, Told>,
) -> BTreeMap<Spot, Told> {
    for (spot, told) in &mut wanted {
        let Some(before) = known.get(spot) else { continue };
        for (condition, before) in told.conditions.iter_mut().zip(&before.conditions) {
            if condition.status == before.status {
                condition.since = before.since;
            }
        }
        told.network = told.network.take().or_else(|| before.network.clone());
    }
    wanted
}

/// The document that makes this the driver's part; without devices it has none.
pub(super) fn document(
    claim: &ClaimRef,
    driver: &DriverName,
    devices: &BTreeMap<Spot, Told>,
) -> Value {
    let device = |((pool, name, share), told): (&Spot, &Told)| {
        let mut device = json!({
            "driver": driver.as_str(), "pool": pool, "device": name,
            "conditions": told.conditions.iter().map(Condition::document).collect::<Vec<_>>(),
        });
        if let Some(share) = share {
            device["shareID"] = share.as_str().into();
        }
        if let Some((interface, address)) = &told.network {
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

/// What an earlier agent told.
pub(super) fn read(claim: &ResourceClaim, driver: &DriverName) -> BTreeMap<Spot, Told> {
    let devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
    let ours = devices.filter(|device| device.driver == driver.as_str());
    ours.filter_map(|device| {
        let conditions = [earlier(device, READY)?, earlier(device, HEALTHY)?];
        let network = device.network_data.as_ref();
        let network = network
            .and_then(|data| Some((data.interface_name.clone()?, data.hardware_address.clone())));
        let spot = (device.pool.clone(), device.device.clone(), device.share_id.clone());
        Some((spot, Told { conditions, network }))
    })
    .collect()
}

fn earlier(device: &AllocatedDeviceStatus, kind: &'static str) -> Option<Condition> {
    let found = device.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
    let status = ["True", "False", "Unknown"].into_iter().find(|word| *word == found.status)?;
    let (reason, message) = (found.reason.clone(), found.message.clone());
    Some(Condition { kind, status, reason, message, since: found.last_transition_time.0 })
}

fn ready(entry: &Entry, why: Option<&str>, since: Timestamp) -> Condition {
    let (status, reason, message) = match (entry.state, why) {
        (Stage::PrepareCompleted, _) => {
            ("True", "Prepared", variables::overlapping(&entry.devices).unwrap_or_default())
        }
        (Stage::PrepareStarted, Some(why)) => ("False", "PrepareFailed", why.to_owned()),
        (Stage::PrepareStarted, None) => ("False", "Preparing", String::new()),
    };
    let message = windlass_host::abbreviate::beginning(&message, LONGEST_MESSAGE).to_owned();
    Condition { kind: READY, status, reason: reason.to_owned(), message, since }
}

fn healthy(device: Option<&Device>, now: Timestamp) -> Condition {
    let told = |status, reason: &str, message: String, since| Condition {
        kind: HEALTHY,
        status,
        reason: reason.to_owned(),
        message,
        since,
    };
    let Some(Device { health, .. }) = device else {
        return told("False", "Gone", "it is not on this node".to_owned(), now);
    };
    match health.state {
        HealthState::Healthy => told("True", "Healthy", String::new(), health.since),
        HealthState::Unknown => told("Unknown", "NotProbed", String::new(), health.since),
        HealthState::Unhealthy => told("False", &reason(health), trouble(health), health.since),
    }
}

fn trouble(health: &Health) -> String {
    health.trouble().map(ToString::to_string).unwrap_or_default()
}

/// The sort of trouble as one word, as reasons of conditions are written: `XID79`, `DeviceNodeMissing`.
fn reason(health: &Health) -> String {
    let text = health.trouble().map(|trouble| trouble.reason.to_string()).unwrap_or_default();
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    let reason: String = words.map(word).collect();
    let is_one = reason.starts_with(|letter: char| letter.is_ascii_alphabetic());
    if is_one { reason } else { "Unhealthy".to_owned() }
}

/// The interface that a NIC is. Addresses it gets in the container, from a CNI plugin.
fn network(device: &Device) -> Option<(String, Option<String>)> {
    let text = |name: &'static str| {
        let value = device.attributes.get(&AttributeName::new("windlass.dev", name))?;
        Some(value.to_string())
    };
    let interface = device.kind.is_network().then(|| text("ifName"))?;
    Some((interface?, text("mac")))
}

// === impl Condition ===

impl Condition {
    fn document(&self) -> Value {
        let Self { kind, status, reason, message, since } = self;
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            // To the second, as conditions have it.
            "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of a request, and what containers read with it.
    fn held(name: &str, request: &str, env: &[&str]) -> Held {
        let held = json!({
            "pool": "n1/boards", "name": name, "device": name, "usage": "alone",
            "requests": [request], "cdi": [], "edits": {"env": env},
        });
        serde_json::from_value(held).expect("as it is kept")
    }

    #[test]
    fn the_status_of_a_prepared_claim_says_which_variables_several_requests_have() {
        let claim = ["ns", "c", "u"].map(ToOwned::to_owned);
        let [namespace, name, uid] = claim;
        let entry = Entry {
            claim: ClaimRef { namespace, name, uid },
            state: Stage::PrepareCompleted,
            devices: vec![
                held("b0", "left", &["WINDLASS_CLAIM_C__LEFT__BOARDS=b0", "BOARDS=b0"]),
                held("b1", "right", &["WINDLASS_CLAIM_C__RIGHT__BOARDS=b1", "BOARDS=b1"]),
            ],
        };
        let told = devices(&entry, &NodeState::default(), (None, Timestamp::UNIX_EPOCH));
        for told in told.values() {
            let [ready, _] = &told.conditions;
            assert_eq!((ready.status, &*ready.reason), ("True", "Prepared"));
            assert!(ready.message.starts_with("several requests have BOARDS:"), "{ready:?}");
        }
    }
}
