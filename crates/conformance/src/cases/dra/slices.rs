//! D08 to D13: published slices, and their return after a loss.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::resource::v1::ResourceSlice, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::time::sleep;

use super::published;
use crate::{
    case::{Case, Checked, failed},
    cases::again::restarted,
    stage::{Driver, LOOK, Stage, devices_in},
    subject::NODE,
};

/// Downtime of the API server.
const AWAY: Duration = Duration::from_secs(2);

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D08",
        sentence: "publishes slices, none of which the API server refuses as invalid",
        source: "pkg/apis/resource/validation/validation.go, ValidateResourceSlice",
        check: |stage| Box::pin(none_is_refused(stage)),
    },
    Case {
        id: "D09",
        sentence: "says in each slice how many its pool has, in one generation, each device once",
        source: "k8s.io/dynamic-resource-allocation/structured: an incomplete or invalid pool gives no device",
        check: |stage| Box::pin(pools_are_whole(stage)),
    },
    Case {
        id: "D10",
        sentence: "publishes the devices of its node for that node",
        source: "resource/v1/types.go, ResourceSliceSpec.NodeName; cm/dra/plugin/dra_plugin_manager.go, wipeResourceSlices",
        check: |stage| Box::pin(slices_are_of_the_node(stage)),
    },
    Case {
        id: "D11",
        sentence: "has its slices back within 95 s after a starting kubelet has deleted them",
        source: "cm/dra/plugin/dra_plugin_manager.go, NewDRAPluginManager: all slices of the node; \
                 k8s.io/dynamic-resource-allocation/resourceslice: DefaultSyncDelay, DefaultMutationCacheTTL",
        check: |stage| Box::pin(slices_come_back(stage)),
    },
    Case {
        id: "D12",
        sentence: "has its slices back after the API server was away while somebody deleted them",
        source: "k8s.io/dynamic-resource-allocation/resourceslice: informer, and a queue with a back-off",
        check: |stage| Box::pin(slices_come_back_after_an_absence(stage)),
    },
    Case {
        id: "D13",
        sentence: "leaves slices of other drivers and other nodes alone",
        source: "k8s.io/dynamic-resource-allocation/resourceslice: selected by spec.driver and spec.nodeName",
        check: |stage| Box::pin(others_stay(stage)),
    },
];

async fn none_is_refused(stage: &mut Stage) -> Checked {
    let (_, slices) = published(stage).await?;
    let refused = stage.cluster.objects().refused();
    let invalid = refused.iter().find(|(asked, refusal)| {
        asked.path.contains("/resourceslices") && [400, 422].contains(&refusal.code)
    });
    match invalid {
        Some((_, refusal)) => failed(refusal.to_string()),
        None => Ok(told(&slices)),
    }
}

fn told(slices: &[ResourceSlice]) -> String {
    let pools: BTreeSet<_> = slices.iter().map(|slice| &slice.spec.pool.name).collect();
    let devices = devices_in(slices).len();
    format!("{devices} devices in {} slices of {} pools", slices.len(), pools.len())
}

async fn pools_are_whole(stage: &mut Stage) -> Checked {
    let (_, slices) = published(stage).await?;
    let mut pools = BTreeMap::<&str, Vec<&ResourceSlice>>::new();
    for slice in &slices {
        pools.entry(&slice.spec.pool.name).or_default().push(slice);
    }
    for (pool, slices) in pools {
        let generations: BTreeSet<_> = slices.iter().map(|it| it.spec.pool.generation).collect();
        if generations.len() > 1 {
            return failed(format!("pool {pool} has slices of generations {generations:?}"));
        }
        let mut seen = BTreeSet::new();
        let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        for device in devices {
            if !seen.insert(&device.name) {
                return failed(format!("pool {pool} has device {} twice", device.name));
            }
        }
    }
    Ok(told(&slices))
}

async fn slices_are_of_the_node(stage: &mut Stage) -> Checked {
    let (_, slices) = published(stage).await?;
    let elsewhere = |slice: &&ResourceSlice| {
        slice.spec.node_name.as_ref().is_some_and(|node| node.as_str() != NODE)
    };
    if let Some(slice) = slices.iter().find(elsewhere) {
        return failed(format!(
            "a slice of pool {} is for node {:?}, not {NODE:?}",
            slice.spec.pool.name, slice.spec.node_name
        ));
    }
    let owners: BTreeSet<_> = slices
        .iter()
        .flat_map(|slice| slice.metadata.owner_references.iter().flatten())
        .map(|owner| format!("{} {}", owner.kind, owner.name))
        .collect();
    Ok(format!("{}, owned by {owners:?}", told(&slices)))
}

async fn slices_come_back(stage: &mut Stage) -> Checked {
    let (driver, before) = published(stage).await?;
    restarted(stage).await?;
    back(stage, &driver, &before).await
}

/// Waits until new slices have all devices of the slices before, which are deleted or about to be.
async fn back(stage: &mut Stage, driver: &Driver, before: &[ResourceSlice]) -> Checked {
    let (begun, limit) = (Instant::now(), stage.subject.within.republish);
    loop {
        let mut slices = stage.slices(driver);
        let is_old =
            |slice: &ResourceSlice| before.iter().any(|it| it.metadata.uid == slice.metadata.uid);
        slices.retain(|slice| !is_old(slice));
        let gone = devices_in(before).difference(&devices_in(&slices)).count();
        if gone == 0 {
            return Ok(format!("{} after {:.1?}", told(&slices), begun.elapsed()));
        }
        stage.alive()?;
        if begun.elapsed() >= limit {
            return failed(format!("{gone} devices are in no slice after {limit:?}"));
        }
        sleep(LOOK).await;
    }
}

async fn slices_come_back_after_an_absence(stage: &mut Stage) -> Checked {
    let (driver, before) = published(stage).await?;
    stage.cluster.server_mut().go_away().await;
    stage.cluster.objects().wipe_driver_slices(NODE, &driver.name);
    sleep(AWAY).await;
    stage.alive()?;
    stage.cluster.server_mut().come_back();
    back(stage, &driver, &before).await
}

async fn others_stay(stage: &mut Stage) -> Checked {
    let (driver, mine) = published(stage).await?;
    let another = |name: &str, driver: &str, node: &str| {
        let mut slice = mine[0].clone();
        slice.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        driver.clone_into(&mut slice.spec.driver);
        slice.spec.node_name = Some(node.to_owned());
        slice.spec.node_selector = None;
        slice.spec.pool.resource_slice_count = 1;
        name.clone_into(&mut slice.spec.pool.name);
        slice
    };
    let others = [
        another("another-driver", "another.example.com", NODE),
        another("another-node", &driver.name, "another-node"),
    ];
    for slice in &others {
        stage.cluster.objects().put(slice);
    }
    // A restart makes the driver read all its slices.
    stage.killed_and_started().await?;
    sleep(AWAY).await;
    for slice in &others {
        let name = slice.metadata.name.clone().unwrap_or_default();
        let kept = stage.cluster.objects().get::<ResourceSlice>("", &name);
        if kept.is_none_or(|kept| kept.spec != slice.spec) {
            return failed(format!("{name}'s slice is gone, or another"));
        }
    }
    Ok("one of another driver and one of another node are as they were".into())
}
