//! L: device list of a plugin.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use windlass_kubelet_api::deviceplugin::{self as wire, HEALTHY, UNHEALTHY};

use super::again::{all_back, restarted, restarted_program};
use crate::{
    case::{Case, Checked, Unmet, failed},
    clients::{LIMIT_OF_GO, Listing, allocation, granted, listed},
    stage::{Served, Stage},
};

/// Duration of the measurement of an idle plugin, and the permitted number of its messages.
const QUIET: Duration = Duration::from_secs(3);
const STORM: usize = 3;

/// Number of streams that are opened and dropped before the first measurement, and after it.
const WARM: usize = 300;
const STREAMS: usize = 3000;

/// Growth of memory, in KiB, beyond the size of a cache.
const LEAK_KIB: u64 = 24 * 1024;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "L01",
        sentence: "no device id is listed by two resources: pod status looks ids up without the resource",
        source: "cm/devicemanager/manager.go, UpdateAllocatedResourcesStatus",
        check: |stage| Box::pin(ids_belong_to_one_resource(stage)),
    },
    Case {
        id: "L02",
        sentence: "no device is listed twice: one that is twice in a list counts with both healths",
        source: "cm/devicemanager/manager.go, genericDeviceUpdateCallback",
        check: |stage| Box::pin(devices_are_listed_once(stage)),
    },
    Case {
        id: "L03",
        sentence: "ids have 1 to 63 characters",
        source: "deviceplugin/v1beta1/api.proto, Device.ID",
        check: |stage| Box::pin(ids_are_short(stage)),
    },
    Case {
        id: "L04",
        sentence: "health is Healthy or Unhealthy, to the letter: any other word counts as unhealthy",
        source: "deviceplugin/v1beta1/constants.go; cm/devicemanager/manager.go",
        check: |stage| Box::pin(health_is_spelled_right(stage)),
    },
    Case {
        id: "L05",
        sentence: "a topology names a NUMA node, or is left out: an empty one hides the device",
        source: "apis/podresources/server_v1.go, GetAllocatableResources; cm/devicemanager/devices.go",
        check: |stage| Box::pin(topology_names_a_node(stage)),
    },
    Case {
        id: "L06",
        sentence: "a second stream gets the whole list, and the first stays open",
        source: "Kubernetes up to 1.36 disconnects the newer plugin when an older stream ends",
        check: |stage| Box::pin(streams_live_side_by_side(stage)),
    },
    Case {
        id: "L07",
        sentence: "says nothing while nothing happens: the kubelet writes its checkpoint for each list",
        source: "cm/devicemanager/manager.go, writeCheckpoint",
        check: |stage| Box::pin(is_quiet(stage)),
    },
    Case {
        id: "L08",
        sentence: "a list has less than 4 MiB: the kubelet drops the plugin for a larger one",
        source: "google.golang.org/grpc, defaultClientMaxReceiveMessageSize",
        check: |stage| Box::pin(list_fits(stage)),
    },
    Case {
        id: "L09",
        sentence: "lists the same ids after it was killed and started again",
        source: "cm/devicemanager/manager.go: the checkpoint has ids, and pods keep them",
        check: |stage| Box::pin(ids_outlive_the_program(stage)),
    },
    Case {
        id: "L10",
        sentence: "lists the same ids after the kubelet has restarted",
        source: "cm/devicemanager/manager.go, readCheckpoint",
        check: |stage| Box::pin(ids_outlive_the_kubelet(stage)),
    },
    Case {
        id: "L11",
        sentence: "lets streams go that nobody reads any more: 3,000 leave no memory behind",
        source: "cm/devicemanager/plugin/v1beta1/client.go: one stream for each registration",
        check: |stage| Box::pin(streams_are_let_go(stage)),
    },
    Case {
        id: "L12",
        sentence: "answers while somebody has a stream open and does not read it",
        source: "cm/devicemanager/endpoint.go, listAndWatch",
        check: |stage| Box::pin(an_unread_stream_blocks_nobody(stage)),
    },
];

/// First list of every resource, as on the wire.
async fn lists(stage: &mut Stage) -> Result<Vec<(Served, Vec<wire::Device>)>, Unmet> {
    let (all, limit) = (stage.started().await?, stage.subject.within.answer);
    let mut lists = Vec::new();
    for served in all {
        let (_stream, devices) = listed(&served.resource, limit, &mut served.dial().await?).await?;
        lists.push((served, devices));
    }
    Ok(lists)
}

/// Checks each listed device. The check returns the flaw.
async fn every_device(
    stage: &mut Stage,
    wrong: impl Fn(&wire::Device) -> Option<String>,
) -> Checked {
    let all = lists(stage).await?;
    let devices =
        || all.iter().flat_map(|(served, devices)| devices.iter().map(move |it| (served, it)));
    match devices().find_map(|(served, it)| Some((served, it, wrong(it)?))) {
        Some((served, it, why)) => failed(format!("{} of {} {why}", it.id, served.resource)),
        None => Ok(format!("{} devices", devices().count())),
    }
}

async fn ids_belong_to_one_resource(stage: &mut Stage) -> Checked {
    let served = stage.started().await?;
    let mut owners = BTreeMap::new();
    let all = served.iter().flat_map(|it| it.devices.iter().map(move |device| (it, &device.id)));
    for (Served { resource, .. }, id) in all {
        if let Some(other) = owners.insert(id, resource) {
            return failed(format!("{id} is listed by {other} and by {resource}"));
        }
    }
    Ok(format!("{} ids", owners.len()))
}

