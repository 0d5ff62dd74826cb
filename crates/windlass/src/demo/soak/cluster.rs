//! The cluster around a soak with claims: an API server with a scheduler, and what is published there.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaimTemplate, ResourceSlice},
};
use tokio::task::JoinSet;
use windlass_cluster_sim::{
    api::{ApiServer, Objects},
    cluster::{Scheduled, Unscheduled},
    node,
};
use windlass_kubelet_sim::{Kubelet, NodeStatus};
use windlass_node::config::DriverName;

use super::hands::published_name;
use crate::demo::claims::{self, NAMESPACE, NODE, Wish};

/// The cluster, with the kubelet's deeds there.
#[derive(Debug)]
pub(super) struct Cluster {
    plane: claims::Cluster,
    /// The class of whole GPUs.
    class: String,
    deeds: JoinSet<()>,
}

/// The published devices, each with the keys of its taints.
pub(super) type Published = BTreeMap<String, BTreeSet<String>>;

/// What a device is tainted with while a container has it through the device plugin, and for some looks longer.
const DEVICE_PLUGIN: &str = "windlass.dev/device-plugin";

// === impl Cluster ===

impl Cluster {
    pub(super) fn start() -> Result<Self> {
        let plane = claims::Cluster::start(DriverName::default())?;
        let class = plane.class_of("gpu")?;
        Ok(Self { plane, class, deeds: JoinSet::new() })
    }

    /// Has a kubelet delete slices as a real one does.
    pub(super) fn attend(&mut self, kubelet: &Kubelet) {
        let (calls, objects) = (kubelet.calls(), self.objects());
        self.deeds.spawn(async move { node::follow_wipes(NODE, &calls, &objects).await });
    }

    /// What the agent is told of it.
    pub(super) fn flags(&self, folder: &Path) -> Result<[OsString; 2]> {
        let path = folder.join("kubeconfig");
        fs::write(&path, self.plane.kubeconfig())
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut kubeconfig = OsString::from("--kubeconfig=");
        kubeconfig.push(path);
        Ok([kubeconfig, format!("--node-name={NODE}").into()])
    }

    pub(super) fn server_mut(&mut self) -> &mut ApiServer {
        self.plane.server_mut()
    }

    pub(super) fn objects(&self) -> Objects {
        self.plane.objects()
    }

    /// Finds GPUs for a pod with one container; `None` if there are not enough.
    pub(super) fn schedule(&self, name: &str, gpus: usize) -> Result<Option<Scheduled>> {
        let wish = Wish::new(name).request("gpus", &self.class, (gpus, ""));
        match self.plane.schedule(&wish) {
            Ok(scheduled) => Ok(Some(scheduled)),
            Err(error) if matches!(error.downcast_ref(), Some(Unscheduled::NoNode { .. })) => {
                self.delete(name)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The pod's object goes, with its claim and the template of that.
    pub(super) fn delete(&self, pod: &str) -> Result<()> {
        self.plane.delete(pod)?;
        Ok(self.objects().delete::<ResourceClaimTemplate>(NAMESPACE, pod)?)
    }

    /// Whether the API server has pods.
    pub(super) fn has_pods(&self) -> bool {
        !self.objects().list::<Pod>().is_empty()
    }

    pub(super) fn slices(&self) -> Vec<ResourceSlice> {
        let driver = self.plane.driver.as_str();
        let mut slices = self.objects().list::<ResourceSlice>();
        slices.retain(|slice| slice.spec.driver == driver);
        slices
    }

    pub(super) fn published(&self) -> Published {
        let slices = self.slices().into_iter();
        let devices = slices.flat_map(|slice| slice.spec.devices.unwrap_or_default());
        let taints = devices.map(|device| {
            let taints = device.taints.unwrap_or_default().into_iter().map(|taint| taint.key);
            (device.name, taints.collect())
        });
        taints.collect()
    }

    /// Whether every published GPU is to be had.
    pub(super) fn withholds_none(&self) -> Result<(), String> {
        let is_withheld =
            |(name, taints): &(String, BTreeSet<_>)| name.starts_with("gpu-") && !taints.is_empty();
        let withheld = self.published().into_iter().find(is_withheld);
        withheld.map_or(Ok(()), |(name, taints)| Err(format!("{name} has the taints {taints:?}")))
    }

    /// Whether the kubelet reaches the driver.
    pub(super) fn is_reached(&self, node: &NodeStatus) -> Result<(), String> {
        let driver = node.drivers.get(self.plane.driver.as_str());
        let is_reached = driver.is_some_and(|all| all.iter().any(|one| one.is_connected));
        is_reached
            .then_some(())
            .ok_or_else(|| format!("the kubelet knows the driver as {driver:?}"))
    }
}

/// Whether what is published is fit for these usable GPUs, and for no broken ones. For a while after its container
/// is gone a GPU may be told to be the device plugin's.
pub(super) fn fits(
    published: &Published,
    (usable, broken): (&BTreeSet<String>, &BTreeSet<String>),
) -> Result<(), String> {
    none_is_broken(published, broken)?;
    for uuid in usable {
        match published.get(&published_name(uuid)) {
            None => return Err(format!("{uuid} is usable and not published")),
            Some(taints) if taints.iter().any(|key| key != DEVICE_PLUGIN) => {
                return Err(format!("{uuid} is usable and published with {taints:?}"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Whether no broken GPU is published as one to be given away.
pub(super) fn none_is_broken(
    published: &Published,
    broken: &BTreeSet<String>,
) -> Result<(), String> {
    let is_offered =
        |uuid: &&String| published.get(&published_name(uuid)).is_some_and(BTreeSet::is_empty);
    let offered: Vec<_> = broken.iter().filter(is_offered).collect();
    if offered.is_empty() { Ok(()) } else { Err(format!("published and broken: {offered:?}")) }
}

/// The devices of a pod's claims, and the UIDs of those.
pub(super) fn allotted(scheduled: &Scheduled) -> Result<(String, BTreeSet<String>)> {
    let claim = scheduled.claims.first().ok_or_else(|| anyhow!("the pod has no claim"))?;
    let devices = claims::results(claim).into_iter().map(|[_, _, _, device]| device);
    Ok((claim.metadata.uid.clone().unwrap_or_default(), devices.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn published(devices: &[(&str, &[&str])]) -> Published {
        devices.iter().map(|(name, taints)| ((*name).to_owned(), set(taints))).collect()
    }

    #[test]
    fn usable_gpus_are_published_and_broken_ones_are_not_to_be_had() {
        let unhealthy = "windlass.dev/unhealthy";
        let (usable, broken) = (set(&["GPU-0", "GPU-1"]), set(&["GPU-2"]));
        let fits = |devices: &[(&str, &[&str])]| fits(&published(devices), (&usable, &broken));
        let well: &[(&str, &[&str])] = &[("gpu-0", &[]), ("gpu-1", &[DEVICE_PLUGIN]), ("nic", &[])];
        assert_eq!(fits(well), Ok(()));
        assert_eq!(fits(&[well, &[("gpu-2", &[unhealthy])]].concat()), Ok(()));
        let lie = fits(&[well, &[("gpu-2", &[])]].concat());
        assert_eq!(lie, Err(r#"published and broken: ["GPU-2"]"#.to_owned()));
        assert!(fits(&[("gpu-0", &[])]).is_err_and(|why| why.contains("GPU-1 is usable and not")));
        let tainted = fits(&[("gpu-0", &[unhealthy]), ("gpu-1", &[])]);
        assert!(tainted.is_err_and(|why| why.contains("GPU-0 is usable and published with")));
    }
}
