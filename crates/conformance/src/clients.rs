//! Calls of the device plugin API, each with the limit of its case.

use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::{Response, Status, Streaming};
use windlass_kubelet_api::deviceplugin::{self as wire, UNHEALTHY};

use crate::{
    case::{Unmet, failed},
    process::{Load, Process},
    stage::Client,
};

/// Largest message that the kubelet's gRPC accepts (`defaultClientMaxReceiveMessageSize` of grpc-go).
pub(crate) const LIMIT_OF_GO: usize = 4 * 1024 * 1024;

/// Open `ListAndWatch` stream.
#[derive(Debug)]
pub(crate) struct Listing(pub(crate) Streaming<wire::ListAndWatchResponse>);

/// `Allocate` request for containers with these ids.
pub(crate) fn allocation(containers: &[Vec<String>]) -> wire::AllocateRequest {
    let request = |ids: &Vec<String>| wire::ContainerAllocateRequest { devices_ids: ids.clone() };
    wire::AllocateRequest { container_requests: containers.iter().map(request).collect() }
}

/// Response of the plugin, success or error. A timeout fails the case.
pub(crate) async fn answered<T>(
    what: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Result<T, Status>, Unmet> {
    match timeout(limit, call).await {
        Ok(answer) => Ok(answer.map(Response::into_inner)),
        Err(_) => failed(format!("{what}: no answer within {limit:?}")),
    }
}

/// Successful response of the plugin. An error fails the case.
pub(crate) async fn granted<T>(
    what: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Unmet> {
    match answered(what, limit, call).await? {
        Ok(answer) => Ok(answer),
        Err(status) => failed(format!("{what}: {:?}: {}", status.code(), status.message())),
    }
}

/// Opens a stream and reads the first list.
pub(crate) async fn listed(
    resource: &str,
    limit: Duration,
    client: &mut Client,
) -> Result<(Listing, Vec<wire::Device>), Unmet> {
    let what = format!("ListAndWatch of {resource}");
    let mut stream = granted(&what, limit, client.list_and_watch(wire::Empty {})).await?;
    match timeout(limit, stream.next()).await {
        Ok(Some(Ok(list))) => Ok((Listing(stream), list.devices)),
        Ok(Some(Err(status))) => failed(format!("{what}: {}", status.message())),
        Ok(None) => failed(format!("{what} ended without a list")),
        Err(_) => failed(format!("{what}: no list within {limit:?}")),
    }
}

/// Durations of calls, which must not delay the kubelet noticeably.
#[derive(Debug)]
pub(crate) struct Delays {
    calls: Vec<Duration>,
    /// Load before the first call: of the program, and of this process, which calls it.
    before: [Load; 2],
}

/// Limit of a fast call. A kubelet that waits a tenth of a second for each container admits ten in a second.
const SOON: Duration = Duration::from_millis(100);

// === impl Delays ===

impl Delays {
    /// Starts the measurement of the calls that follow.
    pub(crate) fn of(program: &Process) -> Self {
        Self { calls: Vec::new(), before: [program.load(), Process::load_of_asker()] }
    }

    pub(crate) fn push(&mut self, delay: Duration) {
        self.calls.push(delay);
    }

    /// Checks that half of the calls are fast, without the time in which other programs had the processors. A call
    /// waits for two threads: the one queued longest in the program, and the one in this process.
    pub(crate) fn checked(mut self, program: &Process) -> Result<String, Unmet> {
        self.calls.sort_unstable();
        let now = [program.load(), Process::load_of_asker()];
        let kept_waiting = self.before.iter().zip(&now).map(|(before, now)| before.wait_until(now));
        let calls = u32::try_from(self.calls.len()).unwrap_or(u32::MAX).max(1);
        let kept_waiting = kept_waiting.sum::<Duration>() / calls;
        let median = self.calls.get(self.calls.len() / 2).copied().unwrap_or_default();
        let slowest = self.calls.last().copied().unwrap_or_default();
        let evidence = format!(
            "half within {median:.1?}, of which a processor was waited for {kept_waiting:.1?}; the slowest took \
             {slowest:.1?}"
        );
        if median.saturating_sub(kept_waiting) > SOON { failed(evidence) } else { Ok(evidence) }
    }
}

// === impl Listing ===

impl Listing {
    /// Reads lists until one has an unhealthy device.
    pub(crate) async fn until_unhealthy(&mut self, limit: Duration) -> bool {
        let reading = async {
            while let Some(Ok(list)) = self.0.next().await {
                if list.devices.iter().any(|device| device.health == UNHEALTHY) {
                    return true;
                }
            }
            false
        };
        timeout(limit, reading).await.unwrap_or(false)
    }
}
