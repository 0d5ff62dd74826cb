//! Claims, read one at a time, when the kubelet asks for what is in one.

use std::{fmt, sync::Arc};

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use windlass_allocations::ledger::ClaimRef;
use windlass_host::shared::Shared;

use super::{Client, ClusterError, client::Connection};

/// The way to claims. Clones share a connection, which is kept until it fails.
#[derive(Clone)]
pub struct Claims {
    client: Client,
    connection: Arc<Shared<Option<Connection>>>,
}

/// What the API server says that a claim is.
const KIND: &str = "resourceclaims";

// === impl Claims ===

impl Claims {
    /// The way to claims of this client's cluster.
    pub fn new(client: Client) -> Self {
        Self { client, connection: Arc::default() }
    }

    /// The claim of that name, whatever its UID; `None` if there surely is none.
    pub async fn get(&self, claim: &ClaimRef) -> Result<Option<ResourceClaim>, ClusterError> {
        let connection = self.connect().await?;
        let claims: Api<ResourceClaim> = Api::namespaced(connection.kube.clone(), &claim.namespace);
        let doing = || format!("cannot read claim {claim}");
        match connection.ask(doing, claims.get(&claim.name)).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_about_claims(&error) => Ok(None),
            Err(error) if error.is_not_found() => Err(ClusterError::NoSuchApi { doing: doing() }),
            // Its author wrote what nobody can read, and the connection is others' too.
            Err(error @ ClusterError::Unreadable { .. }) => Err(error),
            Err(error) => {
                // New credentials are read with the next connection.
                self.connection.step(|known| *known = None);
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Connection, ClusterError> {
        if let Some(connection) = self.connection.step(|known| known.clone()) {
            return Ok(connection);
        }
        let connection = self.client.connect().await?;
        self.connection.step(|known| *known = Some(connection.clone()));
        Ok(connection)
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("client", &self.client).finish_non_exhaustive()
    }
}

/// An API server that knows no claims answers "not found" too, about nothing.
fn is_about_claims(error: &ClusterError) -> bool {
    let details = error.status().and_then(|status| status.details.as_ref());
    error.is_not_found() && details.is_some_and(|about| about.kind == KIND)
}
