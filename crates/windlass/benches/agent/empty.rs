//! Baseline of a call: a server that does nothing, in its own process like the agent.
//!
//! It has the server code and the single-threaded runtime of the agent, so the additional time of the agent is its own
//! work.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};
use windlass_kubelet_api::{
    deviceplugin::{
        AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateRequest,
        ContainerAllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
        PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
        PreferredAllocationResponse,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
    },
    socket::SocketPath,
};

use crate::stage::{ChildProcess, EVENT_TIMEOUT};

struct EmptyPlugin;

/// Starts a server in a folder, and waits for its socket. The executable is a copy of this one: the same file would
/// share its pages with the caller, whose own use keeps them in the CPU caches.
pub(crate) async fn start(folder: &Path) -> Result<(ChildProcess, SocketPath)> {
    std::fs::create_dir(folder)?;
    let (copy, socket) = (folder.join("server"), folder.join("socket"));
    std::fs::copy(std::env::current_exe()?, &copy).context("cannot copy this executable")?;
    let mut command = Command::new(copy);
    command.env_clear().arg("--serve-empty").arg(&socket).stdin(Stdio::null());
    let server = ChildProcess::start(&mut command)?;
    let wait_for_socket = async {
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(EVENT_TIMEOUT, wait_for_socket)
        .await
        .context("the empty server does not serve")?;
    Ok((server, SocketPath::new(socket)?))
}

/// Serves until killed.
pub(crate) async fn serve(socket: PathBuf) -> Result<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
    let server = Server::builder().add_service(DevicePluginServer::new(EmptyPlugin));
    Ok(server.serve_with_incoming(incoming).await?)
}

fn fixed_response(request: ContainerAllocateRequest) -> ContainerAllocateResponse {
    let ids = request.devices_ids.join(",");
    let envs = [("WINDLASS_SIMULATED", "dgx-h100"), ("WINDLASS_NVIDIA_COM_GPU", &ids)];
    let name = |id: String| CdiDevice { name: format!("windlass.dev/gpu={id}") };
    ContainerAllocateResponse {
        envs: envs.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        cdi_devices: request.devices_ids.into_iter().map(name).collect(),
        ..ContainerAllocateResponse::default()
    }
}

#[tonic::async_trait]
impl DevicePlugin for EmptyPlugin {
    type ListAndWatchStream = tokio_stream::Empty<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse::default()))
    }

    /// Returns a response like the agent's, without computing it. The duration is that of the transport.
    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests.into_iter();
        Ok(Response::new(AllocateResponse {
            container_responses: requests.map(fixed_response).collect(),
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
