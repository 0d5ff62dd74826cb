//! G: recovery of a plugin after the kubelet restarts, or after the loss of the plugin's socket or stream.

use std::time::Duration;

use tokio::time::sleep;
use windlass_kubelet_sim::{Container, ContainerAllocation, Event, NodeStatus, PluginStatus, Pod};

use super::life::MAX_DESCRIPTOR_GROWTH;
use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    process::Process,
    testbed::{ServedResource, Testbed, dial},
};

/// Downtime of the kubelet.
const KUBELET_DOWNTIME: Duration = Duration::from_secs(4);

/// Number of restarts in a row, as in a crash loop of the kubelet.
const RESTARTS: usize = 10;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "G01",
        sentence: "registers again after a restart of the kubelet",
        source: "cm/devicemanager/manager.go, Start: all sockets of the folder are removed",
        check: |testbed| Box::pin(registers_after_restart(testbed)),
    },
    Case {
        id: "G02",
        sentence: "registers again when the kubelet restarts twice in a row",
        source: "cm/devicemanager/manager.go, Start",
        check: |testbed| Box::pin(registers_after_two_restarts(testbed)),
    },
    Case {
        id: "G03",
        sentence: "registers again after each of ten restarts, without leaking descriptors",
        source: "cm/devicemanager/manager.go, Start; getrlimit(2)",
        check: |testbed| Box::pin(leaks_no_descriptors(testbed)),
    },
    Case {
        id: "G04",
        sentence: "registers again each time that the kubelet's socket is replaced",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Start",
        check: |testbed| Box::pin(registers_at_each_new_kubelet_socket(testbed)),
    },
    Case {
        id: "G05",
        sentence: "binds its socket again after only that file is deleted",
        source: "cm/devicemanager/manager.go, Start: sockets are deleted before the kubelet binds its own",
        check: |testbed| Box::pin(restores_its_socket(testbed)),
    },
    Case {
        id: "G06",
        sentence: "binds its sockets again after all are deleted, and registers with the next kubelet",
        source: "cm/devicemanager/manager.go, Start: between the cleanup and the new socket",
        check: |testbed| Box::pin(restores_all_sockets(testbed)),
    },
    Case {
        id: "G07",
        sentence: "registers again when the kubelet ends its stream, with the same socket",
        source: "cm/devicemanager/plugin/v1beta1/handler.go: no retry, no reconnect",
        check: |testbed| Box::pin(registers_after_a_cut_stream(testbed)),
    },
    Case {
        id: "G08",
        sentence: "registers again after the kubelet was down for four seconds",
        source: "cm/devicemanager/manager.go, Start",
        check: |testbed| Box::pin(survives_a_kubelet_downtime(testbed)),
    },
    Case {
        id: "G09",
        sentence: "serves other pods after a restart while a container keeps its device",
        source: "cm/devicemanager/manager.go, readCheckpoint; allocateContainerResources",
        check: |testbed| Box::pin(keeps_the_device_of_a_container(testbed)),
    },
];

pub(super) async fn restart_kubelet(testbed: &Testbed) -> Result<(), CheckError> {
    let result = testbed.kubelet.restart().await;
    result.map_err(|error| CheckError::Failed(format!("the embedded kubelet: {error}")))
}

/// Condition that all resources are connected again, with the same numbers of devices and healthy devices.
pub(super) fn all_connected(before: &[ServedResource]) -> impl Fn(&NodeStatus) -> bool {
    |node| {
        before.iter().all(|served| {
            let plugin_status = node.plugins.get(&served.resource);
            let counts = (served.devices.len(), served.healthy_ids().len());
            matches!(plugin_status, Some(PluginStatus::Connected { .. }))
                && node.counts(&served.resource) == Some(counts)
        })
    }
}

async fn registers_after_restart(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    restart_kubelet(testbed).await?;
    wait_for_registrations(testbed, &before).await
}

async fn registers_after_two_restarts(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    restart_kubelet(testbed).await?;
    restart_kubelet(testbed).await?;
    wait_for_registrations(testbed, &before).await
}

/// Kills the program, waits until the kubelet has lost it, and starts it again. Returns the time from the start until
/// all resources are registered and listed.
pub(super) async fn restart_program(
    testbed: &mut Testbed,
    before: &[ServedResource],
) -> Result<Duration, CheckError> {
    Process::kill(testbed.process()).await;
    let is_lost = |node: &NodeStatus| ServedResource::all(node).is_empty();
    testbed.wait_for_status("the kubelet has lost the plugin", is_lost).await?;
    testbed.start()?;
    testbed.wait_until("all resources are registered again", all_connected(before)).await
}

