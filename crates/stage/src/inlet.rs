//! The way into a stage: describes it, opens its streams, and lets listeners subscribe to its ends.

use std::pin::Pin;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    custody::Receipts,
    exit::Listeners,
    reader::{Entrance, Reader},
    wire,
};

/// The service of one stage.
pub(crate) struct Inlet {
    pub(crate) description: wire::DescribeResponse,
    /// Copies of each result: one per next stage, or the end.
    pub(crate) copies: usize,
    pub(crate) entrance: Entrance,
    /// Listeners to ends; none where stages follow.
    pub(crate) listeners: Option<Listeners>,
    pub(crate) readers: TaskTracker,
    /// Cancelled when the stage drains.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the stage is gone.
    pub(crate) gone: CancellationToken,
}

// === impl Inlet ===

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl wire::stage_server::Stage for Inlet {
    type PassStream = Receipts;
    type EndsStream = Answers<wire::End>;

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
        // Held before the look at `closing`: a drain waits for this reader, or this reader sees the drain.
        let token = self.readers.token();
        if self.closing.is_cancelled() {
            return Err(Status::unavailable("drains"));
        }
        let (notes, receiver) = mpsc::unbounded_channel();
        let reader =
            Reader::new(request.into_inner(), notes, self.entrance.clone(), self.closing.clone());
        let gone = self.gone.clone();
        self.readers.spawn(async move { gone.run_until_cancelled(reader.run()).await });
        drop(token);
        Ok(Response::new(Receipts::new(receiver, self.copies)))
    }

    async fn ends(
        &self,
        _: Request<wire::EndsRequest>,
    ) -> Result<Response<Self::EndsStream>, Status> {
        let Some(listeners) = &self.listeners else {
            let stage = &self.description.stage;
            let text = format!("no item leaves the pipeline at {stage}: other stages follow");
            return Err(Status::failed_precondition(text));
        };
        let ends = listeners.listen().await.ok_or_else(|| Status::unavailable("drains"))?;
        Ok(Response::new(Box::pin(ends)))
    }
}
