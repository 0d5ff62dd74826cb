//! R: registration of a device plugin with the kubelet.

use std::{fs, os::unix::net::UnixListener, time::Duration};

use tokio::time::sleep;
use windlass_kubelet_api::deviceplugin::KUBELET_SOCKET;
use windlass_kubelet_sim::{Event, Faults, RegistrationFault};

use super::again::{restart_kubelet, restart_program};
use crate::{
    case::{Case, CheckError, CheckResult, failed},
    testbed::Testbed,
};

/// Duration of the watch for repeated registrations, long enough for a heartbeat of a few seconds.
const WATCH_TIME: Duration = Duration::from_secs(6);

/// Downtime of the kubelet.
const DOWNTIME: Duration = Duration::from_secs(2);

/// Permitted share of one processor for a waiting program. A higher share is a busy loop.
const BUSY_PERCENT: u32 = 30;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "R01",
        sentence: "serves before it registers: the kubelet calls GetDevicePluginOptions while Register waits",
        source: "cm/devicemanager/plugin/v1beta1/handler.go, connectClient",
        check: |testbed| Box::pin(registers(testbed)),
    },
    Case {
        id: "R02",
        sentence: "registers with a version, a name and an endpoint that the kubelet accepts at once",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Register; pkg/apis/core/v1/helper, \
                 IsExtendedResourceName",
        check: |testbed| Box::pin(is_never_refused(testbed)),
    },
    Case {
        id: "R03",
        sentence: "has its socket in the kubelet's plugin folder, where a restart cleans up",
        source: "cm/devicemanager/plugin/v1beta1/server.go, cleanup of the socket directory",
        check: |testbed| Box::pin(socket_is_in_the_folder(testbed)),
    },
    Case {
        id: "R04",
        sentence: "registers once: a second registration cuts the stream in use",
        source: "cm/devicemanager/plugin/v1beta1/client.go, Disconnect; Kubernetes PR 135437",
        check: |testbed| Box::pin(registers_once(testbed)),
    },
    Case {
        id: "R05",
        sentence: "waits for a kubelet that has not started, without a busy loop",
        source: "cm/devicemanager/manager.go, Start: after the container runtime is ready",
        check: |testbed| Box::pin(waits_for_the_kubelet(testbed)),
    },
    Case {
        id: "R06",
        sentence: "registers again after a refusal",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Register: the kubelet does not retry",
        check: |testbed| Box::pin(tries_again(testbed)),
    },
    Case {
        id: "R07",
        sentence: "registers with the next kubelet if one dies before it answers the registration",
        source: "cm/devicemanager/plugin/v1beta1/server.go, Register",
        check: |testbed| Box::pin(survives_an_unanswered_registration(testbed)),
    },
    Case {
        id: "R08",
        sentence: "leaves files of other plugins and of the kubelet in the plugin folder alone",
        source: "deviceplugin/v1beta1/constants.go, DevicePluginPath: one folder for all plugins",
        check: |testbed| Box::pin(leaves_other_files_alone(testbed)),
    },
    Case {
        id: "R09",
        sentence: "starts again after a kill, over its old socket file",
        source: "unix(7): the file of a dead socket stays; cm/devicemanager/manager.go, Start",
        check: |testbed| Box::pin(starts_over_its_old_socket(testbed)),
    },
];

async fn registers(testbed: &mut Testbed) -> CheckResult {
    let resources = testbed.start_and_wait().await?;
    let names: Vec<_> = resources.iter().map(|served| served.resource.as_str()).collect();
    Ok(format!("registered {}", names.join(", ")))
}

async fn is_never_refused(testbed: &mut Testbed) -> CheckResult {
    let resources = testbed.start_and_wait().await?;
    let (events, _) = testbed.events().since(0);
    let refusal = events.iter().find_map(|event| match event {
        Event::RegistrationRefused { resource, message } => Some((resource, message)),
        _ => None,
    });
    match refusal {
        Some((resource, message)) => failed(format!("{resource}: {message}")),
        None => Ok(format!("{} registered, none refused", resources.len())),
    }
}

async fn socket_is_in_the_folder(testbed: &mut Testbed) -> CheckResult {
    let (resources, folder) =
        (testbed.start_and_wait().await?, testbed.kubelet.config().plugin_dir());
    match resources.iter().find(|served| served.socket.parent() != Some(&folder)) {
        Some(served) => {
            failed(format!("{} is served at {}", served.resource, served.socket.display()))
        }
        None => Ok(format!("{} in the folder", resources.len())),
    }
}

