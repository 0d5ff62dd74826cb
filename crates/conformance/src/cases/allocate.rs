//! A: responses to Allocate, valid and invalid.

use std::time::Instant;

use crate::{
    case::{Case, Checked, failed},
    clients::{Delays, LIMIT_OF_GO, allocation, answered, granted},
    stage::Stage,
};
use tokio::task::JoinSet;

/// Number of sequential calls, and of parallel ones.
const IN_TURN: usize = 50;
const AT_ONCE: usize = 32;

/// Length of an id, in characters, that no plugin lists.
const LONG: usize = 100_000;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "A01",
        sentence: "answers the same request twice the same: admission may ask again",
        source: "cm/devicemanager/manager.go, allocateContainerResources; there is no deallocate",
        check: |stage| Box::pin(answers_the_same_twice(stage)),
    },
    Case {
        id: "A02",
        sentence: "refuses a device that it does not list, and goes on serving",
        source: "deviceplugin/v1beta1/api.proto, Allocate",
        check: |stage| Box::pin(refuses_unknown_devices(stage)),
    },
    Case {
        id: "A03",
        sentence: "refuses a request of which one device is unknown",
        source: "deviceplugin/v1beta1/api.proto, Allocate: an error fails the pod's start",
        check: |stage| Box::pin(refuses_half_known_requests(stage)),
    },
    Case {
        id: "A04",
        sentence: "answers for several containers with one response each, in their order",
        source: "deviceplugin/v1beta1/api.proto, AllocateResponse",
        check: |stage| Box::pin(answers_each_container(stage)),
    },
    Case {
        id: "A05",
        sentence: "survives a request without containers, and one for no device",
        source: "deviceplugin/v1beta1/api.proto, AllocateRequest",
        check: |stage| Box::pin(survives_empty_requests(stage)),
    },
    Case {
        id: "A06",
        sentence: "takes a device that is named twice for one device, or refuses",
        source: "deviceplugin/v1beta1/api.proto, ContainerAllocateRequest",
        check: |stage| Box::pin(counts_a_device_once(stage)),
    },
    Case {
        id: "A07",
        sentence: "grants all its devices at once, in less than 4 MiB",
        source: "google.golang.org/grpc, defaultClientMaxReceiveMessageSize",
        check: |stage| Box::pin(grants_all_at_once(stage)),
    },
    Case {
        id: "A08",
        sentence: "answers half of 50 requests within 100 ms: the kubelet admits nobody meanwhile",
        source: "cm/devicemanager/endpoint.go, allocate: no deadline, inside the sync loop",
        check: |stage| Box::pin(answers_soon(stage)),
    },
    Case {
        id: "A09",
        sentence: "answers 32 requests at once",
        source: "google.golang.org/grpc: calls of one connection run side by side",
        check: |stage| Box::pin(answers_side_by_side(stage)),
    },
    Case {
        id: "A10",
        sentence: "refuses an id of 100,000 characters, and goes on serving",
        source: "deviceplugin/v1beta1/api.proto, Device.ID: 63 characters",
        check: |stage| Box::pin(refuses_long_ids(stage)),
    },
    Case {
        id: "A11",
        sentence: "goes on serving after calls that the kubelet gave up",
        source: "google.golang.org/grpc: a cancelled call resets its stream",
        check: |stage| Box::pin(survives_cancelled_calls(stage)),
    },
];

async fn answers_the_same_twice(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let mut client = served.dial().await?;
        let request = allocation(&[vec![served.healthy()[0].clone()]]);
        let what = format!("Allocate of {}", served.resource);
        let first = granted(&what, limit, client.allocate(request.clone())).await?;
        let second = granted(&what, limit, client.allocate(request)).await?;
        if first != second {
            return failed(format!("{what}: first {first:?}, then {second:?}"));
        }
    }
    Ok(format!("the same twice, {} resources", all.len()))
}

async fn refuses_unknown_devices(stage: &mut Stage) -> Checked {
    refuses(stage, |_| vec!["no-such-device".to_owned()]).await
}

async fn refuses_half_known_requests(stage: &mut Stage) -> Checked {
    refuses(stage, |known| vec![known, "no-such-device".to_owned()]).await
}

async fn refuses_long_ids(stage: &mut Stage) -> Checked {
    refuses(stage, |_| vec!["x".repeat(LONG)]).await
}

/// Checks that every resource refuses the ids, and still grants a device of its own.
async fn refuses(stage: &mut Stage, ids: impl Fn(String) -> Vec<String>) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    let mut words = String::new();
    for served in &all {
        let (mut client, known) = (served.dial().await?, served.healthy()[0].clone());
        let what = format!("Allocate of {}", served.resource);
        let request = allocation(&[ids(known.clone())]);
        words = match answered(&what, limit, client.allocate(request)).await? {
            Ok(_) => return failed(format!("{what}: granted")),
            Err(status) => status.message().chars().take(120).collect(),
        };
        let request = allocation(&[vec![known]]);
        granted("a right Allocate after it", limit, client.allocate(request)).await?;
    }
    stage.alive()?;
    Ok(format!("refused: {words}"))
}

