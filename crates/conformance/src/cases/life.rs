//! E: idle time, load and end of the program, as a container on every node.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use rustix::process::Signal;
use tokio::time::sleep;

use crate::{
    case::{Case, Checked, Unmet, failed},
    clients::{allocation, granted},
    stage::Stage,
};

/// Duration of the idle measurement, and the permitted share of one processor.
const IDLE: Duration = Duration::from_secs(4);
const IDLE_PERCENT: u32 = 5;

/// Number of requests before the first measurement, and after it.
const WARM: usize = 300;
const REQUESTS: usize = 2000;

/// Growth of memory, in KiB, beyond the size of a cache.
const LEAK_KIB: u64 = 16 * 1024;

/// Number of descriptors that a runtime may keep open.
pub(super) const SPARE_DESCRIPTORS: usize = 10;

/// Fraction of the stop limit in which streams must close. Until then the kubelet gives the devices to pods.
const STREAMS_OF_END: u32 = 5;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "E01",
        sentence: "ends within ten seconds after SIGTERM",
        source: "pod life cycle: SIGTERM, and SIGKILL after terminationGracePeriodSeconds (30)",
        check: |stage| Box::pin(ends_when_told(stage)),
    },
    Case {
        id: "E02",
        sentence: "handles SIGTERM: as process 1 of a container it would not die of it",
        source: "pid_namespaces(7): a signal without a handler does not reach the first process",
        check: |stage| Box::pin(handles_the_signal(stage)),
    },
    Case {
        id: "E03",
        sentence: "closes its streams within two seconds after SIGTERM, so that nobody is given its devices",
        source: "cm/devicemanager/manager.go, PluginDisconnected",
        check: |stage| Box::pin(closes_its_streams(stage)),
    },
    Case {
        id: "E04",
        sentence: "leaves no socket behind when it ends",
        source: "unix(7): a name that nobody listens on is dialled for 10 s",
        check: |stage| Box::pin(removes_its_socket(stage)),
    },
    Case {
        id: "E05",
        sentence: "is idle while nothing happens",
        source: "an agent of every node; DaemonSet practice",
        check: |stage| Box::pin(is_idle(stage)),
    },
    Case {
        id: "E06",
        sentence: "keeps neither memory nor descriptors for 2,000 requests",
        source: "cm/devicemanager: every container of every pod asks; there is no deallocate",
        check: |stage| Box::pin(keeps_nothing(stage)),
    },
];

async fn ends_when_told(stage: &mut Stage) -> Checked {
    stage.started().await?;
    let begun = std::time::Instant::now();
    let status = end(stage).await?;
    Ok(format!("{status} after {:.1?}", begun.elapsed()))
}

/// Sends SIGTERM, and waits for the exit.
pub(super) async fn end(stage: &mut Stage) -> Result<ExitStatus, Unmet> {
    let limit = stage.subject.within.stop;
    stage.process().signal(Signal::TERM);
    match stage.process().end_within(limit).await {
        Some(status) => Ok(status),
        None => failed(format!("it runs {limit:?} after SIGTERM")),
    }
}

async fn handles_the_signal(stage: &mut Stage) -> Checked {
    stage.started().await?;
    let status = end(stage).await?;
    match status.signal() {
        Some(signal) => failed(format!("it died of signal {signal}, which it does not handle")),
        None => Ok(format!("{status}")),
    }
}

async fn closes_its_streams(stage: &mut Stage) -> Checked {
    let served = stage.started().await?;
    // Measured before the exit: the kernel closes the streams of a process that has ended.
    let (begun, limit) = (std::time::Instant::now(), stage.subject.within.stop / STREAMS_OF_END);
    stage.process().signal(Signal::TERM);
    let is_gone = |node: &windlass_kubelet_sim::NodeStatus| {
        served.iter().all(|it| node.counts(&it.resource).is_none_or(|(_, free)| free == 0))
    };
    match stage.kubelet.wait_for(is_gone, limit).await {
        Ok(_) => Ok(format!("{} withdrawn after {:.1?}", served.len(), begun.elapsed())),
        Err(_) => failed(format!("its devices are allocatable {limit:?} after SIGTERM")),
    }
}

async fn removes_its_socket(stage: &mut Stage) -> Checked {
    let served = stage.started().await?;
    end(stage).await?;
    match served.iter().find(|it| it.socket.exists()) {
        Some(it) => failed(format!("{} is still there", it.socket.display())),
        None => Ok(format!("{} removed", served.len())),
    }
}

async fn is_idle(stage: &mut Stage) -> Checked {
    stage.started().await?;
    // Deferred work of the start is done by then.
    sleep(Duration::from_secs(1)).await;
    let before = stage.process().load();
    sleep(IDLE).await;
    let percent = before.percent_until(&stage.process().load());
    let evidence = format!("{percent} % of a processor in {IDLE:?}");
    if percent > IDLE_PERCENT { failed(evidence) } else { Ok(evidence) }
}

async fn keeps_nothing(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    let (mut client, healthy) = (all[0].dial().await?, all[0].healthy());
    let mut before = stage.process().usage();
    for (number, id) in healthy.iter().cycle().take(WARM + REQUESTS).enumerate() {
        if number == WARM {
            before = stage.process().usage();
        }
        let request = allocation(&[vec![id.clone()]]);
        granted("Allocate", limit, client.allocate(request)).await?;
    }
    let after = stage.process().usage();
    let grown = after.resident_kib.saturating_sub(before.resident_kib);
    let opened = after.descriptors.saturating_sub(before.descriptors);
    let evidence = format!("{grown} KiB and {opened} descriptors more after {REQUESTS} requests");
    if grown > LEAK_KIB || opened > SPARE_DESCRIPTORS { failed(evidence) } else { Ok(evidence) }
}
