//! The driver's slices. Missing slices are published again.

use std::time::Duration;

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use tokio::time::sleep;

use crate::{DRIVER, defect::Defect};

/// Interval between checks of the slices.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Number of slices in the pool, and of devices in each slice.
const SLICE_COUNT: usize = 2;
const DEVICES_PER_SLICE: usize = 3;

/// Name of the device that claims may share.
const SHARED_DEVICE: &str = "shared";

/// Names of all devices.
pub(crate) fn devices() -> Vec<String> {
    let names = (0..SLICE_COUNT * DEVICES_PER_SLICE).map(|number| format!("device-{number}"));
    names.chain([SHARED_DEVICE.to_owned()]).collect()
}

/// Publishes the slices until it is dropped.
pub(crate) async fn publish(client: Client, node: &str, defect: Defect) {
    let slices = Api::<ResourceSlice>::all(client.clone());
    let mut is_published = false;
    loop {
        if !(is_published && defect == Defect::PublishesOnce) {
            let node = (node, Api::<Node>::all(client.clone()));
            // After an error the next iteration tries again.
            is_published = create_missing(&slices, node, defect).await.is_ok();
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Creates missing slices.
async fn create_missing(
    slices: &Api<ResourceSlice>,
    (name, nodes): (&str, Api<Node>),
    defect: Defect,
) -> kube::Result<()> {
    let node = nodes.get(name).await?;
    let selector = format!("spec.driver={DRIVER},spec.nodeName={name}");
    let own_slices = slices.list(&ListParams::default().fields(&selector)).await?;
    if defect == Defect::DeletesOthersSlices {
        for slice in slices.list(&ListParams::default()).await? {
            if !own_slices.iter().any(|own| own.name_any() == slice.name_any()) {
                slices.delete(&slice.name_any(), &DeleteParams::default()).await?;
            }
        }
    }
    for index in 0..SLICE_COUNT {
        let prefix = format!("{index:05x}-");
        if !own_slices.iter().any(|slice| slice.name_any().starts_with(&prefix)) {
            if defect == Defect::InvalidSlices {
                let mut invalid = new_slice(index, (name, &node), defect);
                let devices = invalid.spec.devices.get_or_insert_default();
                "Device_0".clone_into(&mut devices[0].name);
                let _ = slices.create(&PostParams::default(), &invalid).await;
            }
            slices.create(&PostParams::default(), &new_slice(index, (name, &node), defect)).await?;
        }
    }
    Ok(())
}

fn new_slice(index: usize, (name, node): (&str, &Node), defect: Defect) -> ResourceSlice {
    let mut devices: Vec<_> = devices()[index * DEVICES_PER_SLICE..(index + 1) * DEVICES_PER_SLICE]
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    if index == 0 {
        devices.push(json!({"name": SHARED_DEVICE, "allowMultipleAllocations": true}));
    }
    let count = if defect == Defect::WrongSliceCount { SLICE_COUNT + 1 } else { SLICE_COUNT };
    let generation = if defect == Defect::MixedGenerations { 1 + index } else { 1 };
    let pool_node = if defect == Defect::SlicesOfAnotherNode { "another" } else { name };
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {
            "generateName": format!("{index:05x}-{DRIVER}-{name}-"),
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": name, "controller": true,
                "uid": node.uid().unwrap_or_default(),
            }],
        },
        "spec": {
            "driver": DRIVER, "nodeName": pool_node, "devices": devices,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": count},
        },
    });
    serde_json::from_value(slice).expect("a slice")
}
