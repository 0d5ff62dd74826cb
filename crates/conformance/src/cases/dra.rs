//! D: cases of DRA drivers, and their common steps.

pub(super) mod health;
pub(super) mod life;
pub(super) mod prepare;
pub(super) mod refuse;
pub(super) mod registration;
pub(super) mod slices;
pub(super) mod unprepare;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};

use crate::{
    case::{CheckError, failed},
    testbed::{ClaimRequest, Driver, Testbed},
};

/// Registered driver, and a claim with one of its devices.
async fn driver_with_claim(testbed: &mut Testbed) -> Result<(Driver, ResourceClaim), CheckError> {
    let driver = testbed.start_driver().await?;
    let claim = testbed.create_claim(&driver, "claim", ClaimRequest::Device).await?;
    Ok((driver, claim))
}

/// Registered driver, and its published slices.
async fn driver_with_slices(
    testbed: &mut Testbed,
) -> Result<(Driver, Vec<ResourceSlice>), CheckError> {
    let driver = testbed.start_driver().await?;
    let slices = testbed.wait_for_slices(&driver).await?;
    Ok((driver, slices))
}

/// Fails if the devices of a claim changed.
fn check_unchanged<T: PartialEq + std::fmt::Debug>(
    before: &[T],
    after: &[T],
) -> Result<String, CheckError> {
    if before == after {
        Ok(format!("{} devices, as before", after.len()))
    } else {
        failed(format!("{after:?}, but before {before:?}"))
    }
}
