//! Deletes, updates and creates slices, and says what came of it.

use k8s_openapi::{
    api::{core::v1::Node, resource::v1::ResourceSlice},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
    core::Status,
};

use super::{plan::PoolPlan, sight::name};
use crate::{ClusterError, MANAGER, client::Connection};

/// Where slices are kept.
pub(super) struct Office<'a> {
    pub(super) api: Api<ResourceSlice>,
    pub(super) connection: &'a Connection,
}

/// What came of a request.
pub(super) enum Answer<T> {
    Done(T),
    /// What is there is not what was seen.
    Overtaken,
    /// It is not a slice that the API server takes.
    Invalid(Box<Status>),
}

/// HTTP's "unprocessable": the API server understood, and says what is wrong with it.
const INVALID: u16 = 422;

// === impl Office ===

impl Office<'_> {
    /// One that is gone already is deleted.
    pub(super) async fn delete(&self, slice: &ResourceSlice) -> Result<Answer<()>, ClusterError> {
        let preconditions = Preconditions {
            uid: slice.metadata.uid.clone(),
            resource_version: slice.metadata.resource_version.clone(),
        };
        let how = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = name(slice);
        let doing = || format!("cannot delete ResourceSlice {name}");
        match self.connection.ask(doing, self.api.delete(&name, &how)).await {
            Err(error) if error.is_not_found() => Ok(Answer::Done(())),
            answer => judged(answer.map(drop)),
        }
    }

    /// What is to be updated, and then what is to be created, with its owner. The Node is asked for whenever
    /// slices are made, since one that was made anew is another.
    pub(super) async fn owned(
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

    /// Updates a slice that has a name, and creates one that has none yet.
    pub(super) async fn write(
        &self,
        slice: &ResourceSlice,
    ) -> Result<Answer<ResourceSlice>, ClusterError> {
        match slice.metadata.name {
            Some(_) => self.update(slice).await,
            None => self.create(slice).await,
        }
    }

    async fn update(&self, slice: &ResourceSlice) -> Result<Answer<ResourceSlice>, ClusterError> {
        let name = name(slice);
        let doing = || format!("cannot update ResourceSlice {name}");
        let how = as_windlass();
        match self.connection.ask(doing, self.api.replace(&name, &how, slice)).await {
            Err(error) if error.is_not_found() => Ok(Answer::Overtaken),
            answer => judged(answer),
        }
    }

    async fn create(&self, slice: &ResourceSlice) -> Result<Answer<ResourceSlice>, ClusterError> {
        let doing = || format!("cannot create a ResourceSlice of pool {}", slice.spec.pool.name);
        judged(self.connection.ask(doing, self.api.create(&as_windlass(), slice)).await)
    }

    /// The Node as what owns slices: they go when it goes.
    async fn owner(&self, node: &str) -> Result<OwnerReference, ClusterError> {
        let nodes: Api<Node> = Api::all(self.connection.kube.clone());
        let doing = || format!("cannot read Node {node}");
        let found = self.connection.ask(doing, nodes.get_metadata(node)).await?;
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: found.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        })
    }
}

fn as_windlass() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn judged<T>(answer: Result<T, ClusterError>) -> Result<Answer<T>, ClusterError> {
    match answer {
        Ok(done) => Ok(Answer::Done(done)),
        Err(ClusterError::Refused { status, .. }) if status.code == INVALID => {
            Ok(Answer::Invalid(status))
        }
        Err(error) if error.status().is_some_and(is_overtaken) => Ok(Answer::Overtaken),
        Err(error) => Err(error),
    }
}

fn is_overtaken(status: &Status) -> bool {
    status.is_conflict() || status.is_already_exists()
}
