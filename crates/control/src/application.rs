//! Objects of one application in a namespace: apply, await and delete them, and run a Job beside them.
//!
//! `windlass pipeline render` labels these objects. Only commands use this module, with the user's own credentials; the
//! extender does not.

use std::{fmt, path::PathBuf};

use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus},
    batch::v1::{Job, JobCondition},
    core::v1::{ContainerStatus, Pod, Service},
    policy::v1::PodDisruptionBudget,
    resource::v1::ResourceClaimTemplate,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams},
};
use serde_json::Value;

use crate::{
    access::{self, NoAccess},
    facts::PART_OF,
};

/// The objects of an application.
pub struct Application {
    client: kube::Client,
    namespace: String,
    name: String,
}

/// State of a Job with one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Its pod does not run yet, for this reason.
    Pending(String),
    /// Its pod runs.
    Running,
    /// It has ended. The text is the container's log, or the Job's message if its pod was removed.
    Ended(String),
}

/// A request that the API server refused or did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {object} in namespace {namespace}")]
pub struct ApplicationError {
    verb: &'static str,
    object: String,
    namespace: String,
    source: Box<kube::Error>,
}

/// Field manager of server-side apply.
const FIELD_MANAGER: &str = "windlass";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label that the Job controller sets on its pods.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

// === impl Application ===

impl Application {
    /// The application of this name. The default namespace is that of the credentials.
    ///
    /// # Errors
    ///
    /// No credentials.
    pub async fn new(
        kubeconfig: Option<PathBuf>,
        namespace: Option<String>,
        name: &str,
    ) -> Result<Self, NoAccess> {
        let client = access::client(kubeconfig).await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { client, namespace, name: name.to_owned() })
    }

    /// The namespace of its objects.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Label selector of its objects.
    pub fn selector(&self) -> String {
        format!("{PART_OF}={},{MANAGED_BY}=windlass", self.name)
    }

    /// Applies a pipeline's objects in the given order.
    ///
    /// # Errors
    ///
    /// The API server refuses one, or does not answer.
    ///
    /// # Panics
    ///
    /// An object has a kind that pipelines do not have, or no name.
    pub async fn apply(&self, objects: &[Value]) -> Result<(), ApplicationError> {
        for object in objects {
            let (kind, name) = (object["kind"].as_str(), object["metadata"]["name"].as_str());
            let resource = kinds().into_iter().find(|one| Some(&*one.kind) == kind);
            let (resource, name) =
                resource.zip(name).expect("objects of a pipeline have known kinds, and names");
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let applied = self.api(&resource).patch(name, &parameters, &Patch::Apply(object)).await;
            applied.map_err(|error| {
                self.refused("apply", format!("{} {name}", resource.kind), error)
            })?;
        }
        Ok(())
    }

    /// Deletes its objects. Returns true once its last pod is gone; repeat the call until then.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn delete(&self) -> Result<bool, ApplicationError> {
        for resource in kinds() {
            for object in self.list(&self.api(&resource), &resource.kind).await? {
                if object.metadata.deletion_timestamp.is_none() {
                    self.delete_object(&resource, &object.name_any()).await?;
                }
            }
        }
        Ok(self.pods().await?.is_empty())
    }

    /// Deletes one of its Jobs with its pod. A missing Job is no error.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn delete_job(&self, name: &str) -> Result<(), ApplicationError> {
        self.delete_object(&ApiResource::erase::<Job>(&()), name).await
    }

    async fn delete_object(
        &self,
        resource: &ApiResource,
        name: &str,
    ) -> Result<(), ApplicationError> {
        match self.api(resource).delete(name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(self.refused("delete", format!("{} {name}", resource.kind), error)),
            Ok(_) => Ok(()),
        }
    }

    /// The reason why it is not ready; `None` once every Deployment has all its replicas.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn pending(&self) -> Result<Option<String>, ApplicationError> {
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        let deployments: Vec<Deployment> = self.list(&api, "Deployments").await?;
        let Some(late) = deployments.iter().find(|one| !is_complete(one)) else { return Ok(None) };
        let pods = self.pods().await?;
        let reason = pods.iter().find_map(reason);
        Ok(Some(reason.unwrap_or_else(|| format!("Deployment {}", late.name_any()))))
    }

    /// State of one of its Jobs.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn job(&self, name: &str) -> Result<JobState, ApplicationError> {
        let refused = |error| self.refused("get", format!("Job {name}"), error);
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.namespace);
        let status = jobs.get(name).await.map_err(refused)?.status.unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let its = ListParams::default().labels(&format!("{JOB_NAME}={name}"));
        let pod = pods.list(&its).await.map_err(refused)?.items.into_iter().next();
        let ended = |one: &&JobCondition| {
            ["Complete", "Failed"].contains(&&*one.type_) && one.status == "True"
        };
        if let Some(end) = status.conditions.as_deref().unwrap_or_default().iter().find(ended) {
            // The Job controller deletes the pod of a Job that exceeds its deadline.
            let Some(pod) = pod else {
                return Ok(JobState::Ended(end.message.clone().unwrap_or_default()));
            };
            let log = pods.logs(&pod.name_any(), &LogParams::default()).await;
            let refused = |error| self.refused("read the log of", format!("Job {name}"), error);
            return log.map(JobState::Ended).map_err(refused);
        }
        let Some(pod) = pod else { return Ok(JobState::Pending(format!("Job {name}"))) };
        Ok(reason(&pod).map_or(JobState::Running, JobState::Pending))
    }

    async fn pods(&self) -> Result<Vec<Pod>, ApplicationError> {
        self.list(&Api::namespaced(self.client.clone(), &self.namespace), "pods").await
    }

    async fn list<K>(&self, api: &Api<K>, kind: &str) -> Result<Vec<K>, ApplicationError>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        // One page suffices: a pipeline has few objects of each kind.
        let its = ListParams::default().labels(&self.selector());
        match api.list(&its).await {
            Ok(listed) => Ok(listed.items),
            // Clusters before 1.34 do not serve claim templates.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(self.refused("list", kind.to_owned(), error)),
        }
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    fn refused(&self, verb: &'static str, object: String, error: kube::Error) -> ApplicationError {
        let namespace = self.namespace.clone();
        ApplicationError { verb, object, namespace, source: Box::new(error) }
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Application({}/{})", self.namespace, self.name)
    }
}

