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
    answer::{Answer, Whole},
    fault::Effect,
    media, protobuf,
    request::{self, ApiRequest},
    watch::Watched,
    world::World,
};

/// Function that responds to a request.
type View = fn(&mut World, &ApiRequest) -> Answer;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves connections. Dropping the future closes them all.
pub(crate) async fn serve(listener: TcpListener, world: watch::Sender<World>) {
    let mut connections = JoinSet::new();
    loop {
        // A connection that closes before it is accepted is no error.
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let world = world.clone();
        let answer = service_fn(move |request| answer(world.clone(), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        connections.spawn(async move { drop(connection.await) });
    }
}

/// Responds to a request. An error closes the connection without a response.
async fn answer(
    world: watch::Sender<World>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let request = read(request).await.map_err(io::Error::other)?;
    let (mut effect, mut view) = (None, World::answer as View);
    world.send_modify(|world| effect = world.note(&request));
    match effect {
        None => {}
        Some(Effect::Refuse(refusal)) => return Ok(respond(&world, Answer::refused(&refusal))),
        Some(Effect::Forbid) => {
            return Ok(respond(&world, Answer::refused(&World::forbid(&request))));
        }
        Some(Effect::Delay(delay)) => time::sleep(delay).await,
        Some(Effect::Drop) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Some(Effect::Hide) => view = World::hide,
        Some(Effect::LoseAnswer) => {
            world.send_modify(|world| drop(world.answer(&request)));
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
    let mut answered = None;
    world.send_modify(|world| answered = Some(view(world, &request)));
    Ok(respond(&world, answered.expect("written by the line above")))
}

fn respond(world: &watch::Sender<World>, answer: Answer) -> Response<Body> {
    let response = Response::builder();
    let response = match answer {
        Answer::Whole(Whole { code, document, media, warnings }) => {
            let body = Full::new(Bytes::from(document.to_string())).boxed_unsync();
            let response = response.status(code).header(header::CONTENT_TYPE, media);
            // Format of RFC 7234: code 299 (miscellaneous), and `-` for no agent.
            let warning = |text: String| format!("299 - \"{}\"", text.replace('"', "\\\""));
            let warnings = warnings.into_iter().map(warning);
            warnings.fold(response, |it, warning| it.header(header::WARNING, warning)).body(body)
        }
        Answer::Watch(watched) => {
            let response = response.header(header::CONTENT_TYPE, "application/json");
            response.body(changes(world, watched))
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
    let parsed = match body.as_ref() {
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
        problem: parsed.as_ref().err().map(|error| format!("the body cannot be read: {error}")),
        body: parsed.unwrap_or_default(),
    })
}

/// Body of a watch: one line for each event, until all watches are cut.
fn changes(world: &watch::Sender<World>, watched: Watched) -> Body {
    let first = tokio_stream::once(lines(&watched.first));
    let lines: Pin<Box<dyn Stream<Item = Bytes> + Send>> = if watched.is_over {
        Box::pin(first)
    } else {
        Box::pin(first.chain(later(world, watched)))
    };
    let frames = lines.filter(|lines| !lines.is_empty()).map(|lines| Ok(Frame::data(lines)));
    StreamBody::new(frames).boxed_unsync()
}

fn later(world: &watch::Sender<World>, watched: Watched) -> impl Stream<Item = Bytes> + use<> {
    let ticks = watched.ticks(world.borrow().store.signal());
    let (world, mut last) = (world.clone(), watched.from);
    ticks.map(move |tick| {
        let (events, seen) = world.borrow().events_since(&watched, last, tick);
        last = seen;
        lines(&events)
    })
}

fn lines(events: &[Value]) -> Bytes {
    let line = |text: String, event: &Value| text + &event.to_string() + "\n";
    events.iter().fold(String::new(), line).into()
}
