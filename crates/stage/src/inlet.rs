//! The gRPC service of a stage: describes the stage, opens streams of items, and publishes ends to listeners.

use std::pin::Pin;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    custody::Receipts,
    exit::EndSubscriber,
    reader::{ItemSink, Reader},
    wire,
};

/// The gRPC service of one stage.
pub(crate) struct Inlet {
    pub(crate) description: wire::DescribeResponse,
    /// Copies of each result: one per next stage, or one for the exit.
    pub(crate) copies: usize,
    pub(crate) sink: ItemSink,
    /// Subscriptions to ends; `None` if the stage has next stages.
    pub(crate) subscriber: Option<EndSubscriber>,
    pub(crate) readers: TaskTracker,
    /// Cancelled when the stage starts to drain.
    pub(crate) draining: CancellationToken,
    /// Cancelled when the stage is dropped.
    pub(crate) disconnect: CancellationToken,
}

// === impl Inlet ===

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl wire::stage_server::Stage for Inlet {
    type PassStream = Receipts;
    type EndsStream = ResponseStream<wire::End>;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeResponse>, Status> {
        Ok(Response::new(self.description.clone()))
    }

    async fn pass(
        &self,
        request: Request<Streaming<wire::Parcel>>,
    ) -> Result<Response<Receipts>, Status> {
        // Taken before the check of `draining`: either the drain waits for this reader, or this reader sees the drain.
        let token = self.readers.token();
        if self.draining.is_cancelled() {
            return Err(Status::unavailable("drains"));
        }
        let (receipts, receiver) = mpsc::unbounded_channel();
        let reader =
            Reader::new(request.into_inner(), receipts, self.sink.clone(), self.draining.clone());
        let disconnect = self.disconnect.clone();
        self.readers.spawn(async move { disconnect.run_until_cancelled(reader.run()).await });
        drop(token);
        Ok(Response::new(Receipts::new(receiver, self.copies)))
    }

    async fn ends(
        &self,
        _: Request<wire::EndsRequest>,
    ) -> Result<Response<Self::EndsStream>, Status> {
        let Some(subscriber) = &self.subscriber else {
            let stage = &self.description.stage;
            let text = format!("no item leaves the pipeline at {stage}: other stages follow");
            return Err(Status::failed_precondition(text));
        };
        let ends = subscriber.listen().await.ok_or_else(|| Status::unavailable("drains"))?;
        Ok(Response::new(Box::pin(ends)))
    }
}