async fn answers_each_container(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let mut client = served.dial().await?;
        let ids: Vec<_> = served.healthy().into_iter().rev().take(3).collect();
        let containers: Vec<_> = ids.iter().map(|id| vec![id.clone()]).collect();
        let what = format!("Allocate of {} for {} containers", served.resource, ids.len());
        let together = granted(&what, limit, client.allocate(allocation(&containers))).await?;
        let mut alone = Vec::new();
        for container in containers {
            let answer = granted(&what, limit, client.allocate(allocation(&[container]))).await?;
            alone.extend(answer.container_responses);
        }
        if together.container_responses != alone {
            let together = together.container_responses;
            return failed(format!("{what}: {together:?}; one by one {alone:?}"));
        }
    }
    Ok(format!("as one by one, {} resources", all.len()))
}

async fn survives_empty_requests(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let mut client = served.dial().await?;
        for request in [allocation(&[]), allocation(&[Vec::new()])] {
            let containers = request.container_requests.len();
            let what = format!("Allocate of nothing for {containers} containers");
            if let Ok(answer) = answered(&what, limit, client.allocate(request)).await?
                && answer.container_responses.len() != containers
            {
                return failed(format!("{what}: {} responses", answer.container_responses.len()));
            }
        }
        let request = allocation(&[vec![served.healthy()[0].clone()]]);
        granted("a right Allocate after it", limit, client.allocate(request)).await?;
    }
    stage.alive()?;
    Ok(format!("{} resources answer or refuse", all.len()))
}

async fn counts_a_device_once(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let (mut client, id) = (served.dial().await?, served.healthy()[0].clone());
        let what = format!("Allocate of {} twice {id}", served.resource);
        let once = allocation(&[vec![id.clone()]]);
        let once = granted(&what, limit, client.allocate(once)).await?;
        let twice = allocation(&[vec![id.clone(), id]]);
        if let Ok(twice) = answered(&what, limit, client.allocate(twice)).await?
            && twice != once
        {
            return failed(format!("{what}: {twice:?}; once {once:?}"));
        }
    }
    Ok(format!("once, or refused, {} resources", all.len()))
}

async fn grants_all_at_once(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    let mut largest = 0;
    for served in &all {
        let mut client = served.dial().await?;
        let what = format!("Allocate of all of {}", served.resource);
        let request = allocation(&[served.healthy()]);
        let answer = granted(&what, limit, client.allocate(request)).await?;
        if answer.container_responses.len() != 1 {
            return failed(format!("{what}: {} responses", answer.container_responses.len()));
        }
        largest = largest.max(prost::Message::encoded_len(&answer));
    }
    if largest > LIMIT_OF_GO {
        return failed(format!("an answer of {largest} bytes"));
    }
    Ok(format!("the largest answer has {largest} bytes"))
}

async fn answers_soon(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    let mut delays = Delays::of(stage.process());
    for served in &all {
        let (mut client, healthy) = (served.dial().await?, served.healthy());
        for id in healthy.iter().cycle().take(IN_TURN) {
            let begun = Instant::now();
            let request = allocation(&[vec![id.clone()]]);
            granted("Allocate", limit, client.allocate(request)).await?;
            delays.push(begun.elapsed());
        }
    }
    delays.checked(stage.process())
}

async fn answers_side_by_side(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let (client, healthy, mut calls) = (served.dial().await?, served.healthy(), JoinSet::new());
        for id in healthy.iter().cycle().take(AT_ONCE) {
            let (mut client, request) = (client.clone(), allocation(&[vec![id.clone()]]));
            calls.spawn(async move { granted("Allocate", limit, client.allocate(request)).await });
        }
        for answer in calls.join_all().await {
            answer?;
        }
    }
    Ok(format!("{AT_ONCE} at once, {} resources", all.len()))
}

async fn survives_cancelled_calls(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let (client, healthy) = (served.dial().await?, served.healthy());
        for id in healthy.iter().cycle().take(IN_TURN) {
            let (mut client, request) = (client.clone(), allocation(&[vec![id.clone()]]));
            let mut call = JoinSet::new();
            call.spawn(async move { client.allocate(request).await.is_ok() });
            tokio::task::yield_now().await;
            call.shutdown().await;
        }
        let request = allocation(&[vec![healthy[0].clone()]]);
        granted("Allocate after them", limit, client.clone().allocate(request)).await?;
    }
    stage.alive()?;
    Ok(format!("{IN_TURN} given up, {} resources", all.len()))
}
