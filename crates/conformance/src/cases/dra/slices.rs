//! D08 to D13: published slices, and their restoration after a deletion.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::resource::v1::ResourceSlice, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::time::sleep;

use super::driver_with_slices;
use crate::{
    case::{Case, CheckResult, failed},
    cases::again::restart_kubelet,
    subject::NODE_NAME,
    testbed::{Driver, POLL_INTERVAL, Testbed, devices_in},
};

/// Downtime of the API server.
const API_SERVER_DOWNTIME: Duration = Duration::from_secs(2);

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D08",
        sentence: "publishes slices that the API server accepts as valid",
        source: "pkg/apis/resource/validation/validation.go, ValidateResourceSlice",
        check: |testbed| Box::pin(none_is_refused(testbed)),
    },
    Case {
        id: "D09",
        sentence: "publishes complete pools: the number of slices, one generation, each device once",
        source: "k8s.io/dynamic-resource-allocation/structured: incomplete and invalid pools give no device",
        check: |testbed| Box::pin(pools_are_complete(testbed)),
    },
    Case {
        id: "D10",
        sentence: "publishes no slice for another node",
        source: "resource/v1/types.go, ResourceSliceSpec.NodeName; cm/dra/plugin/dra_plugin_manager.go, wipeResourceSlices",
        check: |testbed| Box::pin(slices_are_of_the_node(testbed)),
    },
    Case {
        id: "D11",
        sentence: "restores its slices within 95 s after a starting kubelet deletes them",
        source: "cm/dra/plugin/dra_plugin_manager.go, NewDRAPluginManager: all slices of the node; \
                 k8s.io/dynamic-resource-allocation/resourceslice: DefaultSyncDelay, DefaultMutationCacheTTL",
        check: |testbed| Box::pin(slices_are_restored(testbed)),
    },
    Case {
        id: "D12",
        sentence: "restores slices that were deleted while the API server was down",
        source: "k8s.io/dynamic-resource-allocation/resourceslice: informer, and a queue with a back-off",
        check: |testbed| Box::pin(slices_are_restored_after_an_outage(testbed)),
    },
    Case {
        id: "D13",
        sentence: "leaves slices of other drivers and other nodes alone",
        source: "k8s.io/dynamic-resource-allocation/resourceslice: selected by driver and nodeName",
        check: |testbed| Box::pin(other_slices_stay(testbed)),
    },
];

async fn none_is_refused(testbed: &mut Testbed) -> CheckResult {
    let (_, slices) = driver_with_slices(testbed).await?;
    let refused = testbed.cluster.objects().refused_requests();
    let invalid = refused.iter().find(|(request, refusal)| {
        request.path.contains("/resourceslices") && [400, 422].contains(&refusal.code)
    });
    match invalid {
        Some((_, refusal)) => failed(refusal.to_string()),
        None => Ok(summary(&slices)),
    }
}

fn summary(slices: &[ResourceSlice]) -> String {
    let pools: BTreeSet<_> = slices.iter().map(|slice| &slice.spec.pool.name).collect();
    let devices = devices_in(slices).len();
    format!("{devices} devices in {} slices of {} pools", slices.len(), pools.len())
}

async fn pools_are_complete(testbed: &mut Testbed) -> CheckResult {
    let (_, slices) = driver_with_slices(testbed).await?;
    let mut pools = BTreeMap::<&str, Vec<&ResourceSlice>>::new();
    for slice in &slices {
        pools.entry(&slice.spec.pool.name).or_default().push(slice);
    }
    for (pool, slices) in pools {
        let generations: BTreeSet<_> =
            slices.iter().map(|slice| slice.spec.pool.generation).collect();
        if generations.len() > 1 {
            return failed(format!("pool {pool} has slices of generations {generations:?}"));
        }
        let mut names = BTreeSet::new();
        let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        for device in devices {
            if !names.insert(&device.name) {
                return failed(format!("pool {pool} lists device {} twice", device.name));
            }
        }
    }
    Ok(summary(&slices))
}