async fn devices_are_listed_once(stage: &mut Stage) -> Checked {
    for (served, devices) in lists(stage).await? {
        let mut seen = BTreeSet::new();
        if let Some(twice) = devices.iter().find(|it| !seen.insert(&it.id)) {
            return failed(format!("{} lists {} twice", served.resource, twice.id));
        }
    }
    Ok("every id once".to_owned())
}

async fn ids_are_short(stage: &mut Stage) -> Checked {
    let wrong = |device: &wire::Device| match device.id.chars().count() {
        1..=63 => None,
        length => Some(format!("has {length} characters")),
    };
    every_device(stage, wrong).await
}

async fn health_is_spelled_right(stage: &mut Stage) -> Checked {
    let wrong = |device: &wire::Device| {
        let is_known = [HEALTHY, UNHEALTHY].contains(&device.health.as_str());
        (!is_known).then(|| format!("is {:?}", device.health))
    };
    every_device(stage, wrong).await
}

async fn topology_names_a_node(stage: &mut Stage) -> Checked {
    let wrong = |device: &wire::Device| {
        let nodes = &device.topology.as_ref()?.nodes;
        if nodes.is_empty() {
            return Some("has a topology without a node".to_owned());
        }
        let bad = nodes.iter().find(|node| node.id < 0)?;
        Some(format!("is on NUMA node {}", bad.id))
    };
    every_device(stage, wrong).await
}

async fn streams_live_side_by_side(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started().await?, stage.subject.within.answer);
    for served in &all {
        let since = stage.now();
        let (first, mut one) = listed(&served.resource, limit, &mut served.dial().await?).await?;
        let (second, mut other) =
            listed(&served.resource, limit, &mut served.dial().await?).await?;
        for list in [&mut one, &mut other] {
            // The kubelet keeps devices in a map, so their order is free.
            list.sort_by(|a, b| a.id.cmp(&b.id));
        }
        if one != other {
            return failed(format!("{}: {one:?} and {other:?}", served.resource));
        }
        for Listing(mut stream) in [first, second] {
            if let Ok(ended @ (None | Some(Err(_)))) = timeout(limit, stream.next()).await {
                return failed(format!("{}: a stream ended: {ended:?}", served.resource));
            }
        }
        let (events, _) = stage.calls().since(since);
        let is_end = |event: &&windlass_kubelet_sim::Event| {
            matches!(event, windlass_kubelet_sim::Event::StreamEnded { .. })
        };
        if let Some(event) = events.iter().find(is_end) {
            return failed(format!("the kubelet's own stream ended: {event:?}"));
        }
    }
    Ok(format!("two streams more beside the kubelet's, {} resources", all.len()))
}

async fn is_quiet(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started().await?, stage.subject.within.answer);
    let (Listing(mut stream), _) =
        listed(&all[0].resource, limit, &mut all[0].dial().await?).await?;
    let mut messages = 0;
    let listening = async {
        while let Some(Ok(_)) = stream.next().await {
            messages += 1;
        }
    };
    let _over = timeout(QUIET, listening).await;
    match messages {
        0..=STORM => Ok(format!("{messages} lists in {QUIET:?}")),
        more => failed(format!("{more} lists in {QUIET:?}, and nothing had happened")),
    }
}

async fn list_fits(stage: &mut Stage) -> Checked {
    let mut largest = 0;
    for (served, devices) in lists(stage).await? {
        let bytes = prost::Message::encoded_len(&wire::ListAndWatchResponse { devices });
        if bytes > LIMIT_OF_GO {
            return failed(format!("the list of {} has {bytes} bytes", served.resource));
        }
        largest = largest.max(bytes);
    }
    Ok(format!("{largest} bytes"))
}

async fn ids_outlive_the_program(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    restarted_program(stage, &before).await?;
    same_ids(stage, &before)
}

async fn ids_outlive_the_kubelet(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    restarted(stage).await?;
    stage.until("all resources are back", all_back(&before)).await?;
    same_ids(stage, &before)
}

fn same_ids(stage: &Stage, before: &[Served]) -> Checked {
    let ids = |all: &[Served]| -> BTreeMap<String, BTreeSet<String>> {
        let of = |it: &Served| it.devices.iter().map(|device| device.id.clone()).collect();
        all.iter().map(|it| (it.resource.clone(), of(it))).collect()
    };
    let (before, after) = (ids(before), ids(&Served::all(&stage.kubelet.node())));
    if before == after {
        Ok("the same ids".into())
    } else {
        failed(format!("{before:?}, then {after:?}"))
    }
}

async fn streams_are_let_go(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started().await?, stage.subject.within.answer);
    let (served, mut client) = (&all[0], all[0].dial().await?);
    for _ in 0..WARM {
        listed(&served.resource, limit, &mut client).await?;
    }
    let before = stage.process().usage();
    for _ in 0..STREAMS {
        listed(&served.resource, limit, &mut client).await?;
    }
    let after = stage.process().usage();
    let grown = after.resident_kib.saturating_sub(before.resident_kib);
    if grown > LEAK_KIB {
        return failed(format!("{grown} KiB more after {STREAMS} streams that were dropped"));
    }
    Ok(format!("{grown} KiB more after {STREAMS} streams"))
}

async fn an_unread_stream_blocks_nobody(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let mut first = served.dial().await?;
        let what = format!("ListAndWatch of {}", served.resource);
        let _unread = granted(&what, limit, first.list_and_watch(wire::Empty {})).await?;
        let mut second = served.dial().await?;
        listed(&served.resource, limit, &mut second).await?;
        let request = allocation(&[vec![served.healthy()[0].clone()]]);
        granted("Allocate beside it", limit, second.allocate(request)).await?;
    }
    Ok(format!("{} resources answer", all.len()))
}
