//! L: device lists that a plugin sends by `ListAndWatch`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use windlass_kubelet_api::deviceplugin::{self as wire, HEALTHY, UNHEALTHY};

use super::again::{all_connected, restart_kubelet, restart_program};
use crate::{
    case::{Case, CheckError, CheckResult, failed},
    clients::{GRPC_MESSAGE_LIMIT, ListStream, allocate_request, call_ok_within, open_list_stream},
    testbed::{ServedResource, Testbed},
};

/// Duration of the idle measurement, and the number of lists that it permits.
const IDLE_TIME: Duration = Duration::from_secs(3);
const MAX_LISTS: usize = 3;

/// Number of streams that the case opens and drops: before the first measurement, and between both.
const WARM_UP_STREAMS: usize = 300;
const STREAMS: usize = 3000;

/// Permitted growth of resident memory, in KiB. Caches may grow by this much.
const MAX_GROWTH_KIB: u64 = 24 * 1024;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "L01",
        sentence: "lists each device id in one resource: pod status looks up ids without the resource",
        source: "cm/devicemanager/manager.go, UpdateAllocatedResourcesStatus",
        check: |testbed| Box::pin(ids_belong_to_one_resource(testbed)),
    },
    Case {
        id: "L02",
        sentence: "lists each device once: a duplicate counts under each health that it is listed with",
        source: "cm/devicemanager/manager.go, genericDeviceUpdateCallback",
        check: |testbed| Box::pin(devices_are_listed_once(testbed)),
    },
    Case {
        id: "L03",
        sentence: "lists ids of 1 to 63 characters",
        source: "deviceplugin/v1beta1/api.proto, Device.ID",
        check: |testbed| Box::pin(ids_are_short(testbed)),
    },
    Case {
        id: "L04",
        sentence: "reports health as exactly Healthy or Unhealthy: any other value counts as unhealthy",
        source: "deviceplugin/v1beta1/constants.go; cm/devicemanager/manager.go",
        check: |testbed| Box::pin(health_is_spelled_right(testbed)),
    },
    Case {
        id: "L05",
        sentence: "names a NUMA node in each topology, or omits it: an empty topology hides the device",
        source: "apis/podresources/server_v1.go, GetAllocatableResources; cm/devicemanager/devices.go",
        check: |testbed| Box::pin(topology_names_a_node(testbed)),
    },
    Case {
        id: "L06",
        sentence: "sends the whole list on a second stream, and keeps the first open",
        source: "Kubernetes up to 1.36 disconnects the newer plugin when an older stream ends",
        check: |testbed| Box::pin(streams_are_independent(testbed)),
    },
    Case {
        id: "L07",
        sentence: "sends no lists while its devices are unchanged: the kubelet writes a checkpoint for each",
        source: "cm/devicemanager/manager.go, writeCheckpoint",
        check: |testbed| Box::pin(sends_no_lists_when_idle(testbed)),
    },
    Case {
        id: "L08",
        sentence: "sends lists of at most 4 MiB: the kubelet drops the plugin for a larger one",
        source: "google.golang.org/grpc, defaultClientMaxReceiveMessageSize",
        check: |testbed| Box::pin(list_fits(testbed)),
    },
    Case {
        id: "L09",
        sentence: "lists the same ids after it is killed and started again",
        source: "cm/devicemanager/manager.go: the checkpoint has ids, and pods keep them",
        check: |testbed| Box::pin(ids_survive_a_program_restart(testbed)),
    },
    Case {
        id: "L10",
        sentence: "lists the same ids after the kubelet has restarted",
        source: "cm/devicemanager/manager.go, readCheckpoint",
        check: |testbed| Box::pin(ids_survive_a_kubelet_restart(testbed)),
    },
    Case {
        id: "L11",
        sentence: "releases streams that clients close: 3,000 of them leak no memory",
        source: "cm/devicemanager/plugin/v1beta1/client.go: one stream for each registration",
        check: |testbed| Box::pin(closed_streams_are_released(testbed)),
    },
    Case {
        id: "L12",
        sentence: "answers while a client holds a stream open without reading it",
        source: "cm/devicemanager/endpoint.go, listAndWatch",
        check: |testbed| Box::pin(unread_streams_block_no_call(testbed)),
    },
];

