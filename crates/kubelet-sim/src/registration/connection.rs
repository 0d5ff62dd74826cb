//! Connection to one plugin: one task from `Register` to the end of the `ListAndWatch` stream.
//!
//! ```text
//!  begun ─> dial ─> GetDevicePluginOptions ─> connected: Register succeeds ─> ListAndWatch ─> ended
//!            │ deadline         │ error, or closed
//!            └──────────────────┴─> failed: Register fails, the client leaves the manager's table
//! ```
//!
//! After the dial, the kubelet may close the connection at the end of another stream for the
//! same resource.

use std::path::PathBuf;

use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    device::Device,
    event::Event,
    fault::{Faults, StreamFault},
    manager::{Client, Endpoint},
    manager_task::{KubeletEnded, ManagerHandle},
    plugin::{Plugin, RpcError},
    status::PluginOptions,
};

/// A registration that passed the checks.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) handle: ManagerHandle,
    pub(super) resource: String,
    pub(super) socket: PathBuf,
    /// Deadline of the `Register` call, if it has one.
    pub(super) deadline: Option<Instant>,
    pub(super) faults: watch::Receiver<Faults>,
}

/// Reasons of a failed `Register`, with the kubelet's texts.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("failed to dial device plugin: context deadline exceeded")]
    DialTimeout,
    #[error("failed to dial device plugin: context canceled")]
    DialCancelled,
    #[error("failed to get device plugin options: {0}")]
    Options(RpcError),
}

// === impl Connection ===

impl Connection {
    /// Connects, sends the result of `Register` to `reply`, then reads the stream until its end.
    pub(super) async fn run(self, reply: oneshot::Sender<Result<(), ConnectError>>) {
        // An error means that the kubelet ended, which needs no handling here.
        let _ = self.try_run(reply).await;
    }

    async fn try_run(
        mut self,
        mut reply: oneshot::Sender<Result<(), ConnectError>>,
    ) -> Result<(), KubeletEnded> {
        let client = self.begin().await?;
        match self.connect(&client, &mut reply).await? {
            Err(error) => {
                self.remove_failed(client, &error).await?;
                // Sending fails if the `Register` call was cancelled.
                let _ = reply.send(Err(error));
                Ok(())
            }
            Ok((plugin, options)) => {
                self.register(client.clone(), plugin.clone(), options).await?;
                // Sending fails if the `Register` call was cancelled. The plugin stays registered.
                let _ = reply.send(Ok(()));
                let reason = self.watch(&plugin).await?;
                let socket = self.socket;
                self.handle.update(move |task| task.stream_ended(&client, socket, reason)).await
            }
        }
    }

    async fn begin(&self) -> Result<Client, KubeletEnded> {
        let (resource, socket) = (self.resource.clone(), self.socket.clone());
        self.handle.update(move |task| task.manager.add_client(&resource, &socket)).await
    }

    /// Dials and calls `GetDevicePluginOptions`. Fails if the `Register` call is cancelled.
    async fn connect(
        &self,
        client: &Client,
        reply: &mut oneshot::Sender<Result<(), ConnectError>>,
    ) -> Result<Result<(Plugin, PluginOptions), ConnectError>, KubeletEnded> {
        let timeout = self.handle.read(|task| task.config.dial_timeout).await?;
        let close = CancellationToken::new();
        let plugin = tokio::select! {
            result = Plugin::dial(&self.socket, close.clone(), timeout) => match result {
                Ok(plugin) => plugin,
                Err(_) => return Ok(Err(ConnectError::DialTimeout)),
            },
            () = reply.closed() => return Ok(Err(ConnectError::DialCancelled)),
        };
        let client = client.clone();
        self.handle.update(move |task| task.manager.client_dialled(&client, close)).await?;
        let options = tokio::select! {
            options = plugin.get_options(self.deadline) => options,
            () = reply.closed() => Err(RpcError::cancelled()),
        };
        Ok(options.map(|options| (plugin, options)).map_err(ConnectError::Options))
    }

    /// Removes the client from the manager's table, and logs the failure as an event.
    async fn remove_failed(
        &self,
        client: Client,
        error: &ConnectError,
    ) -> Result<(), KubeletEnded> {
        let resource = self.resource.clone();
        let message = error.to_string();
        let fail = move |task: &mut crate::manager_task::ManagerTask| {
            task.manager.client_failed(&client);
            task.events.push(Event::RegistrationRefused { resource, message });
        };
        self.handle.update(fail).await
    }

    /// Makes the plugin the endpoint of its resource.
    async fn register(
        &self,
        client: Client,
        plugin: Plugin,
        options: PluginOptions,
    ) -> Result<(), KubeletEnded> {
        let (resource, endpoint) = (self.resource.clone(), self.socket.clone());
        let register = move |task: &mut crate::manager_task::ManagerTask| {
            task.manager.client_connected(&client, Endpoint::connected(plugin, options));
            task.events.push(Event::Registered { resource, endpoint });
        };
        self.handle.update(register).await
    }

    /// Reads `ListAndWatch` until the stream ends. Returns the reason of the end.
    async fn watch(&mut self, plugin: &Plugin) -> Result<String, KubeletEnded> {
        let mut stream = match plugin.list_and_watch().await {
            Ok(stream) => stream,
            Err(error) => return Ok(error.to_string()),
        };
        loop {
            let faults = &mut self.faults;
            let next_message = async {
                // Without a sender the wait fails, and the stream is read.
                let _ = faults.wait_for(|fault| fault.streams == StreamFault::None).await;
                stream.message().await
            };
            let message = tokio::select! {
                message = next_message => message,
                () = plugin.closed() => return Ok("closed by the kubelet".to_owned()),
            };
            let devices = match message {
                Ok(Some(list)) => list.devices.into_iter().map(Device::from_proto).collect(),
                Ok(None) => return Ok("EOF".to_owned()),
                Err(status) => return Ok(RpcError::from(status).to_string()),
            };
            let resource = self.resource.clone();
            self.handle.update(move |task| task.set_devices(&resource, devices)).await?;
        }
    }
}
