//! HTTP/1: requests in, documents and watches out.

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
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};

use super::{
    fault::Effect,
    request::{self, Asked},
    world::{Answer, Watched, World},
};

/// How a request is answered.
type View = fn(&mut World, &Asked) -> Answer;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves until dropped, with all connections.
pub(crate) async fn serve(listener: TcpListener, world: watch::Sender<World>) {
    let mut connections = JoinSet::new();
    loop {
        // A connection that ended before it was taken is no failure.
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let world = world.clone();
        let answer = service_fn(move |request| answer(world.clone(), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        connections.spawn(async move { drop(connection.await) });
    }
}

/// An error ends the connection without an answer.
async fn answer(
    world: watch::Sender<World>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let asked = read(request).await.map_err(io::Error::other)?;
    let (mut effect, mut view) = (None, World::answer as View);
    world.send_modify(|world| effect = world.note(&asked));
    match effect {
        None => {}
        Some(Effect::Refuse(refusal)) => return Ok(whole(refusal.code, &refusal.to_json())),
        Some(Effect::Forbid) => {
            let refusal = World::forbid(&asked);
            return Ok(whole(refusal.code, &refusal.to_json()));
        }
        Some(Effect::Delay(delay)) => time::sleep(delay).await,
        Some(Effect::Drop) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Some(Effect::Hide) => view = World::hide,
        Some(Effect::LoseAnswer) => {
            world.send_modify(|world| drop(world.answer(&asked)));
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
    let mut answered = None;
    world.send_modify(|world| answered = Some(view(world, &asked)));
    Ok(match answered.expect("written by the line above") {
        Answer::Whole(code, document) => whole(code, &document),
        Answer::Watch(watched) => respond(200, changes(&world, watched)),
    })
}

fn whole(code: u16, document: &Value) -> Response<Body> {
    respond(code, Full::new(Bytes::from(document.to_string())).boxed_unsync())
}

fn respond(code: u16, body: Body) -> Response<Body> {
    let response =
        Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    response.body(body).expect("a code and a header that are valid")
}

async fn read(request: Request<Incoming>) -> Result<Asked, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let header = |name| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    Ok(Asked {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: request::query(parts.uri.query().unwrap_or_default()),
        content_type: header(header::CONTENT_TYPE),
        accept: header(header::ACCEPT),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

/// A line for each change, until all watches are cut.
fn changes(world: &watch::Sender<World>, watched: Watched) -> Body {
    let first = tokio_stream::once(lines(&watched.first));
    let lines: Pin<Box<dyn Stream<Item = Bytes> + Send>> =
        if watched.ends { Box::pin(first) } else { Box::pin(first.chain(later(world, watched))) };
    let frames = lines.filter(|lines| !lines.is_empty()).map(|lines| Ok(Frame::data(lines)));
    StreamBody::new(frames).boxed_unsync()
}

fn later(world: &watch::Sender<World>, watched: Watched) -> impl Stream<Item = Bytes> + use<> {
    let news = world.borrow().store.news();
    let cuts = news.borrow().cuts;
    let (world, mut last) = (world.clone(), watched.from);
    WatchStream::new(news).take_while(move |news| news.cuts == cuts).map(move |_| {
        let world = world.borrow();
        let told = lines(&world.told(&watched, last));
        last = last.max(world.store.version());
        told
    })
}

fn lines(events: &[Value]) -> Bytes {
    let line = |text: String, event: &Value| text + &event.to_string() + "\n";
    events.iter().fold(String::new(), line).into()
}