async fn registers_once(testbed: &mut Testbed) -> CheckResult {
    let resources = testbed.start_and_wait().await?;
    let since = testbed.next_sequence();
    sleep(WATCH_TIME).await;
    let (events, _) = testbed.events().since(since);
    let second_registration = events.iter().find_map(|event| match event {
        Event::Registered { resource, .. } => Some(resource),
        _ => None,
    });
    match second_registration {
        Some(resource) => failed(format!("{resource} registered again without a reason")),
        None => Ok(format!("{} registered, and not again in {WATCH_TIME:?}", resources.len())),
    }
}

async fn waits_for_the_kubelet(testbed: &mut Testbed) -> CheckResult {
    testbed.kubelet.stop().await;
    // A node that has never had a kubelet has no socket. The stop may have removed it already.
    let _ = fs::remove_file(testbed.kubelet.config().registration_socket());
    testbed.start()?;
    // The measurement excludes the work of the start.
    sleep(DOWNTIME / 2).await;
    let before = testbed.process().load();
    sleep(DOWNTIME).await;
    testbed.check_alive()?;
    let percent = before.cpu_percent_until(&testbed.process().load());
    if percent > BUSY_PERCENT {
        return failed(format!("used {percent} % of a processor while it waited for the kubelet"));
    }
    restart_kubelet(testbed).await?;
    let resources = testbed.wait_for_resources(testbed.subject.limits.recover).await?;
    Ok(format!("{} registered; {percent} % of a processor while it waited", resources.len()))
}

async fn tries_again(testbed: &mut Testbed) -> CheckResult {
    let refusal = RegistrationFault::Refuse("not now".to_owned());
    testbed.kubelet.set_faults(Faults { registration: refusal, ..Faults::default() });
    testbed.start()?;
    let is_refused = |event: &Event| matches!(event, Event::RegistrationRefused { .. });
    testbed.wait_for_event("a first registration", 0, is_refused).await?;
    testbed.kubelet.set_faults(Faults::default());
    let limit = testbed.subject.limits.recover;
    let resources = testbed.wait_for_resources(limit).await?;
    Ok(format!("{} registered after a refusal", resources.len()))
}

async fn survives_an_unanswered_registration(testbed: &mut Testbed) -> CheckResult {
    let faults = Faults { registration: RegistrationFault::Hang, ..Faults::default() };
    testbed.kubelet.set_faults(faults);
    testbed.start()?;
    sleep(DOWNTIME).await;
    testbed.check_alive()?;
    testbed.kubelet.set_faults(Faults::default());
    restart_kubelet(testbed).await?;
    let resources = testbed.wait_for_resources(testbed.subject.limits.recover).await?;
    Ok(format!("{} registered with the next kubelet", resources.len()))
}

async fn leaves_other_files_alone(testbed: &mut Testbed) -> CheckResult {
    let folder = testbed.kubelet.config().plugin_dir();
    let failed_setup =
        |error: std::io::Error| CheckError::Failed(format!("cannot set up the test: {error}"));
    let socket = folder.join("another-plugin.sock");
    let _listener = UnixListener::bind(&socket).map_err(failed_setup)?;
    let file = folder.join("another-file");
    fs::write(&file, "theirs").map_err(failed_setup)?;
    testbed.start_and_wait().await?;
    let limit = testbed.subject.limits.stop;
    testbed.process().signal(rustix::process::Signal::TERM);
    testbed.process().wait_for_exit(limit).await;
    for path in [&socket, &file, &folder.join(KUBELET_SOCKET)] {
        if !path.exists() {
            let name = path.file_name().unwrap_or_default().display().to_string();
            return failed(format!("{name} was deleted"));
        }
    }
    match fs::read_to_string(&file) {
        Ok(text) if text == "theirs" => {
            Ok("a socket, a file and the kubelet's socket are intact".into())
        }
        result => failed(format!("a file of another plugin reads {result:?}")),
    }
}

async fn starts_over_its_old_socket(testbed: &mut Testbed) -> CheckResult {
    let before = testbed.start_and_wait().await?;
    let elapsed = restart_program(testbed, &before).await?;
    Ok(format!("{} registered again {elapsed:.1?} after the kill", before.len()))
}