/// Waits until all resources are connected again.
async fn wait_for_registrations(testbed: &mut Testbed, before: &[ServedResource]) -> CheckResult {
    let elapsed =
        testbed.wait_until("all resources are registered again", all_connected(before)).await?;
    Ok(format!("{} registered again after {elapsed:.1?}", before.len()))
}

async fn leaks_no_descriptors(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    restart_kubelet(testbed).await?;
    wait_for_registrations(testbed, &before).await?;
    let before_restarts = testbed.process().usage().descriptors;
    for _ in 0..RESTARTS {
        restart_kubelet(testbed).await?;
        wait_for_registrations(testbed, &before).await?;
    }
    let after_restarts = testbed.process().usage().descriptors;
    if after_restarts > before_restarts + MAX_DESCRIPTOR_GROWTH {
        return failed(format!(
            "{before_restarts} descriptors before {RESTARTS} restarts, {after_restarts} after"
        ));
    }
    Ok(format!("{before_restarts} descriptors before, {after_restarts} after"))
}

async fn registers_at_each_new_kubelet_socket(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    let since = testbed.next_sequence();
    if let Err(error) = testbed.kubelet.replace_registration_socket(3) {
        return failed(format!("the embedded kubelet: {error}"));
    }
    let first = before[0].resource.clone();
    let is_registration =
        |event: &Event| matches!(event, Event::Registered { resource, .. } if *resource == first);
    let elapsed = testbed.wait_for_event("another registration", since, is_registration).await?;
    wait_for_registrations(testbed, &before).await?;
    Ok(format!("registered again after {elapsed:.1?}"))
}

async fn restores_its_socket(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    let first = &before[0];
    let name = first.socket.file_name().unwrap_or_default().display().to_string();
    if testbed.kubelet.delete_socket(&name).is_err() {
        return not_applicable(format!("{} is not in the plugin folder", first.socket.display()));
    }
    let elapsed = wait_until_dialled(testbed, &first.socket).await?;
    Ok(format!("{name} answers again after {elapsed:.1?}"))
}

async fn restores_all_sockets(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    if let Err(error) = testbed.kubelet.delete_sockets() {
        return failed(format!("the embedded kubelet: {error}"));
    }
    for served in &before {
        wait_until_dialled(testbed, &served.socket).await?;
    }
    restart_kubelet(testbed).await?;
    wait_for_registrations(testbed, &before).await
}

async fn wait_until_dialled(
    testbed: &mut Testbed,
    socket: &std::path::Path,
) -> Result<Duration, CheckError> {
    let (started_at, limit) = (std::time::Instant::now(), testbed.subject.limits.react);
    loop {
        if dial(socket).await.is_ok() {
            return Ok(started_at.elapsed());
        }
        testbed.check_alive()?;
        if started_at.elapsed() > limit {
            return failed(format!("{} does not answer after {limit:?}", socket.display()));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn registers_after_a_cut_stream(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    let since = testbed.next_sequence();
    testbed.kubelet.close_plugin_connection(&before[0].resource).await;
    let is_registration = |event: &Event| matches!(event, Event::Registered { .. });
    let elapsed = testbed.wait_for_event("another registration", since, is_registration).await?;
    wait_for_registrations(testbed, &before).await?;
    Ok(format!("registered again after {elapsed:.1?}"))
}

async fn survives_a_kubelet_downtime(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    testbed.kubelet.stop().await;
    sleep(KUBELET_DOWNTIME).await;
    testbed.check_alive()?;
    restart_kubelet(testbed).await?;
    wait_for_registrations(testbed, &before).await
}

async fn keeps_the_device_of_a_container(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_with_devices().await?;
    let Some(served) = before.iter().find(|served| served.healthy_ids().len() > 1) else {
        return not_applicable("no resource has two healthy devices");
    };
    let pod = Pod::new("first").container(Container::new("c").limit(&served.resource, 1));
    let uid = pod.uid.clone();
    let admission = testbed.admit_pod(pod).await?;
    let first = admission.allocation("c", &served.resource).map(ContainerAllocation::ids);
    if let Err(error) = testbed.kubelet.start_container(&uid, "c").await {
        return failed(format!("the container does not start: {error}"));
    }
    restart_kubelet(testbed).await?;
    wait_for_registrations(testbed, &before).await?;
    let second = testbed.admit("second", &served.resource, 1).await?;
    match first {
        Some(first) if second.iter().any(|id| first.contains(id)) => {
            failed(format!("both pods have {second:?}"))
        }
        _ => Ok(format!("the second pod has {second:?}")),
    }
}
