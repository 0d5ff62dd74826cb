//! A: responses to valid and invalid `Allocate` requests.

use std::time::Instant;

use crate::{
    case::{Case, CheckResult, failed},
    clients::{CallDurations, GRPC_MESSAGE_LIMIT, allocate_request, call_ok_within, call_within},
    testbed::Testbed,
};
use tokio::task::JoinSet;

/// Number of sequential calls, and of parallel ones.
const SEQUENTIAL_CALLS: usize = 50;
const PARALLEL_CALLS: usize = 32;

/// Length of an unknown id, in characters.
const LONG_ID_CHARS: usize = 100_000;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "A01",
        sentence: "returns the same response to a repeated request: admission may call again",
        source: "cm/devicemanager/manager.go, allocateContainerResources; there is no deallocate",
        check: |testbed| Box::pin(repeats_its_response(testbed)),
    },
    Case {
        id: "A02",
        sentence: "refuses a device that it does not list, and continues to serve",
        source: "deviceplugin/v1beta1/api.proto, Allocate",
        check: |testbed| Box::pin(refuses_unknown_devices(testbed)),
    },
    Case {
        id: "A03",
        sentence: "refuses a request with one unknown device",
        source: "deviceplugin/v1beta1/api.proto, Allocate: an error fails the pod's start",
        check: |testbed| Box::pin(refuses_partly_unknown_requests(testbed)),
    },
    Case {
        id: "A04",
        sentence: "returns one response for each container of a request, in their order",
        source: "deviceplugin/v1beta1/api.proto, AllocateResponse",
        check: |testbed| Box::pin(answers_each_container(testbed)),
    },
    Case {
        id: "A05",
        sentence: "survives a request without containers, and one for no device",
        source: "deviceplugin/v1beta1/api.proto, AllocateRequest",
        check: |testbed| Box::pin(survives_empty_requests(testbed)),
    },
    Case {
        id: "A06",
        sentence: "treats a device that a request names twice as one device, or refuses the request",
        source: "deviceplugin/v1beta1/api.proto, ContainerAllocateRequest",
        check: |testbed| Box::pin(counts_a_device_once(testbed)),
    },
    Case {
        id: "A07",
        sentence: "allocates all its devices in one call, with a response of at most 4 MiB",
        source: "google.golang.org/grpc, defaultClientMaxReceiveMessageSize",
        check: |testbed| Box::pin(allocates_all_in_one_call(testbed)),
    },
    Case {
        id: "A08",
        sentence: "answers half of 50 requests within 100 ms: the kubelet admits no other pod meanwhile",
        source: "cm/devicemanager/endpoint.go, allocate: no deadline, inside the sync loop",
        check: |testbed| Box::pin(answers_fast(testbed)),
    },
    Case {
        id: "A09",
        sentence: "answers 32 parallel requests",
        source: "google.golang.org/grpc: calls of one connection run side by side",
        check: |testbed| Box::pin(answers_in_parallel(testbed)),
    },
    Case {
        id: "A10",
        sentence: "refuses an id of 100,000 characters, and continues to serve",
        source: "deviceplugin/v1beta1/api.proto, Device.ID: 63 characters",
        check: |testbed| Box::pin(refuses_long_ids(testbed)),
    },
    Case {
        id: "A11",
        sentence: "continues to serve after calls that the kubelet cancelled",
        source: "google.golang.org/grpc: a cancelled call resets its stream",
        check: |testbed| Box::pin(survives_cancelled_calls(testbed)),
    },
];

async fn repeats_its_response(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let mut client = served.dial().await?;
        let request = allocate_request(&[vec![served.healthy_ids()[0].clone()]]);
        let call_name = format!("Allocate of {}", served.resource);
        let first = call_ok_within(&call_name, limit, client.allocate(request.clone())).await?;
        let second = call_ok_within(&call_name, limit, client.allocate(request)).await?;
        if first != second {
            return failed(format!("{call_name}: first {first:?}, then {second:?}"));
        }
    }
    Ok(format!("equal responses, {} resources", resources.len()))
}

async fn refuses_unknown_devices(testbed: &mut Testbed) -> CheckResult {
    check_refuses(testbed, |_| vec!["no-such-device".to_owned()]).await
}

async fn refuses_partly_unknown_requests(testbed: &mut Testbed) -> CheckResult {
    check_refuses(testbed, |healthy_id| vec![healthy_id, "no-such-device".to_owned()]).await
}

async fn refuses_long_ids(testbed: &mut Testbed) -> CheckResult {
    check_refuses(testbed, |_| vec!["x".repeat(LONG_ID_CHARS)]).await
}

/// Checks that every resource refuses the ids made from a healthy one, and then still grants the healthy one.
async fn check_refuses(testbed: &mut Testbed, ids: impl Fn(String) -> Vec<String>) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    let mut refusal = String::new();
    for served in &resources {
        let (mut client, healthy_id) = (served.dial().await?, served.healthy_ids()[0].clone());
        let call_name = format!("Allocate of {}", served.resource);
        let request = allocate_request(&[ids(healthy_id.clone())]);
        refusal = match call_within(&call_name, limit, client.allocate(request)).await? {
            Ok(_) => return failed(format!("{call_name}: granted")),
            Err(status) => status.message().chars().take(120).collect(),
        };
        let request = allocate_request(&[vec![healthy_id]]);
        call_ok_within("a valid Allocate afterwards", limit, client.allocate(request)).await?;
    }
    testbed.check_alive()?;
    Ok(format!("refused: {refusal}"))
}

