//! Reader of single ResourceClaims, for the kubelet's requests to prepare claims.

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use windlass_allocations::ledger::ClaimRef;

use super::{Client, ClusterError, shared_connection::SharedConnection};

/// Reader of claims. Clones share a connection until it fails.
#[derive(Clone, Debug)]
pub struct Claims(SharedConnection);

/// Kind of claims in the API server's answers.
const KIND: &str = "resourceclaims";

// === impl Claims ===

impl Claims {
    /// A reader of this client's cluster.
    pub fn new(client: Client) -> Self {
        Self(SharedConnection::new(client))
    }

    /// The claim of this name, with any UID; `None` if there is none.
    pub async fn get(&self, claim: &ClaimRef) -> Result<Option<ResourceClaim>, ClusterError> {
        let connection = self.0.connect().await?;
        let claims: Api<ResourceClaim> = Api::namespaced(connection.kube.clone(), &claim.namespace);
        let context = || format!("cannot read claim {claim}");
        match connection.call(context, claims.get(&claim.name)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_missing_claim(&error) => Ok(None),
            Err(error) if error.is_not_found() => Err(ClusterError::NoSuchApi(context())),
            // A field of the claim is unreadable. The connection works.
            Err(error @ ClusterError::InvalidResponse(..)) => Err(error),
            Err(error) => {
                self.0.reset();
                Err(error)
            }
        }
    }
}

/// True if the claim does not exist. An API server without the resource also answers "not found", but without
/// details.
fn is_missing_claim(error: &ClusterError) -> bool {
    let details = error.status().and_then(|status| status.details.as_ref());
    error.is_not_found() && details.is_some_and(|details| details.kind == KIND)
}
