//! Validation of updates of claims.

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim, ResourceClaimStatus};
use serde_json::Value;

use super::name::{self, too_many};
use crate::api::refusal::Cause;

const MAX_RESERVED: usize = 256;
const MAX_RESULTS: usize = 32;
const MAX_CONDITIONS: usize = 8;
/// Limit of a device's opaque data, in bytes.
const MAX_DATA: usize = 10 * 1024;

pub(super) fn causes(new: &ResourceClaim, old: &ResourceClaim) -> Vec<Cause> {
    let mut causes = Vec::new();
    if new.spec != old.spec {
        let spec = serde_json::to_value(&new.spec).unwrap_or_default();
        causes.push(Cause::immutable("spec", &spec));
    }
    let (Some(status), old_status) = (&new.status, old.status.clone().unwrap_or_default()) else {
        return causes;
    };
    causes.extend(reservations(status, &old_status, new.metadata.deletion_timestamp.is_some()));
    causes.extend(allocation(new, status, &old_status));
    let devices = status.devices.as_deref().unwrap_or_default();
    for (index, device) in devices.iter().enumerate() {
        let field = format!("status.devices[{index}]");
        causes.extend(device_causes(&field, device, status));
        let key = |d: &AllocatedDeviceStatus| {
            [
                Some(d.driver.clone()),
                Some(d.pool.clone()),
                Some(d.device.clone()),
                d.share_id.clone(),
            ]
        };
        if devices[..index].iter().any(|earlier| key(earlier) == key(device)) {
            causes.push(Cause::duplicate(field, &*device.device));
        }
    }
    causes
}

fn reservations(
    status: &ResourceClaimStatus,
    old_status: &ResourceClaimStatus,
    is_deleting: bool,
) -> Vec<Cause> {
    let field = "status.reservedFor";
    let reserved = status.reserved_for.as_deref().unwrap_or_default();
    let before = old_status.reserved_for.as_deref().unwrap_or_default();
    let mut causes: Vec<_> = too_many(field, reserved.len(), MAX_RESERVED).into_iter().collect();
    if !reserved.is_empty() && status.allocation.is_none() {
        causes.push(Cause::forbidden(field, "may not be specified when `allocated` is not set"));
    } else if is_deleting && reserved.iter().any(|consumer| !before.contains(consumer)) {
        let detail = "new entries may not be added while `deallocationRequested` or \
                      `deletionTimestamp` are set";
        causes.push(Cause::forbidden(field, detail));
    }
    for (index, consumer) in reserved.iter().enumerate() {
        let field = format!("{field}[{index}]");
        for (key, value) in
            [("resource", &consumer.resource), ("name", &consumer.name), ("uid", &consumer.uid)]
        {
            causes.extend(value.is_empty().then(|| Cause::required(format!("{field}.{key}"), "")));
        }
        if reserved[..index].iter().any(|before| before.uid == consumer.uid) {
            causes.push(Cause::duplicate(field, &*consumer.uid));
        }
    }
    causes
}

fn allocation(
    claim: &ResourceClaim,
    status: &ResourceClaimStatus,
    old_status: &ResourceClaimStatus,
) -> Vec<Cause> {
    let field = "status.allocation";
    let Some(allocation) = &status.allocation else { return Vec::new() };
    if let Some(old_allocation) = &old_status.allocation {
        let value = serde_json::to_value(allocation).unwrap_or_default();
        return (old_allocation != allocation)
            .then(|| Cause::immutable(field, &value))
            .into_iter()
            .collect();
    }
    let names = request_names(claim);
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let too_many_results =
        too_many(&format!("{field}.devices.results"), results.clone().count(), MAX_RESULTS);
    let mut causes: Vec<_> = too_many_results.into_iter().collect();
    for (index, result) in results.enumerate() {
        let field = format!("{field}.devices.results[{index}]");
        if !names.contains(&result.request) {
            let detail = "must be the name of a request in the claim or the name of a request and a \
                          subrequest separated by '/'";
            causes.push(Cause::invalid(format!("{field}.request"), &*result.request, detail));
        }
        causes.extend(name::driver(&format!("{field}.driver"), &result.driver));
        causes.extend(name::pool(&format!("{field}.pool"), &result.pool));
        causes.extend(name::label(&format!("{field}.device"), &result.device));
    }
    causes
}

/// Names of requests, and of subrequests after their request's name.
fn request_names(claim: &ResourceClaim) -> Vec<String> {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let names = requests.flat_map(|request| {
        let subrequests = request.first_available.iter().flatten();
        let subrequests =
            subrequests.map(|subrequest| format!("{}/{}", request.name, subrequest.name));
        std::iter::once(request.name.clone()).chain(subrequests)
    });
    names.collect()
}

fn device_causes(
    field: &str,
    device: &AllocatedDeviceStatus,
    status: &ResourceClaimStatus,
) -> Vec<Cause> {
    let results = status.allocation.iter().flat_map(|allocation| &allocation.devices);
    let mut results = results.flat_map(|devices| devices.results.iter().flatten());
    let is_allocated = results.any(|result| {
        (&result.driver, &result.pool, &result.device, &result.share_id)
            == (&device.driver, &device.pool, &device.device, &device.share_id)
    });
    let mut causes = Vec::new();
    if !is_allocated {
        let id = format!("{}/{}/{}", device.driver, device.pool, device.device);
        causes.push(Cause::invalid(field, id, "must be an allocated device in the claim"));
    }
    let conditions = device.conditions.as_ref().map_or(0, Vec::len);
    causes.extend(too_many(&format!("{field}.conditions"), conditions, MAX_CONDITIONS));
    let data = device.data.as_ref().map_or(Value::Null, |data| data.0.clone());
    if !data.is_null() && data.to_string().len() > MAX_DATA {
        causes.push(name::too_long(&format!("{field}.data"), MAX_DATA));
    }
    causes
}