/// Kinds of its objects, in the order of deletion: owners of pods before the objects that pods use.
fn kinds() -> [ApiResource; 5] {
    [
        ApiResource::erase::<Job>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<ResourceClaimTemplate>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
    ]
}

/// True for a Deployment whose replicas all have its newest revision and are available.
fn is_complete(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = &deployment.status else { return false };
    let DeploymentStatus {
        observed_generation,
        replicas,
        updated_replicas,
        available_replicas,
        ..
    } = status;
    *observed_generation >= deployment.metadata.generation
        && [replicas, updated_replicas, available_replicas]
            .iter()
            .all(|count| count.unwrap_or(0) == wanted)
}

/// The reason why a pod does not run; `None` if no container waits.
fn reason(pod: &Pod) -> Option<String> {
    let name = pod.name_any();
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let refusal =
        conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False");
    if let Some(message) = refusal.and_then(|one| one.message.as_deref()) {
        return Some(format!("pod {name}: {message}"));
    }
    let containers = status.and_then(|status| status.container_statuses.as_deref());
    let Some(containers) = containers else { return Some(format!("pod {name} has no node yet")) };
    containers.iter().find_map(waits_for).map(|reason| format!("pod {name}, {reason}"))
}

fn waits_for(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or("it waits");
    let message = waiting.message.as_deref().map_or_else(String::new, |text| format!(": {text}"));
    Some(format!("container {}: {reason}{message}", container.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn a_deployment_is_complete_with_all_replicas_of_its_newest_revision() {
        let complete = |generation: i64, status: Value| {
            is_complete(&read(json!({
                "metadata": {"generation": generation},
                "spec": {"replicas": 2, "selector": {}, "template": {}},
                "status": status,
            })))
        };
        let all = json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        assert!(complete(3, all.clone()));
        assert!(!complete(4, all), "the controller has not seen the newest generation");
        // A pod of the earlier revision is left, or one is not updated, or one is not available.
        for (replicas, updated, available) in [(3, 2, 2), (2, 1, 2), (2, 2, 1)] {
            let status = json!({"observedGeneration": 3, "replicas": replicas, "updatedReplicas": updated,
                "availableReplicas": available});
            assert!(!complete(3, status));
        }
        assert!(!complete(1, Value::Null));
    }

    #[test]
    fn the_reason_of_a_pending_pod_is_copied_from_its_status() {
        let why =
            |status: Value| reason(&read(json!({"metadata": {"name": "p"}, "status": status})));
        let waits = |status: Value| why(status).expect("a reason");
        assert_eq!(waits(json!({"phase": "Pending"})), "pod p has no node yet");
        let refusal = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]});
        assert_eq!(waits(refusal), "pod p: 0/2 nodes are available");
        let container = |state: Value| {
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": state}]})
        };
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
        assert_eq!(waits(container(waiting)), "pod p, container c: ErrImagePull: no such image");
        assert_eq!(why(container(json!({"running": {}}))), None);
    }
}
