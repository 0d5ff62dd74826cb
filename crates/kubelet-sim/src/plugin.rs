//! gRPC client of a device plugin, with the kubelet's calls and error texts.

use std::{
    error::Error as _,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use prost::Message as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming, transport::Channel};
use windlass_kubelet_api::{
    deviceplugin::{self as wire, device_plugin_client::DevicePluginClient},
    socket::SocketPath,
};

use crate::{
    admission::PreferredAllocationCall, device::DeviceIds, grant::RunContainerOptions,
    manager::ContainerResponse, status::PluginOptions,
};

/// First pause between two attempts to dial. gRPC's back-off starts at 1 s, which is too slow for
/// tests in which a plugin binds its socket just after the first attempt.
const DIAL_RETRY_MIN: Duration = Duration::from_millis(20);

/// Longest pause between two attempts to dial.
const DIAL_RETRY_MAX: Duration = Duration::from_secs(1);

/// A connected plugin.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    socket: PathBuf,
    client: DevicePluginClient<Channel>,
    closed: CancellationToken,
}

/// A failed call, with the text that Go prints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RpcError {
    /// The plugin is disconnected; the kubelet did not attempt the call.
    #[error("endpoint &{{{resource}}} has been stopped")]
    Stopped {
        /// Resource name.
        resource: String,
    },
    /// The call failed with a gRPC status.
    #[error("rpc error: code = {code} desc = {desc}")]
    Status {
        /// Status code in Go's spelling.
        code: String,
        /// Status message.
        desc: String,
    },
}

/// No connection before the deadline of a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DialTimeout;

// === impl Plugin ===

impl Plugin {
    /// Dials the socket, with retries until `timeout`. Cancelling `closed` closes the connection.
    pub(crate) async fn dial(
        socket: &Path,
        closed: CancellationToken,
        timeout: Duration,
    ) -> Result<Self, DialTimeout> {
        let connect = || async move { SocketPath::new(socket)?.dial().await };
        let client = DevicePluginClient::new(dial_with_retries(timeout, connect).await?);
        Ok(Self { socket: socket.to_owned(), client, closed })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// gRPC client on this connection.
    pub(crate) fn client(&self) -> DevicePluginClient<Channel> {
        self.client.clone()
    }

    /// Closes the connection: calls in progress fail.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Waits until the kubelet closes the connection.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// `GetDevicePluginOptions`, with the deadline of the `Register` call that caused it.
    pub(crate) async fn get_options(
        &self,
        deadline: Option<Instant>,
    ) -> Result<PluginOptions, RpcError> {
        let mut request = Request::new(wire::Empty {});
        if let Some(deadline) = deadline {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        let options = self.call(self.client().get_device_plugin_options(request)).await?;
        Ok(PluginOptions {
            pre_start_required: options.pre_start_required,
            get_preferred_allocation_available: options.get_preferred_allocation_available,
        })
    }

    /// `ListAndWatch`.
    pub(crate) async fn list_and_watch(
        &self,
    ) -> Result<Streaming<wire::ListAndWatchResponse>, RpcError> {
        self.call(self.client().list_and_watch(wire::Empty {})).await
    }

    /// `GetPreferredAllocation`, without deadline. Stores the answer in `call`.
    pub(crate) async fn get_preferred_allocation(
        &self,
        call: &mut PreferredAllocationCall,
    ) -> Result<(), RpcError> {
        let request = wire::PreferredAllocationRequest {
            container_requests: vec![wire::ContainerPreferredAllocationRequest {
                available_device_i_ds: call.available.iter().cloned().collect(),
                must_include_device_i_ds: call.must_include.iter().cloned().collect(),
                allocation_size: i32::try_from(call.size).unwrap_or(i32::MAX),
            }],
        };
        let response = self.call(self.client().get_preferred_allocation(request)).await?;
        let first = response.container_responses.into_iter().next();
        call.preferred = first.map(|response| response.device_i_ds).unwrap_or_default();
        Ok(())
    }

    /// `Allocate`, without deadline. Returns the first container response, if there is one.
    pub(crate) async fn allocate(
        &self,
        devices: &DeviceIds,
    ) -> Result<Option<ContainerResponse>, RpcError> {
        let request = wire::AllocateRequest {
            container_requests: vec![wire::ContainerAllocateRequest {
                devices_ids: devices.iter().cloned().collect(),
            }],
        };
        let response = self.call(self.client().allocate(request)).await?;
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|response| ContainerResponse {
            encoded: response.encode_to_vec(),
            run_options: RunContainerOptions::from_proto(&response),
        }))
    }

