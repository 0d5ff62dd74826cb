//! D28 to D30: how a driver lets claims go.

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::{claimed, refuse::refused};
use crate::{
    case::{Case, Checked, failed},
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
        sentence: "knows after a kill which devices are prepared, and releases them",
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

async fn remembers_after_a_kill(stage: &mut Stage) -> Checked {
    let (driver, first) = claimed(stage).await?;
    driver.prepared(&first).await?;
    let driver = stage.killed_and_started().await?;
    let second = stage.put(&twin(&first, "second"));
    let why = refused(&driver, &second).await?;
    driver.release(&[&first]).await?;
    driver.prepared(&second).await?;
    Ok(format!("{why}; released then"))
}
