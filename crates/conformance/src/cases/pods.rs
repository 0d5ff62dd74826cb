//! K: whole pods, admitted by the kubelet.

use windlass_kubelet_sim::{Allotment, Container, Pod};

use super::again::restarted_program;
use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    stage::{Served, Stage},
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "K01",
        sentence: "serves a pod that asks for all its devices",
        source: "cm/devicemanager/manager.go, Allocate",
        check: |stage| Box::pin(serves_all(stage)),
    },
    Case {
        id: "K02",
        sentence: "serves a pod of two containers, each with a device of its own",
        source: "cm/devicemanager/manager.go: one Allocate for each container",
        check: |stage| Box::pin(serves_two_containers(stage)),
    },
    Case {
        id: "K03",
        sentence: "serves a device again after its pod is deleted, though nobody told the plugin",
        source: "cm/devicemanager/manager.go, UpdateAllocatedDevices: there is no deallocate",
        check: |stage| Box::pin(serves_again(stage)),
    },
    Case {
        id: "K04",
        sentence: "serves an init container and then the app that takes its device over",
        source: "cm/devicemanager/manager.go, devicesToReuse",
        check: |stage| Box::pin(serves_init_containers(stage)),
    },
    Case {
        id: "K05",
        sentence: "serves the next pod after it was killed and started again",
        source: "cm/devicemanager/manager.go: allocations are the kubelet's, not the plugin's",
        check: |stage| Box::pin(serves_after_a_kill(stage)),
    },
    Case {
        id: "K06",
        sentence: "lets a container start, and start again",
        source: "cm/devicemanager/endpoint.go, preStartContainer: before each start, 30 s",
        check: |stage| Box::pin(lets_containers_start(stage)),
    },
    Case {
        id: "K07",
        sentence: "gets PreStartContainer only if its options ask for it, and answers it",
        source: "deviceplugin/v1beta1/api.proto, PreStartContainer",
        check: |stage| Box::pin(answers_before_a_start(stage)),
    },
];

/// Resource with the most healthy devices, `at_least` or more.
async fn largest(stage: &mut Stage, at_least: usize) -> Result<Served, Unmet> {
    let all = stage.started_with_devices().await?;
    let largest = all.into_iter().max_by_key(|it| it.healthy().len());
    match largest.filter(|it| it.healthy().len() >= at_least) {
        Some(served) => Ok(served),
        None => not_applicable(format!("no resource has {at_least} healthy devices")),
    }
}

/// UID of a pod, derived from its name.
fn uid(name: &str) -> String {
    Pod::new(name).uid
}

async fn serves_all(stage: &mut Stage) -> Checked {
    let served = largest(stage, 1).await?;
    let count = served.healthy().len();
    let ids = stage.admit("all", &served.resource, count as u64).await?;
    if ids.len() == count {
        Ok(format!("{count} devices"))
    } else {
        failed(format!("it has {ids:?}"))
    }
}

async fn serves_two_containers(stage: &mut Stage) -> Checked {
    let served = largest(stage, 2).await?;
    let container = |name: &str| Container::new(name).limit(&served.resource, 1);
    let pod = Pod::new("two").container(container("a")).container(container("b"));
    let admission = stage.admitted(pod).await?;
    let of = |name: &str| admission.allotment(name, &served.resource).map(Allotment::ids);
    match (of("a"), of("b")) {
        (Some(a), Some(b)) if a.is_disjoint(&b) => Ok(format!("{a:?} and {b:?}")),
        other => failed(format!("the containers have {other:?}")),
    }
}

async fn serves_again(stage: &mut Stage) -> Checked {
    let served = largest(stage, 1).await?;
    let count = served.healthy().len() as u64;
    for name in ["first", "second", "third"] {
        stage.admit(name, &served.resource, count).await?;
        stage.kubelet.delete(&uid(name)).await;
    }
    Ok(format!("three pods in turn had all {count}"))
}

async fn serves_init_containers(stage: &mut Stage) -> Checked {
    let served = largest(stage, 1).await?;
    let limit = |name: &str| Container::new(name).limit(&served.resource, 1);
    let pod = Pod::new("init").init(limit("i")).container(limit("c"));
    let admission = stage.admitted(pod).await?;
    match admission.allotment("c", &served.resource) {
        Some(it) => Ok(format!("the app has {:?}", it.ids())),
        None => failed("the app has no device"),
    }
}

async fn serves_after_a_kill(stage: &mut Stage) -> Checked {
    let served = largest(stage, 2).await?;
    let first = stage.admit("first", &served.resource, 1).await?;
    restarted_program(stage, std::slice::from_ref(&served)).await?;
    let second = stage.admit("second", &served.resource, 1).await?;
    if first == second {
        failed(format!("both pods have {first:?}"))
    } else {
        Ok(format!("{second:?}"))
    }
}

async fn lets_containers_start(stage: &mut Stage) -> Checked {
    let served = largest(stage, 1).await?;
    stage.admit("pod", &served.resource, 1).await?;
    for time in ["first", "second"] {
        if let Err(error) = stage.kubelet.start_container(&uid("pod"), "c").await {
            return failed(format!("{time} start: {error}"));
        }
        stage.kubelet.stop_container(&uid("pod"), "c").await;
    }
    Ok("started twice".to_owned())
}

async fn answers_before_a_start(stage: &mut Stage) -> Checked {
    let mut all = stage.started_with_devices().await?;
    all.retain(|it| it.options.pre_start_required);
    let Some(served) = all.first().cloned() else {
        return not_applicable("no resource wants PreStartContainer");
    };
    stage.admit("pod", &served.resource, 1).await?;
    if let Err(error) = stage.kubelet.start_container(&uid("pod"), "c").await {
        return failed(format!("{error}"));
    }
    let is_it = |event: &windlass_kubelet_sim::Event| {
        matches!(event, windlass_kubelet_sim::Event::PreStarted { .. })
    };
    match stage.calls().count(is_it) {
        0 => failed("the kubelet did not ask"),
        count => Ok(format!("asked {count} times")),
    }
}
