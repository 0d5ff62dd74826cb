//! Distribution of items: by the speed of the replicas, and none to a replica with another protocol version.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_stream::{Stream, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};
use windlass_stage::{Address, EndListener};

use crate::pipeline::{RunningStage, append_letter, receive_ends, source, stage, with_timeout};

#[expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
mod wire {
    include!("../src/generated/windlass.stage.v1.rs");
}

#[tokio::test]
async fn a_slow_replica_gets_fewer_items_than_a_fast_one() {
    let store = RunningStage::start(stage("store")).await;
    let slow = |payload: Bytes| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok::<_, std::io::Error>(payload)
    };
    let replica = |name: &str| stage("detect").replica(name).next("store", store.addresses());
    let slow = RunningStage::start(replica("slow").work(slow)).await;
    let fast = RunningStage::start(replica("fast").work(append_letter(b'!'))).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let addresses: windlass_stage::Addresses =
        [&slow, &fast].into_iter().map(|replica| replica.address.clone()).collect();
    let mut source = source("detect", addresses);
    for _ in 0..200 {
        with_timeout(source.send(Bytes::from_static(b"x"), None)).await;
    }
    let ends = receive_ends(&mut listener, 200).await;
    let slow_count = ends.values().filter(|end| end.visits[0].replica == "slow").count();
    assert!((1..50).contains(&slow_count), "{slow_count} of 200");
}

/// A stage with another protocol version, which the test can change.
struct OtherVersion {
    protocol: watch::Receiver<u32>,
    calls: watch::Sender<usize>,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl wire::stage_server::Stage for OtherVersion {
    type PassStream = ResponseStream<wire::Receipt>;
    type EndsStream = ResponseStream<wire::End>;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeResponse>, Status> {
        self.calls.send_modify(|count| *count += 1);
        Ok(Response::new(wire::DescribeResponse {
            protocol: *self.protocol.borrow(),
            stage: "detect".into(),
            replica: "other".into(),
            max_payload: 1000,
            joins: false,
        }))
    }

    async fn pass(
        &self,
        _: Request<Streaming<wire::Parcel>>,
    ) -> Result<Response<Self::PassStream>, Status> {
        assert_eq!(
            *self.protocol.borrow(),
            windlass_stage::PROTOCOL,
            "a refused peer got a stream"
        );
        self.calls.send_replace(usize::MAX);
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }

    async fn ends(
        &self,
        _: Request<wire::EndsRequest>,
    ) -> Result<Response<Self::EndsStream>, Status> {
        Err(Status::unimplemented("none"))
    }
}

#[tokio::test]
async fn a_replica_of_another_version_gets_no_items_until_it_is_replaced() {
    let (protocol, calls) = (watch::Sender::new(2), watch::Sender::new(0));
    let stage = OtherVersion { protocol: protocol.subscribe(), calls: calls.clone() };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut servers = JoinSet::new();
    let service = wire::stage_server::StageServer::new(stage);
    let incoming = TcpListenerStream::new(listener);
    servers.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let address = Address::Tcp { host: "127.0.0.1".into(), port };
    let _source = source("detect", address);
    let mut calls = calls.subscribe();
    with_timeout(calls.wait_for(|count| *count >= 3)).await.expect("the stage is dialed again");
    protocol.send_replace(windlass_stage::PROTOCOL);
    with_timeout(calls.wait_for(|count| *count == usize::MAX)).await.expect("it gets a stream");
}