/// First list of every resource, as on the wire.
async fn first_lists(
    testbed: &mut Testbed,
) -> Result<Vec<(ServedResource, Vec<wire::Device>)>, CheckError> {
    let (resources, limit) = (testbed.start_and_wait().await?, testbed.subject.limits.answer);
    let mut lists = Vec::new();
    for served in resources {
        let (_stream, devices) =
            open_list_stream(&served.resource, limit, &mut served.dial().await?).await?;
        lists.push((served, devices));
    }
    Ok(lists)
}

/// Checks each listed device. `flaw` describes a defect of a device.
async fn check_devices(
    testbed: &mut Testbed,
    flaw: impl Fn(&wire::Device) -> Option<String>,
) -> CheckResult {
    let lists = first_lists(testbed).await?;
    let devices =
        || lists.iter().flat_map(|(served, list)| list.iter().map(move |device| (served, device)));
    match devices().find_map(|(served, device)| Some((served, device, flaw(device)?))) {
        Some((served, device, flaw)) => {
            failed(format!("{} of {} {flaw}", device.id, served.resource))
        }
        None => Ok(format!("{} devices", devices().count())),
    }
}

async fn ids_belong_to_one_resource(testbed: &mut Testbed) -> CheckResult {
    let resources = testbed.start_and_wait().await?;
    let mut resource_by_id = BTreeMap::new();
    let ids = resources
        .iter()
        .flat_map(|served| served.devices.iter().map(move |device| (served, &device.id)));
    for (ServedResource { resource, .. }, id) in ids {
        if let Some(other) = resource_by_id.insert(id, resource) {
            return failed(format!("{id} is listed by {other} and by {resource}"));
        }
    }
    Ok(format!("{} ids", resource_by_id.len()))
}

async fn devices_are_listed_once(testbed: &mut Testbed) -> CheckResult {
    for (served, devices) in first_lists(testbed).await? {
        let mut ids = BTreeSet::new();
        if let Some(duplicate) = devices.iter().find(|device| !ids.insert(&device.id)) {
            return failed(format!("{} lists {} twice", served.resource, duplicate.id));
        }
    }
    Ok("every id once".to_owned())
}

async fn ids_are_short(testbed: &mut Testbed) -> CheckResult {
    let flaw = |device: &wire::Device| match device.id.chars().count() {
        1..=63 => None,
        length => Some(format!("has {length} characters")),
    };
    check_devices(testbed, flaw).await
}

async fn health_is_spelled_right(testbed: &mut Testbed) -> CheckResult {
    let flaw = |device: &wire::Device| {
        let is_known = [HEALTHY, UNHEALTHY].contains(&device.health.as_str());
        (!is_known).then(|| format!("is {:?}", device.health))
    };
    check_devices(testbed, flaw).await
}

async fn topology_names_a_node(testbed: &mut Testbed) -> CheckResult {
    let flaw = |device: &wire::Device| {
        let nodes = &device.topology.as_ref()?.nodes;
        if nodes.is_empty() {
            return Some("has a topology without a node".to_owned());
        }
        let invalid = nodes.iter().find(|node| node.id < 0)?;
        Some(format!("is on NUMA node {}", invalid.id))
    };
    check_devices(testbed, flaw).await
}

async fn streams_are_independent(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_and_wait().await?, testbed.subject.limits.answer);
    for served in &resources {
        let since = testbed.next_sequence();
        let (first_stream, mut first_list) =
            open_list_stream(&served.resource, limit, &mut served.dial().await?).await?;
        let (second_stream, mut second_list) =
            open_list_stream(&served.resource, limit, &mut served.dial().await?).await?;
        for list in [&mut first_list, &mut second_list] {
            // The kubelet keeps devices in a map, so their order is free.
            list.sort_by(|a, b| a.id.cmp(&b.id));
        }
        if first_list != second_list {
            return failed(format!("{}: {first_list:?} and {second_list:?}", served.resource));
        }
        for ListStream(mut stream) in [first_stream, second_stream] {
            if let Ok(end @ (None | Some(Err(_)))) = timeout(limit, stream.next()).await {
                return failed(format!("{}: a stream ended: {end:?}", served.resource));
            }
        }
        let (events, _) = testbed.events().since(since);
        let is_end = |event: &&windlass_kubelet_sim::Event| {
            matches!(event, windlass_kubelet_sim::Event::StreamEnded { .. })
        };
        if let Some(event) = events.iter().find(is_end) {
            return failed(format!("the kubelet's own stream ended: {event:?}"));
        }
    }
    Ok(format!("two more streams beside the kubelet's, {} resources", resources.len()))
}

