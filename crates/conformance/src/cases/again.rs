//! G: return of a plugin after restarts of the kubelet and the loss of its socket.

use std::time::Duration;

use tokio::time::sleep;
use windlass_kubelet_sim::{Allotment, Container, Event, NodeStatus, Pod, Registration};

use super::life::SPARE_DESCRIPTORS;
use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    process::Process,
    stage::{Served, Stage, dialled},
};

/// Downtime of the kubelet.
const AWAY: Duration = Duration::from_secs(4);

/// Number of restarts in a row, as in a crash loop of the kubelet.
const RESTARTS: usize = 10;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "G01",
        sentence: "registers again after the kubelet has restarted",
        source: "cm/devicemanager/manager.go, Start: all sockets of the folder are removed",
        check: |stage| Box::pin(registers_after_restart(stage)),
    },
    Case {
        id: "G02",
        sentence: "registers again when the kubelet restarts twice at once",
        source: "cm/devicemanager/manager.go, Start",
        check: |stage| Box::pin(registers_after_two_restarts(stage)),
    },
    Case {
        id: "G03",
        sentence: "comes back after ten restarts, with no more descriptors than before",
        source: "cm/devicemanager/manager.go, Start; getrlimit(2)",
        check: |stage| Box::pin(keeps_no_descriptors(stage)),
    },
    Case {
        id: "G04",
        sentence: "registers again each time that the kubelet's socket is replaced",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Start",
        check: |stage| Box::pin(follows_the_registration_socket(stage)),
    },
    Case {
        id: "G05",
        sentence: "binds its socket again after that file alone was deleted",
        source: "cm/devicemanager/manager.go, Start: sockets are deleted before the kubelet binds its own",
        check: |stage| Box::pin(has_its_socket_back(stage)),
    },
    Case {
        id: "G06",
        sentence: "binds its sockets again when the whole folder is cleaned, and registers with the next kubelet",
        source: "cm/devicemanager/manager.go, Start: between the cleanup and the new socket",
        check: |stage| Box::pin(has_all_sockets_back(stage)),
    },
    Case {
        id: "G07",
        sentence: "registers again when the kubelet ends its stream, with the same socket",
        source: "cm/devicemanager/plugin/v1beta1/handler.go: no retry, no reconnect",
        check: |stage| Box::pin(registers_after_a_cut_stream(stage)),
    },
    Case {
        id: "G08",
        sentence: "registers again after the kubelet was down for some seconds",
        source: "cm/devicemanager/manager.go, Start",
        check: |stage| Box::pin(outlives_an_absence(stage)),
    },
    Case {
        id: "G09",
        sentence: "serves other pods after a restart while a container keeps its device",
        source: "cm/devicemanager/manager.go, readCheckpoint; allocateContainerResources",
        check: |stage| Box::pin(keeps_what_a_container_has(stage)),
    },
];

pub(super) async fn restarted(stage: &Stage) -> Result<(), Unmet> {
    let again = stage.kubelet.restart().await;
    again.map_err(|error| Unmet::Failed(format!("the embedded kubelet: {error}")))
}

/// True if all served resources are connected and listed again.
pub(super) fn all_back(before: &[Served]) -> impl Fn(&NodeStatus) -> bool {
    |node| {
        before.iter().all(|it| {
            let registration = node.registrations.get(&it.resource);
            matches!(registration, Some(Registration::Connected { .. }))
                && node.counts(&it.resource) == Some((it.devices.len(), it.healthy().len()))
        })
    }
}

async fn registers_after_restart(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    restarted(stage).await?;
    back(stage, &before).await
}

async fn registers_after_two_restarts(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    restarted(stage).await?;
    restarted(stage).await?;
    back(stage, &before).await
}

/// Kills the program, waits until the kubelet notices, and starts it again. Ends when all resources are back.
pub(super) async fn restarted_program(
    stage: &mut Stage,
    before: &[Served],
) -> Result<Duration, Unmet> {
    Process::kill(stage.process()).await;
    let is_seen = |node: &NodeStatus| Served::all(node).is_empty();
    stage.until_seen("the kubelet has lost the plugin", is_seen).await?;
    stage.start()?;
    stage.until("all resources are back", all_back(before)).await
}

