//! The status of claims' devices, written as the driver's part of it: what others wrote stays.

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

use super::{Client, ClusterError, MANAGER, attempts::Attempts, client::Connection};

/// The way to the status of claims.
pub struct ClaimStatuses {
    client: Client,
    attempts: Attempts,
    connection: Option<Connection>,
}

/// What came of it.
#[derive(Debug)]
pub enum StatusOutcome<T> {
    /// It was done.
    Written(T),
    /// There is no such claim any more.
    Gone,
    /// The API server does not take it, for what is in it or for whose it is, and why. That may change, and must
    /// not hold up the others.
    Refused(String),
    /// It was not, and may be tried again after this time.
    Again(Duration),
}

// === impl ClaimStatuses ===

impl ClaimStatuses {
    /// The way to claims of this client's cluster.
    pub fn new(client: Client) -> Self {
        let attempts = Attempts::new("status of claims", &client);
        Self { client, attempts, connection: None }
    }

    /// The claim of that name, if it is the one that is meant.
    pub async fn read(&mut self, claim: &ClaimRef) -> StatusOutcome<ResourceClaim> {
        let doing = || format!("cannot read claim {claim}");
        let read = async |connection: &Connection| {
            let claims = claims(connection, claim);
            connection.ask(doing, claims.get(&claim.name)).await
        };
        match self.ask(read).await {
            StatusOutcome::Written(it) if it.metadata.uid.as_deref() != Some(&*claim.uid) => {
                StatusOutcome::Gone
            }
            outcome => outcome,
        }
    }

    /// Makes a document the driver's part of the status.
    pub async fn apply(&mut self, claim: &ClaimRef, document: &Value) -> StatusOutcome<()> {
        let doing = || format!("cannot write the status of claim {claim}");
        // The devices are the driver's, whoever has touched them.
        let how = PatchParams::apply(MANAGER).force();
        let write = async |connection: &Connection| {
            let claims = claims(connection, claim);
            let patch = Patch::Apply(document);
            let written = claims.patch_status(&claim.name, &how, &patch);
            connection.ask(doing, written).await.map(drop)
        };
        self.ask(write).await
    }

    /// How long to wait before what was refused so often is tried again.
    pub fn pause(&self, times: u32) -> Duration {
        self.attempts.pause(times)
    }

    async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&Connection) -> Result<T, ClusterError>,
    ) -> StatusOutcome<T> {
        let answer = match self.connect().await {
            Ok(connection) => question(&connection).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) => {
                self.attempts.worked();
                StatusOutcome::Written(answer)
            }
            // A conflict is about the UID: another claim has the name.
            Err(error)
                if error.is_not_found() || error.status().is_some_and(Status::is_conflict) =>
            {
                StatusOutcome::Gone
            }
            Err(error) if error.status().is_some_and(is_refused) => {
                self.connection = None;
                StatusOutcome::Refused(causes(&error))
            }
            Err(error) => {
                // New credentials are read with the next connection.
                self.connection = None;
                StatusOutcome::Again(self.attempts.failed(&error))
            }
        }
    }

    async fn connect(&mut self) -> Result<Connection, ClusterError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.connect().await?,
        };
        self.connection = Some(connection.clone());
        Ok(connection)
    }
}

impl std::fmt::Debug for ClaimStatuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimStatuses").finish_non_exhaustive()
    }
}

// === impl StatusOutcome ===

impl<T> StatusOutcome<T> {
    /// The same outcome of something else.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> StatusOutcome<U> {
        match self {
            Self::Written(it) => StatusOutcome::Written(change(it)),
            Self::Gone => StatusOutcome::Gone,
            Self::Refused(why) => StatusOutcome::Refused(why),
            Self::Again(pause) => StatusOutcome::Again(pause),
        }
    }
}

fn claims(connection: &Connection, claim: &ClaimRef) -> Api<ResourceClaim> {
    Api::namespaced(connection.kube.clone(), &claim.namespace)
}

/// HTTP's "bad request".
const BAD_REQUEST: u16 = 400;

fn is_refused(status: &Status) -> bool {
    status.is_invalid() || status.is_forbidden() || status.code == BAD_REQUEST
}
