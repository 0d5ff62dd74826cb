//! Device status in ResourceClaims, by server-side apply, which preserves the entries of other drivers.

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Status,
};
use serde_json::Value;
use tokio::time::Duration;
use windlass_allocations::ledger::ClaimRef;
use windlass_host::causes;

use super::{
    Client, ClusterError, FIELD_MANAGER, client::Connection, request_backoff::RequestBackoff,
    shared_connection::SharedConnection,
};

/// Reader and writer of claim status.
pub struct ClaimStatuses {
    connection: SharedConnection,
    backoff: RequestBackoff,
}

/// Outcome of a request.
#[derive(Debug)]
pub enum StatusOutcome<T> {
    /// Success.
    Written(T),
    /// The claim does not exist any more.
    NotFound,
    /// The API server refused the content or the account, for this reason. A retry may succeed later. The caller must
    /// not delay other claims for it.
    Refused(String),
    /// A failure. Retry after this pause.
    Retry(Duration),
}

// === impl ClaimStatuses ===

impl ClaimStatuses {
    /// A writer for this client's cluster.
    pub fn new(client: Client) -> Self {
        let backoff = RequestBackoff::new("status of claims", &client);
        Self { connection: SharedConnection::new(client), backoff }
    }

    /// The claim, if the object of this name still has its UID.
    pub async fn read(&mut self, claim: &ClaimRef) -> StatusOutcome<ResourceClaim> {
        let context = || format!("cannot read claim {claim}");
        let read = async |connection: &Connection| {
            let claims = claims(connection, claim);
            connection.call(context, claims.get(&claim.name)).await
        };
        match self.call(read).await {
            StatusOutcome::Written(claim_object)
                if claim_object.metadata.uid.as_deref() != Some(&*claim.uid) =>
            {
                StatusOutcome::NotFound
            }
            outcome => outcome,
        }
    }

    /// Applies a document as the driver's part of the status.
    pub async fn apply(&mut self, claim: &ClaimRef, document: &Value) -> StatusOutcome<()> {
        let context = || format!("cannot write the status of claim {claim}");
        // This driver owns its entries: it overwrites changes by others.
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let write = async |connection: &Connection| {
            let claims = claims(connection, claim);
            let patch = Patch::Apply(document);
            let written = claims.patch_status(&claim.name, &params, &patch);
            connection.call(context, written).await.map(drop)
        };
        self.call(write).await
    }

    /// Pause before a retry after this number of refusals.
    pub fn retry_delay(&self, refusal_count: u32) -> Duration {
        self.backoff.retry_delay(refusal_count)
    }

    async fn call<T>(
        &mut self,
        request: impl AsyncFnOnce(&Connection) -> Result<T, ClusterError>,
    ) -> StatusOutcome<T> {
        let answer = match self.connection.connect().await {
            Ok(connection) => request(&connection).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) => {
                self.backoff.record_success();
                StatusOutcome::Written(answer)
            }
            // A conflict means a different UID: a new claim has the name.
            Err(error)
                if error.is_not_found() || error.status().is_some_and(Status::is_conflict) =>
            {
                StatusOutcome::NotFound
            }
            Err(error) if error.status().is_some_and(is_refused) => {
                self.connection.reset();
                StatusOutcome::Refused(causes(&error))
            }
            Err(error) => {
                // A new connection reads new credentials.
                self.connection.reset();
                StatusOutcome::Retry(self.backoff.record_failure(&error))
            }
        }
    }
}

impl std::fmt::Debug for ClaimStatuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimStatuses").finish_non_exhaustive()
    }
}

// === impl StatusOutcome ===

impl<T> StatusOutcome<T> {
    /// The outcome with its content converted.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> StatusOutcome<U> {
        match self {
            Self::Written(content) => StatusOutcome::Written(change(content)),
            Self::NotFound => StatusOutcome::NotFound,
            Self::Refused(reason) => StatusOutcome::Refused(reason),
            Self::Retry(delay) => StatusOutcome::Retry(delay),
        }
    }
}

fn claims(connection: &Connection, claim: &ClaimRef) -> Api<ResourceClaim> {
    Api::namespaced(connection.kube.clone(), &claim.namespace)
}

const BAD_REQUEST: u16 = 400;

fn is_refused(status: &Status) -> bool {
    status.is_invalid() || status.is_forbidden() || status.code == BAD_REQUEST
}
