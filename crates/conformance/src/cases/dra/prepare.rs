//! D14 to D21: responses to `NodePrepareResources` for valid claims.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use windlass_cluster_sim::node;
use windlass_kubelet_api::dra::v1::Device;

use super::{check_unchanged, driver_with_claim};
use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    cases::{again::restart_kubelet, cdi},
    testbed::{ClaimRequest, Driver, Testbed, pod, prepared_devices},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D14",
        sentence: "answers for each claim of a call, and for no other claim",
        source: "cm/dra/manager.go, prepareResources: `NodePrepareResources skipped`; `unknown claim UID`",
        check: |testbed| Box::pin(answers_for_each_claim(testbed)),
    },
    Case {
        id: "D15",
        sentence: "names a request with alternatives by its base name, without the subrequest",
        source: "dra/v1/api.proto, Device.request_names; cm/dra/claiminfo.go, cdiDevicesAsList",
        check: |testbed| Box::pin(names_base_requests(testbed)),
    },
    Case {
        id: "D16",
        sentence: "names each device and pool as in the allocation",
        source: "cm/dra/manager.go, prepareResources; devicehealth by driver, pool and device",
        check: |testbed| Box::pin(names_allocated_devices(testbed)),
    },
    Case {
        id: "D17",
        sentence: "gives CDI names that are in a document when it answers",
        source: "cm/dra/manager.go, GetResources: the runtime looks them up next",
        check: |testbed| Box::pin(cdi_names_are_resolved(testbed)),
    },
    Case {
        id: "D18",
        sentence: "returns the share's id, and prepares the shared device for a second claim",
        source: "dra/v1/api.proto, Device.share_id; KEP-5075",
        check: |testbed| Box::pin(shares_have_their_ids(testbed)),
    },
    Case {
        id: "D19",
        sentence: "returns the same devices to a repeated call",
        source: "cm/dra/manager.go, prepareResources: the kubelet retries until the whole pod succeeds",
        check: |testbed| Box::pin(repeats_its_devices(testbed)),
    },
    Case {
        id: "D20",
        sentence: "returns the same devices after it is killed and started again",
        source: "cm/dra/manager.go: retried after a driver restart; CDI names are in containers' specs",
        check: |testbed| Box::pin(repeats_its_devices_after_a_kill(testbed)),
    },
    Case {
        id: "D21",
        sentence: "returns the same devices after a kubelet restart, for a second pod of the claim",
        source: "cm/dra/claiminfo.go: the checkpoint does not say that a claim is prepared",
        check: |testbed| Box::pin(repeats_its_devices_to_the_next_kubelet(testbed)),
    },
];

/// Results of an allocation that belong to the driver.
fn results<'a>(
    claim: &'a ResourceClaim,
    driver: &'a Driver,
) -> impl Iterator<Item = &'a DeviceRequestAllocationResult> {
    let status = claim.status.iter();
    let allocation = status.filter_map(|status| status.allocation.as_ref()?.devices.as_ref());
    let results = allocation.flat_map(|devices| devices.results.iter().flatten());
    results.filter(|result| result.driver == driver.name)
}

async fn answers_for_each_claim(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let claims = testbed.create_claims(&driver, 3).await?;
    let references: Vec<&ResourceClaim> = claims.iter().collect();
    let response = driver.prepare(&references).await?;
    for claim in &claims {
        prepared_devices(&response, claim)?;
    }
    let mut claim_uids = claims.iter().filter_map(|claim| claim.metadata.uid.as_ref());
    match response.keys().find(|uid| !claim_uids.clone().any(|claim_uid| claim_uid == *uid)) {
        Some(uid) => failed(format!("the response has claim {uid}, which the call lacks")),
        None => Ok(format!(
            "{} claims, {} entries in the response",
            claim_uids.by_ref().count(),
            response.len()
        )),
    }
}