async fn answers_each_container(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let mut client = served.dial().await?;
        let ids: Vec<_> = served.healthy_ids().into_iter().rev().take(3).collect();
        let containers: Vec<_> = ids.iter().map(|id| vec![id.clone()]).collect();
        let call_name = format!("Allocate of {} for {} containers", served.resource, ids.len());
        let joint_response =
            call_ok_within(&call_name, limit, client.allocate(allocate_request(&containers)))
                .await?;
        let mut separate_responses = Vec::new();
        for container in containers {
            let response =
                call_ok_within(&call_name, limit, client.allocate(allocate_request(&[container])))
                    .await?;
            separate_responses.extend(response.container_responses);
        }
        if joint_response.container_responses != separate_responses {
            return failed(format!(
                "{call_name}: {:?}; in separate calls {separate_responses:?}",
                joint_response.container_responses
            ));
        }
    }
    Ok(format!("as in separate calls, {} resources", resources.len()))
}

async fn survives_empty_requests(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let mut client = served.dial().await?;
        for request in [allocate_request(&[]), allocate_request(&[Vec::new()])] {
            let containers = request.container_requests.len();
            let call_name = format!("Allocate of nothing for {containers} containers");
            if let Ok(response) = call_within(&call_name, limit, client.allocate(request)).await?
                && response.container_responses.len() != containers
            {
                return failed(format!(
                    "{call_name}: {} responses",
                    response.container_responses.len()
                ));
            }
        }
        let request = allocate_request(&[vec![served.healthy_ids()[0].clone()]]);
        call_ok_within("a valid Allocate afterwards", limit, client.allocate(request)).await?;
    }
    testbed.check_alive()?;
    Ok(format!("{} resources answer or refuse", resources.len()))
}

async fn counts_a_device_once(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let (mut client, id) = (served.dial().await?, served.healthy_ids()[0].clone());
        let call_name = format!("Allocate of {} twice {id}", served.resource);
        let request = allocate_request(&[vec![id.clone()]]);
        let once = call_ok_within(&call_name, limit, client.allocate(request)).await?;
        let request = allocate_request(&[vec![id.clone(), id]]);
        if let Ok(twice) = call_within(&call_name, limit, client.allocate(request)).await?
            && twice != once
        {
            return failed(format!("{call_name}: {twice:?}; with the id once: {once:?}"));
        }
    }
    Ok(format!("counted once or refused, {} resources", resources.len()))
}

async fn allocates_all_in_one_call(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    let mut largest = 0;
    for served in &resources {
        let mut client = served.dial().await?;
        let call_name = format!("Allocate of all of {}", served.resource);
        let request = allocate_request(&[served.healthy_ids()]);
        let response = call_ok_within(&call_name, limit, client.allocate(request)).await?;
        if response.container_responses.len() != 1 {
            return failed(format!(
                "{call_name}: {} responses",
                response.container_responses.len()
            ));
        }
        largest = largest.max(prost::Message::encoded_len(&response));
    }
    if largest > GRPC_MESSAGE_LIMIT {
        return failed(format!("a response of {largest} bytes"));
    }
    Ok(format!("the largest response has {largest} bytes"))
}

async fn answers_fast(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    let mut durations = CallDurations::of(testbed.process());
    for served in &resources {
        let (mut client, healthy) = (served.dial().await?, served.healthy_ids());
        for id in healthy.iter().cycle().take(SEQUENTIAL_CALLS) {
            let started_at = Instant::now();
            let request = allocate_request(&[vec![id.clone()]]);
            call_ok_within("Allocate", limit, client.allocate(request)).await?;
            durations.push(started_at.elapsed());
        }
    }
    durations.check_median(testbed.process())
}

async fn answers_in_parallel(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let (client, healthy, mut calls) =
            (served.dial().await?, served.healthy_ids(), JoinSet::new());
        for id in healthy.iter().cycle().take(PARALLEL_CALLS) {
            let (mut client, request) = (client.clone(), allocate_request(&[vec![id.clone()]]));
            calls.spawn(async move {
                call_ok_within("Allocate", limit, client.allocate(request)).await
            });
        }
        for response in calls.join_all().await {
            response?;
        }
    }
    Ok(format!("{PARALLEL_CALLS} in parallel, {} resources", resources.len()))
}

async fn survives_cancelled_calls(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let (client, healthy) = (served.dial().await?, served.healthy_ids());
        for id in healthy.iter().cycle().take(SEQUENTIAL_CALLS) {
            let (mut client, request) = (client.clone(), allocate_request(&[vec![id.clone()]]));
            let mut call = JoinSet::new();
            call.spawn(async move { client.allocate(request).await.is_ok() });
            tokio::task::yield_now().await;
            call.shutdown().await;
        }
        let request = allocate_request(&[vec![healthy[0].clone()]]);
        call_ok_within("Allocate after cancelled calls", limit, client.clone().allocate(request))
            .await?;
    }
    testbed.check_alive()?;
    Ok(format!("{SEQUENTIAL_CALLS} cancelled, {} resources", resources.len()))
}
