//! D31 and D32: a driver's health reports, by `NodeWatchResources`.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::{Code, Streaming};
use windlass_kubelet_api::dra::health::{
    NodeWatchResourcesRequest, NodeWatchResourcesResponse,
    dra_resource_health_client::DraResourceHealthClient,
};

use super::driver_with_slices;
use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    clients::call_within,
    testbed::{Driver, Testbed, devices_in, dial},
};

/// Timeout of a health report that names none (`DefaultHealthTimeout`). After it the kubelet sets the health to
/// Unknown.
const DEFAULT_HEALTH_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D31",
        sentence: "keeps its health stream open, and repeats its report before the timeout",
        source: "cm/dra/manager.go, HandleWatchResourcesStream; cm/dra/healthinfo.go: Unknown after its timeout",
        check: |testbed| Box::pin(repeats_its_report(testbed)),
    },
    Case {
        id: "D32",
        sentence: "reports the health of all its devices in each message",
        source: "cm/dra/healthinfo.go, updateHealthInfo: Unknown, after its timeout",
        check: |testbed| Box::pin(reports_all_devices(testbed)),
    },
];

type HealthStream = Streaming<NodeWatchResourcesResponse>;

/// Opens a stream, and returns it with its first message.
async fn open_health_stream(
    testbed: &Testbed,
    driver: &Driver,
) -> Result<(HealthStream, NodeWatchResourcesResponse), CheckError> {
    let limit = testbed.subject.limits.react;
    let channel = dial(&driver.endpoint).await.map_err(CheckError::Failed)?;
    let mut client = DraResourceHealthClient::new(channel);
    let call = client.node_watch_resources(NodeWatchResourcesRequest {});
    let mut reports = match call_within("NodeWatchResources", limit, call).await? {
        Ok(reports) => reports,
        Err(status) if status.code() == Code::Unimplemented => {
            return not_applicable("it reports no health");
        }
        Err(status) => return failed(format!("NodeWatchResources: {}", status.message())),
    };
    let first = next_report(&mut reports, limit).await?;
    Ok((reports, first))
}

async fn next_report(
    reports: &mut HealthStream,
    limit: Duration,
) -> Result<NodeWatchResourcesResponse, CheckError> {
    match timeout(limit, reports.next()).await {
        Ok(Some(Ok(report))) => Ok(report),
        Ok(Some(Err(status))) => failed(format!("the stream failed: {}", status.message())),
        Ok(None) => failed("the driver ended the stream"),
        Err(_) => failed(format!(
            "no report for {limit:.1?}: the kubelet then sets the health to Unknown"
        )),
    }
}

/// Shortest timeout in a report.
fn timeout_of(report: &NodeWatchResourcesResponse) -> Duration {
    let timeouts = report.devices.iter().filter_map(|device| {
        u64::try_from(device.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0)
    });
    timeouts.min().map_or(DEFAULT_HEALTH_TIMEOUT, Duration::from_secs)
}

async fn repeats_its_report(testbed: &mut Testbed) -> CheckResult {
    let (driver, _) = driver_with_slices(testbed).await?;
    let (mut reports, first) = open_health_stream(testbed, &driver).await?;
    let limit = timeout_of(&first);
    for _ in 0..2 {
        next_report(&mut reports, limit).await?;
    }
    Ok(format!("twice, each time within {limit:?}"))
}

async fn reports_all_devices(testbed: &mut Testbed) -> CheckResult {
    let (driver, slices) = driver_with_slices(testbed).await?;
    let published_devices = devices_in(&slices);
    let (mut reports, first) = open_health_stream(testbed, &driver).await?;
    let second = next_report(&mut reports, timeout_of(&first)).await?;
    for report in [&first, &second] {
        let reported: BTreeSet<_> = report
            .devices
            .iter()
            .filter_map(|health| health.device.as_ref())
            .map(|device| (device.pool_name.as_str(), device.device_name.as_str()))
            .collect();
        if let Some((pool, device)) = published_devices.difference(&reported).next() {
            return failed(format!("a report lacks {device} of pool {pool}"));
        }
    }
    Ok(format!("{} devices in each message", published_devices.len()))
}
