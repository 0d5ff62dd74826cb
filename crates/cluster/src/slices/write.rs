//! Requests for slices: delete, update, create.

use k8s_openapi::{
    api::{core::v1::Node, resource::v1::ResourceSlice},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
    core::Status,
};

use super::{cache::name, plan::PoolPlan};
use crate::{ClusterError, client::Connection, create_params, error::is_write_conflict};

/// The API of slices, over one connection.
pub(super) struct SliceApi<'a> {
    pub(super) api: Api<ResourceSlice>,
    pub(super) connection: &'a Connection,
}

/// Outcome of a request that reached the API server.
pub(super) enum Outcome<T> {
    Done(T),
    /// Another writer changed the slice.
    Conflict,
    /// The API server refused the slice as invalid.
    Invalid(Box<Status>),
}

// === impl SliceApi ===

impl SliceApi<'_> {
    /// Deletes a slice. A missing slice counts as deleted.
    pub(super) async fn delete(&self, slice: &ResourceSlice) -> Result<Outcome<()>, ClusterError> {
        let preconditions = Preconditions {
            uid: slice.metadata.uid.clone(),
            resource_version: slice.metadata.resource_version.clone(),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = name(slice);
        let context = || format!("cannot delete ResourceSlice {name}");
        match self.connection.call(context, self.api.delete(&name, &params)).await {
            Err(error) if error.is_not_found() => Ok(Outcome::Done(())),
            answer => outcome_of(answer.map(drop)),
        }
    }

    /// The slices to update, then the slices to create. Created slices have the Node as their owner. The Node is read
    /// for each creation, because it may have been recreated.
    pub(super) async fn with_owner(
        &self,
        plan: PoolPlan,
        node: &str,
    ) -> Result<Vec<(usize, ResourceSlice)>, ClusterError> {
        let PoolPlan { update: mut writes, create: mut creates, .. } = plan;
        if !creates.is_empty() {
            let owner = self.owner(node).await?;
            for (_, slice) in &mut creates {
                slice.metadata.owner_references = Some(vec![owner.clone()]);
            }
        }
        writes.append(&mut creates);
        Ok(writes)
    }

    /// Updates a slice that has a name, and creates a slice without a name.
    pub(super) async fn write(
        &self,
        slice: &ResourceSlice,
    ) -> Result<Outcome<ResourceSlice>, ClusterError> {
        match slice.metadata.name {
            Some(_) => self.update(slice).await,
            None => self.create(slice).await,
        }
    }

    async fn update(&self, slice: &ResourceSlice) -> Result<Outcome<ResourceSlice>, ClusterError> {
        let name = name(slice);
        let context = || format!("cannot update ResourceSlice {name}");
        let params = create_params();
        match self.connection.call(context, self.api.replace(&name, &params, slice)).await {
            Err(error) if error.is_not_found() => Ok(Outcome::Conflict),
            answer => outcome_of(answer),
        }
    }

    async fn create(&self, slice: &ResourceSlice) -> Result<Outcome<ResourceSlice>, ClusterError> {
        let context = || format!("cannot create a ResourceSlice of pool {}", slice.spec.pool.name);
        outcome_of(self.connection.call(context, self.api.create(&create_params(), slice)).await)
    }

    /// Reference to the Node as the owner of slices: the slices are deleted with the Node.
    async fn owner(&self, node: &str) -> Result<OwnerReference, ClusterError> {
        let nodes: Api<Node> = Api::all(self.connection.kube.clone());
        let context = || format!("cannot read Node {node}");
        let node_metadata = self.connection.call(context, nodes.get_metadata(node)).await?;
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: node_metadata.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        })
    }
}

fn outcome_of<T>(answer: Result<T, ClusterError>) -> Result<Outcome<T>, ClusterError> {
    match answer {
        Ok(content) => Ok(Outcome::Done(content)),
        // HTTP 422: the API server's validation refused the content.
        Err(ClusterError::Refused(_, status)) if status.code == 422 => Ok(Outcome::Invalid(status)),
        Err(error) if error.status().is_some_and(is_write_conflict) => Ok(Outcome::Conflict),
        Err(error) => Err(error),
    }
}
