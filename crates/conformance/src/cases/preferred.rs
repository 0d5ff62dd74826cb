//! P: responses to `GetPreferredAllocation`, of plugins that announce it.

use std::{collections::BTreeSet, time::Instant};

use windlass_kubelet_api::deviceplugin as wire;

use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    clients::{CallDurations, call_ok_within, call_within},
    testbed::{Client, ServedResource, Testbed},
};

/// Number of sequential requests.
const SEQUENTIAL_CALLS: usize = 50;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "P01",
        sentence: "prefers as many devices as requested, for every number",
        source: "deviceplugin/v1beta1/api.proto, GetPreferredAllocation",
        check: |testbed| Box::pin(every_size(testbed)),
    },
    Case {
        id: "P02",
        sentence: "includes each device that a request names as must_include",
        source: "deviceplugin/v1beta1/api.proto, must_include_deviceIDs",
        check: |testbed| Box::pin(includes_required_devices(testbed)),
    },
    Case {
        id: "P03",
        sentence: "prefers available devices only",
        source: "cm/devicemanager/manager.go, devicesToAllocate: the kubelet drops others",
        check: |testbed| Box::pin(prefers_available_devices(testbed)),
    },
    Case {
        id: "P04",
        sentence: "prefers the same devices for any order of the available ids",
        source: "cm/devicemanager/manager.go: ids come in the order of a Go map",
        check: |testbed| Box::pin(prefers_the_same(testbed)),
    },
    Case {
        id: "P05",
        sentence: "returns one response for each container of a request",
        source: "deviceplugin/v1beta1/api.proto, PreferredAllocationResponse",
        check: |testbed| Box::pin(answers_each_container(testbed)),
    },
    Case {
        id: "P06",
        sentence: "answers half of 50 requests within 100 ms",
        source: "cm/devicemanager/endpoint.go, getPreferredAllocation: no deadline",
        check: |testbed| Box::pin(answers_fast(testbed)),
    },
    Case {
        id: "P07",
        sentence: "survives a request for more devices than are available",
        source: "deviceplugin/v1beta1/api.proto, allocation_size",
        check: |testbed| {
            Box::pin(check_survives(testbed, |ids| request_for(ids, &[], size_of(ids.len() + 1))))
        },
    },
    Case {
        id: "P08",
        sentence: "survives a request for zero devices, and for a negative number",
        source: "deviceplugin/v1beta1/api.proto, allocation_size is an int32",
        check: |testbed| Box::pin(survives_odd_sizes(testbed)),
    },
    Case {
        id: "P09",
        sentence: "survives a request for fewer devices than must be included",
        source: "deviceplugin/v1beta1/api.proto, must_include_deviceIDs",
        check: |testbed| Box::pin(check_survives(testbed, |ids| request_for(ids, ids, 1))),
    },
    Case {
        id: "P10",
        sentence: "survives a request whose must_include device is not available",
        source: "deviceplugin/v1beta1/api.proto, must_include_deviceIDs",
        check: |testbed| {
            Box::pin(check_survives(testbed, |ids| request_for(&ids[1..], &ids[..1], 1)))
        },
    },
    Case {
        id: "P11",
        sentence: "survives a request with devices that it does not list",
        source: "cm/devicemanager/manager.go: a list may change while the kubelet calls",
        check: |testbed| {
            Box::pin(check_survives(testbed, |_| request_for(&["no-such".to_owned()], &[], 1)))
        },
    },
    Case {
        id: "P12",
        sentence: "survives a request without available devices",
        source: "deviceplugin/v1beta1/api.proto, available_deviceIDs",
        check: |testbed| Box::pin(check_survives(testbed, |_| request_for(&[], &[], 1))),
    },
];

/// Resources whose plugins announce `GetPreferredAllocation`, each with its client.
async fn resources_with_preference(
    testbed: &mut Testbed,
) -> Result<Vec<(ServedResource, Client)>, CheckError> {
    let mut resources = Vec::new();
    for served in testbed.start_with_devices().await? {
        if served.options.get_preferred_allocation_available {
            let client = served.dial().await?;
            resources.push((served, client));
        }
    }
    if resources.is_empty() {
        return not_applicable("GetDevicePluginOptions does not announce GetPreferredAllocation");
    }
    Ok(resources)
}

fn request_for(
    available: &[String],
    must_include: &[String],
    size: i32,
) -> wire::PreferredAllocationRequest {
    let container = wire::ContainerPreferredAllocationRequest {
        available_device_i_ds: available.to_vec(),
        must_include_device_i_ds: must_include.to_vec(),
        allocation_size: size,
    };
    wire::PreferredAllocationRequest { container_requests: vec![container] }
}

/// Response to a valid request.
async fn get_preferred_allocation(
    testbed: &Testbed,
    client: &mut Client,
    request: wire::PreferredAllocationRequest,
) -> Result<Vec<String>, CheckError> {
    let limit = testbed.subject.limits.answer;
    let container = &request.container_requests[0];
    let (size, must_include) =
        (container.allocation_size, container.must_include_device_i_ds.clone());
    let call_name = format!("GetPreferredAllocation of {size} with {must_include:?}");
    let response =
        call_ok_within(&call_name, limit, client.get_preferred_allocation(request)).await?;
    match response.container_responses.as_slice() {
        [response] => Ok(response.device_i_ds.clone()),
        responses => failed(format!("{call_name}: {} responses", responses.len())),
    }
}

