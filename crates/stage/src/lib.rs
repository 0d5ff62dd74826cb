//! Stages of a pipeline: items pass from process to process over gRPC, and each item ends exactly once.
//!
//! A stage receives items, processes each, and sends the result to every next stage. An item ends as a result or as a
//! [`Failure`] that names the stage and the reason. A stage processes an item at most once, without retries.
//! `docs/stages.md` describes the protocol.
//!
//! ```text
//!  Source ─> Stage ─> Stage ─> Stage ─> Ends
//!            inlet ─> (join) ─> queue ─> worker ─> outlet ─> inlet of the next
//! ```
//!
//! ```no_run
//! # use bytes::Bytes; use tokio_util::sync::CancellationToken; use windlass_stage::Stage;
//! # fn detect(frame: Bytes) -> Bytes { frame }
//! # async fn example(shutdown: CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
//! Stage::builder("detect")
//!     .listen("0.0.0.0:7000".parse()?)
//!     .next("classify", "classify:7000".parse()?)
//!     .work(|frame: Bytes| async move { Ok::<_, std::io::Error>(detect(frame)) })
//!     .serve(shutdown)
//!     .await?;
//! # Ok(()) }
//! ```

mod address;
mod assembly;
mod builder;
mod connection;
mod custody;
mod dial;
mod ends;
mod exit;
mod failure;
mod inlet;
mod item;
mod join;
mod link_time;
mod listener;
mod metrics;
mod outlet;
mod panics;
mod queue;
mod queued;
mod reader;
mod recent_ids;
mod replicas;
mod serve;
mod settings;
mod source;
mod visit;
mod wire;
mod work;
mod worker;

pub use address::{Address, AddressError, Addresses};
pub use builder::{Builder, Stage};
pub use ends::{End, EndEvent, EndListener};
pub use failure::{Failure, FailureKind};
pub use metrics::StageMetrics;
pub use serve::{BoundStage, ServeError};
pub use settings::Settings;
pub use source::Source;
pub use visit::Visit;
pub use wire::PROTOCOL;
pub use work::WorkError;
