//! D28 to D30: release of claims, by `NodeUnprepareResources`.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use windlass_kubelet_api::dra::v1::Device;

use super::{driver_with_claim, refuse::check_refused};
use crate::{
    case::{Case, CheckResult, failed},
    cases::cdi,
    testbed::{Testbed, copy_of},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D28",
        sentence: "releases a claim twice, and a claim that it never prepared, without an error",
        source: "dra/v1/api.proto, NodeUnprepareResources: the kubelet may repeat the call, and an error keeps the pod",
        check: |testbed| Box::pin(releases_again(testbed)),
    },
    Case {
        id: "D29",
        sentence: "releases a claim whose object was deleted, and prepares its device for the next claim",
        source: "cm/dra/manager.go, unprepareResources: the kubelet does not read the object either",
        check: |testbed| Box::pin(releases_without_the_object(testbed)),
    },
    Case {
        id: "D30",
        sentence: "remembers prepared claims after a kill, and releases them as without a kill",
        source: "kubeletplugin: a driver restarts while pods run, and stores its own state",
        check: |testbed| Box::pin(remembers_after_a_kill(testbed)),
    },
];

async fn releases_again(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    driver.prepare_one(&claim).await?;
    driver.release(&[&claim]).await?;
    driver.release(&[&claim, &copy_of(&claim, "missing")]).await?;
    Ok("released twice; an unknown claim released too".into())
}

async fn releases_without_the_object(testbed: &mut Testbed) -> CheckResult {
    let (driver, claim) = driver_with_claim(testbed).await?;
    driver.prepare_one(&claim).await?;
    let mut deleted = claim.clone();
    deleted.metadata.finalizers = None;
    testbed.store_claim(&deleted);
    if let Err(refusal) = testbed.cluster.objects().delete::<ResourceClaim>("default", "claim") {
        return failed(format!("cannot set up the test: {refusal}"));
    }
    driver.release(&[&claim]).await?;
    let next = testbed.store_claim(&copy_of(&claim, "next"));
    driver.prepare_one(&next).await?;
    Ok("released, and its device prepared for the next claim".into())
}

/// Compares a driver after a kill with the same driver before it. A driver that fails D26 passes if it remembers its
/// claims. CDI names that outlive a release before the kill may outlive one after it.
async fn remembers_after_a_kill(testbed: &mut Testbed) -> CheckResult {
    let (driver, first) = driver_with_claim(testbed).await?;
    let second = testbed.store_claim(&copy_of(&first, "second"));
    let devices = driver.prepare_one(&first).await?;
    let refusal = check_refused(&driver, &second).await;
    if refusal.is_err() {
        driver.release(&[&second]).await?;
    }
    driver.release(&[&first]).await?;
    let remaining = names_in_specs(testbed, &devices);
    driver.prepare_one(&first).await?;
    let driver = testbed.kill_and_restart_driver().await?;
    let evidence = match refusal {
        Ok(_) => check_refused(&driver, &second).await?,
        Err(_) => "it accepts a device of another claim, before the kill too".to_owned(),
    };
    driver.release(&[&first]).await?;
    if let Some(name) = names_in_specs(testbed, &devices).difference(&remaining).next() {
        return failed(format!(
            "{name} is still in a CDI spec after its release; without a kill it is not"
        ));
    }
    driver.prepare_one(&second).await?;
    Ok(format!("{evidence}; then released"))
}

/// CDI names of the devices that occur in the program's CDI specs.
fn names_in_specs(testbed: &Testbed, devices: &[Device]) -> BTreeSet<String> {
    let mut names = cdi::device_names(&testbed.cdi_dirs());
    names.retain(|name| devices.iter().any(|device| device.cdi_device_ids.contains(name)));
    names
}