async fn slices_are_of_the_node(testbed: &mut Testbed) -> CheckResult {
    let (_, slices) = driver_with_slices(testbed).await?;
    let is_of_another_node = |slice: &&ResourceSlice| {
        slice.spec.node_name.as_ref().is_some_and(|node| node.as_str() != NODE_NAME)
    };
    if let Some(slice) = slices.iter().find(is_of_another_node) {
        return failed(format!(
            "a slice of pool {} is for node {:?}, not {NODE_NAME:?}",
            slice.spec.pool.name, slice.spec.node_name
        ));
    }
    let owners: BTreeSet<_> = slices
        .iter()
        .flat_map(|slice| slice.metadata.owner_references.iter().flatten())
        .map(|owner| format!("{} {}", owner.kind, owner.name))
        .collect();
    Ok(format!("{}, owned by {owners:?}", summary(&slices)))
}

async fn slices_are_restored(testbed: &mut Testbed) -> CheckResult {
    let (driver, before) = driver_with_slices(testbed).await?;
    restart_kubelet(testbed).await?;
    wait_for_restored(testbed, &driver, &before).await
}

/// Waits until new slices have all devices of the `before` slices, which the kubelet or the test deletes.
async fn wait_for_restored(
    testbed: &mut Testbed,
    driver: &Driver,
    before: &[ResourceSlice],
) -> CheckResult {
    let (started_at, limit) = (Instant::now(), testbed.subject.limits.republish);
    loop {
        let mut slices = testbed.slices(driver);
        let is_old =
            |slice: &ResourceSlice| before.iter().any(|old| old.metadata.uid == slice.metadata.uid);
        slices.retain(|slice| !is_old(slice));
        let missing = devices_in(before).difference(&devices_in(&slices)).count();
        if missing == 0 {
            return Ok(format!("{} after {:.1?}", summary(&slices), started_at.elapsed()));
        }
        testbed.check_alive()?;
        if started_at.elapsed() >= limit {
            return failed(format!("{missing} devices are in no slice after {limit:?}"));
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn slices_are_restored_after_an_outage(testbed: &mut Testbed) -> CheckResult {
    let (driver, before) = driver_with_slices(testbed).await?;
    testbed.cluster.server_mut().go_offline().await;
    testbed.cluster.objects().wipe_driver_slices(NODE_NAME, &driver.name);
    sleep(API_SERVER_DOWNTIME).await;
    testbed.check_alive()?;
    testbed.cluster.server_mut().go_online();
    wait_for_restored(testbed, &driver, &before).await
}

async fn other_slices_stay(testbed: &mut Testbed) -> CheckResult {
    let (driver, own_slices) = driver_with_slices(testbed).await?;
    let foreign_slice = |name: &str, driver: &str, node: &str| {
        let mut slice = own_slices[0].clone();
        slice.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        driver.clone_into(&mut slice.spec.driver);
        slice.spec.node_name = Some(node.to_owned());
        slice.spec.node_selector = None;
        slice.spec.pool.resource_slice_count = 1;
        name.clone_into(&mut slice.spec.pool.name);
        slice
    };
    let foreign_slices = [
        foreign_slice("another-driver", "another.example.com", NODE_NAME),
        foreign_slice("another-node", &driver.name, "another-node"),
    ];
    for slice in &foreign_slices {
        testbed.cluster.objects().put(slice);
    }
    // A restarted driver lists its slices, and could delete the others.
    testbed.kill_and_restart_driver().await?;
    sleep(API_SERVER_DOWNTIME).await;
    for slice in &foreign_slices {
        let name = slice.metadata.name.clone().unwrap_or_default();
        let stored = testbed.cluster.objects().get::<ResourceSlice>("", &name);
        if stored.is_none_or(|stored| stored.spec != slice.spec) {
            return failed(format!("the slice {name} was deleted or changed"));
        }
    }
    Ok("a slice of another driver and a slice of another node are unchanged".into())
}
