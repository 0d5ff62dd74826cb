//! The life of one plugin's client: one task from `Register` to the end of its stream.
//!
//! ```text
//!  begun ─> dialling ─> asking options ─> connected: Register answers ─> watching ─> ended
//!             │ 10 s        │ error, or closed
//!             └─────────────┴─> failed: Register answers the text, the client is forgotten
//! ```
//!
//! After the dial, the end of another stream may close the connection.

use std::path::PathBuf;

use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    device::Device,
    event::Event,
    fault::{Misbehaviour, StreamFault},
    manager::{Client, Endpoint},
    manager_task::{Gone, ManagerHandle},
    plugin::{Plugin, RpcError},
    status::PluginOptions,
};

/// A registration that passed the checks.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) handle: ManagerHandle,
    pub(super) resource: String,
    pub(super) socket: PathBuf,
    /// The deadline of the `Register` call, if it has one.
    pub(super) deadline: Option<Instant>,
    pub(super) faults: watch::Receiver<Misbehaviour>,
}

/// Reasons of a failed `Register`, in the kubelet's words.
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
    /// Connects, answers the waiting `Register`, then follows the stream. Only the kubelet's end
    /// stops this early.
    pub(super) async fn run(self, reply: oneshot::Sender<Result<(), ConnectError>>) {
        // A stopped kubelet has no listener for the result.
        let _ = self.live(reply).await;
    }

    async fn live(
        mut self,
        mut reply: oneshot::Sender<Result<(), ConnectError>>,
    ) -> Result<(), Gone> {
        let client = self.begin().await?;
        match self.connect(&client, &mut reply).await? {
            Err(error) => {
                self.fail(client, &error).await?;
                // The caller may have left.
                let _ = reply.send(Err(error));
                Ok(())
            }
            Ok((plugin, options)) => {
                self.register(client.clone(), plugin.clone(), options).await?;
                // The caller may have left; the plugin is registered all the same.
                let _ = reply.send(Ok(()));
                let reason = self.watch(&plugin).await?;
                let socket = self.socket;
                self.handle.update(move |task| task.stream_ended(&client, socket, reason)).await
            }
        }
    }

    async fn begin(&self) -> Result<Client, Gone> {
        let (resource, socket) = (self.resource.clone(), self.socket.clone());
        self.handle.update(move |task| task.manager.client_begins(&resource, &socket)).await
    }

    /// Dials and asks for options, unless the `Register` call is given up meanwhile.
    async fn connect(
        &self,
        client: &Client,
        reply: &mut oneshot::Sender<Result<(), ConnectError>>,
    ) -> Result<Result<(Plugin, PluginOptions), ConnectError>, Gone> {
        let timeout = self.handle.read(|task| task.config.dial_timeout).await?;
        let close = CancellationToken::new();
        let plugin = tokio::select! {
            dialled = Plugin::dial(&self.socket, close.clone(), timeout) => match dialled {
                Ok(plugin) => plugin,
                Err(_) => return Ok(Err(ConnectError::DialTimeout)),
            },
            () = reply.closed() => return Ok(Err(ConnectError::DialCancelled)),
        };
        let dialled = client.clone();
        self.handle.update(move |task| task.manager.client_dialled(&dialled, close)).await?;
        let options = tokio::select! {
            options = plugin.options(self.deadline) => options,
            () = reply.closed() => Err(RpcError::cancelled()),
        };
        Ok(options.map(|options| (plugin, options)).map_err(ConnectError::Options))
    }

    async fn fail(&self, client: Client, error: &ConnectError) -> Result<(), Gone> {
        let resource = self.resource.clone();
        let message = error.to_string();
        let forget = move |task: &mut crate::manager_task::ManagerTask| {
            task.manager.client_failed(&client);
            task.events.push(Event::RegistrationRefused { resource, message });
        };
        self.handle.update(forget).await
    }

    async fn register(
        &self,
        client: Client,
        plugin: Plugin,
        options: PluginOptions,
    ) -> Result<(), Gone> {
        let (resource, endpoint) = (self.resource.clone(), self.socket.clone());
        let register = move |task: &mut crate::manager_task::ManagerTask| {
            task.manager.client_connected(&client, Endpoint::connected(plugin, options));
            task.events.push(Event::Registered { resource, endpoint });
        };
        self.handle.update(register).await
    }

    /// Follows `ListAndWatch` until it ends. Returns the reason of the end.
    async fn watch(&mut self, plugin: &Plugin) -> Result<String, Gone> {
        let mut stream = match plugin.watch().await {
            Ok(stream) => stream,
            Err(error) => return Ok(error.to_string()),
        };
        loop {
            let faults = &mut self.faults;
            let read = async {
                // Without a sender the fault stays as it is.
                let _ = faults.wait_for(|fault| fault.streams == StreamFault::None).await;
                stream.message().await
            };
            let message = tokio::select! {
                message = read => message,
                () = plugin.closed() => return Ok("closed by the kubelet".to_owned()),
            };
            let devices = match message {
                Ok(Some(list)) => list.devices.into_iter().map(Device::from_proto).collect(),
                Ok(None) => return Ok("EOF".to_owned()),
                Err(status) => return Ok(RpcError::from(status).to_string()),
            };
            let resource = self.resource.clone();
            self.handle.update(move |task| task.list(&resource, devices)).await?;
        }
    }
}
