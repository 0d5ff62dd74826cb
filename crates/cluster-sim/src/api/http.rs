//! HTTP/1 server: parses requests, and writes documents and watches.

use std::{convert::Infallible, io, pin::Pin};

use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Bytes, Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time};
use tokio_stream::{Stream, StreamExt as _};

use super::{
    fault::Effect,
    media, protobuf,
    request::{self, ApiRequest},
    response::{ApiResponse, DocumentResponse},
    server_state::ServerState,
    watch::WatchState,
};

/// Function that responds to a request.
type Responder = fn(&mut ServerState, &ApiRequest) -> ApiResponse;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves connections. Dropping the future closes them all.
pub(crate) async fn serve(listener: TcpListener, state: watch::Sender<ServerState>) {
    let mut connections = JoinSet::new();
    loop {
        // An error means that the connection was closed before it was accepted.
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let state = state.clone();
        let service = service_fn(move |request| handle(state.clone(), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        connections.spawn(async move { drop(connection.await) });
    }
}

/// Responds to a request. An error closes the connection without a response.
async fn handle(
    state: watch::Sender<ServerState>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let request = read(request).await.map_err(io::Error::other)?;
    let (mut effect, mut responder) = (None, ServerState::respond as Responder);
    state.send_modify(|state| effect = state.log_request(&request));
    match effect {
        None => {}
        Some(Effect::Refuse(refusal)) => {
            return Ok(to_http(&state, ApiResponse::refused(&refusal)));
        }
        Some(Effect::Forbid) => {
            return Ok(to_http(&state, ApiResponse::refused(&ServerState::forbid(&request))));
        }
        Some(Effect::Delay(delay)) => time::sleep(delay).await,
        Some(Effect::CloseConnection) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Some(Effect::ReturnEmpty) => responder = ServerState::respond_empty,
        Some(Effect::DropResponse) => {
            state.send_modify(|state| drop(state.respond(&request)));
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
    let mut response = None;
    state.send_modify(|state| response = Some(responder(state, &request)));
    Ok(to_http(&state, response.expect("set by the closure above")))
}

fn to_http(state: &watch::Sender<ServerState>, api_response: ApiResponse) -> Response<Body> {
    let response = Response::builder();
    let response = match api_response {
        ApiResponse::Document(DocumentResponse { code, document, media_type, warnings }) => {
            let body = Full::new(Bytes::from(document.to_string())).boxed_unsync();
            let response = response.status(code).header(header::CONTENT_TYPE, media_type);
            // Format of RFC 7234: code 299 (miscellaneous), and `-` for no agent.
            let warning = |text: String| format!("299 - \"{}\"", text.replace('"', "\\\""));
            let warnings = warnings.into_iter().map(warning);
            warnings
                .fold(response, |response, warning| response.header(header::WARNING, warning))
                .body(body)
        }
        ApiResponse::Watch(watch_state) => {
            let response = response.header(header::CONTENT_TYPE, "application/json");
            response.body(watch_body(state, watch_state))
        }
    };
    response.expect("headers of printable characters")
}

async fn read(request: Request<Incoming>) -> Result<ApiRequest, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let header = |name| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let parse_result = match body.as_ref() {
        [] => Ok(Value::Null),
        body if header(header::CONTENT_TYPE).starts_with(media::PROTOBUF) => protobuf::decode(body),
        body => serde_json::from_slice(body).map_err(|error| error.to_string()),
    };
    Ok(ApiRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: request::query(parts.uri.query().unwrap_or_default()),
        content_type: header(header::CONTENT_TYPE),
        accept: header(header::ACCEPT),
        body_error: parse_result
            .as_ref()
            .err()
            .map(|error| format!("the body cannot be read: {error}")),
        body: parse_result.unwrap_or_default(),
    })
}

/// Body of a watch: one line per event, until the watch ends.
fn watch_body(state: &watch::Sender<ServerState>, watch_state: WatchState) -> Body {
    let initial_lines = tokio_stream::once(lines(&watch_state.initial_events));
    let lines: Pin<Box<dyn Stream<Item = Bytes> + Send>> = if watch_state.is_failed {
        Box::pin(initial_lines)
    } else {
        Box::pin(initial_lines.chain(later_lines(state, watch_state)))
    };
    let frames = lines.filter(|lines| !lines.is_empty()).map(|lines| Ok(Frame::data(lines)));
    StreamBody::new(frames).boxed_unsync()
}

fn later_lines(
    state: &watch::Sender<ServerState>,
    watch_state: WatchState,
) -> impl Stream<Item = Bytes> + use<> {
    let ticks = watch_state.ticks(state.borrow().store.signal());
    let (state, mut last_version) = (state.clone(), watch_state.start_version);
    ticks.map(move |tick| {
        let (events, version) = state.borrow().events_since(&watch_state, last_version, tick);
        last_version = version;
        lines(&events)
    })
}

fn lines(events: &[Value]) -> Bytes {
    let line = |text: String, event: &Value| text + &event.to_string() + "\n";
    events.iter().fold(String::new(), line).into()
}
