//! One registration attempt: dial, `GetInfo`, checks, `NotifyRegistrationStatus`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tonic::{Request, transport::Channel};
use windlass_kubelet_api::pluginregistration::{
    DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus,
    registration_client::RegistrationClient,
};

use super::super::{
    connector,
    driver::{DraService, Driver},
    health_stream,
};
use crate::{
    config::Config,
    event::Event,
    fault::RegistrationFault,
    manager_task::{KubeletEnded, ManagerHandle, ManagerTask},
    plugin::{RpcError, dial_with_retries},
};

/// Inputs of a registration attempt.
pub(super) struct RegistrationAttempt {
    pub(super) handle: ManagerHandle,
    pub(super) config: Arc<Config>,
    pub(super) fault: RegistrationFault,
    pub(super) socket: PathBuf,
}

/// A registered endpoint of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dra) struct RegisteredEndpoint {
    driver: String,
    endpoint: PathBuf,
}

/// Reasons of a failed registration, with the kubelet's log texts. The plugin gets the text of `Refused`.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(
        "RegisterPlugin error -- dial failed at socket {0}, err: failed to dial socket {0}, err: context deadline exceeded"
    )]
    Dial(String),
    #[error(
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}, err: {error}"
    )]
    GetInfo { socket: String, error: RpcError },
    #[error("{0}")]
    Refused(String),
    #[error(
        "RegisterPlugin error -- failed to send registration status at socket {socket}, err: : {error}"
    )]
    Notify { socket: String, error: RpcError },
    #[error("the kubelet was stopped")]
    Stopped,
}

// === impl RegistrationAttempt ===

impl RegistrationAttempt {
    /// Registers the plugin of the socket, and logs the outcome as an event. `None` after a failure.
    pub(super) async fn run(self) -> Option<RegisteredEndpoint> {
        let outcome = self.register().await;
        let socket = self.socket;
        match outcome {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                let event = Event::DriverRefused { socket, message: error.to_string() };
                // A stopped kubelet logs nothing.
                let _ = self.handle.read(move |task| task.events.push(event)).await;
                None
            }
        }
    }

    async fn register(&self) -> Result<RegisteredEndpoint, RegistrationError> {
        if self.fault == RegistrationFault::Hang {
            std::future::pending::<()>().await;
        }
        let mut client = RegistrationClient::new(self.dial().await?);
        let info = self.get_info(&mut client).await?;
        let (plugin, service) = match self.check(info) {
            Ok(checked) => checked,
            Err(message) => return Err(self.refuse(&mut client, message).await),
        };
        let (plugin_copy, handle) = (plugin.clone(), self.handle.clone());
        let add = move |task: &mut ManagerTask| task.register(&handle, &plugin_copy, service);
        if let Err(error) = self.handle.update(add).await? {
            let message =
                format!("RegisterPlugin error -- plugin registration failed with err: {error}");
            return Err(self.refuse(&mut client, message).await);
        }
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        if let Err(error) = self.notify(&mut client, status).await {
            self.handle.update(move |task| task.deregister(&plugin)).await?;
            return Err(RegistrationError::Notify { socket: self.socket_text(), error });
        }
        let RegisteredEndpoint { driver, endpoint } = plugin.clone();
        let event = Event::DriverRegistered { driver, endpoint, service };
        self.handle.read(move |task| task.events.push(event)).await?;
        Ok(plugin)
    }

    async fn dial(&self) -> Result<Channel, RegistrationError> {
        let connect = || connector::connect_registration(&self.socket);
        let channel = dial_with_retries(self.config.dial_timeout, connect).await;
        channel.map_err(|_| RegistrationError::Dial(self.socket_text()))
    }

    async fn get_info(
        &self,
        client: &mut RegistrationClient<Channel>,
    ) -> Result<PluginInfo, RegistrationError> {
        let mut request = Request::new(InfoRequest {});
        request.set_timeout(self.config.dra.get_info_timeout);
        let response = client.get_info(request).await.map_err(|status| {
            RegistrationError::GetInfo { socket: self.socket_text(), error: RpcError::from(status) }
        })?;
        Ok(response.into_inner())
    }

    /// Checks the plugin's answer. The error is the text for the plugin.
    fn check(&self, info: PluginInfo) -> Result<(RegisteredEndpoint, DraService), String> {
        if let RegistrationFault::Refuse(message) = &self.fault {
            return Err(message.clone());
        }
        if info.r#type != DRA_PLUGIN {
            return Err(format!(
                "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}",
                info.r#type,
                self.socket_text()
            ));
        }
        let endpoint =
            if info.endpoint.is_empty() { self.socket.clone() } else { info.endpoint.into() };
        let service = DraService::choose(&info.supported_versions).map_err(|error| {
            format!(
                "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC \
                 versions of DRA driver plugin {} at endpoint {}: {error}",
                info.name,
                endpoint.display()
            )
        })?;
        Ok((RegisteredEndpoint { driver: info.name, endpoint }, service))
    }

    /// Sends the refusal to the plugin.
    async fn refuse(
        &self,
        client: &mut RegistrationClient<Channel>,
        message: String,
    ) -> RegistrationError {
        let status = RegistrationStatus { plugin_registered: false, error: message.clone() };
        // The refusal is the result, even if the notification fails.
        let _ = self.notify(client, status).await;
        RegistrationError::Refused(message)
    }

    async fn notify(
        &self,
        client: &mut RegistrationClient<Channel>,
        status: RegistrationStatus,
    ) -> Result<(), RpcError> {
        let mut request = Request::new(status);
        request.set_timeout(self.config.dra.notify_timeout);
        client.notify_registration_status(request).await?;
        Ok(())
    }

    fn socket_text(&self) -> String {
        Path::display(&self.socket).to_string()
    }
}

impl From<KubeletEnded> for RegistrationError {
    fn from(KubeletEnded: KubeletEnded) -> Self {
        Self::Stopped
    }
}

// === impl ManagerTask, for registrations ===

impl ManagerTask {
    /// Adds the driver's endpoint, and starts the tasks that follow its connection and health.
    fn register(
        &mut self,
        handle: &ManagerHandle,
        plugin: &RegisteredEndpoint,
        service: DraService,
    ) -> Result<(), super::super::drivers::EndpointAlreadyRegistered> {
        let RegisteredEndpoint { driver, endpoint } = plugin.clone();
        let driver = Driver::new(driver, endpoint, service, self.config.dra.call_timeout);
        self.dra.drivers.add(driver.clone())?;
        self.connections.spawn(health_stream::publish_connection(handle.clone(), driver.clone()));
        self.connections.spawn(health_stream::watch_health(handle.clone(), driver));
        Ok(())
    }

    /// Removes the driver's endpoint.
    pub(in crate::dra) fn deregister(&mut self, plugin: &RegisteredEndpoint) {
        let RegisteredEndpoint { driver, endpoint } = plugin.clone();
        self.dra.drivers.remove(&driver, &endpoint);
        self.events.push(Event::DriverDeregistered { driver, endpoint });
    }
}
