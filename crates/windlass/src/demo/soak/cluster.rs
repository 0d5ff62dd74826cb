//! Cluster of a soak with claims: API server, scheduler and published slices.

use std::{collections::BTreeSet, ffi::OsString, path::Path};

use anyhow::{Result, anyhow};
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use windlass_cluster_sim::cluster::{ScheduledPod, SchedulingError};
use windlass_config::DriverName;
use windlass_kubelet_sim::NodeStatus;

use super::slices::PublishedSlices;
use crate::demo::{
    claims::{self, ClusterFixture, NAMESPACE, PodSpec},
    testbed::{NODE, write_kubeconfig},
};

#[derive(Debug)]
pub(super) struct SoakCluster {
    pub(super) fixture: ClusterFixture,
    /// Device class of whole GPUs.
    class: String,
}

// === impl SoakCluster ===

impl SoakCluster {
    pub(super) fn start() -> Result<Self> {
        let fixture = ClusterFixture::start(DriverName::default())?;
        let class = fixture.ensure_class("gpu")?;
        Ok(Self { fixture, class })
    }

    pub(super) fn flags(&self, folder: &Path) -> Result<[OsString; 2]> {
        let path = write_kubeconfig(self.fixture.server(), folder)?;
        let mut kubeconfig = OsString::from("--kubeconfig=");
        kubeconfig.push(path);
        Ok([kubeconfig, format!("--node-name={NODE}").into()])
    }

    /// Schedules a pod with one container; returns the reason if too few GPUs are free.
    pub(super) fn schedule(&self, name: &str, gpus: usize) -> Result<Result<ScheduledPod, String>> {
        let pod = PodSpec::new(name).request("gpus", &self.class, gpus, "");
        match self.fixture.schedule(&pod) {
            Ok(scheduled) => Ok(Ok(scheduled)),
            Err(error) if matches!(error.downcast_ref(), Some(SchedulingError::NoNode { .. })) => {
                self.delete(name)?;
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the pod with its claim and template.
    pub(super) fn delete(&self, pod: &str) -> Result<()> {
        self.fixture.delete(pod)?;
        Ok(self.fixture.objects().delete::<ResourceClaimTemplate>(NAMESPACE, pod)?)
    }

    pub(super) fn slices(&self) -> Vec<ResourceSlice> {
        let driver = self.fixture.driver.as_str();
        let mut slices = self.fixture.objects().list::<ResourceSlice>();
        slices.retain(|slice| slice.spec.driver == driver);
        slices
    }

    pub(super) fn published(&self) -> PublishedSlices {
        PublishedSlices::of(self.slices())
    }

    /// Checks that the kubelet is connected to the driver.
    pub(super) fn check_connected(&self, node: &NodeStatus) -> Result<(), String> {
        let driver = node.drivers.get(self.fixture.driver.as_str());
        let is_connected =
            driver.is_some_and(|sockets| sockets.iter().any(|socket| socket.is_connected));
        is_connected
            .then_some(())
            .ok_or_else(|| format!("the kubelet knows the driver as {driver:?}"))
    }
}

/// UID and allocated devices of a pod's claim.
pub(super) fn allocated(scheduled_pod: &ScheduledPod) -> Result<(String, BTreeSet<String>)> {
    let claim = scheduled_pod.claims.first().ok_or_else(|| anyhow!("the pod has no claim"))?;
    let devices = claims::allocation_results(claim).into_iter().map(|[_, _, _, device]| device);
    Ok((claim.metadata.uid.clone().unwrap_or_default(), devices.collect()))
}
