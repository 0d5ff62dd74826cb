//! K: pods that the kubelet admits with the plugin's devices.

use windlass_kubelet_sim::{Container, ContainerAllocation, Pod};

use super::again::restart_program;
use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    testbed::{ServedResource, Testbed},
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "K01",
        sentence: "serves a pod that requests all its devices",
        source: "cm/devicemanager/manager.go, Allocate",
        check: |testbed| Box::pin(serves_all(testbed)),
    },
    Case {
        id: "K02",
        sentence: "serves a pod of two containers with different devices",
        source: "cm/devicemanager/manager.go: one Allocate for each container",
        check: |testbed| Box::pin(serves_two_containers(testbed)),
    },
    Case {
        id: "K03",
        sentence: "serves a device again after its pod is deleted, which the kubelet does not report",
        source: "cm/devicemanager/manager.go, UpdateAllocatedDevices: there is no deallocate",
        check: |testbed| Box::pin(serves_again(testbed)),
    },
    Case {
        id: "K04",
        sentence: "serves an init container, and then the app container that reuses its device",
        source: "cm/devicemanager/manager.go, devicesToReuse",
        check: |testbed| Box::pin(serves_init_containers(testbed)),
    },
    Case {
        id: "K05",
        sentence: "serves the next pod after it is killed and started again",
        source: "cm/devicemanager/manager.go: allocations are the kubelet's, not the plugin's",
        check: |testbed| Box::pin(serves_after_a_kill(testbed)),
    },
    Case {
        id: "K06",
        sentence: "allows a container to start twice",
        source: "cm/devicemanager/endpoint.go, preStartContainer: before each start, 30 s",
        check: |testbed| Box::pin(allows_container_starts(testbed)),
    },
    Case {
        id: "K07",
        sentence: "answers PreStartContainer, if its options request that call",
        source: "deviceplugin/v1beta1/api.proto, PreStartContainer",
        check: |testbed| Box::pin(answers_before_a_start(testbed)),
    },
];

/// Resource with the most healthy devices, `at_least` or more.
async fn largest_resource(
    testbed: &mut Testbed,
    at_least: usize,
) -> Result<ServedResource, CheckError> {
    let resources = testbed.start_with_devices().await?;
    let largest = resources.into_iter().max_by_key(|served| served.healthy_ids().len());
    match largest.filter(|served| served.healthy_ids().len() >= at_least) {
        Some(served) => Ok(served),
        None => not_applicable(format!("no resource has {at_least} healthy devices")),
    }
}

/// UID of a pod, derived from its name.
fn uid(name: &str) -> String {
    Pod::new(name).uid
}

async fn serves_all(testbed: &mut Testbed) -> CheckResult {
    let served = largest_resource(testbed, 1).await?;
    let count = served.healthy_ids().len();
    let ids = testbed.admit("all", &served.resource, count as u64).await?;
    if ids.len() == count {
        Ok(format!("{count} devices"))
    } else {
        failed(format!("the container has {ids:?}"))
    }
}

async fn serves_two_containers(testbed: &mut Testbed) -> CheckResult {
    let served = largest_resource(testbed, 2).await?;
    let container = |name: &str| Container::new(name).limit(&served.resource, 1);
    let pod = Pod::new("two").container(container("a")).container(container("b"));
    let admission = testbed.admit_pod(pod).await?;
    let ids =
        |name: &str| admission.allocation(name, &served.resource).map(ContainerAllocation::ids);
    match (ids("a"), ids("b")) {
        (Some(a), Some(b)) if a.is_disjoint(&b) => Ok(format!("{a:?} and {b:?}")),
        other => failed(format!("the containers have {other:?}")),
    }
}

async fn serves_again(testbed: &mut Testbed) -> CheckResult {
    let served = largest_resource(testbed, 1).await?;
    let count = served.healthy_ids().len() as u64;
    for name in ["first", "second", "third"] {
        testbed.admit(name, &served.resource, count).await?;
        testbed.kubelet.delete_pod(&uid(name)).await;
    }
    Ok(format!("three pods in turn had all {count}"))
}

async fn serves_init_containers(testbed: &mut Testbed) -> CheckResult {
    let served = largest_resource(testbed, 1).await?;
    let container = |name: &str| Container::new(name).limit(&served.resource, 1);
    let pod = Pod::new("init").init_container(container("i")).container(container("c"));
    let admission = testbed.admit_pod(pod).await?;
    match admission.allocation("c", &served.resource) {
        Some(allocation) => Ok(format!("the app has {:?}", allocation.ids())),
        None => failed("the app has no device"),
    }
}

async fn serves_after_a_kill(testbed: &mut Testbed) -> CheckResult {
    let served = largest_resource(testbed, 2).await?;
    let first = testbed.admit("first", &served.resource, 1).await?;
    restart_program(testbed, std::slice::from_ref(&served)).await?;
    let second = testbed.admit("second", &served.resource, 1).await?;
    if first == second {
        failed(format!("both pods have {first:?}"))
    } else {
        Ok(format!("{second:?}"))
    }
}

async fn allows_container_starts(testbed: &mut Testbed) -> CheckResult {
    let served = largest_resource(testbed, 1).await?;
    testbed.admit("pod", &served.resource, 1).await?;
    for ordinal in ["first", "second"] {
        if let Err(error) = testbed.kubelet.start_container(&uid("pod"), "c").await {
            return failed(format!("{ordinal} start: {error}"));
        }
        testbed.kubelet.stop_container(&uid("pod"), "c").await;
    }
    Ok("started twice".to_owned())
}

async fn answers_before_a_start(testbed: &mut Testbed) -> CheckResult {
    let mut resources = testbed.start_with_devices().await?;
    resources.retain(|served| served.options.pre_start_required);
    let Some(served) = resources.first().cloned() else {
        return not_applicable("no resource requests PreStartContainer");
    };
    testbed.admit("pod", &served.resource, 1).await?;
    if let Err(error) = testbed.kubelet.start_container(&uid("pod"), "c").await {
        return failed(format!("{error}"));
    }
    let is_prestart = |event: &windlass_kubelet_sim::Event| {
        matches!(event, windlass_kubelet_sim::Event::PreStarted { .. })
    };
    match testbed.events().count(is_prestart) {
        0 => failed("the kubelet did not call it"),
        count => Ok(format!("called {count} times")),
    }
}
