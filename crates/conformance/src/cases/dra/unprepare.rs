//! D28 to D30: release of claims.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use windlass_kubelet_api::dra::v1::Device;

use super::{claimed, refuse::refused};
use crate::{
    case::{Case, Checked, failed},
    cases::cdi,
    stage::{Stage, twin},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D28",
        sentence: "releases a claim twice, and one that it never prepared, without an error",
        source: "dra/v1/api.proto, NodeUnprepareResources: may be called again, and an error keeps the pod",
        check: |stage| Box::pin(releases_again(stage)),
    },
    Case {
        id: "D29",
        sentence: "releases a claim whose object is gone, and gives its device to the next",
        source: "cm/dra/manager.go, unprepareResources: the kubelet does not look either",
        check: |stage| Box::pin(releases_without_the_object(stage)),
    },
    Case {
        id: "D30",
        sentence: "knows after a kill what is prepared, and releases it as it does without one",
        source: "kubeletplugin: a driver restarts while pods run; its state is its own",
        check: |stage| Box::pin(remembers_after_a_kill(stage)),
    },
];

async fn releases_again(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    driver.prepared(&claim).await?;
    driver.release(&[&claim]).await?;
    driver.release(&[&claim, &twin(&claim, "nobodys")]).await?;
    Ok("released, released again, and one beside it that never was".into())
}

async fn releases_without_the_object(stage: &mut Stage) -> Checked {
    let (driver, claim) = claimed(stage).await?;
    driver.prepared(&claim).await?;
    let mut gone = claim.clone();
    gone.metadata.finalizers = None;
    stage.put(&gone);
    if let Err(refusal) = stage.cluster.objects().delete::<ResourceClaim>("default", "claim") {
        return failed(format!("no stage: {refusal}"));
    }
    driver.release(&[&claim]).await?;
    let next = stage.put(&twin(&claim, "next"));
    driver.prepared(&next).await?;
    Ok("released, and its device prepared for the next".into())
}

/// Compares a driver after a kill with itself before it. A driver that fails D26 passes if it remembers its claims.
/// CDI names that outlive a release before the kill may outlive one after it.
async fn remembers_after_a_kill(stage: &mut Stage) -> Checked {
    let (driver, first) = claimed(stage).await?;
    let second = stage.put(&twin(&first, "second"));
    let given = driver.prepared(&first).await?;
    let refusal = refused(&driver, &second).await;
    if refusal.is_err() {
        driver.release(&[&second]).await?;
    }
    driver.release(&[&first]).await?;
    let left = in_documents(stage, &given);
    driver.prepared(&first).await?;
    let driver = stage.killed_and_started().await?;
    let kept = match refusal {
        Ok(_) => refused(&driver, &second).await?,
        Err(_) => "it refuses no device that another claim has, before the kill either".to_owned(),
    };
    driver.release(&[&first]).await?;
    if let Some(name) = in_documents(stage, &given).difference(&left).next() {
        return failed(format!("{name} is still in a document, in which it is not without a kill"));
    }
    driver.prepared(&second).await?;
    Ok(format!("{kept}; released then"))
}

/// CDI names of the devices that occur in a spec.
fn in_documents(stage: &Stage, given: &[Device]) -> BTreeSet<String> {
    let mut known = cdi::known(&stage.cdi_dirs());
    known.retain(|name| given.iter().any(|device| device.cdi_device_ids.contains(name)));
    known
}
