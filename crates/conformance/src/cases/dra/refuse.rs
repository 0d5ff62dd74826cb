//! D22 to D27: claims that a driver must refuse, and its exception for admin access.

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

use super::claimed;
use crate::{
    case::{Case, Checked, Unmet, failed},
    stage::{Driver, Prepared, Stage, Wanted, devices, twin},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D22",
        sentence: "refuses a claim that does not exist, and prepares others",
        source: "k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go, getResourceClaims",
        check: |stage| Box::pin(refuses_what_does_not_exist(stage)),
    },
    Case {
        id: "D23",
        sentence: "refuses a claim that has been replaced by another of its name",
        source: "kubeletplugin/draplugin.go, getResourceClaims: the UID is compared",
        check: |stage| Box::pin(refuses_what_was_replaced(stage)),
    },
    Case {
        id: "D24",
        sentence: "refuses a claim without an allocation",
        source: "kubeletplugin/draplugin.go, getResourceClaims: it is not allocated",
        check: |stage| Box::pin(refuses_what_is_not_allocated(stage)),
    },
    Case {
        id: "D25",
        sentence: "leaves the devices that another driver has in the same claim to that driver",
        source: "resource/v1/types.go, DeviceRequestAllocationResult.Driver",
        check: |stage| Box::pin(leaves_devices_of_other_drivers(stage)),
    },
    Case {
        id: "D26",
        sentence: "refuses a device that is prepared for another claim, until that is released",
        source: "Kubernetes issue 136269: a pod that is deleted by force leaves its claim prepared",
        check: |stage| Box::pin(refuses_what_another_has(stage)),
    },
    Case {
        id: "D27",
        sentence: "prepares a device that another claim has for one with admin access",
        source: "resource/v1/types.go, AdminAccess: monitoring beside its user",
        check: |stage| Box::pin(lets_admins_in(stage)),
    },
];

/// Checks that the wrong claim is refused in one call with a right one. Kubernetes' own helper fails the whole call.
/// A driver that responds for each claim prepares the right one. Either driver prepares the right claim in the next
/// call.
async fn refused_beside(
    driver: &Driver,
    (right, wrong): (&ResourceClaim, &ResourceClaim),
) -> Checked {
    let why = match driver.asked(&[wrong, right]).await? {
        Err(status) => format!("the whole call: {}", status.message()),
        Ok(answer) => {
            devices(&answer, right)?;
            refusal(&answer, wrong)?
        }
    };
    driver.prepared(right).await?;
    Ok(why)
}

/// Checks that a claim is refused in a call of its own.
pub(super) async fn refused(driver: &Driver, wrong: &ResourceClaim) -> Checked {
    match driver.asked(&[wrong]).await? {
        Err(status) => Ok(status.message().to_owned()),
        Ok(answer) => refusal(&answer, wrong),
    }
}

fn refusal(answer: &Prepared, wrong: &ResourceClaim) -> Checked {
    match answer.get(wrong.metadata.uid.as_deref().unwrap_or_default()) {
        Some(Err(why)) => Ok(why.clone()),
        Some(Ok(devices)) => failed(format!("it is prepared, with {} devices", devices.len())),
        None => failed("the answer says nothing about it"),
    }
}

async fn refuses_what_does_not_exist(stage: &mut Stage) -> Checked {
    let (driver, right) = claimed(stage).await?;
    refused_beside(&driver, (&right, &twin(&right, "nobodys"))).await
}

async fn refuses_what_was_replaced(stage: &mut Stage) -> Checked {
    let (driver, right, mut wrong) = two(stage).await?;
    stage.put(&wrong);
    wrong.metadata.uid = Some("an-older-uid".to_owned());
    refused_beside(&driver, (&right, &wrong)).await
}

async fn refuses_what_is_not_allocated(stage: &mut Stage) -> Checked {
    let (driver, right, mut wrong) = two(stage).await?;
    wrong.status = None;
    refused_beside(&driver, (&right, &stage.put(&wrong))).await
}

/// Driver and two claims with a device each. With one device only, the second claim has that of the first.
async fn two(stage: &mut Stage) -> Result<(Driver, ResourceClaim, ResourceClaim), Unmet> {
    let driver = stage.driver().await?;
    let mut claims = stage.claims(&driver, 2).await?;
    let second = if claims.len() == 2 { claims.pop() } else { None };
    let second = second.unwrap_or_else(|| twin(&claims[0], "claim-1"));
    Ok((driver, claims.remove(0), second))
}

/// Results of a claim, mutable.
fn results(claim: &mut ResourceClaim) -> &mut Vec<DeviceRequestAllocationResult> {
    let allocation = claim.status.get_or_insert_default().allocation.get_or_insert_default();
    allocation.devices.get_or_insert_default().results.get_or_insert_default()
}

async fn leaves_devices_of_other_drivers(stage: &mut Stage) -> Checked {
    let (driver, mut claim) = claimed(stage).await?;
    let mut theirs = results(&mut claim)[0].clone();
    "another.example.com".clone_into(&mut theirs.driver);
    results(&mut claim).insert(0, theirs);
    let given = driver.prepared(&stage.put(&claim)).await?;
    match given.as_slice() {
        [_] => Ok("one device of two".into()),
        more => failed(format!("{} devices, of which one is its own", more.len())),
    }
}

async fn refuses_what_another_has(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let first = stage.claim(&driver, "claim", Wanted::Alone).await?;
    driver.prepared(&first).await?;
    let second = stage.put(&twin(&first, "second"));
    let why = refused(&driver, &second).await?;
    driver.release(&[&first]).await?;
    driver.prepared(&second).await?;
    Ok(why)
}

async fn lets_admins_in(stage: &mut Stage) -> Checked {
    let (driver, first) = claimed(stage).await?;
    driver.prepared(&first).await?;
    let mut admin = twin(&first, "admin");
    for result in results(&mut admin) {
        result.admin_access = Some(true);
    }
    for request in admin.spec.devices.iter_mut().flat_map(|it| it.requests.iter_mut().flatten()) {
        if let Some(exactly) = &mut request.exactly {
            exactly.admin_access = Some(true);
        }
    }
    let given = driver.prepared(&stage.put(&admin)).await?;
    Ok(format!("{} device for both", given.len()))
}
