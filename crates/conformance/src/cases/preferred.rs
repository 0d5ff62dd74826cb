//! P: `GetPreferredAllocation` of plugins that announce it.

use std::{collections::BTreeSet, time::Instant};

use windlass_kubelet_api::deviceplugin as wire;

use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    clients::{Delays, answered, granted},
    stage::{Client, Served, Stage},
};

/// Number of sequential requests.
const IN_TURN: usize = 50;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "P01",
        sentence: "prefers as many devices as are asked for, for every number",
        source: "deviceplugin/v1beta1/api.proto, GetPreferredAllocation",
        check: |stage| Box::pin(every_size(stage)),
    },
    Case {
        id: "P02",
        sentence: "prefers the devices that must be included among them, every one in turn",
        source: "deviceplugin/v1beta1/api.proto, must_include_deviceIDs",
        check: |stage| Box::pin(includes_what_must_be(stage)),
    },
    Case {
        id: "P03",
        sentence: "prefers none but available devices",
        source: "cm/devicemanager/manager.go, devicesToAllocate: others are dropped",
        check: |stage| Box::pin(prefers_available_ones(stage)),
    },
    Case {
        id: "P04",
        sentence: "prefers the same for the same question, in whatever order it is put",
        source: "cm/devicemanager/manager.go: ids come in the order of a Go map",
        check: |stage| Box::pin(prefers_the_same(stage)),
    },
    Case {
        id: "P05",
        sentence: "answers for several containers with one response each",
        source: "deviceplugin/v1beta1/api.proto, PreferredAllocationResponse",
        check: |stage| Box::pin(answers_each_container(stage)),
    },
    Case {
        id: "P06",
        sentence: "answers half of 50 questions within 100 ms",
        source: "cm/devicemanager/endpoint.go, getPreferredAllocation: no deadline",
        check: |stage| Box::pin(answers_soon(stage)),
    },
    Case {
        id: "P07",
        sentence: "survives a question for more devices than are available",
        source: "deviceplugin/v1beta1/api.proto, allocation_size",
        check: |stage| Box::pin(survives(stage, |ids| question(ids, &[], size_of(ids.len() + 1)))),
    },
    Case {
        id: "P08",
        sentence: "survives a question for none, and for fewer than none",
        source: "deviceplugin/v1beta1/api.proto, allocation_size is an int32",
        check: |stage| Box::pin(survives_odd_sizes(stage)),
    },
    Case {
        id: "P09",
        sentence: "survives a question for fewer devices than must be included",
        source: "deviceplugin/v1beta1/api.proto, must_include_deviceIDs",
        check: |stage| Box::pin(survives(stage, |ids| question(ids, ids, 1))),
    },
    Case {
        id: "P10",
        sentence: "survives a device that must be included and is not available",
        source: "deviceplugin/v1beta1/api.proto, must_include_deviceIDs",
        check: |stage| Box::pin(survives(stage, |ids| question(&ids[1..], &ids[..1], 1))),
    },
    Case {
        id: "P11",
        sentence: "survives devices that it does not list",
        source: "cm/devicemanager/manager.go: a list may change while the kubelet asks",
        check: |stage| Box::pin(survives(stage, |_| question(&["no-such".to_owned()], &[], 1))),
    },
    Case {
        id: "P12",
        sentence: "survives a question without available devices",
        source: "deviceplugin/v1beta1/api.proto, available_deviceIDs",
        check: |stage| Box::pin(survives(stage, |_| question(&[], &[], 1))),
    },
];

/// Resources whose plugins announce `GetPreferredAllocation`, each with its client.
async fn asked(stage: &mut Stage) -> Result<Vec<(Served, Client)>, Unmet> {
    let mut asked = Vec::new();
    for served in stage.started_with_devices().await? {
        if served.options.get_preferred_allocation_available {
            let client = served.dial().await?;
            asked.push((served, client));
        }
    }
    if asked.is_empty() {
        return not_applicable("GetDevicePluginOptions says that there is none");
    }
    Ok(asked)
}

fn question(available: &[String], must: &[String], size: i32) -> wire::PreferredAllocationRequest {
    let container = wire::ContainerPreferredAllocationRequest {
        available_device_i_ds: available.to_vec(),
        must_include_device_i_ds: must.to_vec(),
        allocation_size: size,
    };
    wire::PreferredAllocationRequest { container_requests: vec![container] }
}

/// Response to a valid request.
async fn preferred(
    stage: &Stage,
    client: &mut Client,
    request: wire::PreferredAllocationRequest,
) -> Result<Vec<String>, Unmet> {
    let limit = stage.subject.within.answer;
    let asked = &request.container_requests[0];
    let (size, must) = (asked.allocation_size, asked.must_include_device_i_ds.clone());
    let what = format!("GetPreferredAllocation of {size} with {must:?}");
    let answer = granted(&what, limit, client.get_preferred_allocation(request)).await?;
    match answer.container_responses.as_slice() {
        [one] => Ok(one.device_i_ds.clone()),
        other => failed(format!("{what}: {} responses", other.len())),
    }
}

