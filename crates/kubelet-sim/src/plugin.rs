//! Client of a device plugin, with the kubelet's calls and errors.

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
    admission::Question, device::DeviceIds, grant::Grant, manager::Answer, status::PluginOptions,
};

/// First pause between two attempts to dial. gRPC's back-off starts at 1 s. A plugin that binds a
/// moment too late should not cost a test a second.
const DIAL_PAUSE: Duration = Duration::from_millis(20);

/// Longest pause between two attempts to dial.
const MAX_DIAL_PAUSE: Duration = Duration::from_secs(1);

/// A connected plugin.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    socket: PathBuf,
    client: DevicePluginClient<Channel>,
    closed: CancellationToken,
}

/// A failed call, as Go prints it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RpcError {
    /// The plugin was lost; the call was refused without an attempt.
    #[error("endpoint &{{{resource}}} has been stopped")]
    Stopped {
        /// Resource name.
        resource: String,
    },
    /// The plugin or the transport refused the call.
    #[error("rpc error: code = {code} desc = {desc}")]
    Status {
        /// The code, as Go spells it.
        code: String,
        /// The message.
        desc: String,
    },
}

/// The deadline of a dial passed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DialTimeout;

// === impl Plugin ===

impl Plugin {
    /// Dials until the plugin answers or the deadline passes, as a blocking dial of gRPC does.
    pub(crate) async fn dial(
        socket: &Path,
        closed: CancellationToken,
        timeout: Duration,
    ) -> Result<Self, DialTimeout> {
        let connect = async {
            let mut pause = DIAL_PAUSE;
            loop {
                if let Ok(path) = SocketPath::new(socket)
                    && let Ok(channel) = path.dial().await
                {
                    return channel;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_DIAL_PAUSE);
            }
        };
        let channel = tokio::time::timeout(timeout, connect).await.map_err(|_| DialTimeout)?;
        let client = DevicePluginClient::new(channel);
        Ok(Self { socket: socket.to_owned(), client, closed })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The raw gRPC client.
    pub(crate) fn client(&self) -> DevicePluginClient<Channel> {
        self.client.clone()
    }

    /// Gives the plugin up.
    pub(crate) fn cut(&self) {
        self.closed.cancel();
    }

    /// Waits until the device manager gives the plugin up.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// `GetDevicePluginOptions`, with the deadline of the `Register` call behind it.
    pub(crate) async fn options(
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
    pub(crate) async fn watch(&self) -> Result<Streaming<wire::ListAndWatchResponse>, RpcError> {
        self.call(self.client().list_and_watch(wire::Empty {})).await
    }

    /// `GetPreferredAllocation`, without deadline. Puts the answer into the question.
    pub(crate) async fn preferred(&self, question: &mut Question) -> Result<(), RpcError> {
        let request = wire::PreferredAllocationRequest {
            container_requests: vec![wire::ContainerPreferredAllocationRequest {
                available_device_i_ds: question.available.iter().cloned().collect(),
                must_include_device_i_ds: question.must_include.iter().cloned().collect(),
                allocation_size: i32::try_from(question.size).unwrap_or(i32::MAX),
            }],
        };
        let response = self.call(self.client().get_preferred_allocation(request)).await?;
        let first = response.container_responses.into_iter().next();
        question.answer = first.map(|answer| answer.device_i_ds).unwrap_or_default();
        Ok(())
    }

    /// `Allocate`, without deadline. Only the first container response counts, if there is one.
    pub(crate) async fn allocate(&self, devices: &DeviceIds) -> Result<Option<Answer>, RpcError> {
        let request = wire::AllocateRequest {
            container_requests: vec![wire::ContainerAllocateRequest {
                devices_ids: devices.iter().cloned().collect(),
            }],
        };
        let response = self.call(self.client().allocate(request)).await?;
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|answer| Answer {
            encoded: answer.encode_to_vec(),
            grant: Grant::from_proto(&answer),
        }))
    }

    /// `PreStartContainer`.
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

    /// Waits for an answer, at most until the connection closes.
    async fn call<T>(
        &self,
        calling: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        match self.closed.run_until_cancelled(calling).await {
            Some(Ok(answer)) => Ok(answer.into_inner()),
            Some(Err(status)) => Err(RpcError::of_call(&self.socket, status)),
            None => Err(RpcError::closing()),
        }
    }
}

// === impl RpcError ===

impl RpcError {
    /// Error of a call that a plugin refused, or whose socket has no listener.
    fn of_call(socket: &Path, status: Status) -> Self {
        let Some(cause) = dial_failure(&status) else { return status.into() };
        let socket = socket.display();
        let desc = format!(
            "connection error: desc = \"transport: Error while dialing: dial unix {socket}: connect: {cause}\""
        );
        Self::Status { code: "Unavailable".to_owned(), desc }
    }

    /// Error of a call whose own context was cancelled.
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

/// grpc-go's text for a stream that the peer's HTTP/2 reset, if the status is one.
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

/// Go's text for a failed reconnection, if the status is one.
fn dial_failure(status: &Status) -> Option<String> {
    if status.code() != Code::Unavailable {
        return None;
    }
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let text = error.to_string().to_lowercase();
            let words = text.split_once(" (os error").map(|(words, _)| words.to_owned());
            return Some(words.unwrap_or(text));
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
