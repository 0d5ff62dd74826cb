//! D14 to D21: responses to `NodePrepareResources`.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use windlass_cluster_sim::node;
use windlass_kubelet_api::dra::v1::Device;

use super::{claimed, same};
use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    cases::{again::restarted, cdi},
    stage::{Driver, Stage, Wanted, devices, pod},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D14",
        sentence: "answers for each claim of a call, and for no other",
        source: "cm/dra/manager.go, prepareResources: `NodePrepareResources skipped`; `unknown claim UID`",
        check: |stage| Box::pin(answers_for_each_claim(stage)),
    },
    Case {
        id: "D15",
        sentence: "names a request with alternatives without its subrequest",
        source: "dra/v1/api.proto, Device.request_names; cm/dra/claiminfo.go, cdiDevicesAsList",
        check: |stage| Box::pin(names_base_requests(stage)),
    },
    Case {
        id: "D16",
        sentence: "names each device and its pool as the allocation does",
        source: "cm/dra/manager.go, prepareResources; devicehealth by driver, pool and device",
        check: |stage| Box::pin(names_what_was_allocated(stage)),
    },
    Case {
        id: "D17",
        sentence: "gives CDI names that are in a document when it answers",
        source: "cm/dra/manager.go, GetResources: the runtime looks them up next",
        check: |stage| Box::pin(cdi_names_are_resolved(stage)),
    },
    Case {
        id: "D18",
        sentence: "gives back the id of a share, and the device to a second claim that shares it",
        source: "dra/v1/api.proto, Device.share_id; KEP-5075",
        check: |stage| Box::pin(shares_are_told_apart(stage)),
    },
    Case {
        id: "D19",
        sentence: "answers the same when it is asked again",
        source: "cm/dra/manager.go, prepareResources: tried again until the whole pod succeeds",
        check: |stage| Box::pin(answers_the_same_again(stage)),
    },
    Case {
        id: "D20",
        sentence: "answers the same after it was killed and started again",
        source: "cm/dra/manager.go: retried whatever became of the driver; CDI names are in containers' specs",
        check: |stage| Box::pin(answers_the_same_after_a_kill(stage)),
    },
    Case {
        id: "D21",
        sentence: "answers the same to the next kubelet, for a second pod of the claim too",
        source: "cm/dra/claiminfo.go: the checkpoint does not say that a claim is prepared",
        check: |stage| Box::pin(answers_the_same_to_the_next_kubelet(stage)),
    },
];

/// Results of an allocation that belong to the driver.
fn results<'a>(
    claim: &'a ResourceClaim,
    driver: &'a Driver,
) -> impl Iterator<Item = &'a DeviceRequestAllocationResult> {
    let status = claim.status.iter();
    let allocation = status.filter_map(|it| it.allocation.as_ref()?.devices.as_ref());
    let all = allocation.flat_map(|devices| devices.results.iter().flatten());
    all.filter(|result| result.driver == driver.name)
}

async fn answers_for_each_claim(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let claims = stage.claims(&driver, 3).await?;
    let asked: Vec<&ResourceClaim> = claims.iter().collect();
    let answer = driver.prepare(&asked).await?;
    for claim in &claims {
        devices(&answer, claim)?;
    }
    let mut known = claims.iter().filter_map(|claim| claim.metadata.uid.as_ref());
    match answer.keys().find(|uid| !known.clone().any(|known| known == *uid)) {
        Some(uid) => failed(format!("nobody asked about claim {uid}")),
        None => Ok(format!("{} claims, {} answers", known.by_ref().count(), answer.len())),
    }
}

async fn names_base_requests(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let claim = stage.claim(&driver, "claim", Wanted::FirstChoice).await?;
    let allocated: BTreeSet<_> = results(&claim, &driver).map(|it| it.request.clone()).collect();
    let devices = driver.prepared(&claim).await?;
    let named: BTreeSet<_> = devices.iter().flat_map(|device| &device.request_names).collect();
    match named.iter().find(|name| name.as_str() != "one") {
        Some(name) => failed(format!("the request \"one\" is named {name:?}")),
        None => Ok(format!("{named:?} for {allocated:?}")),
    }
}

async fn names_what_was_allocated(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    let wanted: BTreeSet<_> =
        results(&claim, &driver).map(|it| (it.pool.clone(), it.device.clone())).collect();
    let named = |it: Device| (it.pool_name, it.device_name);
    let given: BTreeSet<_> = driver.prepared(&claim).await?.into_iter().map(named).collect();
    let evidence = format!("{given:?} for {wanted:?}");
    if given == wanted { Ok(evidence) } else { failed(evidence) }
}

async fn cdi_names_are_resolved(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    let devices = driver.prepared(&claim).await?;
    let known = cdi::known(&stage.cdi_dirs());
    let names: Vec<_> = devices.iter().flat_map(|device| &device.cdi_device_ids).collect();
    if names.is_empty() {
        return not_applicable("no device has a CDI name");
    }
    for name in &names {
        if cdi::Name::parse(name).is_none() {
            return failed(format!("{name:?} is no CDI name"));
        }
        if !known.contains(name.as_str()) {
            return failed(format!("{name} is in no document of {:?}", stage.cdi_dirs()));
        }
    }
    Ok(format!("{names:?}"))
}

async fn shares_are_told_apart(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let mut seen = Vec::new();
    for name in ["claim", "another"] {
        let claim = stage.claim(&driver, name, Wanted::Share).await?;
        let wanted: BTreeSet<_> = results(&claim, &driver).map(|it| it.share_id.clone()).collect();
        let given: BTreeSet<_> =
            driver.prepared(&claim).await?.into_iter().map(|device| device.share_id).collect();
        if given != wanted {
            return failed(format!("share {given:?} for {wanted:?}"));
        }
        seen.extend(given.into_iter().flatten());
    }
    Ok(format!("{seen:?}"))
}

async fn answers_the_same_again(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    let before = driver.prepared(&claim).await?;
    same(&before, &driver.prepared(&claim).await?)
}

async fn answers_the_same_after_a_kill(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    let before = driver.prepared(&claim).await?;
    let driver = stage.killed_and_started().await?;
    same(&before, &driver.prepared(&claim).await?)
}

async fn answers_the_same_to_the_next_kubelet(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let first = stage.scheduled(&driver, "claim", Wanted::Device).await?;
    let before = cdi_names_at_start(stage, node::pod(&first)).await?;
    let since = stage.now();
    restarted(stage).await?;
    stage.registered(since, stage.subject.within.react).await?;
    let second = stage.bound(&pod("second", "claim")).await?;
    same(&before, &cdi_names_at_start(stage, node::pod(&second)).await?)
}

/// Admits a pod and starts its container; returns the CDI names that the kubelet passes to the
/// runtime, without duplicates.
async fn cdi_names_at_start(
    stage: &mut Stage,
    pod: windlass_kubelet_sim::Pod,
) -> Result<Vec<String>, Unmet> {
    let uid = pod.uid.clone();
    stage.admitted(pod).await?;
    match stage.kubelet.start_container(&uid, "c").await {
        // The kubelet repeats a device for each time that it was prepared.
        Ok(grant) => {
            Ok(grant.cdi_devices.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
        }
        Err(error) => failed(error.to_string()),
    }
}