fn size_of(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

async fn every_size(stage: &mut Stage) -> Checked {
    let mut questions = 0;
    for (served, mut client) in asked(stage).await? {
        let ids = served.healthy();
        for size in 1..=ids.len() {
            let answer = preferred(stage, &mut client, question(&ids, &[], size_of(size))).await?;
            let different: BTreeSet<_> = answer.iter().collect();
            if different.len() != size || answer.len() != size {
                return failed(format!("{}: {size} of {ids:?}: {answer:?}", served.resource));
            }
            questions += 1;
        }
    }
    Ok(format!("{questions} questions"))
}

async fn includes_what_must_be(stage: &mut Stage) -> Checked {
    let mut questions = 0;
    for (served, mut client) in asked(stage).await? {
        let ids = served.healthy();
        for id in &ids {
            let must = [id.clone()];
            let size = size_of(ids.len().min(2));
            let answer = preferred(stage, &mut client, question(&ids, &must, size)).await?;
            if !answer.contains(id) {
                return failed(format!("{}: {id} is not in {answer:?}", served.resource));
            }
            questions += 1;
        }
    }
    Ok(format!("{questions} questions"))
}

async fn prefers_available_ones(stage: &mut Stage) -> Checked {
    for (served, mut client) in asked(stage).await? {
        let mut ids = served.healthy();
        if ids.len() > 1 {
            ids.remove(0);
        }
        let answer = preferred(stage, &mut client, question(&ids, &[], 1)).await?;
        if let Some(id) = answer.iter().find(|id| !ids.contains(id)) {
            return failed(format!("{}: {id} is none of {ids:?}", served.resource));
        }
    }
    Ok("available ones".to_owned())
}

async fn prefers_the_same(stage: &mut Stage) -> Checked {
    for (served, mut client) in asked(stage).await? {
        let ids = served.healthy();
        let size = size_of(ids.len().div_ceil(2));
        let reversed: Vec<_> = ids.iter().rev().cloned().collect();
        let mut answers = BTreeSet::new();
        for ids in [&ids, &reversed, &ids] {
            let answer = preferred(stage, &mut client, question(ids, &[], size)).await?;
            answers.insert(answer.into_iter().collect::<BTreeSet<_>>());
        }
        if answers.len() > 1 {
            return failed(format!("{}: {answers:?}", served.resource));
        }
    }
    Ok("the same three times".to_owned())
}

async fn answers_each_container(stage: &mut Stage) -> Checked {
    let limit = stage.subject.within.answer;
    for (served, mut client) in asked(stage).await? {
        let one = question(&served.healthy(), &[], 1).container_requests;
        let request =
            wire::PreferredAllocationRequest { container_requests: [one.clone(), one].concat() };
        let what = format!("GetPreferredAllocation of {}", served.resource);
        let answer = granted(&what, limit, client.get_preferred_allocation(request)).await?;
        let sizes: Vec<_> =
            answer.container_responses.iter().map(|it| it.device_i_ds.len()).collect();
        if sizes != [1, 1] {
            return failed(format!("{what}: for two containers {sizes:?} devices"));
        }
    }
    Ok("one response each".to_owned())
}

async fn answers_soon(stage: &mut Stage) -> Checked {
    let asked = asked(stage).await?;
    let mut delays = Delays::of(stage.process());
    for (served, mut client) in asked {
        let ids = served.healthy();
        for size in (1..=ids.len()).cycle().take(IN_TURN) {
            let begun = Instant::now();
            preferred(stage, &mut client, question(&ids, &[], size_of(size))).await?;
            delays.push(begun.elapsed());
        }
    }
    delays.checked(stage.process())
}

async fn survives_odd_sizes(stage: &mut Stage) -> Checked {
    survives(stage, |ids| question(ids, &[], 0)).await?;
    for (_, mut client) in asked(stage).await? {
        let ids = Vec::new();
        let limit = stage.subject.within.answer;
        let call = client.get_preferred_allocation(question(&ids, &[], -1));
        // Any response passes.
        let _ = answered("GetPreferredAllocation of -1", limit, call).await?;
    }
    survives(stage, |ids| question(ids, &[], i32::MIN)).await
}

/// Checks that an odd request gets a response or an error, and that a valid one succeeds afterwards.
async fn survives(
    stage: &mut Stage,
    odd: impl Fn(&[String]) -> wire::PreferredAllocationRequest,
) -> Checked {
    let (mut said, limit) = (String::new(), stage.subject.within.answer);
    for (served, mut client) in asked(stage).await? {
        let ids = served.healthy();
        let call = client.get_preferred_allocation(odd(&ids));
        said = match answered("an odd GetPreferredAllocation", limit, call).await? {
            Ok(answer) => {
                let ids = answer.container_responses.first().map(|it| it.device_i_ds.len());
                format!("answered with {} devices", ids.unwrap_or(0))
            }
            Err(status) => format!("refused: {}", status.message()),
        };
        preferred(stage, &mut client, question(&ids, &[], 1)).await?;
    }
    stage.alive()?;
    Ok(said)
}
