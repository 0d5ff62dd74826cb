//! A chain of stages that return payloads unchanged.

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_stage::{
    Address, Addresses, Builder, EndEvent, EndListener, Settings, Source, Stage, StageMetrics,
};

use super::Chain;

/// Stages on their own threads, which end when this value is dropped.
pub(crate) struct Kit {
    source: Source,
    listener: EndListener,
    _shutdown: DropGuard,
}

impl Chain for Kit {
    async fn start(stages: usize) -> Self {
        let shutdown = CancellationToken::new();
        let last_address = start(stage("0"), shutdown.clone()).await;
        let mut first_addresses = Addresses::from(last_address.clone());
        for position in 1..stages {
            let builder =
                stage(&position.to_string()).next(&(position - 1).to_string(), first_addresses);
            first_addresses = start(builder, shutdown.clone()).await.into();
        }
        let ends = EndListener::listen(last_address.into()).await;
        let name = (stages - 1).to_string();
        let metrics = StageMetrics::new();
        let source = Source::connect("bench", &name, first_addresses, Settings::default(), metrics);
        Self { source, listener: ends, _shutdown: shutdown.drop_guard() }
    }

    async fn send(&mut self, payload: Bytes) {
        self.source.send(payload, None).await;
    }

    async fn receive(&mut self) {
        match self.listener.next().await {
            EndEvent::End(end) => assert_eq!(end.failure, None),
            EndEvent::Missed(count) => panic!("{count} ends were missed"),
        }
    }
}

fn stage(name: &str) -> Builder {
    Stage::builder(name).listen("127.0.0.1:0".parse().expect("an address"))
}

/// Serves on its own thread, and returns the bound address.
async fn start(builder: Builder, shutdown: CancellationToken) -> Address {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let bound = builder.bind().await.expect("a free port");
            sender.send(bound.address().clone()).expect("the caller waits");
            bound.serve(shutdown).await.expect("it serves");
        });
    });
    receiver.await.expect("it listens")
}
