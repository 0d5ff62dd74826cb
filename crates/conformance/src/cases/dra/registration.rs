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
use windlass_kubelet_sim::{Event, Faults, RegistrationFault};

use crate::{
    case::{Case, CheckError, CheckResult, failed},
    cases::again::restart_kubelet,
    clients::call_ok_within,
    testbed::{POLL_INTERVAL, Testbed, dial},
};

/// The kubelet's limit for `GetInfo`.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after a refusal. A program that exits on the refusal does so within it.
const REFUSAL_EXIT_TIME: Duration = Duration::from_secs(2);

/// Driver services that kubelets of 1.34 to 1.36 speak.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D01",
        sentence: "is registered by a kubelet that sends its socket's path, percent-encoded, as authority",
        source: "pluginmanager/operationexecutor/operation_generator.go, dial; Kubernetes issue 109081",
        check: |testbed| Box::pin(is_registered(testbed)),
    },
    Case {
        id: "D02",
        sentence: "answers GetInfo within a second: type DRAPlugin, its name, a version that kubelets support",
        source: "pluginmanager/operationexecutor/operation_generator.go, GenerateRegisterPluginFunc; \
                 cm/dra/plugin/dra_plugin_manager.go, ValidatePlugin",
        check: |testbed| Box::pin(describes_itself(testbed)),
    },
    Case {
        id: "D03",
        sentence: "names an absolute endpoint, and serves it before it registers",
        source: "cm/dra/plugin/dra_plugin_manager.go, RegisterPlugin: the kubelet connects at once",
        check: |testbed| Box::pin(serves_its_endpoint(testbed)),
    },
    Case {
        id: "D04",
        sentence: "survives a refused registration, and registers when the kubelet tries again",
        source: "pluginmanager/reconciler/reconciler.go: tried again with a back-off",
        check: |testbed| Box::pin(survives_a_refusal(testbed)),
    },
    Case {
        id: "D05",
        sentence: "is registered again after each of three kubelet restarts",
        source: "pluginmanager/pluginwatcher/plugin_watcher.go, Start: the kubelet finds existing sockets",
        check: |testbed| Box::pin(is_registered_again(testbed)),
    },
    Case {
        id: "D06",
        sentence: "restores its registration socket after a deletion",
        source: "pluginmanager/pluginwatcher/plugin_watcher.go, handleDeleteEvent; \
                 cm/dra/plugin/dra_plugin_manager.go, remove: 30 s later its slices are deleted",
        check: |testbed| Box::pin(restores_its_socket(testbed)),
    },
    Case {
        id: "D07",
        sentence: "starts again after a kill, over its old socket files",
        source: "unix(7): the file of a dead socket stays",
        check: |testbed| Box::pin(starts_over_its_old_sockets(testbed)),
    },
];

async fn is_registered(testbed: &mut Testbed) -> CheckResult {
    let driver = testbed.start_driver().await?;
    let sockets: Vec<_> =
        testbed.registration_sockets().iter().filter_map(|path| file_name(path)).collect();
    Ok(format!("{} by {}", driver.name, sockets.join(", ")))
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.display().to_string())
}

async fn describes_itself(testbed: &mut Testbed) -> CheckResult {
    let PluginInfo { r#type, name, supported_versions, .. } = wait_for_info(testbed).await?;
    if r#type != DRA_PLUGIN {
        return failed(format!("its type is {type:?}"));
    }
    if name.is_empty() || name.len() > 63 {
        return failed(format!("its name {name:?} does not have 1 to 63 bytes"));
    }
    match supported_versions.iter().find(|version| SERVICES.contains(&version.as_str())) {
        Some(first) => {
            Ok(format!("the kubelet calls {name} by {first}, of {supported_versions:?}"))
        }
        None => failed(format!("no kubelet supports one of {supported_versions:?}")),
    }
}

async fn serves_its_endpoint(testbed: &mut Testbed) -> CheckResult {
    let PluginInfo { endpoint, .. } = wait_for_info(testbed).await?;
    let endpoint = PathBuf::from(endpoint);
    if !endpoint.is_absolute() {
        return failed(format!("its endpoint {} is not an absolute path", endpoint.display()));
    }
    match dial(&endpoint).await {
        Ok(_) => Ok(format!("{} answers", endpoint.display())),
        Err(error) => failed(error),
    }
}

/// First response to `GetInfo` that arrives in time. The kubelet retries after a timeout, and so does this function,
/// up to the start limit. One late response on a busy machine is thus no failure.
async fn wait_for_info(testbed: &mut Testbed) -> Result<PluginInfo, CheckError> {
    testbed.start()?;
    let (started_at, limit) = (Instant::now(), testbed.subject.limits.start);
    loop {
        let error = match call_get_info(testbed).await {
            Some(Ok(info)) => return Ok(info),
            Some(Err(error)) => error,
            None => {
                CheckError::Failed(format!("no socket in plugins_registry answers after {limit:?}"))
            }
        };
        testbed.check_alive()?;
        if started_at.elapsed() >= limit {
            return Err(error);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Calls `GetInfo` once, if a socket accepts the connection.
async fn call_get_info(testbed: &Testbed) -> Option<Result<PluginInfo, CheckError>> {
    let channel = dial(testbed.registration_sockets().first()?).await.ok()?;
    let mut client = RegistrationClient::new(channel);
    Some(call_ok_within("GetInfo", INFO_TIMEOUT, client.get_info(InfoRequest {})).await)
}

async fn survives_a_refusal(testbed: &mut Testbed) -> CheckResult {
    let refusal = RegistrationFault::Refuse("not now".to_owned());
    testbed.kubelet.set_faults(Faults { driver_registration: refusal, ..Faults::default() });
    testbed.start()?;
    let is_refused = |event: &Event| matches!(event, Event::DriverRefused { .. });
    testbed.wait_for_event("a first registration", 0, is_refused).await?;
    sleep(REFUSAL_EXIT_TIME).await;
    testbed.check_alive()?;
    testbed.kubelet.set_faults(Faults::default());
    let driver = testbed.wait_for_registration(0, testbed.subject.limits.recover).await?;
    Ok(format!("{} registered after a refusal", driver.name))
}

async fn is_registered_again(testbed: &mut Testbed) -> CheckResult {
    testbed.start_driver().await?;
    for _ in 0..3 {
        let since = testbed.next_sequence();
        restart_kubelet(testbed).await?;
        testbed.wait_for_registration(since, testbed.subject.limits.react).await?;
    }
    Ok("registered after each of 3 restarts".into())
}

async fn restores_its_socket(testbed: &mut Testbed) -> CheckResult {
    testbed.start_driver().await?;
    let (since, sockets) = (testbed.next_sequence(), testbed.registration_sockets());
    for socket in &sockets {
        if let Err(error) = fs::remove_file(socket) {
            return failed(format!("cannot set up the test: {error}"));
        }
    }
    let started_at = Instant::now();
    testbed.wait_for_registration(since, testbed.subject.limits.react).await?;
    Ok(format!("registered again after {:.1?}", started_at.elapsed()))
}

async fn starts_over_its_old_sockets(testbed: &mut Testbed) -> CheckResult {
    testbed.start_driver().await?;
    let driver = testbed.kill_and_restart_driver().await?;
    Ok(format!("{} registered again", driver.name))
}
