//! Version and settings of the container runtime, by the Container Runtime Interface.
//!
//! Two calls of `runtime.v1.RuntimeService` (`k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`), of which the fields that
//! are read are declared here.

use std::collections::HashMap;

use tonic::{client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use crate::socket::{SocketError, SocketPath};

/// A container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Its name: `containerd`, `cri-o`, …
    pub name: String,
    /// Its version, as it writes it.
    pub version: String,
    /// Its own description of its state, as texts by name. The format is the runtime's.
    pub info: HashMap<String, String>,
}

/// Failure to ask the runtime.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The runtime cannot be reached.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The runtime refused, or speaks another protocol.
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
    /// Asks the runtime behind a socket.
    ///
    /// # Errors
    ///
    /// Nobody listens there, or something else does. The caller limits the time.
    pub async fn ask(socket: &SocketPath) -> Result<Self, CriError> {
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
    /// The program behind the socket speaks gRPC, and is no runtime for kubelets.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == tonic::Code::Unimplemented)
    }
}

async fn call<Q, A>(client: &mut Grpc<Channel>, method: &str, request: Q) -> Result<A, CriError>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let path = format!("/runtime.v1.RuntimeService/{method}");
    let path = PathAndQuery::try_from(path).expect("a constant path");
    let answer = client.unary(tonic::Request::new(request), path, ProstCodec::default()).await;
    Ok(answer?.into_inner())
}
