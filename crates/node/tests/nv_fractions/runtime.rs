//! A container runtime's side of NRI, with its own messages: `pkg/adaptation` of `github.com/containerd/nri`.

use std::{collections::BTreeMap, fs, path::Path};

use prost::Message;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};
use windlass_testkit::within_timeout;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    timeout_nano: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct Registration {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    index: String,
}

#[derive(Clone, PartialEq, Message)]
struct Configuration {
    #[prost(string, tag = "2")]
    runtime_name: String,
    #[prost(string, tag = "3")]
    runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Configured {
    #[prost(int32, tag = "2")]
    events: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Synchronization {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<Sandbox>,
    #[prost(message, repeated, tag = "2")]
    containers: Vec<Container>,
    #[prost(bool, tag = "3")]
    more: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Synchronized {
    #[prost(bool, tag = "2")]
    more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    uid: String,
    #[prost(string, tag = "4")]
    namespace: String,
    #[prost(btree_map = "string, string", tag = "5")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    sandbox: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(int32, tag = "4")]
    state: i32,
    #[prost(string, repeated, tag = "8")]
    env: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerEvent {
    #[prost(message, optional, tag = "1")]
    pod: Option<Sandbox>,
    #[prost(message, optional, tag = "2")]
    container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct StateChange {
    #[prost(int32, tag = "1")]
    event: i32,
    #[prost(message, optional, tag = "2")]
    pod: Option<Sandbox>,
    #[prost(message, optional, tag = "3")]
    container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Created {
    #[prost(message, optional, tag = "1")]
    adjust: Option<Adjustment>,
}

#[derive(Clone, PartialEq, Message)]
struct Adjustment {
    #[prost(message, repeated, tag = "4")]
    env: Vec<Variable>,
    #[prost(message, optional, tag = "5")]
    hooks: Option<Hooks>,
}

#[derive(Clone, PartialEq, Message)]
struct Variable {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Hooks {
    #[prost(message, repeated, tag = "2")]
    create_runtime: Vec<Hook>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Hook {
    #[prost(string, tag = "1")]
    pub(super) path: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) args: Vec<String>,
}

/// Adjustment of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Adjusted {
    pub(super) env: BTreeMap<String, String>,
    pub(super) hooks: Vec<Hook>,
}

/// A runtime that listens.
pub(super) struct Runtime(UnixListener);

/// A runtime with its plugin.
pub(super) struct Connection {
    stream: UnixStream,
    next: u32,
}

/// Connections of the socket.
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;

/// Events: removed sandboxes, created, stopped and removed containers.
const EVENTS: i32 = 1 << 2 | 1 << 3 | 1 << 9 | 1 << 10;

/// Sandbox of a pod, with the id `sandbox-<name>`.
pub(super) fn pod(name: &str, uid: &str, annotations: Vec<(String, String)>) -> Sandbox {
    Sandbox {
        id: format!("sandbox-{name}"),
        name: name.to_owned(),
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        labels: BTreeMap::from([("app".to_owned(), "x".repeat(9000))]),
        annotations: annotations.into_iter().collect(),
    }
}

/// A running container of a pod.
pub(super) fn container(id: &str, name: &str, pod: &str) -> Container {
    Container {
        id: id.to_owned(),
        sandbox: format!("sandbox-{pod}"),
        name: name.to_owned(),
        state: 3,
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()],
    }
}

/// A container that ended and was not removed.
pub(super) fn ended_container(id: &str, name: &str, pod: &str) -> Container {
    Container { state: 4, ..container(id, name, pod) }
}

// === impl Runtime ===

impl Runtime {
    /// Listens, in place of a runtime that has ended.
    pub(super) fn start(socket: &Path) -> Self {
        let _ = fs::remove_file(socket);
        Self(UnixListener::bind(socket).expect("bound"))
    }

    async fn accept(&self) -> Connection {
        let accepted = within_timeout("the plugin's connection", self.0.accept()).await;
        let (stream, _) = accepted.expect("accepted");
        let mut connection = Connection { stream, next: 1 };
        let (service, stream, request) = connection.receive::<Request>().await;
        assert_eq!((service, stream), (RUNTIME, 1));
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(request.method, "RegisterPlugin");
        let plugin = Registration::decode(&*request.payload).expect("decoded");
        assert_eq!((&*plugin.name, &*plugin.index), ("windlass", "10"));
        connection
    }

    /// Accepts the plugin, configures it, and sends it the containers in two parts.
    pub(super) async fn synchronize(
        self,
        pods: &[Sandbox],
        containers: &[Container],
    ) -> Connection {
        let mut connection = self.accept().await;
        connection.send(RUNTIME, 1, 2, &Response::default()).await;
        let configuration =
            Configuration { runtime_name: "double".into(), runtime_version: "1.0".into() };
        let configured: Configured =
            connection.call("Configure", &configuration).await.expect("configured");
        assert_eq!(configured.events, EVENTS);
        let first = Synchronization { pods: pods.to_vec(), containers: Vec::new(), more: true };
        let second =
            Synchronization { pods: Vec::new(), containers: containers.to_vec(), more: false };
        for part in [first, second] {
            let response: Synchronized =
                connection.call("Synchronize", &part).await.expect("known");
            assert_eq!(response.more, part.more);
        }
        connection
    }

    /// Answers the registration with bytes, and waits until the plugin ends the connection.
    pub(super) async fn send_invalid(self, bytes: &[u8]) {
        let mut connection = self.accept().await;
        connection.stream.write_all(bytes).await.expect("written");
        connection.stream.shutdown().await.expect("ended");
        let mut received = Vec::new();
        let _ = within_timeout("the end", connection.stream.read_to_end(&mut received)).await;
    }

    /// Refuses the plugin.
    pub(super) async fn refuse(self, message: &str) {
        let mut connection = self.accept().await;
        let status = Status { code: 2, message: message.to_owned() };
        let refusal = Response { status: Some(status), payload: Vec::new() };
        connection.send(RUNTIME, 1, 2, &refusal).await;
        let mut received = Vec::new();
        let _ = within_timeout("the end", connection.stream.read_to_end(&mut received)).await;
    }
}

// === impl Connection ===

impl Connection {
    /// Creates a container. Returns its adjustment, or the plugin's refusal.
    pub(super) async fn create(
        &mut self,
        pod: &Sandbox,
        container: &Container,
    ) -> Result<Adjusted, String> {
        let event = ContainerEvent { pod: Some(pod.clone()), container: Some(container.clone()) };
        let created: Created = self.call("CreateContainer", &event).await?;
        let Some(adjust) = created.adjust else { return Ok(Adjusted::default()) };
        let env = adjust.env.into_iter().map(|variable| (variable.key, variable.value)).collect();
        Ok(Adjusted { env, hooks: adjust.hooks.unwrap_or_default().create_runtime })
    }

    /// Reports that the container has ended.
    pub(super) async fn stop(&mut self, pod: &Sandbox, container: &Container) {
        let stopped = ContainerEvent { pod: Some(pod.clone()), container: Some(container.clone()) };
        self.call::<()>("StopContainer", &stopped).await.expect("accepted");
    }

    /// Reports that the sandbox is removed.
    pub(super) async fn remove_sandbox(&mut self, pod: &Sandbox) {
        let change = StateChange { event: 3, pod: Some(pod.clone()), container: None };
        self.call::<()>("StateChange", &change).await.expect("accepted");
    }

    async fn call<T: Message + Default>(
        &mut self,
        method: &str,
        message: &impl Message,
    ) -> Result<T, String> {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
            timeout_nano: 2_000_000_000,
        };
        let stream = self.next;
        self.next += 2;
        self.send(PLUGIN, stream, 1, &request).await;
        let (service, response_stream, response) =
            within_timeout(method, self.receive::<Response>()).await;
        assert_eq!((service, response_stream), (PLUGIN, stream));
        match response.status.filter(|status| status.code != 0) {
            Some(status) => Err(status.message),
            None => Ok(T::decode(&*response.payload).expect("decoded")),
        }
    }

    /// Sends a message in frames of 4096 bytes, as a buffered writer of Go does.
    async fn send(&mut self, service: u32, stream: u32, kind: u8, message: &impl Message) {
        let body = message.encode_to_vec();
        let length = u32::try_from(body.len()).expect("short");
        let message_bytes =
            [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, 0], &body].concat();
        for part in message_bytes.chunks(4096) {
            let length = u32::try_from(part.len()).expect("short");
            let frame = [&service.to_be_bytes()[..], &length.to_be_bytes(), part].concat();
            self.stream.write_all(&frame).await.expect("written");
        }
    }

    /// Receives a message. Returns its connection, its stream and its content.
    async fn receive<T: Message + Default>(&mut self) -> (u32, u32, T) {
        let (mut service, mut message) = (0, Vec::new());
        loop {
            if let Some((head, body)) = message.split_at_checked(10)
                && body.len() == number(head)
            {
                let stream = u32::try_from(number(&head[4..])).expect("four bytes");
                return (service, stream, T::decode(body).expect("decoded"));
            }
            let mut head = [0; 8];
            self.stream.read_exact(&mut head).await.expect("a frame");
            service = u32::try_from(number(&head)).expect("four bytes");
            let length = number(&head[4..]);
            assert!(length <= 4096, "the runtime reads through a buffer of 4096 bytes");
            let mut part = vec![0; length];
            self.stream.read_exact(&mut part).await.expect("its payload");
            message.extend(part);
        }
    }
}

fn number(bytes: &[u8]) -> usize {
    let number = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
    usize::try_from(number).expect("small")
}