async fn back(stage: &mut Stage, before: &[Served]) -> Checked {
    let took = stage.until("all resources are back", all_back(before)).await?;
    Ok(format!("{} back after {took:.1?}", before.len()))
}

async fn keeps_no_descriptors(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    restarted(stage).await?;
    back(stage, &before).await?;
    let first = stage.process().usage().descriptors;
    for _ in 0..RESTARTS {
        restarted(stage).await?;
        back(stage, &before).await?;
    }
    let last = stage.process().usage().descriptors;
    if last > first + SPARE_DESCRIPTORS {
        return failed(format!("{first} descriptors before {RESTARTS} restarts, {last} after"));
    }
    Ok(format!("{first} descriptors before, {last} after"))
}

async fn follows_the_registration_socket(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    let since = stage.now();
    if let Err(error) = stage.kubelet.replace_registration_socket(3) {
        return failed(format!("the embedded kubelet: {error}"));
    }
    let resource = before[0].resource.clone();
    let is_again =
        |event: &Event| matches!(event, Event::Registered { resource: it, .. } if *it == resource);
    let took = stage.until_event("another registration", since, is_again).await?;
    back(stage, &before).await?;
    Ok(format!("registered again after {took:.1?}"))
}

async fn has_its_socket_back(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    let one = &before[0];
    let name = one.socket.file_name().unwrap_or_default().display().to_string();
    if stage.kubelet.delete_socket(&name).is_err() {
        return not_applicable(format!("{} is not in the plugin folder", one.socket.display()));
    }
    let took = until_dialled(stage, &one.socket).await?;
    Ok(format!("{name} answers again after {took:.1?}"))
}

async fn has_all_sockets_back(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    if let Err(error) = stage.kubelet.delete_sockets() {
        return failed(format!("the embedded kubelet: {error}"));
    }
    for served in &before {
        until_dialled(stage, &served.socket).await?;
    }
    restarted(stage).await?;
    back(stage, &before).await
}

async fn until_dialled(stage: &mut Stage, socket: &std::path::Path) -> Result<Duration, Unmet> {
    let (begun, limit) = (std::time::Instant::now(), stage.subject.within.react);
    loop {
        if dialled(socket).await.is_ok() {
            return Ok(begun.elapsed());
        }
        stage.alive()?;
        if begun.elapsed() > limit {
            return failed(format!("{} does not answer after {limit:?}", socket.display()));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn registers_after_a_cut_stream(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    let since = stage.now();
    stage.kubelet.cancel_stream(&before[0].resource).await;
    let is_again = |event: &Event| matches!(event, Event::Registered { .. });
    let took = stage.until_event("another registration", since, is_again).await?;
    back(stage, &before).await?;
    Ok(format!("registered again after {took:.1?}"))
}

async fn outlives_an_absence(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    stage.kubelet.stop().await;
    sleep(AWAY).await;
    stage.alive()?;
    restarted(stage).await?;
    back(stage, &before).await
}

async fn keeps_what_a_container_has(stage: &mut Stage) -> Checked {
    let before = stage.started_with_devices().await?;
    let Some(one) = before.iter().find(|it| it.healthy().len() > 1) else {
        return not_applicable("no resource has two healthy devices");
    };
    let pod = Pod::new("first").container(Container::new("c").limit(&one.resource, 1));
    let uid = pod.uid.clone();
    let admission = stage.admitted(pod).await?;
    let first = admission.allotment("c", &one.resource).map(Allotment::ids);
    if let Err(error) = stage.kubelet.start_container(&uid, "c").await {
        return failed(format!("the container does not start: {error}"));
    }
    restarted(stage).await?;
    back(stage, &before).await?;
    let second = stage.admit("second", &one.resource, 1).await?;
    match first {
        Some(first) if second.iter().any(|id| first.contains(id)) => {
            failed(format!("both pods have {second:?}"))
        }
        _ => Ok(format!("the second pod has {second:?}")),
    }
}
