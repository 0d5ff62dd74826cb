//! Queue of claims from the kubelet's calls to the preparer.

use tokio::{
    sync::{mpsc, oneshot},
    time::Duration,
};
use windlass_allocations::ledger::ClaimRef;
use windlass_core::name::{is_label, is_subdomain};
use windlass_host::{AGENT_ENDS, abbreviate::truncated, deadline};

use super::record::PreparedDevice;

/// Sender of calls to the preparer.
#[derive(Clone, Debug)]
pub(super) struct ClaimQueue {
    requests: mpsc::Sender<Request>,
    deadline: Duration,
}

/// A claim and its requested action.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) claim: ClaimRef,
    pub(super) operation: Operation,
}

/// Requested action, with the channel of its answer.
#[derive(Debug)]
pub(super) enum Operation {
    Prepare(Reply<Vec<PreparedDevice>>),
    /// Release the claim, even if it is prepared in part.
    Release(Reply<()>),
}

// === impl Operation ===

impl Operation {
    pub(super) fn refuse(self, error: String) {
        // The caller may have been cancelled.
        match self {
            Self::Prepare(reply) => drop(reply.send(Err(error))),
            Self::Release(reply) => drop(reply.send(Err(error))),
        }
    }
}

/// Channel of an answer. The caller may have been cancelled.
pub(super) type Reply<T> = oneshot::Sender<Result<T, String>>;

const CAPACITY: usize = 64;

/// Longest accepted UID. Those of Kubernetes have 36 characters.
const MAX_UID_BYTES: usize = 63;

// === impl ClaimQueue ===

impl ClaimQueue {
    pub(super) fn new(deadline: Duration) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(CAPACITY);
        (Self { requests, deadline }, receiver)
    }

    /// Prepares a claim. The preparation continues after the deadline.
    pub(super) async fn prepare(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        let timeout_error =
            format!("claim {claim} is still being prepared after {:?}: retry", self.deadline);
        self.request(claim, Operation::Prepare, timeout_error).await
    }

    /// Releases a claim. The release continues after the deadline.
    pub(super) async fn release(&self, claim: ClaimRef) -> Result<(), String> {
        let timeout_error =
            format!("claim {claim} is still being released after {:?}: retry", self.deadline);
        self.request(claim, Operation::Release, timeout_error).await
    }

    async fn request<T>(
        &self,
        claim: ClaimRef,
        operation: impl FnOnce(Reply<T>) -> Operation,
        timeout_error: String,
    ) -> Result<T, String> {
        if let Some(problem) = invalid_name(&claim) {
            return Err(format!("claim {}: {problem}", truncated(&claim.to_string())));
        }
        let (reply, answer) = oneshot::channel();
        let answer = async {
            // A preparer that has ended drops the reply.
            let _ = self.requests.send(Request { claim, operation: operation(reply) }).await;
            answer.await.unwrap_or_else(|_| Err(AGENT_ENDS.to_owned()))
        };
        deadline::timeout(self.deadline, answer).await.unwrap_or(Err(timeout_error))
    }
}

/// Describes an invalid name of a claim. The names become parts of API paths, and the UID of a file name.
fn invalid_name(ClaimRef { namespace, name, uid }: &ClaimRef) -> Option<String> {
    [
        (is_label(namespace), namespace, "namespace"),
        (is_subdomain(name), name, "name of a claim"),
        (is_valid_uid(uid), uid, "UID"),
    ]
    .into_iter()
    .find_map(|(is_valid, text, field)| {
        (!is_valid).then(|| format!("{:?} is not a valid {field}", truncated(text)))
    })
}

fn is_valid_uid(uid: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=MAX_UID_BYTES).contains(&uid.len()) && uid.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use windlass_config::KubeletLimits;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_call_is_answered_before_the_kubelet_gives_up() {
        let (queue, _requests) = ClaimQueue::new(KubeletLimits::default().claim_deadline);
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        let start = tokio::time::Instant::now();
        let answer = queue.prepare(ClaimRef { namespace, name, uid }).await;
        let error = answer.expect_err("no preparer answers");
        assert_eq!(error, "claim ns/c is still being prepared after 40s: retry");
        assert!(start.elapsed() < Duration::from_secs(45));
    }
}
