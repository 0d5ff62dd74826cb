//! R: registration of a plugin.

use std::{fs, os::unix::net::UnixListener, time::Duration};

use tokio::time::sleep;
use windlass_kubelet_api::deviceplugin::KUBELET_SOCKET;
use windlass_kubelet_sim::{Event, Misbehaviour, RegistrationFault};

use super::again::{restarted, restarted_program};
use crate::{
    case::{Case, Checked, failed},
    stage::Stage,
};

/// Duration that shows a heartbeat of a few seconds.
const QUIET: Duration = Duration::from_secs(6);

/// Downtime of the kubelet.
const AWAY: Duration = Duration::from_secs(2);

/// Share of one processor that an idle program stays below. A higher one is a busy loop.
const BUSY_PERCENT: u32 = 30;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "R01",
        sentence: "serves before it registers: the kubelet asks for options while Register waits",
        source: "cm/devicemanager/plugin/v1beta1/handler.go, connectClient",
        check: |stage| Box::pin(registers(stage)),
    },
    Case {
        id: "R02",
        sentence: "registers with a version, a name and an endpoint that the kubelet takes at once",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Register; pkg/apis/core/v1/helper, \
                 IsExtendedResourceName",
        check: |stage| Box::pin(is_never_refused(stage)),
    },
    Case {
        id: "R03",
        sentence: "has its socket in the kubelet's plugin folder, where a restart cleans up",
        source: "cm/devicemanager/plugin/v1beta1/server.go, cleanup of the socket directory",
        check: |stage| Box::pin(socket_is_in_the_folder(stage)),
    },
    Case {
        id: "R04",
        sentence: "registers once: a second registration cuts the stream that serves",
        source: "cm/devicemanager/plugin/v1beta1/client.go, Disconnect; Kubernetes PR 135437",
        check: |stage| Box::pin(registers_once(stage)),
    },
    Case {
        id: "R05",
        sentence: "waits for a kubelet that is not there yet, without a busy loop",
        source: "cm/devicemanager/manager.go, Start: after the container runtime is ready",
        check: |stage| Box::pin(waits_for_the_kubelet(stage)),
    },
    Case {
        id: "R06",
        sentence: "tries again when a registration is refused",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Register: the kubelet never asks back",
        check: |stage| Box::pin(tries_again(stage)),
    },
    Case {
        id: "R07",
        sentence: "gets over a kubelet that died before it answered the registration",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Register",
        check: |stage| Box::pin(outlives_an_open_registration(stage)),
    },
    Case {
        id: "R08",
        sentence: "leaves what others have in the plugin folder alone, and the kubelet's own files",
        source: "deviceplugin/v1beta1/constants.go, DevicePluginPath: one folder for all plugins",
        check: |stage| Box::pin(leaves_others_alone(stage)),
    },
    Case {
        id: "R09",
        sentence: "starts over the socket that it left behind when it was killed",
        source: "unix(7): the name of a dead socket stays; cm/devicemanager/manager.go, Start",
        check: |stage| Box::pin(starts_over_its_old_socket(stage)),
    },
];

async fn registers(stage: &mut Stage) -> Checked {
    let served = stage.started().await?;
    let names: Vec<_> = served.iter().map(|it| it.resource.as_str()).collect();
    Ok(format!("registered {}", names.join(", ")))
}

async fn is_never_refused(stage: &mut Stage) -> Checked {
    let served = stage.started().await?;
    let (events, _) = stage.calls().since(0);
    let refusal = events.iter().find_map(|event| match event {
        Event::RegistrationRefused { resource, message } => Some((resource, message)),
        _ => None,
    });
    match refusal {
        Some((resource, message)) => failed(format!("{resource}: {message}")),
        None => Ok(format!("{} registered, none refused", served.len())),
    }
}

async fn socket_is_in_the_folder(stage: &mut Stage) -> Checked {
    let (served, folder) = (stage.started().await?, stage.kubelet.config().plugin_dir());
    match served.iter().find(|it| it.socket.parent() != Some(&folder)) {
        Some(it) => failed(format!("{} is served at {}", it.resource, it.socket.display())),
        None => Ok(format!("{} in the folder", served.len())),
    }
}