fn size_of(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

async fn every_size(testbed: &mut Testbed) -> CheckResult {
    let mut requests = 0;
    for (served, mut client) in resources_with_preference(testbed).await? {
        let ids = served.healthy_ids();
        for size in 1..=ids.len() {
            let preferred = get_preferred_allocation(
                testbed,
                &mut client,
                request_for(&ids, &[], size_of(size)),
            )
            .await?;
            let distinct: BTreeSet<_> = preferred.iter().collect();
            if distinct.len() != size || preferred.len() != size {
                return failed(format!("{}: {size} of {ids:?}: {preferred:?}", served.resource));
            }
            requests += 1;
        }
    }
    Ok(format!("{requests} requests"))
}

async fn includes_required_devices(testbed: &mut Testbed) -> CheckResult {
    let mut requests = 0;
    for (served, mut client) in resources_with_preference(testbed).await? {
        let ids = served.healthy_ids();
        for id in &ids {
            let must_include = [id.clone()];
            let size = size_of(ids.len().min(2));
            let preferred = get_preferred_allocation(
                testbed,
                &mut client,
                request_for(&ids, &must_include, size),
            )
            .await?;
            if !preferred.contains(id) {
                return failed(format!("{}: {id} is not in {preferred:?}", served.resource));
            }
            requests += 1;
        }
    }
    Ok(format!("{requests} requests"))
}

async fn prefers_available_devices(testbed: &mut Testbed) -> CheckResult {
    for (served, mut client) in resources_with_preference(testbed).await? {
        let mut ids = served.healthy_ids();
        if ids.len() > 1 {
            ids.remove(0);
        }
        let preferred =
            get_preferred_allocation(testbed, &mut client, request_for(&ids, &[], 1)).await?;
        if let Some(id) = preferred.iter().find(|id| !ids.contains(id)) {
            return failed(format!("{}: {id} is not in {ids:?}", served.resource));
        }
    }
    Ok("all preferred devices are available".to_owned())
}

async fn prefers_the_same(testbed: &mut Testbed) -> CheckResult {
    for (served, mut client) in resources_with_preference(testbed).await? {
        let ids = served.healthy_ids();
        let size = size_of(ids.len().div_ceil(2));
        let reversed: Vec<_> = ids.iter().rev().cloned().collect();
        let mut preferences = BTreeSet::new();
        for ids in [&ids, &reversed, &ids] {
            let preferred =
                get_preferred_allocation(testbed, &mut client, request_for(ids, &[], size)).await?;
            preferences.insert(preferred.into_iter().collect::<BTreeSet<_>>());
        }
        if preferences.len() > 1 {
            return failed(format!("{}: {preferences:?}", served.resource));
        }
    }
    Ok("the same devices three times".to_owned())
}

async fn answers_each_container(testbed: &mut Testbed) -> CheckResult {
    let limit = testbed.subject.limits.answer;
    for (served, mut client) in resources_with_preference(testbed).await? {
        let single = request_for(&served.healthy_ids(), &[], 1).container_requests;
        let container_requests = [single.clone(), single].concat();
        let request = wire::PreferredAllocationRequest { container_requests };
        let call_name = format!("GetPreferredAllocation of {}", served.resource);
        let response =
            call_ok_within(&call_name, limit, client.get_preferred_allocation(request)).await?;
        let sizes: Vec<_> = response
            .container_responses
            .iter()
            .map(|container| container.device_i_ds.len())
            .collect();
        if sizes != [1, 1] {
            return failed(format!("{call_name}: for two containers {sizes:?} devices"));
        }
    }
    Ok("one response each".to_owned())
}

async fn answers_fast(testbed: &mut Testbed) -> CheckResult {
    let resources = resources_with_preference(testbed).await?;
    let mut durations = CallDurations::of(testbed.process());
    for (served, mut client) in resources {
        let ids = served.healthy_ids();
        for size in (1..=ids.len()).cycle().take(SEQUENTIAL_CALLS) {
            let started_at = Instant::now();
            get_preferred_allocation(testbed, &mut client, request_for(&ids, &[], size_of(size)))
                .await?;
            durations.push(started_at.elapsed());
        }
    }
    durations.check_median(testbed.process())
}

async fn survives_odd_sizes(testbed: &mut Testbed) -> CheckResult {
    check_survives(testbed, |ids| request_for(ids, &[], 0)).await?;
    for (_, mut client) in resources_with_preference(testbed).await? {
        let ids = Vec::new();
        let limit = testbed.subject.limits.answer;
        let call = client.get_preferred_allocation(request_for(&ids, &[], -1));
        // Any response passes.
        let _ = call_within("GetPreferredAllocation of -1", limit, call).await?;
    }
    check_survives(testbed, |ids| request_for(ids, &[], i32::MIN)).await
}

/// Checks that an invalid request gets a response or an error, and that a valid one succeeds afterwards.
async fn check_survives(
    testbed: &mut Testbed,
    invalid: impl Fn(&[String]) -> wire::PreferredAllocationRequest,
) -> CheckResult {
    let (mut outcome, limit) = (String::new(), testbed.subject.limits.answer);
    for (served, mut client) in resources_with_preference(testbed).await? {
        let ids = served.healthy_ids();
        let call = client.get_preferred_allocation(invalid(&ids));
        outcome = match call_within("an invalid GetPreferredAllocation", limit, call).await? {
            Ok(response) => {
                let container = response.container_responses.first();
                let count = container.map_or(0, |container| container.device_i_ds.len());
                format!("answered with {count} devices")
            }
            Err(status) => format!("refused: {}", status.message()),
        };
        get_preferred_allocation(testbed, &mut client, request_for(&ids, &[], 1)).await?;
    }
    testbed.check_alive()?;
    Ok(outcome)
}
