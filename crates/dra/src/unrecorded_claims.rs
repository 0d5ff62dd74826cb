//! Search for traces of claims, if the agent's state file of claims is missing and the kubelet's checkpoint cannot be
//! read. Either there were no claims, or the state file was lost.
//!
//! ```text
//!   absent ──no trace──> known: no claims
//!     │                    ^
//!     └──a trace──> unknown ──released by the kubelet, rebooted, or removed by a person
//! ```
//!
//! A trace is a CDI document of a claim, or a container with a device of this driver in pod resources. While a trace is
//! left, nothing is allocated through either API, and claims are only released, which removes their documents. A reboot
//! removes the documents too, because it empties `/run`. A document counts even if pod resources list no claim: they
//! omit init containers and, for a while after a start, most pods.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use tokio::time::sleep;
use windlass_allocations::{ledger::SharedLedger, podresources};
use windlass_config::DriverName;
use windlass_host::{blocking, causes};
use windlass_kubelet_api::podresources::SOCKET_DIR;

use super::document::ClaimDocuments;

/// Search for traces of claims.
#[derive(Clone, Debug)]
pub(super) struct UnrecordedClaimSearch {
    pub(super) documents: ClaimDocuments,
    pub(super) kubelet_dir: PathBuf,
    pub(super) driver: DriverName,
    pub(super) ledger: SharedLedger,
}

/// A trace of unknown claims.
#[derive(Debug, PartialEq, Eq)]
enum UnrecordedClaims {
    /// Claims with a CDI document, by UID.
    Documents(BTreeSet<String>),
    /// Containers with devices of the driver, by the kubelet.
    Containers,
    /// The kubelet does not answer, for this reason.
    KubeletUnavailable(String),
}

/// Pause before a silent kubelet is asked again: it may be starting, and pods wait.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Most claims that a log message names.
const MAX_LOGGED_UIDS: usize = 5;

// === impl UnrecordedClaimSearch ===

impl UnrecordedClaimSearch {
    /// True if there can be no trace: no document, and no folder of pod resources. Blocks.
    pub(super) fn is_ruled_out(&self) -> bool {
        !self.has_pod_resources() && self.documents.claims().is_empty()
    }

    /// Waits until no trace is left, and logs the present ones.
    pub(super) async fn wait_until_gone(self, check_interval: Duration) {
        let mut logged = None;
        while let Some(trace) = self.find().await {
            let delay = match trace {
                UnrecordedClaims::KubeletUnavailable(_) => check_interval.min(RETRY_DELAY),
                UnrecordedClaims::Documents(_) | UnrecordedClaims::Containers => check_interval,
            };
            if logged.as_ref() != Some(&trace) {
                let description = self.describe(&trace);
                tracing::warn!(
                    "devices of claims unknown, no device is allocated: claims.json and its copy are \
                     missing, and {description}"
                );
                logged = Some(trace);
            }
            tracing::trace!("devices of claims are still unknown");
            sleep(delay).await;
        }
        if logged.is_some() {
            tracing::info!("no trace of earlier claims left: devices are allocatable again");
        }
    }

    async fn find(&self) -> Option<UnrecordedClaims> {
        let documents = self.documents.clone();
        let claims = blocking(move || documents.claims()).await;
        if !claims.is_empty() {
            return Some(UnrecordedClaims::Documents(claims));
        }
        if !self.has_pod_resources() {
            return None;
        }
        self.ledger.wait_for_checkpoint().await;
        match podresources::dra_drivers(&self.kubelet_dir).await {
            Ok(drivers) => {
                drivers.contains(self.driver.as_str()).then_some(UnrecordedClaims::Containers)
            }
            Err(error) => Some(UnrecordedClaims::KubeletUnavailable(causes(&error))),
        }
    }

    /// The trace and its remedy.
    fn describe(&self, trace: &UnrecordedClaims) -> String {
        match trace {
            UnrecordedClaims::Documents(claims) => {
                let uids: Vec<_> =
                    claims.iter().take(MAX_LOGGED_UIDS).map(String::as_str).collect();
                let more = if claims.len() > MAX_LOGGED_UIDS { ", ..." } else { "" };
                format!(
                    "{} claims have CDI documents in {} (UIDs {}{more}): this ends when the kubelet has released \
                     them; once no pod of this node has a claim, remove the documents",
                    claims.len(),
                    self.documents.folder().display(),
                    uids.join(", "),
                )
            }
            UnrecordedClaims::Containers => format!(
                "the kubelet lists containers with devices of {}: this ends with them",
                self.driver.as_str()
            ),
            UnrecordedClaims::KubeletUnavailable(reason) => {
                format!("the kubelet does not list the claims of containers: {reason}")
            }
        }
    }

    fn has_pod_resources(&self) -> bool {
        self.kubelet_dir.join(SOCKET_DIR).is_dir()
    }
}
