//! Bytes of a container runtime at the agent's plugin (NRI): frames, ttrpc, and messages.

use prost::Message;
use windlass_nri::{Adjustment, Container, Ended, NriSettings, Plugin, SessionError, serve};

use crate::{Verdict, refused};

/// Call of the runtime.
#[derive(Clone, PartialEq, Message)]
struct Call {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

/// A pod and its container, with the same numbers for id and name.
#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(message, optional, tag = "1")]
    pod: Option<Named>,
    #[prost(message, optional, tag = "2")]
    container: Option<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    name: String,
}

/// A plugin that changes nothing.
struct Idle;

impl Plugin for Idle {
    async fn synchronize(&mut self, _: Vec<Container>) {}

    async fn create(&mut self, _: Container) -> Result<Adjustment, String> {
        Ok(Adjustment::default())
    }

    async fn ended(&mut self, _: Ended) {}
}

/// Serves a runtime that sends these bytes and ends. One that keeps to the protocol is accepted.
pub(crate) fn conversation(bytes: &[u8]) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let stream = tokio::io::join(bytes, tokio::io::sink());
    let settings = NriSettings::new("/nowhere", "fuzz", "10");
    match runtime.block_on(serve(stream, &settings, &mut Idle, |_| {})) {
        SessionError::Closed | SessionError::Shutdown => Verdict::Accepted,
        error => refused(&error.to_string()),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let named = || Some(Named { id: "c0".to_owned(), name: "main".to_owned() });
    let pair = Pair { pod: named(), container: named() }.encode_to_vec();
    let methods =
        ["Configure", "Synchronize", "CreateContainer", "StateChange", "StopContainer", "Shutdown"];
    let calls = methods.map(|method| {
        let payload = if method == "Configure" { Vec::new() } else { pair.clone() };
        let call = Call { service: String::new(), method: method.to_owned(), payload };
        frame(1, 1, &call.encode_to_vec())
    });
    vec![Vec::new(), frame(2, 2, &[]), [frame(2, 2, &[]), calls.concat()].concat()]
}

/// A message of stream 1 in a frame.
fn frame(connection: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_be_bytes();
    let message = [&length(body)[..], &1_u32.to_be_bytes(), &[kind, 0], body].concat();
    [&connection.to_be_bytes()[..], &length(&message), &message].concat()
}
