//! A record of claims that is absent where the kubelet's is out of sight: there were no claims, or somebody lost it.
//!
//! ```text
//!   absent ──no trace──> known: no claims
//!     │                    ^
//!     └──a trace──> in doubt ──released by the kubelet, rebooted, or removed by a person
//! ```
//!
//! A trace is a CDI document of a claim, or a container with a device of our driver by the kubelet's pod resources. While
//! one is left nothing is given away, by neither API, and claims are only released, which removes their documents. A
//! reboot removes them too, for `/run` is emptied. That pod resources tell of no claim proves nothing while there is a
//! document: they tell neither of init containers nor, for a while after a start, of most pods.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use tokio::{task::spawn_blocking, time::sleep};
use windlass_allocations::{ledger::LedgerDesk, podresources};
use windlass_config::DriverName;
use windlass_host::causes;
use windlass_kubelet_api::podresources::DIR;

use super::document::ClaimDocuments;

/// Where traces of claims are.
#[derive(Clone, Debug)]
pub(super) struct Traces {
    pub(super) documents: ClaimDocuments,
    pub(super) kubelet_dir: PathBuf,
    pub(super) driver: DriverName,
    pub(super) ledger: LedgerDesk,
}

/// What there is of claims that nobody has written down.
#[derive(Debug, PartialEq, Eq)]
enum Trace {
    /// Claims that have a CDI document, by UID.
    Documents(BTreeSet<String>),
    /// Containers that have devices of the driver, as the kubelet tells.
    Containers,
    /// The kubelet does not answer, and why.
    Unanswered(String),
}

/// How soon a kubelet is asked again: it may be starting, and pods wait.
const SOON: Duration = Duration::from_secs(1);

/// How many claims a message names.
const NAMED: usize = 5;

// === impl Traces ===

impl Traces {
    /// Whether there can be none: no document, and no folder where the kubelet could be asked. Blocks.
    pub(super) fn is_out_of_the_question(&self) -> bool {
        !self.can_ask() && self.documents.claims().is_empty()
    }

    /// Waits until no trace is left, and says meanwhile what there is.
    pub(super) async fn vanish(self, look_interval: Duration) {
        let mut said = None;
        while let Some(trace) = self.find().await {
            let pause = match trace {
                Trace::Unanswered(_) => look_interval.min(SOON),
                Trace::Documents(_) | Trace::Containers => look_interval,
            };
            if said.as_ref() != Some(&trace) {
                let why = self.told(&trace);
                tracing::warn!(
                    "it is not known what claims have, and no device is given away: claims.json and its copy are \
                     missing, and {why}"
                );
                said = Some(trace);
            }
            tracing::trace!("what claims have is still unknown");
            sleep(pause).await;
        }
        if said.is_some() {
            tracing::info!("no trace of a claim is left: devices are given away again");
        }
    }

    async fn find(&self) -> Option<Trace> {
        let documents = self.documents.clone();
        let claims = spawn_blocking(move || documents.claims()).await;
        let claims = claims.expect("reading neither panics nor is cancelled");
        if !claims.is_empty() {
            return Some(Trace::Documents(claims));
        }
        if !self.can_ask() {
            return None;
        }
        self.ledger.lull().await;
        match podresources::drivers(&self.kubelet_dir).await {
            Ok(drivers) => drivers.contains(self.driver.as_str()).then_some(Trace::Containers),
            Err(error) => Some(Trace::Unanswered(causes(&error))),
        }
    }

    /// What there is, and what to do about it.
    fn told(&self, trace: &Trace) -> String {
        match trace {
            Trace::Documents(claims) => {
                let named: Vec<_> = claims.iter().take(NAMED).map(String::as_str).collect();
                let more = if claims.len() > NAMED { ", ..." } else { "" };
                format!(
                    "{} claims have CDI documents in {} (UIDs {}{more}): this ends when the kubelet has released \
                     them; once no pod of this node has a claim, remove the documents",
                    claims.len(),
                    self.documents.folder().display(),
                    named.join(", "),
                )
            }
            Trace::Containers => format!(
                "the kubelet tells of containers with devices of {}: this ends with them",
                self.driver.as_str()
            ),
            Trace::Unanswered(why) => {
                format!("the kubelet does not tell whether containers have claims: {why}")
            }
        }
    }

    fn can_ask(&self) -> bool {
        self.kubelet_dir.join(DIR).is_dir()
    }
}
