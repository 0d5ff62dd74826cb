//! One session with the runtime, from the registration to the end of the connection.
//!
//! ```text
//!  registering ── RegisterPlugin returns, Configure ──> configured ── last Synchronize ──> synchronized
//! ```

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::Instant,
};
use windlass_host::deadline;

use crate::{
    Adjustment, Container, EndEvent, Plugin, Pod,
    decoder::{Decoder, Message, ProtocolError, Service},
    messages::{
        ConfigureRequest, ConfigureResponse, ContainerAdjustment, ContainerRequest,
        CreateContainerResponse, Event, Hooks, KeyValue, NriContainer, NriHook, OptionalInt,
        PodSandbox, RegisterPluginRequest, Request, Response, StateChangeEvent, SynchronizeRequest,
        SynchronizeResponse,
    },
    settings::NriSettings,
    ttrpc::{self, CODE_UNIMPLEMENTED, CallError, REQUEST, RESPONSE},
};

/// Reason why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The socket failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The runtime closed the connection.
    #[error("the runtime closed the connection")]
    Closed,
    /// The runtime is shutting down.
    #[error("the runtime is shutting down")]
    Shutdown,
    /// The runtime sent a frame or message above the limits.
    #[error("the runtime violated the protocol")]
    Protocol(#[from] ProtocolError),
    /// The response to the registration cannot be decoded.
    #[error("the runtime violated the protocol")]
    Decode(#[from] prost::DecodeError),
    /// The runtime rejected the registration.
    #[error("the runtime rejected the plugin: {0}")]
    Refused(String),
    /// The runtime did not configure and synchronize the plugin in time.
    #[error("the runtime did not synchronize the plugin within {0:?}")]
    Timeout(Duration),
}

/// Service that the plugin calls. Its name contains the version of the protocol.
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// Stream id of the plugin's only call. Stream ids of a client are odd.
const REGISTRATION_STREAM: u32 = 1;

/// Size of the read buffer, in bytes.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Registers the plugin and serves it until the connection ends. `on_synchronized` is called once, with the runtime's
/// name and version.
pub async fn serve<P: Plugin>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    settings: &NriSettings,
    plugin: &mut P,
    on_synchronized: impl FnMut(&str) + Send,
) -> SessionError {
    let session = Session {
        plugin,
        stream,
        on_synchronized,
        runtime: String::new(),
        pods: Vec::new(),
        containers: Vec::new(),
        is_synchronized: false,
    };
    match session.run(settings).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// A running session.
struct Session<'p, P, S, F> {
    plugin: &'p mut P,
    stream: S,
    on_synchronized: F,
    /// Name and version of the runtime.
    runtime: String,
    /// Pods of the unfinished synchronization.
    pods: Vec<PodSandbox>,
    /// Containers of the unfinished synchronization.
    containers: Vec<NriContainer>,
    is_synchronized: bool,
}

// === impl Session ===

