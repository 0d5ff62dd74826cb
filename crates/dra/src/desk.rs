//! How the kubelet's calls reach the one who prepares claims.

use tokio::{
    sync::{mpsc, oneshot},
    time::Duration,
};
use windlass_allocations::ledger::ClaimRef;
use windlass_core::name::{is_label, is_subdomain};
use windlass_host::{abbreviate::cut, deadline};

use super::record::Held;

/// The way to the one who prepares claims.
#[derive(Clone, Debug)]
pub(super) struct ClaimDesk {
    requests: mpsc::Sender<Request>,
    /// How long who asks waits for an answer.
    patience: Duration,
}

/// A claim, and what is wanted of it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) claim: ClaimRef,
    pub(super) wish: Wish,
}

/// What is wanted of a claim.
#[derive(Debug)]
pub(super) enum Wish {
    /// Its devices.
    Prepare(Reply<Vec<Held>>),
    /// That nothing of it is left.
    Release(Reply<()>),
}

// === impl Wish ===

impl Wish {
    /// Tells who waits that nothing is done.
    pub(super) fn refuse(self, why: String) {
        // Whoever waits may have given up.
        match self {
            Self::Prepare(reply) => drop(reply.send(Err(why))),
            Self::Release(reply) => drop(reply.send(Err(why))),
        }
    }
}

/// Whoever waits may have given up.
pub(super) type Reply<T> = oneshot::Sender<Result<T, String>>;

/// Claims that wait to be heard.
const WAITING: usize = 64;

/// The longest UID. Kubernetes' have 36 characters.
const LONGEST_UID: usize = 63;

// === impl ClaimDesk ===

impl ClaimDesk {
    /// A desk with the requests that it passes on.
    pub(super) fn new(patience: Duration) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(WAITING);
        (Self { requests, patience }, receiver)
    }

    /// Has a claim prepared. What takes longer than the kubelet waits goes on.
    pub(super) async fn prepare(&self, claim: ClaimRef) -> Result<Vec<Held>, String> {
        let still =
            format!("claim {claim} is still being prepared after {:?}: ask again", self.patience);
        self.ask(claim, Wish::Prepare, still).await
    }

    /// Has a claim released.
    pub(super) async fn release(&self, claim: ClaimRef) -> Result<(), String> {
        let still =
            format!("claim {claim} is still being released after {:?}: ask again", self.patience);
        self.ask(claim, Wish::Release, still).await
    }

    async fn ask<T>(
        &self,
        claim: ClaimRef,
        wish: impl FnOnce(Reply<T>) -> Wish,
        still: String,
    ) -> Result<T, String> {
        if let Some(oddity) = oddity(&claim) {
            return Err(format!("claim {}: {oddity}", cut(&claim.to_string())));
        }
        let (reply, answer) = oneshot::channel();
        let asked = async {
            // One who has ended answers nobody, which is noticed below.
            let _ = self.requests.send(Request { claim, wish: wish(reply) }).await;
            answer.await.unwrap_or_else(|_| Err("the agent ends".to_owned()))
        };
        deadline::timeout(self.patience, asked).await.unwrap_or(Err(still))
    }
}

/// What of a claim's names is none. They become parts of the API server's paths, and the UID of a file's name.
fn oddity(ClaimRef { namespace, name, uid }: &ClaimRef) -> Option<String> {
    [
        (is_label(namespace), namespace, "namespace"),
        (is_subdomain(name), name, "name of a claim"),
        (is_plain(uid), uid, "UID"),
    ]
    .into_iter()
    .find_map(|(is_one, text, what)| (!is_one).then(|| format!("{:?} is no {what}", cut(text))))
}

fn is_plain(uid: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=LONGEST_UID).contains(&uid.len()) && uid.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use windlass_config::SessionLimits;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_told_to_ask_again_before_the_kubelet_gives_up() {
        let (desk, _requests) = ClaimDesk::new(SessionLimits::default().claim_deadline);
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        let begun = tokio::time::Instant::now();
        let answer = desk.prepare(ClaimRef { namespace, name, uid }).await;
        let why = answer.expect_err("nobody answers");
        assert_eq!(why, "claim ns/c is still being prepared after 40s: ask again");
        assert!(begun.elapsed() < Duration::from_secs(45));
    }
}
