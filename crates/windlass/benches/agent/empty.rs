//! The baseline of a call: a server that does nothing, in a process of its own as the agent is.
//!
//! The same server code on the same single-threaded runtime, so that what the agent takes longer is
//! what the agent does.

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
        AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
        PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
        PreferredAllocationResponse,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
    },
    socket::SocketPath,
};

use crate::stage::{PATIENCE, Running};

struct Nothing;

/// Starts this executable as the server, and waits for its socket.
pub(crate) async fn start(socket: &Path) -> Result<(Running, SocketPath)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env_clear().arg("--serve-empty").arg(socket).stdin(Stdio::null());
    let server = Running::start(&mut command)?;
    let there = async {
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.context("the empty server does not serve")?;
    Ok((server, SocketPath::new(socket)?))
}

/// Serves until killed.
pub(crate) async fn serve(socket: PathBuf) -> Result<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
    let server = Server::builder().add_service(DevicePluginServer::new(Nothing));
    Ok(server.serve_with_incoming(incoming).await?)
}

#[tonic::async_trait]
impl DevicePlugin for Nothing {
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

    async fn allocate(
        &self,
        _: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        Ok(Response::new(AllocateResponse::default()))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
