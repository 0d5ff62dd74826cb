//! Connects to one replica of a stage and asks it who it is.

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
    address::Target,
    visit::nanos,
    wire::{self, PROTOCOL, SLACK, parcel, receipt, stage_client::StageClient},
};

/// A replica that cannot be used now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot connect")]
    Connect(#[source] tonic::transport::Error),
    #[error("the call failed: {0}")]
    Call(String),
    #[error("did not answer within {LIMIT:?}")]
    Silent,
    #[error("drains")]
    Drains,
    #[error(
        "stage {stage} at {target} speaks protocol {protocol}, this one {PROTOCOL}: \
         run the same version of windlass-stage on both"
    )]
    Protocol { stage: String, target: Target, protocol: u32 },
    #[error("stage {stage} serves at {target}, where {expected} was expected")]
    Stranger { stage: String, target: Target, expected: String },
}

/// A stream to one replica, ready for items.
pub(crate) struct Opened {
    pub(crate) description: wire::DescribeResponse,
    pub(crate) parcels: mpsc::UnboundedSender<wire::Parcel>,
    pub(crate) receipts: Streaming<wire::Receipt>,
    pub(crate) half_round_trip: Duration,
}

/// Longest time of a dial with all its questions.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// Pings by which a new stream's round trip is measured.
const PINGS: usize = 3;

/// Bytes of one stream that may be under way: 200 MB/s over 20 ms of round trip.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;

/// A connection without an answer for so long is lost: a node without power sends no end.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(5);

// === impl DialError ===

impl DialError {
    #[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
    pub(crate) fn call(status: Status) -> Self {
        Self::Call(status.message().to_owned())
    }
}

/// Connects, and checks version and name.
pub(crate) async fn stage(
    target: &Target,
    expected: Option<&str>,
) -> Result<(StageClient<Channel>, wire::DescribeResponse), DialError> {
    let uri = match target {
        Target::Tcp(address) => format!("http://{address}"),
        Target::Unix(_) => target.to_string(),
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
    let described = client.describe(wire::DescribeRequest {}).await.map_err(DialError::call)?;
    let described = described.into_inner();
    let (stage, protocol) = (described.stage.clone(), described.protocol);
    if protocol != PROTOCOL {
        return Err(DialError::Protocol { stage, target: target.clone(), protocol });
    }
    match expected {
        Some(expected) if expected != stage => {
            let expected = expected.to_owned();
            Err(DialError::Stranger { stage, target: target.clone(), expected })
        }
        _ => Ok((client, described)),
    }
}

/// Opens a stream for items, and measures its round trip.
pub(crate) async fn open(
    target: &Target,
    expected: &str,
    clock: Instant,
) -> Result<Opened, DialError> {
    let (client, description) = stage(target, Some(expected)).await?;
    let largest = usize::try_from(description.max_payload).unwrap_or(usize::MAX);
    let mut client = client.max_encoding_message_size(largest.saturating_add(SLACK));
    let (parcels, outgoing) = mpsc::unbounded_channel();
    let outgoing = UnboundedReceiverStream::new(outgoing);
    let mut receipts = client.pass(outgoing).await.map_err(DialError::call)?.into_inner();
    let mut half_round_trip = Duration::MAX;
    for _ in 0..PINGS {
        let sent = Instant::now();
        // The stream's end shows itself by the lack of an answer.
        drop(parcels.send(ping(clock)));
        match receipts.message().await.map_err(DialError::call)?.and_then(|it| it.content) {
            Some(receipt::Content::Pong(_)) => {}
            _ => return Err(DialError::Drains),
        }
        half_round_trip = half_round_trip.min(sent.elapsed() / 2);
    }
    Ok(Opened { description, parcels, receipts, half_round_trip })
}

/// A ping that is sent now by a clock that began at `clock`.
pub(crate) fn ping(clock: Instant) -> wire::Parcel {
    let sent_ns = nanos(clock.elapsed());
    wire::Parcel { content: Some(parcel::Content::Ping(wire::Ping { sent_ns })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_another_version_is_told_the_remedy() {
        let target = Target::Tcp("10.0.0.7:7000".parse().expect("an address"));
        let error = DialError::Protocol { stage: "detect".into(), target, protocol: 2 };
        let told = "stage detect at 10.0.0.7:7000 speaks protocol 2, this one 1: run the same version of \
                    windlass-stage on both";
        assert_eq!(error.to_string(), told);
    }
}
