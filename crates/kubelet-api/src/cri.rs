//! Name, version and settings of the container runtime, by the Container Runtime Interface (CRI).
//!
//! Calls `Version` and `Status` of `runtime.v1.RuntimeService`. The messages declare only the fields in use; source:
//! `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`.

use std::collections::HashMap;

use tonic::{client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use crate::socket::{SocketError, SocketPath};

/// A container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Name of the runtime, such as `containerd` or `cri-o`.
    pub name: String,
    /// Version in the runtime's own format.
    pub version: String,
    /// `info` of the verbose `Status` response: texts by key, in the runtime's own format.
    pub info: HashMap<String, String>,
}

/// Errors of a query to the runtime.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The runtime cannot be reached.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The runtime answered a call with an error, or the server is no container runtime.
    #[error("the container runtime refused to tell its version: {}", .0.message())]
    Refused(#[from] tonic::Status),
}

#[derive(Clone, PartialEq, prost::Message)]
struct VersionRequest {
    #[prost(string, tag = "1")]
    version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct VersionResponse {
    #[prost(string, tag = "2")]
    runtime_name: String,
    #[prost(string, tag = "3")]
    runtime_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {
    #[prost(bool, tag = "1")]
    verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

// === impl Runtime ===

impl Runtime {
    /// Queries the runtime that listens on a socket. The caller sets a deadline.
    ///
    /// # Errors
    ///
    /// Nothing listens on the socket, the server does not speak HTTP/2, or it refuses a call.
    pub async fn query(socket: &SocketPath) -> Result<Self, CriError> {
        let mut client = Grpc::new(socket.dial().await?);
        let request = VersionRequest { version: "v1".to_owned() };
        let version: VersionResponse = call(&mut client, "Version", request).await?;
        let request = StatusRequest { verbose: true };
        let status: StatusResponse = call(&mut client, "Status", request).await?;
        let VersionResponse { runtime_name: name, runtime_version: version } = version;
        Ok(Self { name, version, info: status.info })
    }
}

// === impl CriError ===

impl CriError {
    /// True if the server speaks gRPC but does not implement the CRI service.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == tonic::Code::Unimplemented)
    }
}

async fn call<Req, Resp>(
    client: &mut Grpc<Channel>,
    method: &str,
    request: Req,
) -> Result<Resp, CriError>
where
    Req: prost::Message + 'static,
    Resp: prost::Message + Default + 'static,
{
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let path = format!("/runtime.v1.RuntimeService/{method}");
    let path = PathAndQuery::try_from(path).expect("a constant path");
    let response = client.unary(tonic::Request::new(request), path, ProstCodec::default()).await?;
    Ok(response.into_inner())
}