impl<P, S, F> Session<'_, P, S, F>
where
    P: Plugin,
    S: AsyncRead + AsyncWrite + Unpin + Send,
    F: FnMut(&str) + Send,
{
    async fn run(
        mut self,
        settings: &NriSettings,
    ) -> Result<std::convert::Infallible, SessionError> {
        let registration = RegisterPluginRequest {
            plugin_name: settings.name.clone(),
            plugin_idx: settings.index.clone(),
        };
        let request = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: registration.encode_to_vec(),
        };
        self.stream.write_all(&ttrpc::request(REGISTRATION_STREAM, &request)).await?;
        let synchronize_by = Instant::now() + settings.registration_timeout;
        let (mut decoder, mut chunk) = (Decoder::default(), vec![0; READ_BUFFER_BYTES]);
        loop {
            let next_read = self.stream.read(&mut chunk);
            let byte_count = if self.is_synchronized {
                next_read.await?
            } else {
                let remaining = synchronize_by.saturating_duration_since(Instant::now());
                let timed_out = |_| SessionError::Timeout(settings.registration_timeout);
                deadline::timeout(remaining, next_read).await.map_err(timed_out)??
            };
            if byte_count == 0 {
                return Err(SessionError::Closed);
            }
            for message in decoder.decode(&chunk[..byte_count])? {
                self.handle(message).await?;
            }
        }
    }

    async fn handle(&mut self, message: Message) -> Result<(), SessionError> {
        match (message.service, message.kind) {
            (Service::Plugin, REQUEST) => {
                let (result, is_shutdown) = match Request::decode(&*message.body) {
                    Ok(request) => (self.call(&request).await, request.method == "Shutdown"),
                    Err(error) => (Err(decode_error(&error)), false),
                };
                self.stream.write_all(&ttrpc::response(message.stream, result)).await?;
                if is_shutdown { Err(SessionError::Shutdown) } else { Ok(()) }
            }
            (Service::Runtime, RESPONSE) if message.stream == REGISTRATION_STREAM => {
                let status = Response::decode(&*message.body)?.status;
                match status.filter(|status| status.code != 0) {
                    Some(status) => Err(SessionError::Refused(status.message)),
                    None => Ok(()),
                }
            }
            // The plugin makes no other call, and NRI does not use ttrpc's data messages.
            _ => Ok(()),
        }
    }

    /// Executes a call of the runtime. Returns the payload of the response.
    async fn call(&mut self, request: &Request) -> Result<Vec<u8>, CallError> {
        let payload = &*request.payload;
        match request.method.as_str() {
            "Configure" => {
                let configure: ConfigureRequest = decode(payload)?;
                self.runtime = format!("{} {}", configure.runtime_name, configure.runtime_version);
                Ok(ConfigureResponse { events: Event::MASK }.encode_to_vec())
            }
            "Synchronize" => {
                let SynchronizeRequest { pods, containers, more } = decode(payload)?;
                self.pods.extend(pods);
                self.containers.extend(containers);
                if !more {
                    self.synchronize().await;
                }
                Ok(SynchronizeResponse { more }.encode_to_vec())
            }
            "CreateContainer" => self.create_container(decode(payload)?).await,
            "StopContainer" | "RemoveContainer" | "RemovePodSandbox" => {
                let request: ContainerRequest = decode(payload)?;
                self.handle_end(request.pod, request.container).await;
                Ok(Vec::new())
            }
            "StateChange" => {
                let change: StateChangeEvent = decode(payload)?;
                let end_events =
                    [Event::RemovePodSandbox, Event::StopContainer, Event::RemoveContainer];
                if end_events.iter().any(|event| *event as i32 == change.event) {
                    self.handle_end(change.pod, change.container).await;
                }
                Ok(Vec::new())
            }
            "Shutdown" => Ok(Vec::new()),
            method => Err(CallError {
                code: CODE_UNIMPLEMENTED,
                message: format!("the plugin has no method {method:?}"),
            }),
        }
    }

    async fn synchronize(&mut self) {
        let pods = std::mem::take(&mut self.pods).into_iter();
        let pods: BTreeMap<_, _> =
            pods.map(|pod| (pod.id.clone(), Arc::new(Pod::from_message(pod)))).collect();
        let containers = std::mem::take(&mut self.containers).into_iter();
        let running = containers.filter(|container| !container.is_stopped());
        let containers = running.filter_map(|container| {
            let pod = pods.get(&container.pod_sandbox_id)?.clone();
            Some(Container { id: container.id, name: container.name, pod })
        });
        self.plugin.synchronize(containers.collect()).await;
        if !self.is_synchronized {
            self.is_synchronized = true;
            (self.on_synchronized)(&self.runtime);
        }
    }

    async fn create_container(&mut self, request: ContainerRequest) -> Result<Vec<u8>, CallError> {
        let missing = || CallError::new("the request names no container or no pod");
        let (pod, container) = request.pod.zip(request.container).ok_or_else(missing)?;
        let pod = Arc::new(Pod::from_message(pod));
        let container = Container { id: container.id, name: container.name, pod };
        let adjustment = self.plugin.create_container(container).await.map_err(CallError::new)?;
        let adjust = ContainerAdjustment::from_adjustment(adjustment);
        Ok(CreateContainerResponse { adjust }.encode_to_vec())
    }

    async fn handle_end(&mut self, pod: Option<PodSandbox>, container: Option<NriContainer>) {
        let event = match (container, pod) {
            (Some(container), _) => EndEvent::Container(container.id),
            (None, Some(pod)) => EndEvent::Sandbox(pod.id),
            (None, None) => return,
        };
        self.plugin.handle_end(event).await;
    }
}

fn decode<T: prost::Message + Default>(payload: &[u8]) -> Result<T, CallError> {
    T::decode(payload).map_err(|error| decode_error(&error))
}

fn decode_error(error: &prost::DecodeError) -> CallError {
    CallError::new(format!("the plugin cannot decode the request: {error}"))
}

// === impl Pod ===

impl Pod {
    fn from_message(pod: PodSandbox) -> Self {
        let PodSandbox { id, name, uid, namespace, annotations } = pod;
        Self { sandbox_id: id, uid, namespace, name, annotations }
    }
}

// === impl ContainerAdjustment ===

impl ContainerAdjustment {
    /// Message for an adjustment; `None` if it is empty.
    fn from_adjustment(adjustment: Adjustment) -> Option<Self> {
        if adjustment == Adjustment::default() {
            return None;
        }
        let env = adjustment.env.into_iter().map(|(key, value)| KeyValue { key, value }).collect();
        let hook = |hook: windlass_core::cdi::Hook| NriHook {
            path: hook.path.to_string_lossy().into_owned(),
            args: hook.args,
            env: hook.env,
            timeout: hook.timeout.map(|value| OptionalInt { value }),
        };
        let create_runtime: Vec<_> = adjustment.create_runtime.into_iter().map(hook).collect();
        let hooks = (!create_runtime.is_empty()).then_some(Hooks { create_runtime });
        Some(Self { env, hooks })
    }
}
