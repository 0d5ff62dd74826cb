//! E: idle load, leaks and shutdown of the program.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use rustix::process::Signal;
use tokio::time::sleep;

use crate::{
    case::{Case, CheckError, CheckResult, failed},
    clients::{allocate_request, call_ok_within},
    testbed::Testbed,
};

/// Duration of the idle measurement, and the permitted share of one processor.
const IDLE_TIME: Duration = Duration::from_secs(4);
const MAX_IDLE_PERCENT: u32 = 5;

/// Number of requests: before the first measurement, and between both.
const WARM_UP_REQUESTS: usize = 300;
const REQUESTS: usize = 2000;

/// Permitted growth of resident memory, in KiB. Caches may grow by this much.
const MAX_GROWTH_KIB: u64 = 16 * 1024;

/// Permitted growth of open descriptors. Language runtimes keep some open.
pub(super) const MAX_DESCRIPTOR_GROWTH: usize = 10;

/// Streams must close within the stop limit divided by this. Until then the kubelet allocates the devices to pods.
const STREAM_CLOSE_DIVISOR: u32 = 5;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "E01",
        sentence: "exits within ten seconds after SIGTERM",
        source: "pod life cycle: SIGTERM, and SIGKILL after terminationGracePeriodSeconds (30)",
        check: |testbed| Box::pin(exits_on_sigterm(testbed)),
    },
    Case {
        id: "E02",
        sentence: "handles SIGTERM: without a handler, process 1 of a container survives it",
        source: "pid_namespaces(7): a signal without a handler does not reach the first process",
        check: |testbed| Box::pin(handles_sigterm(testbed)),
    },
    Case {
        id: "E03",
        sentence: "closes its streams within two seconds after SIGTERM, so that no pod gets its devices",
        source: "cm/devicemanager/manager.go, PluginDisconnected",
        check: |testbed| Box::pin(closes_its_streams(testbed)),
    },
    Case {
        id: "E04",
        sentence: "removes its sockets when it exits",
        source: "unix(7): the kubelet dials a socket file without a listener for 10 s",
        check: |testbed| Box::pin(removes_its_socket(testbed)),
    },
    Case {
        id: "E05",
        sentence: "uses at most 5 % of a processor when idle",
        source: "DaemonSet practice: the program runs on every node",
        check: |testbed| Box::pin(is_idle(testbed)),
    },
    Case {
        id: "E06",
        sentence: "leaks neither memory nor descriptors in 2,000 requests",
        source: "cm/devicemanager: one Allocate for each container; there is no deallocate",
        check: |testbed| Box::pin(leaks_nothing(testbed)),
    },
];

async fn exits_on_sigterm(testbed: &mut Testbed) -> CheckResult {
    testbed.start_and_wait().await?;
    let started_at = std::time::Instant::now();
    let status = terminate(testbed).await?;
    Ok(format!("{status} after {:.1?}", started_at.elapsed()))
}

/// Sends SIGTERM, and waits for the exit.
pub(super) async fn terminate(testbed: &mut Testbed) -> Result<ExitStatus, CheckError> {
    let limit = testbed.subject.limits.stop;
    testbed.process().signal(Signal::TERM);
    match testbed.process().wait_for_exit(limit).await {
        Some(status) => Ok(status),
        None => failed(format!("it still runs {limit:?} after SIGTERM")),
    }
}

async fn handles_sigterm(testbed: &mut Testbed) -> CheckResult {
    testbed.start_and_wait().await?;
    let status = terminate(testbed).await?;
    match status.signal() {
        Some(signal) => failed(format!("signal {signal} killed it: it has no handler")),
        None => Ok(format!("{status}")),
    }
}

async fn closes_its_streams(testbed: &mut Testbed) -> CheckResult {
    let resources = testbed.start_and_wait().await?;
    // Measured before the exit: the kernel closes the streams of a process that has ended.
    let (started_at, limit) =
        (std::time::Instant::now(), testbed.subject.limits.stop / STREAM_CLOSE_DIVISOR);
    testbed.process().signal(Signal::TERM);
    let is_gone = |node: &windlass_kubelet_sim::NodeStatus| {
        resources
            .iter()
            .all(|served| node.counts(&served.resource).is_none_or(|(_, healthy)| healthy == 0))
    };
    match testbed.kubelet.wait_for(is_gone, limit).await {
        Ok(_) => Ok(format!("{} withdrawn after {:.1?}", resources.len(), started_at.elapsed())),
        Err(_) => failed(format!("its devices are allocatable {limit:?} after SIGTERM")),
    }
}

async fn removes_its_socket(testbed: &mut Testbed) -> CheckResult {
    let resources = testbed.start_and_wait().await?;
    terminate(testbed).await?;
    match resources.iter().find(|served| served.socket.exists()) {
        Some(served) => failed(format!("{} still exists", served.socket.display())),
        None => Ok(format!("{} removed", resources.len())),
    }
}

async fn is_idle(testbed: &mut Testbed) -> CheckResult {
    testbed.start_and_wait().await?;
    // The program finishes deferred work of its start in this time.
    sleep(Duration::from_secs(1)).await;
    let before = testbed.process().load();
    sleep(IDLE_TIME).await;
    let percent = before.cpu_percent_until(&testbed.process().load());
    let evidence = format!("{percent} % of a processor in {IDLE_TIME:?}");
    if percent > MAX_IDLE_PERCENT { failed(evidence) } else { Ok(evidence) }
}

async fn leaks_nothing(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    let (mut client, healthy) = (resources[0].dial().await?, resources[0].healthy_ids());
    let mut before = testbed.process().usage();
    for (number, id) in healthy.iter().cycle().take(WARM_UP_REQUESTS + REQUESTS).enumerate() {
        if number == WARM_UP_REQUESTS {
            before = testbed.process().usage();
        }
        let request = allocate_request(&[vec![id.clone()]]);
        call_ok_within("Allocate", limit, client.allocate(request)).await?;
    }
    let after = testbed.process().usage();
    let growth_kib = after.resident_kib.saturating_sub(before.resident_kib);
    let opened_descriptors = after.descriptors.saturating_sub(before.descriptors);
    let evidence = format!(
        "{growth_kib} KiB and {opened_descriptors} descriptors more after {REQUESTS} requests"
    );
    if growth_kib > MAX_GROWTH_KIB || opened_descriptors > MAX_DESCRIPTOR_GROWTH {
        failed(evidence)
    } else {
        Ok(evidence)
    }
}