async fn registers_once(stage: &mut Stage) -> Checked {
    let served = stage.started().await?;
    let since = stage.now();
    sleep(QUIET).await;
    let (events, _) = stage.calls().since(since);
    let again = events.iter().find_map(|event| match event {
        Event::Registered { resource, .. } => Some(resource),
        _ => None,
    });
    match again {
        Some(resource) => failed(format!("{resource} registered again, though nothing happened")),
        None => Ok(format!("{} registered, and not again in {QUIET:?}", served.len())),
    }
}

async fn waits_for_the_kubelet(stage: &mut Stage) -> Checked {
    stage.kubelet.stop().await;
    // A node that has never had a kubelet has no socket. The stop may have removed it already.
    let _ = fs::remove_file(stage.kubelet.config().registration_socket());
    stage.start()?;
    // The measurement excludes the work of the start.
    sleep(AWAY / 2).await;
    let before = stage.process().load();
    sleep(AWAY).await;
    stage.alive()?;
    let percent = before.percent_until(&stage.process().load());
    if percent > BUSY_PERCENT {
        return failed(format!("used {percent} % of a processor to wait for the kubelet"));
    }
    restarted(stage).await?;
    let served = stage.served(stage.subject.within.recover).await?;
    Ok(format!("{} registered; {percent} % of a processor before", served.len()))
}

async fn tries_again(stage: &mut Stage) -> Checked {
    let refusal = RegistrationFault::Refuse("not now".to_owned());
    stage.kubelet.misbehave(Misbehaviour { registration: refusal, ..Misbehaviour::default() });
    stage.start()?;
    let is_refused = |event: &Event| matches!(event, Event::RegistrationRefused { .. });
    stage.until_event("a first registration", 0, is_refused).await?;
    stage.kubelet.misbehave(Misbehaviour::default());
    let limit = stage.subject.within.recover;
    let served = stage.served(limit).await?;
    Ok(format!("{} registered after a refusal", served.len()))
}

async fn outlives_an_open_registration(stage: &mut Stage) -> Checked {
    let hang = Misbehaviour { registration: RegistrationFault::Hang, ..Misbehaviour::default() };
    stage.kubelet.misbehave(hang);
    stage.start()?;
    sleep(AWAY).await;
    stage.alive()?;
    stage.kubelet.misbehave(Misbehaviour::default());
    restarted(stage).await?;
    let served = stage.served(stage.subject.within.recover).await?;
    Ok(format!("{} registered with the next kubelet", served.len()))
}

async fn leaves_others_alone(stage: &mut Stage) -> Checked {
    let folder = stage.kubelet.config().plugin_dir();
    let broken = |error: std::io::Error| crate::case::Unmet::Failed(format!("no stage: {error}"));
    let other = folder.join("another-plugin.sock");
    let _listener = UnixListener::bind(&other).map_err(broken)?;
    let file = folder.join("another-file");
    fs::write(&file, "theirs").map_err(broken)?;
    stage.started().await?;
    let limit = stage.subject.within.stop;
    stage.process().signal(rustix::process::Signal::TERM);
    stage.process().end_within(limit).await;
    for path in [&other, &file, &folder.join(KUBELET_SOCKET)] {
        if !path.exists() {
            let name = path.file_name().unwrap_or_default().display().to_string();
            return failed(format!("{name} is gone"));
        }
    }
    match fs::read_to_string(&file) {
        Ok(text) if text == "theirs" => Ok("a socket, a file and the kubelet's are there".into()),
        other => failed(format!("a file of another plugin reads {other:?}")),
    }
}

async fn starts_over_its_old_socket(stage: &mut Stage) -> Checked {
    let before = stage.started().await?;
    let took = restarted_program(stage, &before).await?;
    Ok(format!("{} back {took:.1?} after it was killed", before.len()))
}
