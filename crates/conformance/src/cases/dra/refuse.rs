//! D22 to D27: claims that a driver must refuse, and the exceptions: results of other drivers, and admin access.

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

use super::driver_with_claim;
use crate::{
    case::{Case, CheckError, CheckResult, failed},
    testbed::{ClaimRequest, Driver, PrepareResults, Testbed, copy_of, prepared_devices},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D22",
        sentence: "refuses a claim that does not exist, and prepares other claims",
        source: "k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go, getResourceClaims",
        check: |testbed| Box::pin(refuses_a_missing_claim(testbed)),
    },
    Case {
        id: "D23",
        sentence: "refuses a claim whose name now belongs to a claim with another UID",
        source: "kubeletplugin/draplugin.go, getResourceClaims: the UID is compared",
        check: |testbed| Box::pin(refuses_a_replaced_claim(testbed)),
    },
    Case {
        id: "D24",
        sentence: "refuses a claim without an allocation",
        source: "kubeletplugin/draplugin.go, getResourceClaims: the allocation is checked",
        check: |testbed| Box::pin(refuses_an_unallocated_claim(testbed)),
    },
    Case {
        id: "D25",
        sentence: "prepares only its own devices of a claim that has devices of several drivers",
        source: "resource/v1/types.go, DeviceRequestAllocationResult.Driver",
        check: |testbed| Box::pin(leaves_devices_of_other_drivers(testbed)),
    },
    Case {
        id: "D26",
        sentence: "refuses a device that is prepared for another claim, until that is released",
        source: "Kubernetes issue 136269: a force-deleted pod leaves its claim prepared",
        check: |testbed| Box::pin(refuses_a_device_in_use(testbed)),
    },
    Case {
        id: "D27",
        sentence: "prepares a device of another claim for a claim with admin access",
        source: "resource/v1/types.go, AdminAccess: monitoring of a device in use",
        check: |testbed| Box::pin(admits_admin_access(testbed)),
    },
];

/// Checks that a driver refuses an invalid claim in one call with a valid one. Kubernetes' own helper fails the whole
/// call. A driver that responds for each claim prepares the valid one. Either driver prepares the valid claim in the
/// next call.
async fn check_refused_with_valid(
    driver: &Driver,
    (valid, invalid): (&ResourceClaim, &ResourceClaim),
) -> CheckResult {
    let reason = match driver.call_prepare(&[invalid, valid]).await? {
        Err(status) => format!("the whole call: {}", status.message()),
        Ok(response) => {
            prepared_devices(&response, valid)?;
            check_refusal(&response, invalid)?
        }
    };
    driver.prepare_one(valid).await?;
    Ok(reason)
}

/// Checks that the driver refuses an invalid claim that is alone in its call.
pub(super) async fn check_refused(driver: &Driver, invalid: &ResourceClaim) -> CheckResult {
    match driver.call_prepare(&[invalid]).await? {
        Err(status) => Ok(status.message().to_owned()),
        Ok(response) => check_refusal(&response, invalid),
    }
}

fn check_refusal(response: &PrepareResults, invalid: &ResourceClaim) -> CheckResult {
    match response.get(invalid.metadata.uid.as_deref().unwrap_or_default()) {
        Some(Err(reason)) => Ok(reason.clone()),
        Some(Ok(devices)) => {
            failed(format!("the claim is prepared, with {} devices", devices.len()))
        }
        None => failed("the response lacks the claim"),
    }
}

async fn refuses_a_missing_claim(testbed: &mut Testbed) -> CheckResult {
    let (driver, valid) = driver_with_claim(testbed).await?;
    check_refused_with_valid(&driver, (&valid, &copy_of(&valid, "missing"))).await
}

async fn refuses_a_replaced_claim(testbed: &mut Testbed) -> CheckResult {
    let (driver, valid, mut invalid) = two_claims(testbed).await?;
    testbed.store_claim(&invalid);
    invalid.metadata.uid = Some("an-older-uid".to_owned());
    check_refused_with_valid(&driver, (&valid, &invalid)).await
}

async fn refuses_an_unallocated_claim(testbed: &mut Testbed) -> CheckResult {
    let (driver, valid, mut invalid) = two_claims(testbed).await?;
    invalid.status = None;
    check_refused_with_valid(&driver, (&valid, &testbed.store_claim(&invalid))).await
}

/// Driver and two claims with a device each. A driver with one device has it in both claims.
async fn two_claims(
    testbed: &mut Testbed,
) -> Result<(Driver, ResourceClaim, ResourceClaim), CheckError> {
    let driver = testbed.start_driver().await?;
    let mut claims = testbed.create_claims(&driver, 2).await?;
    let second = if claims.len() == 2 { claims.pop() } else { None };
    let second = second.unwrap_or_else(|| copy_of(&claims[0], "claim-1"));
    Ok((driver, claims.remove(0), second))
}

/// Results of a claim, mutable.
fn results(claim: &mut ResourceClaim) -> &mut Vec<DeviceRequestAllocationResult> {
    let allocation = claim.status.get_or_insert_default().allocation.get_or_insert_default();
    allocation.devices.get_or_insert_default().results.get_or_insert_default()
}

async fn leaves_devices_of_other_drivers(testbed: &mut Testbed) -> CheckResult {
    let (driver, mut claim) = driver_with_claim(testbed).await?;
    let mut other_result = results(&mut claim)[0].clone();
    "another.example.com".clone_into(&mut other_result.driver);
    results(&mut claim).insert(0, other_result);
    let prepared = driver.prepare_one(&testbed.store_claim(&claim)).await?;
    match prepared.as_slice() {
        [_] => Ok("one device of two".into()),
        devices => failed(format!("{} devices, but one belongs to the driver", devices.len())),
    }
}

async fn refuses_a_device_in_use(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let first = testbed.create_claim(&driver, "claim", ClaimRequest::Exclusive).await?;
    driver.prepare_one(&first).await?;
    let second = testbed.store_claim(&copy_of(&first, "second"));
    let reason = check_refused(&driver, &second).await?;
    driver.release(&[&first]).await?;
    driver.prepare_one(&second).await?;
    Ok(reason)
}

async fn admits_admin_access(testbed: &mut Testbed) -> CheckResult {
    let (driver, first) = driver_with_claim(testbed).await?;
    driver.prepare_one(&first).await?;
    let mut admin = copy_of(&first, "admin");
    for result in results(&mut admin) {
        result.admin_access = Some(true);
    }
    for request in
        admin.spec.devices.iter_mut().flat_map(|devices| devices.requests.iter_mut().flatten())
    {
        if let Some(exactly) = &mut request.exactly {
            exactly.admin_access = Some(true);
        }
    }
    let prepared = driver.prepare_one(&testbed.store_claim(&admin)).await?;
    Ok(format!("{} device for both claims", prepared.len()))
}
