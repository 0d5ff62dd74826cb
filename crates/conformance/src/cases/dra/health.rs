//! D31 and D32: health reports of a driver.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::{Code, Streaming};
use windlass_kubelet_api::dra::health::{
    NodeWatchResourcesRequest, NodeWatchResourcesResponse,
    dra_resource_health_client::DraResourceHealthClient,
};

use super::published;
use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    clients::answered,
    stage::{Driver, Stage, devices_in, dialled},
};

/// Timeout of a health report that names none. The kubelet then treats the health as unknown
/// (`DefaultHealthTimeout`).
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "D31",
        sentence: "keeps its health stream open, and repeats itself before a health is out of date",
        source: "cm/dra/manager.go, HandleWatchResourcesStream; cm/dra/healthinfo.go: Unknown after its timeout",
        check: |stage| Box::pin(repeats_itself(stage)),
    },
    Case {
        id: "D32",
        sentence: "tells the health of all its devices in each message",
        source: "cm/dra/healthinfo.go, updateHealthInfo: Unknown, after its timeout",
        check: |stage| Box::pin(tells_all(stage)),
    },
];

type Lists = Streaming<NodeWatchResourcesResponse>;

/// Opens a stream, and returns it with its first message.
async fn opened(
    stage: &Stage,
    driver: &Driver,
) -> Result<(Lists, NodeWatchResourcesResponse), Unmet> {
    let limit = stage.subject.within.react;
    let channel = dialled(&driver.endpoint).await.map_err(Unmet::Failed)?;
    let mut client = DraResourceHealthClient::new(channel);
    let call = client.node_watch_resources(NodeWatchResourcesRequest {});
    let mut lists = match answered("NodeWatchResources", limit, call).await? {
        Ok(lists) => lists,
        Err(status) if status.code() == Code::Unimplemented => {
            return not_applicable("it tells no health");
        }
        Err(status) => return failed(format!("NodeWatchResources: {}", status.message())),
    };
    let first = next(&mut lists, limit).await?;
    Ok((lists, first))
}

async fn next(lists: &mut Lists, limit: Duration) -> Result<NodeWatchResourcesResponse, Unmet> {
    match timeout(limit, lists.next()).await {
        Ok(Some(Ok(list))) => Ok(list),
        Ok(Some(Err(status))) => failed(format!("the stream failed: {}", status.message())),
        Ok(None) => failed("the driver ended the stream"),
        Err(_) => failed(format!("nothing is said for {limit:.1?}, and health is unknown then")),
    }
}

/// Shortest timeout in a list.
fn timeout_of(list: &NodeWatchResourcesResponse) -> Duration {
    let said = list.devices.iter().filter_map(|device| {
        u64::try_from(device.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0)
    });
    said.min().map_or(TIMEOUT, Duration::from_secs)
}

async fn repeats_itself(stage: &mut Stage) -> Checked {
    let (driver, _) = published(stage).await?;
    let (mut lists, first) = opened(stage, &driver).await?;
    let limit = timeout_of(&first);
    for _ in 0..2 {
        next(&mut lists, limit).await?;
    }
    Ok(format!("twice, each time within {limit:?}"))
}

async fn tells_all(stage: &mut Stage) -> Checked {
    let (driver, slices) = published(stage).await?;
    let all = devices_in(&slices);
    let (mut lists, first) = opened(stage, &driver).await?;
    let again = next(&mut lists, timeout_of(&first)).await?;
    for list in [&first, &again] {
        let told: BTreeSet<_> = list
            .devices
            .iter()
            .filter_map(|it| it.device.as_ref())
            .map(|it| (it.pool_name.as_str(), it.device_name.as_str()))
            .collect();
        if let Some((pool, device)) = all.difference(&told).next() {
            return failed(format!("nothing is said of {device} in pool {pool}"));
        }
    }
    Ok(format!("{} devices in each message", all.len()))
}
