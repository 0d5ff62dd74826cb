//! H: health of devices that the command line can make fail.

use std::collections::BTreeSet;

use windlass_kubelet_sim::NodeStatus;

use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    clients::listed,
    stage::{Served, Stage},
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "H01",
        sentence: "lists a device that fails as Unhealthy, under the same id",
        source: "cm/devicemanager/manager.go, genericDeviceUpdateCallback",
        check: |stage| Box::pin(a_fault_is_told(stage)),
    },
    Case {
        id: "H02",
        sentence: "keeps a failed device in the list: one that vanishes while it is held crashes kubelets",
        source: "cm/devicemanager/manager.go, allocateContainerResources; topology_hints.go",
        check: |stage| Box::pin(a_failed_device_stays_listed(stage)),
    },
    Case {
        id: "H03",
        sentence: "lists a device that works again as Healthy",
        source: "deviceplugin/v1beta1/api.proto, ListAndWatch: whenever a device state changes",
        check: |stage| Box::pin(a_recovery_is_told(stage)),
    },
    Case {
        id: "H04",
        sentence: "tells a fault on every open stream",
        source: "Kubernetes up to 1.36 may read an older stream beside the newest",
        check: |stage| Box::pin(a_fault_is_told_on_every_stream(stage)),
    },
];

/// Hook of the command line, or the reason why there is no verdict.
fn hook(hook: Option<&String>, flag: &str) -> Result<String, Unmet> {
    hook.cloned()
        .ok_or(Unmet::NotApplicable(format!("without {flag} no device can be made to fail")))
}

/// Ids of the unhealthy devices.
fn unhealthy(node: &NodeStatus) -> BTreeSet<String> {
    let all = Served::all(node).into_iter().flat_map(|served| served.devices);
    all.filter(|device| !device.is_healthy()).map(|device| device.id).collect()
}

/// Makes a device fail and waits until the kubelet lists it as unhealthy. Returns the resources as before.
async fn fail_one(stage: &mut Stage) -> Result<(Vec<Served>, String), Unmet> {
    let fail = hook(stage.subject.hooks.fail.as_ref(), "--fail")?;
    let before = stage.started_with_devices().await?;
    let already = unhealthy(&stage.kubelet.node());
    stage.hook(&fail).await?;
    let is_told = |node: &NodeStatus| unhealthy(node).difference(&already).next().is_some();
    stage.until("a device is Unhealthy", is_told).await?;
    let now = unhealthy(&stage.kubelet.node());
    let new = now.difference(&already).next().cloned();
    new.map_or_else(|| not_applicable("it was healthy again at once"), |id| Ok((before, id)))
}

async fn a_fault_is_told(stage: &mut Stage) -> Checked {
    let (before, id) = fail_one(stage).await?;
    let is_known = before.iter().any(|served| served.healthy().contains(&id));
    if is_known {
        Ok(format!("{id} is Unhealthy"))
    } else {
        failed(format!("{id} was not listed before"))
    }
}

async fn a_failed_device_stays_listed(stage: &mut Stage) -> Checked {
    let (before, _) = fail_one(stage).await?;
    let count = |all: &[Served]| all.iter().map(|served| served.devices.len()).sum::<usize>();
    let (was, is) = (count(&before), count(&Served::all(&stage.kubelet.node())));
    if was == is {
        Ok(format!("{is} devices as before"))
    } else {
        failed(format!("{was} devices, then {is}"))
    }
}

async fn a_recovery_is_told(stage: &mut Stage) -> Checked {
    let heal = hook(stage.subject.hooks.heal.as_ref(), "--heal")?;
    let (_, id) = fail_one(stage).await?;
    stage.hook(&heal).await?;
    let took =
        stage.until(&format!("{id} is Healthy"), |node| !unhealthy(node).contains(&id)).await?;
    Ok(format!("{id} is Healthy after {took:.1?}"))
}

async fn a_fault_is_told_on_every_stream(stage: &mut Stage) -> Checked {
    let fail = hook(stage.subject.hooks.fail.as_ref(), "--fail")?;
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within);
    let mut streams = Vec::new();
    for served in &all {
        streams.push(listed(&served.resource, limit.answer, &mut served.dial().await?).await?.0);
    }
    stage.hook(&fail).await?;
    for mut stream in streams {
        if stream.until_unhealthy(limit.react).await {
            return Ok("told on a stream that the kubelet did not open".to_owned());
        }
    }
    failed(format!("not on another stream within {:?}", limit.react))
}