async fn names_base_requests(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let claim = testbed.create_claim(&driver, "claim", ClaimRequest::FirstAvailable).await?;
    let allocated: BTreeSet<_> =
        results(&claim, &driver).map(|result| result.request.clone()).collect();
    let devices = driver.prepare_one(&claim).await?;
    let named: BTreeSet<_> = devices.iter().flat_map(|device| &device.request_names).collect();
    match named.iter().find(|name| name.as_str() != "one") {
        Some(name) => failed(format!("the request \"one\" is named {name:?}")),
        None => Ok(format!("{named:?} for {allocated:?}")),
    }
}

async fn names_allocated_devices(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    let expected: BTreeSet<_> = results(&claim, &driver)
        .map(|result| (result.pool.clone(), result.device.clone()))
        .collect();
    let pool_and_name = |device: Device| (device.pool_name, device.device_name);
    let actual: BTreeSet<_> =
        driver.prepare_one(&claim).await?.into_iter().map(pool_and_name).collect();
    let evidence = format!("{actual:?} for {expected:?}");
    if actual == expected { Ok(evidence) } else { failed(evidence) }
}

async fn cdi_names_are_resolved(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    let devices = driver.prepare_one(&claim).await?;
    let names_in_specs = cdi::device_names(&testbed.cdi_dirs());
    let names: Vec<_> = devices.iter().flat_map(|device| &device.cdi_device_ids).collect();
    if names.is_empty() {
        return not_applicable("no device has a CDI name");
    }
    for name in &names {
        if cdi::Name::parse(name).is_none() {
            return failed(format!("{name:?} is not a CDI name"));
        }
        if !names_in_specs.contains(name.as_str()) {
            return failed(format!("{name} is in no CDI spec of {:?}", testbed.cdi_dirs()));
        }
    }
    Ok(format!("{names:?}"))
}

async fn shares_have_their_ids(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let mut share_ids = Vec::new();
    for name in ["claim", "another"] {
        let claim = testbed.create_claim(&driver, name, ClaimRequest::Share).await?;
        let expected: BTreeSet<_> =
            results(&claim, &driver).map(|result| result.share_id.clone()).collect();
        let actual: BTreeSet<_> =
            driver.prepare_one(&claim).await?.into_iter().map(|device| device.share_id).collect();
        if actual != expected {
            return failed(format!("share {actual:?} for {expected:?}"));
        }
        share_ids.extend(actual.into_iter().flatten());
    }
    Ok(format!("{share_ids:?}"))
}

async fn repeats_its_devices(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    let before = driver.prepare_one(&claim).await?;
    check_unchanged(&before, &driver.prepare_one(&claim).await?)
}

async fn repeats_its_devices_after_a_kill(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    let before = driver.prepare_one(&claim).await?;
    let driver = testbed.kill_and_restart_driver().await?;
    check_unchanged(&before, &driver.prepare_one(&claim).await?)
}

async fn repeats_its_devices_to_the_next_kubelet(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let first = testbed.schedule_with_claim(&driver, "claim", ClaimRequest::Device).await?;
    let before = cdi_names_at_start(testbed, node::pod(&first)).await?;
    let since = testbed.next_sequence();
    restart_kubelet(testbed).await?;
    testbed.wait_for_registration(since, testbed.subject.limits.react).await?;
    let second = testbed.schedule(&pod("second", "claim")).await?;
    check_unchanged(&before, &cdi_names_at_start(testbed, node::pod(&second)).await?)
}

/// Admits a pod and starts its container; returns the CDI names that the kubelet passes to the
/// runtime, without duplicates.
async fn cdi_names_at_start(
    testbed: &mut Testbed,
    pod: windlass_kubelet_sim::Pod,
) -> Result<Vec<String>, CheckError> {
    let uid = pod.uid.clone();
    testbed.admit_pod(pod).await?;
    match testbed.kubelet.start_container(&uid, "c").await {
        // The kubelet lists a device once for each call that prepared it.
        Ok(run_options) => {
            Ok(run_options.cdi_devices.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
        }
        Err(error) => failed(error.to_string()),
    }
}
