//! D: DRA drivers, part by part.

pub(super) mod health;
pub(super) mod life;
pub(super) mod prepare;
pub(super) mod refuse;
pub(super) mod registration;
pub(super) mod slices;
pub(super) mod unprepare;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};

use crate::{
    case::{Unmet, failed},
    stage::{Driver, Stage, Wanted},
};

/// Registered driver, and a claim with one of its devices.
async fn claimed(stage: &mut Stage) -> Result<(Driver, ResourceClaim), Unmet> {
    let driver = stage.driver().await?;
    let claim = stage.claim(&driver, "claim", Wanted::Device).await?;
    Ok((driver, claim))
}

/// Registered driver, and its published slices.
async fn published(stage: &mut Stage) -> Result<(Driver, Vec<ResourceSlice>), Unmet> {
    let driver = stage.driver().await?;
    let slices = stage.published(&driver).await?;
    Ok((driver, slices))
}

/// Fails if the devices of a claim changed.
fn same<T: PartialEq + std::fmt::Debug>(before: &[T], after: &[T]) -> Result<String, Unmet> {
    if before == after {
        Ok(format!("{} devices, as before", after.len()))
    } else {
        failed(format!("{after:?}, but before {before:?}"))
    }
}
