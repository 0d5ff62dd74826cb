//! Cluster of the demo: API server, scheduler, shipped device classes and one node.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceClass, DeviceTaint, ResourceClaim, ResourceSlice,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use windlass_cluster_sim::{
    api::{ApiServer, Objects},
    cluster::{self, ScheduledPod},
    node,
};
use windlass_config::DriverName;
use windlass_core::inventory::Inventory;
use windlass_kubelet_sim::Kubelet;

use super::{
    event::Published,
    pod_spec::{NAMESPACE, PodSpec},
};
use crate::{commands::short_name, demo::testbed::NODE};

const CLASSES: &str = include_str!("../../../../../deploy/options/claims/deviceclasses.yaml");

/// Driver name in the shipped classes.
const SHIPPED_DRIVER: &str = "windlass.dev";

#[derive(Debug)]
pub(in crate::demo) struct ClusterFixture {
    cluster: cluster::Cluster,
    pub(in crate::demo) driver: DriverName,
    /// Task that deletes ResourceSlices as the kubelet does.
    slice_deletion: JoinSet<()>,
}

// === impl ClusterFixture ===

impl ClusterFixture {
    /// Starts a cluster with one node and the device classes.
    pub(in crate::demo) fn start(driver: DriverName) -> Result<Self> {
        let cluster = cluster::Cluster::start();
        cluster.add_node(NODE);
        let text = CLASSES.replace(SHIPPED_DRIVER, driver.as_str());
        let classes: Vec<DeviceClass> = serde_saphyr::from_multiple(&text)
            .context("the shipped device classes do not parse")?;
        for class in &classes {
            cluster.objects().create(class).context("the API server refused a device class")?;
        }
        Ok(Self { cluster, driver, slice_deletion: JoinSet::new() })
    }

    /// Deletes the node's ResourceSlices when the embedded kubelet starts, as a real kubelet does.
    pub(in crate::demo) fn delete_slices_at_kubelet_start(&mut self, kubelet: &Kubelet) {
        let (events, objects) = (kubelet.events(), self.objects());
        self.slice_deletion.spawn(async move {
            node::delete_slices_at_kubelet_start(NODE, &events, &objects).await;
        });
    }

    pub(in crate::demo) fn server(&self) -> &ApiServer {
        self.cluster.server()
    }

    /// API server, to interrupt it and inject failures.
    pub(in crate::demo) fn server_mut(&mut self) -> &mut ApiServer {
        self.cluster.server_mut()
    }

    pub(in crate::demo) fn objects(&self) -> Objects {
        self.cluster.objects()
    }

    /// Device class of a device type; creates one if none is shipped.
    pub(in crate::demo) fn ensure_class(&self, kind: &str) -> Result<String> {
        let name = format!("windlass-{}", if kind == "other" { "device" } else { kind });
        if self.objects().get::<DeviceClass>("", &name).is_none() {
            let driver = &self.driver;
            let class =
                class(&name, &format!("device.attributes[\"{driver}\"].type == \"{kind}\""));
            self.objects().create(&serde_json::from_value::<DeviceClass>(class)?)?;
        }
        Ok(name)
    }

    /// Creates a device class for an extended resource, if none exists.
    pub(super) fn ensure_extended_resource_class(&self, kind: &str, resource: &str) -> Result<()> {
        let has_resource =
            |class: &DeviceClass| class.spec.extended_resource_name.as_deref() == Some(resource);
        if self.objects().list::<DeviceClass>().iter().any(has_resource) {
            return Ok(());
        }
        let driver = &self.driver;
        let expression = format!("device.attributes[\"{driver}\"].type == \"{kind}\"");
        let mut class = class(&format!("extended-{kind}"), &expression);
        class["spec"]["extendedResourceName"] = resource.into();
        self.objects().create(&serde_json::from_value::<DeviceClass>(class)?)?;
        Ok(())
    }

    pub(in crate::demo) fn schedule(&self, pod_spec: &PodSpec) -> Result<ScheduledPod> {
        if let Some(template) = pod_spec.template()? {
            self.objects().put(&template);
        }
        Ok(self.cluster.schedule(&pod_spec.pod()?)?)
    }

    pub(in crate::demo) fn delete(&self, pod: &str) -> Result<()> {
        Ok(self.cluster.delete_pod(NAMESPACE, pod)?)
    }

    pub(super) fn claims(&self) -> Vec<ResourceClaim> {
        self.objects().list()
    }

    /// UIDs of the ResourceSlices.
    pub(super) fn slices(&self) -> Vec<String> {
        let slices = self.objects().list::<ResourceSlice>();
        slices.into_iter().filter_map(|slice| slice.metadata.uid).collect()
    }

    /// Published devices in the order of the scheduler's search.
    pub(super) fn published(&self, inventory: &Inventory) -> Vec<Published> {
        published(&self.objects(), &self.driver, inventory)
    }
}

fn class(name: &str, expression: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    })
}

/// Devices in the driver's slices, by pool and slice name.
pub(super) fn published(
    objects: &Objects,
    driver: &DriverName,
    inventory: &Inventory,
) -> Vec<Published> {
    let mut slices = objects.list::<ResourceSlice>();
    slices.retain(|slice| slice.spec.driver == driver.as_str());
    slices.sort_by_key(|slice| (slice.spec.pool.name.clone(), slice.metadata.name.clone()));
    let slice_devices = |slice: ResourceSlice| {
        let (pool, devices) = (slice.spec.pool.name, slice.spec.devices.unwrap_or_default());
        devices.into_iter().map(move |device| (pool.clone(), device))
    };
    let devices = slices.into_iter().flat_map(slice_devices);
    devices.map(|(pool, device)| described(pool, device, driver, inventory)).collect()
}

fn described(
    pool: String,
    device: Device,
    driver: &DriverName,
    inventory: &Inventory,
) -> Published {
    let attributes = device.attributes.unwrap_or_default().into_iter();
    let attributes: BTreeMap<_, _> =
        attributes.filter_map(|(name, value)| Some((name, literal(value)?))).collect();
    let kind = attributes.get(&format!("{driver}/type")).map(|text| text.trim_matches('"'));
    Published {
        name: name_of(&device.name, inventory),
        pool,
        device: device.name,
        kind: kind.unwrap_or_default().to_owned(),
        attributes,
        taints: device.taints.iter().flatten().map(taint).collect(),
        is_shared: device.allow_multiple_allocations == Some(true),
    }
}

/// Attribute value as a CEL literal.
fn literal(attribute: DeviceAttribute) -> Option<String> {
    let text = |text: String| Value::from(text).to_string();
    let number = attribute.int.map(|number| number.to_string());
    let truth = attribute.bool.map(|truth| truth.to_string());
    attribute.string.map(text).or(number).or(truth).or(attribute.version)
}

fn taint(taint: &DeviceTaint) -> String {
    let value = taint.value.as_deref().map(|value| format!("={value}")).unwrap_or_default();
    format!("{}{value}:{}", taint.key, taint.effect)
}

/// Short name, such as `GPU0`, of a published device. The published name begins with the device's id, in lower case and
/// with `-` for other characters.
pub(super) fn name_of(published: &str, inventory: &Inventory) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let label = |id: &str| id.chars().map(letter).collect::<String>();
    let labels = inventory.devices.iter().map(|device| (label(device.id.as_str()), device));
    let matches = labels.filter(|(label, _)| published.starts_with(label.trim_matches('-')));
    let longest = matches.max_by_key(|(label, _)| label.len());
    longest.map_or_else(|| published.to_owned(), |(_, device)| short_name(device))
}
