//! The gRPC server on `kubelet.sock`.

use std::{sync::Arc, time::Duration};

use tokio::{
    net::UnixListener,
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use windlass_kubelet_api::{
    deviceplugin::{
        self as wire, VERSION,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
        registration_server::{Registration, RegistrationServer},
    },
    server::server,
};

use super::{
    connection::{ConnectError, Connection},
    endpoint, name,
};
use crate::{
    config::Config,
    event::Event,
    fault::{Faults, RegistrationFault},
    incoming,
    manager_task::ManagerHandle,
};

/// Maximum number of digits of a `TimeoutValue` (gRPC over HTTP/2, "Requests").
const MAX_TIMEOUT_DIGITS: usize = 8;

/// Inputs of the registration server.
#[derive(Clone, Debug)]
pub(crate) struct ServerContext {
    pub(crate) handle: ManagerHandle,
    pub(crate) config: Arc<Config>,
    pub(crate) faults: watch::Receiver<Faults>,
    /// Closes the listener and all connections, as the end of a process does.
    pub(crate) ended: CancellationToken,
}

/// Serves on this listener until `context.ended` is cancelled.
pub(crate) async fn serve(listener: UnixListener, context: ServerContext) {
    let ended = context.ended.clone();
    let incoming = incoming::connections(listener, ended.clone());
    let server = server()
        .add_service(RegistrationServer::new(Registrar { context }))
        .add_service(DevicePluginServer::new(UnimplementedPlugin))
        .serve_with_incoming_shutdown(incoming, ended.cancelled_owned());
    if let Err(error) = server.await {
        tracing::error!(%error, "the registration server ended");
    }
}

struct Registrar {
    context: ServerContext,
}

// === impl Registrar ===

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let deadline = deadline(&request);
        let request = request.into_inner();
        self.apply_fault(&request.resource_name).await?;
        if let Err(message) = check(&request) {
            return Err(self.refuse(request.resource_name, message).await);
        }
        let dir = self.context.config.plugin_dir();
        let connection = Connection {
            handle: self.context.handle.clone(),
            socket: endpoint::resolve(&dir, &request.endpoint),
            resource: request.resource_name,
            deadline,
            faults: self.context.faults.clone(),
        };
        match self.connect(connection).await {
            Some(Ok(())) => Ok(Response::new(wire::Empty {})),
            Some(Err(error)) => Err(Status::unknown(error.to_string())),
            None => Err(Status::unavailable("the kubelet was stopped")),
        }
    }
}

impl Registrar {
    /// Applies the injected registration fault, if there is one.
    async fn apply_fault(&self, resource: &str) -> Result<(), Status> {
        let fault = self.context.faults.borrow().registration.clone();
        match fault {
            RegistrationFault::None => Ok(()),
            RegistrationFault::Refuse(message) => {
                Err(self.refuse(resource.to_owned(), message).await)
            }
            RegistrationFault::Hang => {
                self.context.ended.cancelled().await;
                Err(Status::unavailable("the kubelet was stopped"))
            }
        }
    }

    /// Logs a failed registration as an event. Returns the status for the plugin.
    async fn refuse(&self, resource: String, message: String) -> Status {
        let status = Status::unknown(message.clone());
        let log = move |task: &crate::manager_task::ManagerTask| {
            task.events.push(Event::RegistrationRefused { resource, message });
        };
        // A stopped kubelet logs nothing, but may still answer.
        let _ = self.context.handle.read(log).await;
        status
    }

    /// Runs the connection in a task of its own, and waits for the result of the registration. `None` if
    /// the kubelet ends first.
    async fn connect(&self, connection: Connection) -> Option<Result<(), ConnectError>> {
        let (reply, result) = oneshot::channel();
        let spawn = move |task: &mut crate::manager_task::ManagerTask| {
            task.connections.spawn(connection.run(reply));
        };
        self.context.handle.update(spawn).await.ok()?;
        result.await.ok()
    }
}

/// Checks the API version and the resource name. The error is the kubelet's text.
fn check(request: &wire::RegisterRequest) -> Result<(), String> {
    if request.version != VERSION {
        return Err(format!(
            "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
            request.version
        ));
    }
    if !name::is_extended_resource(&request.resource_name) {
        return Err(format!("the ResourceName {:?} is invalid", request.resource_name));
    }
    Ok(())
}

/// Deadline of a call, from its header `grpc-timeout`.
fn deadline(request: &Request<wire::RegisterRequest>) -> Option<Instant> {
    let text = request.metadata().get("grpc-timeout")?.to_str().ok()?;
    Instant::now().checked_add(parse_timeout(text)?)
}

/// Parses one to eight digits and a unit. Any other text means no timeout, as in tonic.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > MAX_TIMEOUT_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Device plugin service that fails each call with Go's error for an unknown service. The kubelet calls
/// it if a plugin registers `kubelet.sock` as its endpoint.
struct UnimplementedPlugin;

impl UnimplementedPlugin {
    fn unknown<T>() -> Result<T, Status> {
        Err(Status::unimplemented("unknown service v1beta1.DevicePlugin"))
    }
}

#[tonic::async_trait]
impl DevicePlugin for UnimplementedPlugin {
    type ListAndWatchStream = tokio_stream::Pending<Result<wire::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Self::unknown()
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Self::unknown()
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        Self::unknown()
    }

    async fn allocate(
        &self,
        _: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        Self::unknown()
    }

    async fn pre_start_container(
        &self,
        _: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        Self::unknown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_up_to_eight_digits_and_a_unit() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("100000000n", None),
            ("18446744073709551615S", None),
            ("+5S", None),
            ("5", None),
            ("S", None),
            ("5é", None),
            ("", None),
        ] {
            assert_eq!(parse_timeout(text), expected, "{text}");
        }
    }
}
