//! Calls of the device plugin API, each with a time limit.

use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::{Response, Status, Streaming};
use windlass_kubelet_api::deviceplugin::{self as wire, UNHEALTHY};

use crate::{
    case::{CheckError, failed},
    process::{Load, Process},
    testbed::Client,
};

/// Size in bytes of the largest message that the kubelet's gRPC client accepts (`defaultClientMaxReceiveMessageSize` of
/// grpc-go).
pub(crate) const GRPC_MESSAGE_LIMIT: usize = 4 * 1024 * 1024;

/// Open `ListAndWatch` stream.
#[derive(Debug)]
pub(crate) struct ListStream(pub(crate) Streaming<wire::ListAndWatchResponse>);

/// `Allocate` request. Each element holds the device ids of a container.
pub(crate) fn allocate_request(containers: &[Vec<String>]) -> wire::AllocateRequest {
    let request = |ids: &Vec<String>| wire::ContainerAllocateRequest { devices_ids: ids.clone() };
    wire::AllocateRequest { container_requests: containers.iter().map(request).collect() }
}

/// Waits for the plugin's response, success or error. A timeout fails the case.
pub(crate) async fn call_within<T>(
    call_name: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Result<T, Status>, CheckError> {
    match timeout(limit, call).await {
        Ok(result) => Ok(result.map(Response::into_inner)),
        Err(_) => failed(format!("{call_name}: no answer within {limit:?}")),
    }
}

/// Waits for the plugin's successful response. An error or a timeout fails the case.
pub(crate) async fn call_ok_within<T>(
    call_name: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CheckError> {
    match call_within(call_name, limit, call).await? {
        Ok(response) => Ok(response),
        Err(status) => failed(format!("{call_name}: {:?}: {}", status.code(), status.message())),
    }
}

/// Opens a stream and reads the first list.
pub(crate) async fn open_list_stream(
    resource: &str,
    limit: Duration,
    client: &mut Client,
) -> Result<(ListStream, Vec<wire::Device>), CheckError> {
    let call_name = format!("ListAndWatch of {resource}");
    let mut stream =
        call_ok_within(&call_name, limit, client.list_and_watch(wire::Empty {})).await?;
    match timeout(limit, stream.next()).await {
        Ok(Some(Ok(list))) => Ok((ListStream(stream), list.devices)),
        Ok(Some(Err(status))) => failed(format!("{call_name}: {}", status.message())),
        Ok(None) => failed(format!("{call_name} ended without a list")),
        Err(_) => failed(format!("{call_name}: no list within {limit:?}")),
    }
}

/// Durations of calls that block the kubelet, for a check of their median.
#[derive(Debug)]
pub(crate) struct CallDurations {
    calls: Vec<Duration>,
    /// Load before the first call: of the program, and of this process, its client.
    load_before: [Load; 2],
}

/// Limit of the median. With 100 ms for each container, the kubelet admits ten containers in a second.
const MEDIAN_LIMIT: Duration = Duration::from_millis(100);

// === impl CallDurations ===

impl CallDurations {
    /// Starts a measurement of the program's load. Durations follow by [`CallDurations::push`].
    pub(crate) fn of(program: &Process) -> Self {
        Self { calls: Vec::new(), load_before: [program.load(), Process::own_load()] }
    }

    pub(crate) fn push(&mut self, duration: Duration) {
        self.calls.push(duration);
    }

    /// Checks that the median is at most 100 ms, without the mean time that a call waited for a processor. That time
    /// is the longest run-queue wait of a thread in the program plus that of a thread in this process.
    pub(crate) fn check_median(mut self, program: &Process) -> Result<String, CheckError> {
        self.calls.sort_unstable();
        let now = [program.load(), Process::own_load()];
        let queue_times =
            self.load_before.iter().zip(&now).map(|(before, now)| before.max_queue_time_until(now));
        let call_count = u32::try_from(self.calls.len()).unwrap_or(u32::MAX).max(1);
        let queue_time = queue_times.sum::<Duration>() / call_count;
        let median = self.calls.get(self.calls.len() / 2).copied().unwrap_or_default();
        let slowest = self.calls.last().copied().unwrap_or_default();
        let evidence = format!(
            "half within {median:.1?}, including {queue_time:.1?} in the run queue; the slowest \
             took {slowest:.1?}"
        );
        if median.saturating_sub(queue_time) > MEDIAN_LIMIT {
            failed(evidence)
        } else {
            Ok(evidence)
        }
    }
}

// === impl ListStream ===

impl ListStream {
    /// Reads lists until one has an unhealthy device.
    pub(crate) async fn wait_for_unhealthy(&mut self, limit: Duration) -> bool {
        let read_lists = async {
            while let Some(Ok(list)) = self.0.next().await {
                if list.devices.iter().any(|device| device.health == UNHEALTHY) {
                    return true;
                }
            }
            false
        };
        timeout(limit, read_lists).await.unwrap_or(false)
    }
}
