//! D01 to D07: discovery and registration of a driver.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::time::sleep;
use windlass_kubelet_api::pluginregistration::{
    DRA_PLUGIN, InfoRequest, PluginInfo, registration_client::RegistrationClient,
};
use windlass_kubelet_sim::{Event, Misbehaviour, RegistrationFault};

use crate::{
    case::{Case, Checked, Unmet, failed},
    cases::again::restarted,
    clients::granted,
    stage::{LOOK, Stage, dialled},
};

/// The kubelet's limit for `GetInfo`.
const INFO: Duration = Duration::from_secs(1);

/// Time in which a program that exits on a refusal has exited.
const QUIET: Duration = Duration::from_secs(2);

/// Driver services that kubelets of 1.34 to 1.36 speak.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D01",
        sentence: "is registered by a kubelet that sends its socket's path, percent-encoded, as authority",
        source: "pluginmanager/operationexecutor/operation_generator.go, dial; Kubernetes issue 109081",
        check: |stage| Box::pin(is_registered(stage)),
    },
    Case {
        id: "D02",
        sentence: "answers GetInfo within a second: a DRAPlugin, its name, a version that kubelets know",
        source: "pluginmanager/operationexecutor/operation_generator.go, GenerateRegisterPluginFunc; \
                 cm/dra/plugin/dra_plugin_manager.go, ValidatePlugin",
        check: |stage| Box::pin(says_what_it_is(stage)),
    },
    Case {
        id: "D03",
        sentence: "names an absolute endpoint, and serves it before it says so",
        source: "cm/dra/plugin/dra_plugin_manager.go, RegisterPlugin: the kubelet connects at once",
        check: |stage| Box::pin(serves_what_it_names(stage)),
    },
    Case {
        id: "D04",
        sentence: "outlives a refused registration, and is registered when the kubelet tries again",
        source: "pluginmanager/reconciler/reconciler.go: tried again with a back-off",
        check: |stage| Box::pin(outlives_a_refusal(stage)),
    },
    Case {
        id: "D05",
        sentence: "is registered again after the kubelet has restarted, as often as it does",
        source: "pluginmanager/pluginwatcher/plugin_watcher.go, Start: sockets stay and are found",
        check: |stage| Box::pin(is_registered_again(stage)),
    },
    Case {
        id: "D06",
        sentence: "has its registration socket back after somebody deleted it",
        source: "pluginmanager/pluginwatcher/plugin_watcher.go, handleDeleteEvent; \
                 cm/dra/plugin/dra_plugin_manager.go, remove: 30 s later its slices are deleted",
        check: |stage| Box::pin(has_its_socket_back(stage)),
    },
    Case {
        id: "D07",
        sentence: "starts over the sockets that it left behind when it was killed",
        source: "unix(7): the name of a dead socket stays",
        check: |stage| Box::pin(starts_over_its_old_sockets(stage)),
    },
];

async fn is_registered(stage: &mut Stage) -> Checked {
    let driver = stage.driver().await?;
    let sockets: Vec<_> = stage.registry().iter().filter_map(|path| name(path)).collect();
    Ok(format!("{} by {}", driver.name, sockets.join(", ")))
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.display().to_string())
}

async fn says_what_it_is(stage: &mut Stage) -> Checked {
    let PluginInfo { r#type, name, supported_versions, .. } = info(stage).await?;
    if r#type != DRA_PLUGIN {
        return failed(format!("its type is {type:?}"));
    }
    if name.is_empty() || name.len() > 63 {
        return failed(format!("its name {name:?} has not 1 to 63 bytes"));
    }
    match supported_versions.iter().find(|it| SERVICES.contains(&it.as_str())) {
        Some(first) => Ok(format!("{name} is called by {first}, of {supported_versions:?}")),
        None => failed(format!("no kubelet knows one of {supported_versions:?}")),
    }
}

async fn serves_what_it_names(stage: &mut Stage) -> Checked {
    let PluginInfo { endpoint, .. } = info(stage).await?;
    let endpoint = PathBuf::from(endpoint);
    if !endpoint.is_absolute() {
        return failed(format!("its endpoint {} is no absolute path", endpoint.display()));
    }
    match dialled(&endpoint).await {
        Ok(_) => Ok(format!("{} answers", endpoint.display())),
        Err(error) => failed(error),
    }
}

/// First response to `GetInfo`. The kubelet asks again after a timeout, so one late response on a busy machine is no
/// failure.
async fn info(stage: &mut Stage) -> Result<PluginInfo, Unmet> {
    stage.start()?;
    let (begun, limit) = (Instant::now(), stage.subject.within.start);
    loop {
        let unmet = match asked(stage).await {
            Some(Ok(info)) => return Ok(info),
            Some(Err(unmet)) => unmet,
            None => Unmet::Failed(format!("no socket in plugins_registry answers after {limit:?}")),
        };
        stage.alive()?;
        if begun.elapsed() >= limit {
            return Err(unmet);
        }
        sleep(LOOK).await;
    }
}

/// Calls `GetInfo` once, if a socket accepts the connection.
async fn asked(stage: &Stage) -> Option<Result<PluginInfo, Unmet>> {
    let channel = dialled(stage.registry().first()?).await.ok()?;
    let mut client = RegistrationClient::new(channel);
    Some(granted("GetInfo", INFO, client.get_info(InfoRequest {})).await)
}

async fn outlives_a_refusal(stage: &mut Stage) -> Checked {
    let refusal = RegistrationFault::Refuse("not now".to_owned());
    let refusing = Misbehaviour { driver_registration: refusal, ..Misbehaviour::default() };
    stage.kubelet.misbehave(refusing);
    stage.start()?;
    let is_refused = |event: &Event| matches!(event, Event::DriverRefused { .. });
    stage.until_event("a first registration", 0, is_refused).await?;
    sleep(QUIET).await;
    stage.alive()?;
    stage.kubelet.misbehave(Misbehaviour::default());
    let driver = stage.registered(0, stage.subject.within.recover).await?;
    Ok(format!("{} registered after a refusal", driver.name))
}

async fn is_registered_again(stage: &mut Stage) -> Checked {
    stage.driver().await?;
    for _ in 0..3 {
        let since = stage.now();
        restarted(stage).await?;
        stage.registered(since, stage.subject.within.react).await?;
    }
    Ok("registered after each of 3 restarts".into())
}

async fn has_its_socket_back(stage: &mut Stage) -> Checked {
    stage.driver().await?;
    let (since, sockets) = (stage.now(), stage.registry());
    for socket in &sockets {
        if let Err(error) = fs::remove_file(socket) {
            return failed(format!("no stage: {error}"));
        }
    }
    let begun = Instant::now();
    stage.registered(since, stage.subject.within.react).await?;
    Ok(format!("registered again after {:.1?}", begun.elapsed()))
}

async fn starts_over_its_old_sockets(stage: &mut Stage) -> Checked {
    stage.driver().await?;
    let driver = stage.killed_and_started().await?;
    Ok(format!("{} registered again", driver.name))
}