async fn sends_no_lists_when_idle(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_and_wait().await?, testbed.subject.limits.answer);
    let (ListStream(mut stream), _) =
        open_list_stream(&resources[0].resource, limit, &mut resources[0].dial().await?).await?;
    let mut lists = 0;
    let count_lists = async {
        while let Some(Ok(_)) = stream.next().await {
            lists += 1;
        }
    };
    let _timeout = timeout(IDLE_TIME, count_lists).await;
    match lists {
        0..=MAX_LISTS => Ok(format!("{lists} lists in {IDLE_TIME:?}")),
        _ => failed(format!("{lists} lists in {IDLE_TIME:?}, without a change of devices")),
    }
}

async fn list_fits(testbed: &mut Testbed) -> CheckResult {
    let mut largest = 0;
    for (served, devices) in first_lists(testbed).await? {
        let bytes = prost::Message::encoded_len(&wire::ListAndWatchResponse { devices });
        if bytes > GRPC_MESSAGE_LIMIT {
            return failed(format!("the list of {} has {bytes} bytes", served.resource));
        }
        largest = largest.max(bytes);
    }
    Ok(format!("{largest} bytes"))
}

async fn ids_survive_a_program_restart(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    restart_program(testbed, &before).await?;
    same_ids(testbed, &before)
}

async fn ids_survive_a_kubelet_restart(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    restart_kubelet(testbed).await?;
    testbed.wait_until("all resources are registered again", all_connected(&before)).await?;
    same_ids(testbed, &before)
}

fn same_ids(testbed: &Testbed, before: &[ServedResource]) -> CheckResult {
    let ids = |resources: &[ServedResource]| -> BTreeMap<String, BTreeSet<String>> {
        let device_ids = |served: &ServedResource| {
            served.devices.iter().map(|device| device.id.clone()).collect()
        };
        resources.iter().map(|served| (served.resource.clone(), device_ids(served))).collect()
    };
    let (before, after) = (ids(before), ids(&ServedResource::all(&testbed.kubelet.status())));
    if before == after {
        Ok("the same ids".into())
    } else {
        failed(format!("{before:?}, then {after:?}"))
    }
}

async fn closed_streams_are_released(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_and_wait().await?, testbed.subject.limits.answer);
    let (served, mut client) = (&resources[0], resources[0].dial().await?);
    for _ in 0..WARM_UP_STREAMS {
        open_list_stream(&served.resource, limit, &mut client).await?;
    }
    let before = testbed.process().usage();
    for _ in 0..STREAMS {
        open_list_stream(&served.resource, limit, &mut client).await?;
    }
    let after = testbed.process().usage();
    let growth_kib = after.resident_kib.saturating_sub(before.resident_kib);
    if growth_kib > MAX_GROWTH_KIB {
        return failed(format!("{growth_kib} KiB more after {STREAMS} closed streams"));
    }
    Ok(format!("{growth_kib} KiB more after {STREAMS} closed streams"))
}

async fn unread_streams_block_no_call(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let mut first_client = served.dial().await?;
        let call_name = format!("ListAndWatch of {}", served.resource);
        let _unread =
            call_ok_within(&call_name, limit, first_client.list_and_watch(wire::Empty {})).await?;
        let mut second_client = served.dial().await?;
        open_list_stream(&served.resource, limit, &mut second_client).await?;
        let request = allocate_request(&[vec![served.healthy_ids()[0].clone()]]);
        call_ok_within("Allocate beside an unread stream", limit, second_client.allocate(request))
            .await?;
    }
    Ok(format!("{} resources answer", resources.len()))
}