    /// `PreStartContainer`, with `timeout` as its deadline.
    pub(crate) async fn pre_start(
        &self,
        devices: &DeviceIds,
        timeout: Duration,
    ) -> Result<(), RpcError> {
        let devices_ids = devices.iter().cloned().collect();
        let mut request = Request::new(wire::PreStartContainerRequest { devices_ids });
        request.set_timeout(timeout);
        self.call(self.client().pre_start_container(request)).await.map(drop)
    }

    /// Waits for the response of a call. Fails when the kubelet closes the connection.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        match self.closed.run_until_cancelled(call).await {
            Some(Ok(response)) => Ok(response.into_inner()),
            Some(Err(status)) => Err(RpcError::of_call(&self.socket, status)),
            None => Err(RpcError::closing()),
        }
    }
}

// === impl RpcError ===

impl RpcError {
    /// Error of a call that the plugin refused, or of a socket without a listener.
    fn of_call(socket: &Path, status: Status) -> Self {
        let Some(cause) = dial_failure(&status) else { return status.into() };
        let socket = socket.display();
        let desc = format!(
            "connection error: desc = \"transport: Error while dialing: dial unix {socket}: connect: {cause}\""
        );
        Self::Status { code: "Unavailable".to_owned(), desc }
    }

    /// Error of a call with a cancelled context.
    pub(crate) fn cancelled() -> Self {
        Self::Status { code: "Canceled".to_owned(), desc: "context canceled".to_owned() }
    }

    /// Error of a connection that the kubelet closed (`ErrClientConnClosing` of grpc-go).
    pub(crate) fn closing() -> Self {
        let desc = "grpc: the client connection is closing".to_owned();
        Self::Status { code: "Canceled".to_owned(), desc }
    }
}

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
        let timed_out = status.code() == Code::Cancelled && status.message() == "Timeout expired";
        if let Some(desc) = reset_reason(&status) {
            return Self::Status { code: format!("{:?}", status.code()), desc };
        }
        let (code, desc) = match status.code() {
            Code::Cancelled if timed_out => {
                ("DeadlineExceeded".to_owned(), "context deadline exceeded")
            }
            Code::Cancelled => ("Canceled".to_owned(), status.message()),
            code => (format!("{code:?}"), status.message()),
        };
        Self::Status { code, desc: desc.to_owned() }
    }
}

/// Calls `connect` until it succeeds, as a blocking dial of gRPC does.
pub(crate) async fn dial_with_retries<E, F: Future<Output = Result<Channel, E>>>(
    timeout: Duration,
    connect: impl Fn() -> F,
) -> Result<Channel, DialTimeout> {
    let retries = async {
        let mut pause = DIAL_RETRY_MIN;
        loop {
            if let Ok(channel) = connect().await {
                return channel;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(DIAL_RETRY_MAX);
        }
    };
    tokio::time::timeout(timeout, retries).await.map_err(|_| DialTimeout)
}

/// grpc-go's text for a stream that the peer reset with `RST_STREAM`; `None` for other failures.
fn reset_reason(status: &Status) -> Option<String> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(reason) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return Some(format!("stream terminated by RST_STREAM with error code: {reason:?}"));
        }
        cause = error.source();
    }
    None
}

/// Go's text for the system call error of a failed reconnection; `None` for other failures.
fn dial_failure(status: &Status) -> Option<String> {
    if status.code() != Code::Unavailable {
        return None;
    }
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let text = error.to_string().to_lowercase();
            let message = text.split_once(" (os error").map(|(message, _)| message.to_owned());
            return Some(message.unwrap_or(text));
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_go_prints_them() {
        for (status, expected) in [
            (Status::invalid_argument("no"), "rpc error: code = InvalidArgument desc = no"),
            (Status::cancelled("by peer"), "rpc error: code = Canceled desc = by peer"),
            (
                Status::cancelled("Timeout expired"),
                "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            ),
        ] {
            assert_eq!(RpcError::from(status).to_string(), expected);
        }
    }
}
