//! Dials one replica of a stage: connects, checks its name and version, and opens a stream.

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    address::ResolvedAddress,
    visit::nanos,
    wire::{self, MESSAGE_OVERHEAD, PROTOCOL, parcel, receipt, stage_client::StageClient},
};

/// Reason that a replica cannot be used now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot connect")]
    Connect(#[source] tonic::transport::Error),
    #[error("the call failed: {0}")]
    Call(String),
    #[error("did not answer within {DIAL_TIMEOUT:?}")]
    Timeout,
    #[error("drains")]
    Draining,
    #[error(
        "stage {stage} at {target} speaks protocol {protocol}, this one {PROTOCOL}: \
         run the same version of windlass-stage on both"
    )]
    Protocol { stage: String, target: ResolvedAddress, protocol: u32 },
    #[error("stage {stage} serves at {target}, where {expected} was expected")]
    WrongStage { stage: String, target: ResolvedAddress, expected: String },
}

/// A stream to one replica, ready for items.
pub(crate) struct ItemStream {
    pub(crate) description: wire::DescribeResponse,
    pub(crate) parcels: mpsc::UnboundedSender<wire::Parcel>,
    pub(crate) receipts: Streaming<wire::Receipt>,
    pub(crate) half_round_trip: Duration,
}

/// Timeout of a dial, including all its calls.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of pings that measure the round trip of a new stream.
const PINGS: usize = 3;

/// HTTP/2 flow-control window of a stream in bytes: 200 MB/s at a round trip of 20 ms.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;

/// HTTP/2 keep-alive: interval and timeout. They detect a node that lost power and so closes no connection.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(5);

// === impl DialError ===

impl DialError {
    #[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
    pub(crate) fn call(status: Status) -> Self {
        Self::Call(status.message().to_owned())
    }
}

/// Connects, and checks the protocol version and, if `expected` is given, the name of the stage.
pub(crate) async fn connect(
    target: &ResolvedAddress,
    expected: Option<&str>,
) -> Result<(StageClient<Channel>, wire::DescribeResponse), DialError> {
    let uri = match target {
        ResolvedAddress::Tcp(address) => format!("http://{address}"),
        ResolvedAddress::Unix(_) => target.to_string(),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(DialError::Connect)?;
    let endpoint = endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 2)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(DialError::Connect)?;
    let mut client = StageClient::new(channel).max_decoding_message_size(usize::MAX);
    let description = client.describe(wire::DescribeRequest {}).await.map_err(DialError::call)?;
    let description = description.into_inner();
    let (stage, protocol) = (description.stage.clone(), description.protocol);
    if protocol != PROTOCOL {
        return Err(DialError::Protocol { stage, target: target.clone(), protocol });
    }
    match expected {
        Some(expected) if expected != stage => {
            let expected = expected.to_owned();
            Err(DialError::WrongStage { stage, target: target.clone(), expected })
        }
        _ => Ok((client, description)),
    }
}

/// Opens a stream for items, and measures its round trip.
pub(crate) async fn open(
    target: &ResolvedAddress,
    expected: &str,
    clock: Instant,
) -> Result<ItemStream, DialError> {
    let (client, description) = connect(target, Some(expected)).await?;
    let max_payload = usize::try_from(description.max_payload).unwrap_or(usize::MAX);
    let mut client = client.max_encoding_message_size(max_payload.saturating_add(MESSAGE_OVERHEAD));
    let (parcels, outgoing) = mpsc::unbounded_channel();
    let outgoing = UnboundedReceiverStream::new(outgoing);
    let mut receipts = client.pass(outgoing).await.map_err(DialError::call)?.into_inner();
    let mut half_round_trip = Duration::MAX;
    for _ in 0..PINGS {
        let sent = Instant::now();
        // An error means that the stream has ended. The missing answer shows the end.
        drop(parcels.send(ping(clock)));
        match receipts.message().await.map_err(DialError::call)?.and_then(|receipt| receipt.content)
        {
            Some(receipt::Content::Pong(_)) => {}
            _ => return Err(DialError::Draining),
        }
        half_round_trip = half_round_trip.min(sent.elapsed() / 2);
    }
    Ok(ItemStream { description, parcels, receipts, half_round_trip })
}

/// A ping with the time since `clock`.
pub(crate) fn ping(clock: Instant) -> wire::Parcel {
    let sent_ns = nanos(clock.elapsed());
    wire::Parcel { content: Some(parcel::Content::Ping(wire::Ping { sent_ns })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_mismatch_names_the_remedy() {
        let target = ResolvedAddress::Tcp("10.0.0.7:7000".parse().expect("an address"));
        let error = DialError::Protocol { stage: "detect".into(), target, protocol: 2 };
        let expected = "stage detect at 10.0.0.7:7000 speaks protocol 2, this one 1: run the same version of \
                    windlass-stage on both";
        assert_eq!(error.to_string(), expected);
    }
}
