//! Reader of the container runtime's bytes in the agent's NRI plugin: frames, ttrpc, and messages.

use prost::Message;
use windlass_nri::{Adjustment, Container, EndEvent, NriSettings, Plugin, SessionError, serve};

use crate::{Verdict, refused};

/// ttrpc request of the runtime.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

/// Payload of a request with a pod and a container.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(message, optional, tag = "1")]
    pod: Option<Object>,
    #[prost(message, optional, tag = "2")]
    container: Option<Object>,
}

#[derive(Clone, PartialEq, Message)]
struct Object {
    /// Id of the pod or container.
    #[prost(string, tag = "1")]
    id: String,
    /// Name of the pod, or sandbox id of the container.
    #[prost(string, tag = "2")]
    name: String,
}

/// Plugin that adjusts no container.
struct NoOp;

impl Plugin for NoOp {
    async fn synchronize(&mut self, _: Vec<Container>) {}

    async fn create_container(&mut self, _: Container) -> Result<Adjustment, String> {
        Ok(Adjustment::default())
    }

    async fn handle_end(&mut self, _: EndEvent) {}
}

/// Runs a session with a runtime that sends these bytes and closes the connection. Accepts bytes that follow the
/// protocol.
pub(crate) fn nri_session(bytes: &[u8]) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let stream = tokio::io::join(bytes, tokio::io::sink());
    let settings = NriSettings::new("/nowhere", "fuzz", "10");
    match runtime.block_on(serve(stream, &settings, &mut NoOp, |_| {})) {
        SessionError::Closed | SessionError::Shutdown => Verdict::Accepted,
        error => refused(&error.to_string()),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let object = || Some(Object { id: "c0".to_owned(), name: "main".to_owned() });
    let objects = Payload { pod: object(), container: object() }.encode_to_vec();
    let methods =
        ["Configure", "Synchronize", "CreateContainer", "StateChange", "StopContainer", "Shutdown"];
    let requests = methods.map(|method| {
        let payload = if method == "Configure" { Vec::new() } else { objects.clone() };
        let request = Request { service: String::new(), method: method.to_owned(), payload };
        frame(1, 1, &request.encode_to_vec())
    });
    vec![Vec::new(), frame(2, 2, &[]), [frame(2, 2, &[]), requests.concat()].concat()]
}

/// Frame with a message of stream 1.
fn frame(connection: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_be_bytes();
    let message = [&length(body)[..], &1_u32.to_be_bytes(), &[kind, 0], body].concat();
    [&connection.to_be_bytes()[..], &length(&message), &message].concat()
}
