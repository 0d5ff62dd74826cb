//! H: device health, with the hooks of the command line that break and repair a device.

use std::collections::BTreeSet;

use windlass_kubelet_sim::NodeStatus;

use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    clients::open_list_stream,
    testbed::{ServedResource, Testbed},
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "H01",
        sentence: "lists a failed device as Unhealthy, under the same id",
        source: "cm/devicemanager/manager.go, genericDeviceUpdateCallback",
        check: |testbed| Box::pin(a_fault_is_reported(testbed)),
    },
    Case {
        id: "H02",
        sentence: "keeps a failed device in the list: removal of an allocated device crashes kubelets",
        source: "cm/devicemanager/manager.go, allocateContainerResources; topology_hints.go",
        check: |testbed| Box::pin(a_failed_device_stays_listed(testbed)),
    },
    Case {
        id: "H03",
        sentence: "lists a repaired device as Healthy",
        source: "deviceplugin/v1beta1/api.proto, ListAndWatch: whenever a device state changes",
        check: |testbed| Box::pin(a_recovery_is_reported(testbed)),
    },
    Case {
        id: "H04",
        sentence: "reports a fault on every open stream",
        source: "Kubernetes up to 1.36 may read an older stream beside the newest",
        check: |testbed| Box::pin(a_fault_is_reported_on_every_stream(testbed)),
    },
];

/// Hook of the command line. Without it the case is not applicable.
fn require_hook(hook: Option<&String>, flag: &str) -> Result<String, CheckError> {
    hook.cloned().ok_or(CheckError::NotApplicable(format!("it needs {flag}")))
}

/// Ids of the unhealthy devices.
fn unhealthy(node: &NodeStatus) -> BTreeSet<String> {
    let devices = ServedResource::all(node).into_iter().flat_map(|served| served.devices);
    devices.filter(|device| !device.is_healthy()).map(|device| device.id).collect()
}

/// Makes a device fail and waits until the kubelet lists it as unhealthy. Returns the resources before the fault, and
/// the id of the device.
async fn fail_one_device(
    testbed: &mut Testbed,
) -> Result<(Vec<ServedResource>, String), CheckError> {
    let fail = require_hook(testbed.subject.hooks.fail.as_ref(), "--fail")?;
    let before = testbed.start_with_devices().await?;
    let unhealthy_before = unhealthy(&testbed.kubelet.status());
    testbed.run_hook(&fail).await?;
    let is_reported =
        |node: &NodeStatus| unhealthy(node).difference(&unhealthy_before).next().is_some();
    testbed.wait_until("a device is Unhealthy", is_reported).await?;
    let unhealthy_after = unhealthy(&testbed.kubelet.status());
    let failed_id = unhealthy_after.difference(&unhealthy_before).next().cloned();
    failed_id.map_or_else(
        || not_applicable("the device was healthy again at once"),
        |id| Ok((before, id)),
    )
}

async fn a_fault_is_reported(testbed: &mut Testbed) -> CheckResult {
    let (before, id) = fail_one_device(testbed).await?;
    let is_known = before.iter().any(|served| served.healthy_ids().contains(&id));
    if is_known {
        Ok(format!("{id} is Unhealthy"))
    } else {
        failed(format!("{id} was not listed before"))
    }
}

async fn a_failed_device_stays_listed(testbed: &mut Testbed) -> CheckResult {
    let (before, _) = fail_one_device(testbed).await?;
    let count = |resources: &[ServedResource]| {
        resources.iter().map(|served| served.devices.len()).sum::<usize>()
    };
    let after = ServedResource::all(&testbed.kubelet.status());
    let (count_before, count_after) = (count(&before), count(&after));
    if count_before == count_after {
        Ok(format!("{count_after} devices as before"))
    } else {
        failed(format!("{count_before} devices, then {count_after}"))
    }
}

async fn a_recovery_is_reported(testbed: &mut Testbed) -> CheckResult {
    let heal = require_hook(testbed.subject.hooks.heal.as_ref(), "--heal")?;
    let (_, id) = fail_one_device(testbed).await?;
    testbed.run_hook(&heal).await?;
    let elapsed = testbed
        .wait_until(&format!("{id} is Healthy"), |node| !unhealthy(node).contains(&id))
        .await?;
    Ok(format!("{id} is Healthy after {elapsed:.1?}"))
}

async fn a_fault_is_reported_on_every_stream(testbed: &mut Testbed) -> CheckResult {
    let fail = require_hook(testbed.subject.hooks.fail.as_ref(), "--fail")?;
    let (resources, limits) = (testbed.start_with_devices().await?, testbed.subject.limits);
    let mut streams = Vec::new();
    for served in &resources {
        let mut client = served.dial().await?;
        let (stream, _) = open_list_stream(&served.resource, limits.answer, &mut client).await?;
        streams.push(stream);
    }
    testbed.run_hook(&fail).await?;
    // The failed device is in one resource: one of the streams has to report it.
    for mut stream in streams {
        if stream.wait_for_unhealthy(limits.react).await {
            return Ok("reported on a stream that the kubelet did not open".to_owned());
        }
    }
    failed(format!("not reported on another stream within {:?}", limits.react))
}
