//! Admission of a written object: defaulting, feature gates, fields that the verb cannot set, and the generation.

use serde_json::Value;

use super::{
    gate::Gate,
    kind::{Kind, Status},
    refusal::Refusal,
    request::Part,
    shape, validate,
    write::copy_server_metadata,
};

/// Context of a write to an object.
#[derive(Debug)]
pub(crate) struct WriteContext<'a> {
    pub(crate) kind: &'static Kind,
    pub(crate) old: Option<&'a Value>,
    pub(crate) part: Part,
}

/// Prepares a written object for the store.
pub(crate) fn prepare(
    context: &WriteContext<'_>,
    mut new: Value,
    disabled_gates: &[Gate],
) -> Value {
    let WriteContext { kind, old, .. } = context;
    match old {
        Some(old) => restore_other_parts(context, &mut new, old),
        None if kind.status == Status::Subresource => {
            new.as_object_mut().map(|fields| fields.remove("status"));
        }
        None => {}
    }
    set_defaults(kind, &mut new, *old);
    for gate in disabled_gates {
        gate.drop_fields(kind.resource, &mut new, *old);
    }
    if let ("resourceclaims", Some(old)) = (kind.resource, old) {
        drop_deallocated(&mut new, old);
    }
    if kind.resource == "resourceslices" {
        let generation = match old {
            None => 1,
            Some(old) => {
                let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
                generation + i64::from(old["spec"] != new["spec"])
            }
        };
        new["metadata"]["generation"] = generation.into();
    }
    new
}

/// Validates an object as the real server does.
pub(crate) fn check(kind: &Kind, new: &Value, old: Option<&Value>) -> Result<(), Refusal> {
    let causes = validate::causes(kind, new, old);
    if causes.is_empty() {
        return Ok(());
    }
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    Err(Refusal::invalid(kind, name, &causes))
}

fn restore_other_parts(
    WriteContext { kind, part, .. }: &WriteContext<'_>,
    new: &mut Value,
    old: &Value,
) {
    match (part, kind.status) {
        (Part::Status, _) => {
            let status = new["status"].take();
            *new = old.clone();
            put_status(new, status);
        }
        (Part::Main, Status::Subresource) => put_status(new, old["status"].clone()),
        (Part::Main, Status::Field) => {}
    }
    copy_server_metadata(new, old);
}

fn put_status(object: &mut Value, status: Value) {
    if status.is_null() {
        object.as_object_mut().map(|fields| fields.remove("status"));
    } else {
        object["status"] = status;
    }
}

/// Fills in the server's defaults.
fn set_defaults(kind: &Kind, new: &mut Value, old: Option<&Value>) {
    match kind.resource {
        "resourceslices" => each(new.pointer_mut("/spec/devices"), |device| {
            let name = device["name"].clone();
            let old_device = old.and_then(|old| find_by_name(&old["spec"]["devices"], &name));
            each(device.get_mut("taints"), |taint| default_time(taint, old_device));
        }),
        "resourceclaims" => default_requests(new.pointer_mut("/spec/devices/requests")),
        "resourceclaimtemplates" => {
            default_requests(new.pointer_mut("/spec/spec/devices/requests"));
        }
        _ => {}
    }
}

fn default_requests(requests: Option<&mut Value>) {
    each(requests, |request| {
        request.get_mut("exactly").into_iter().for_each(default_request);
        each(request.get_mut("firstAvailable"), default_request);
    });
}

fn default_request(request: &mut Value) {
    if request["allocationMode"].is_null() {
        request["allocationMode"] = "ExactCount".into();
    }
    if request["allocationMode"] == "ExactCount" && request["count"].is_null() {
        request["count"] = 1.into();
    }
    each(request.get_mut("tolerations"), |toleration| {
        if toleration["operator"].is_null() {
            toleration["operator"] = "Equal".into();
        }
    });
}

/// Sets the time of a taint that has none: that of the same taint in the old device, or the current time.
fn default_time(taint: &mut Value, old_device: Option<&Value>) {
    if !taint["timeAdded"].is_null() {
        return;
    }
    let is_same_taint =
        |old: &&Value| ["key", "value", "effect"].iter().all(|key| old[*key] == taint[*key]);
    let old_taints = old_device.and_then(|device| device["taints"].as_array());
    let old_taint = old_taints.and_then(|taints| taints.iter().find(is_same_taint));
    taint["timeAdded"] =
        old_taint.map_or_else(|| shape::now().into(), |old| old["timeAdded"].clone());
}

/// Drops the status of devices that are deallocated.
fn drop_deallocated(new: &mut Value, old: &Value) {
    let key =
        |device: &Value| ["driver", "pool", "device", "shareID"].map(|key| device[key].clone());
    let devices = |claim: &Value| -> Vec<_> {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        results.into_iter().flatten().map(key).collect()
    };
    let (old_devices, new_devices) = (devices(old), devices(new));
    if let Some(devices) = new.pointer_mut("/status/devices").and_then(Value::as_array_mut) {
        devices.retain(|device| {
            let key = key(device);
            new_devices.contains(&key) || !old_devices.contains(&key)
        });
    }
}

fn each(list: Option<&mut Value>, change: impl FnMut(&mut Value)) {
    list.and_then(Value::as_array_mut).into_iter().flatten().for_each(change);
}

fn find_by_name<'a>(list: &'a Value, name: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|item| item["name"] == *name)
}
