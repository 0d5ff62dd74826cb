//! Objects of one application in a namespace: check, apply, await and delete them, and run a Job.
//!
//! `windlass pipeline render` labels these objects. An object of the same name without the labels has another owner: it
//! is refused. Only commands use this module, with the user's own credentials; the extender does not.

use std::{fmt, path::PathBuf};

use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus},
    batch::v1::{Job, JobCondition},
    core::v1::{ContainerStatus, Pod, Service},
    policy::v1::PodDisruptionBudget,
    resource::v1::ResourceClaimTemplate,
};
use kube::{
    Api, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::Value;

use crate::{
    access::{self, NoAccess, RequestError},
    facts::PART_OF,
    rights::{self, Right},
};

/// The objects of an application.
pub struct Application {
    client: kube::Client,
    namespace: String,
    name: String,
}

/// State of the Deployments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Every Deployment has all its replicas.
    Ready,
    /// Some replicas are missing, for this reason.
    Waiting(String),
    /// A container was restarted too often.
    Failed(String),
}

/// State of a Job with one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// The Job's pod does not run yet, for this reason.
    Pending(String),
    /// The Job's pod runs.
    Running,
    /// The Job has ended. The text is the log of its container, or the reason of the end if the log is empty.
    Ended(String),
}

/// A request for objects of the application that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApplicationError {
    /// The API server refused, or did not answer.
    #[error("cannot {verb} {object} in namespace {namespace}")]
    RequestFailed {
        /// Verb of the request.
        verb: &'static str,
        /// Kind and name.
        object: String,
        /// Namespace of the object.
        namespace: String,
        /// Cause of the failure.
        source: RequestError,
    },
    /// An object of the same name has another owner.
    #[error(
        "{object} is in namespace {namespace} already, and does not belong to {application}: delete or rename it, or \
         take another namespace"
    )]
    OwnedByOther {
        /// Kind and name.
        object: String,
        /// Namespace of the object.
        namespace: String,
        /// Name of the application.
        application: String,
    },
    /// Rights are missing.
    #[error("no right to {0}")]
    NoRight(String),
}

/// Field manager of server-side apply.
const FIELD_MANAGER: &str = "windlass";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "windlass";
/// Label that the Job controller sets on its pods.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Number of restarts after which a container that is not running counts as failed. The kubelet's back-off has then
/// lasted for half a minute.
const MAX_RESTARTS: i32 = 2;
/// Number of log lines in the message about a container that ended.
const LAST_LINES: i64 = 3;
/// Rights that a dry run does not check.
const UNCHECKED_BY_DRY_RUN: [Right; 2] = [
    Right::in_namespace("get", "batch", "jobs", ""),
    Right::in_namespace("get", "", "pods", "log"),
];

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

    /// The namespace of the application's objects.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Label selector of the application's objects.
    pub fn selector(&self) -> String {
        format!("{PART_OF}={},{MANAGED_BY}={MANAGER}", self.name)
    }

    /// Checks that objects and a Job can be applied, as far as the API server can tell. Nothing changes.
    ///
    /// # Errors
    ///
    /// The API server would refuse an object, an object of another owner has its name, or a right is missing.
    ///
    /// # Panics
    ///
    /// See [`Self::apply`].
    pub async fn check(&self, objects: &[&Value], job: &Value) -> Result<(), ApplicationError> {
        for object in objects {
            let (resource, name) = kind_and_name(object);
            let display_name = format!("{} {name}", resource.kind);
            let api = self.dynamic_api(&resource);
            let request_failed = |error| self.request_failed("get", display_name.clone(), error);
            match api.get_opt(name).await.map_err(request_failed)? {
                // The application's own object is deleted before it is applied again.
                Some(existing) if self.owns(&existing) => {}
                Some(_) => {
                    let (namespace, application) = (self.namespace.clone(), self.name.clone());
                    return Err(ApplicationError::OwnedByOther {
                        object: display_name,
                        namespace,
                        application,
                    });
                }
                None => {
                    let parameters = PatchParams::apply(FIELD_MANAGER).dry_run();
                    let result = api.patch(name, &parameters, &Patch::Apply(object)).await;
                    result.map_err(|error| self.request_failed("apply", display_name, error))?;
                }
            }
        }
        self.create_job(job, true).await?;
        let reviews = Api::all(self.client.clone());
        let missing =
            rights::missing_rights(&reviews, &self.namespace, &UNCHECKED_BY_DRY_RUN).await;
        let missing =
            missing.map_err(|error| self.request_failed("review", "rights".to_owned(), error))?;
        if missing.is_empty() { Ok(()) } else { Err(ApplicationError::NoRight(missing.join(", "))) }
    }

    /// Applies a pipeline's objects in the given order.
    ///
    /// # Errors
    ///
    /// The API server refuses an object, or does not answer.
    ///
    /// # Panics
    ///
    /// An object has no name, or a kind that is not in `kinds`.
    pub async fn apply(&self, objects: &[Value]) -> Result<(), ApplicationError> {
        for object in objects {
            let (resource, name) = kind_and_name(object);
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let result =
                self.dynamic_api(&resource).patch(name, &parameters, &Patch::Apply(object)).await;
            result.map_err(|error| {
                self.request_failed("apply", format!("{} {name}", resource.kind), error)
            })?;
        }
        Ok(())
    }

    /// Deletes the application's objects. Their pods end later.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn delete(&self) -> Result<(), ApplicationError> {
        for resource in kinds() {
            for object in self.list(&self.dynamic_api(&resource), &resource.plural).await? {
                if object.metadata.deletion_timestamp.is_none() {
                    self.delete_object(&resource, &object.name_any()).await?;
                }
            }
        }
        Ok(())
    }

    /// Names of the application's pods.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn pods(&self) -> Result<Vec<String>, ApplicationError> {
        let pods: Vec<Pod> = self.list(&self.api(), "pods").await?;
        Ok(pods.iter().map(ResourceExt::name_any).collect())
    }

    /// State of the application's Deployments. `count` is their expected number.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn readiness(&self, count: usize) -> Result<Readiness, ApplicationError> {
        let deployments: Vec<Deployment> = self.list(&self.api(), "deployments").await?;
        if deployments.len() != count {
            let existing = deployments.len();
            return Ok(Readiness::Waiting(format!("{existing} of {count} Deployments exist")));
        }
        let Some(incomplete) = deployments.iter().find(|deployment| !is_complete(deployment))
        else {
            return Ok(Readiness::Ready);
        };
        let pods: Vec<Pod> = self.list(&self.api(), "pods").await?;
        for pod in &pods {
            if let Some((container, last_exit)) = containers(pod).iter().find_map(crash_loop) {
                let last_log_lines = self.last_log_lines(&pod.name_any(), container).await;
                let reason = format!("pod {}, container {container}: {last_exit}", pod.name_any());
                return Ok(Readiness::Failed(format!("{reason}{last_log_lines}")));
            }
        }
        let reason = pods.iter().find_map(pending_reason);
        Ok(Readiness::Waiting(
            reason.unwrap_or_else(|| format!("Deployment {}", incomplete.name_any())),
        ))
    }

    /// Last lines of the log of a container that has ended; empty if the log cannot be read.
    async fn last_log_lines(&self, pod: &str, container: &str) -> String {
        let parameters = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(LAST_LINES),
            ..LogParams::default()
        };
        let log = self.api::<Pod>().logs(pod, &parameters).await.unwrap_or_default();
        let lines = log.trim().replace('\n', "; ");
        if lines.is_empty() { lines } else { format!(": {lines}") }
    }

    /// Starts a Job. Returns its name, which the API server generates.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn start_job(&self, job: &Value) -> Result<String, ApplicationError> {
        self.create_job(job, false).await
    }

    async fn create_job(&self, job: &Value, dry_run: bool) -> Result<String, ApplicationError> {
        let request_failed = |error| self.request_failed("create", "a Job".to_owned(), error);
        let job: Job = serde_json::from_value(job.clone())
            .map_err(|error| request_failed(kube::Error::SerdeError(error)))?;
        let parameters = PostParams { dry_run, ..PostParams::default() };
        let created_job =
            self.api::<Job>().create(&parameters, &job).await.map_err(request_failed)?;
        Ok(created_job.name_any())
    }

    /// State of a Job.
    ///
    /// # Errors
    ///
    /// The API server refuses, or does not answer.
    pub async fn job(&self, name: &str) -> Result<JobState, ApplicationError> {
        let display_name = || format!("Job {name}");
        let request_failed = |error| self.request_failed("get", display_name(), error);
        let job = self.api::<Job>().get(name).await.map_err(request_failed)?;
        let pods = self.api::<Pod>();
        let parameters = ListParams::default().labels(&format!("{JOB_NAME}={name}"));
        let pod = pods.list(&parameters).await.map_err(request_failed)?.items.into_iter().next();
        let conditions = job.status.and_then(|status| status.conditions).unwrap_or_default();
        let Some(final_condition) = conditions.iter().find(|condition| is_finished(condition))
        else {
            let no_pod = || format!("Job {name} has no pod: see `kubectl describe job {name}`");
            let Some(pod) = pod else { return Ok(JobState::Pending(no_pod())) };
            return Ok(pending_reason(&pod).map_or(JobState::Running, JobState::Pending));
        };
        let message = final_condition.message.clone().unwrap_or_default();
        // The Job controller deletes the pod of a Job that exceeds its deadline.
        let Some(pod) = pod else { return Ok(JobState::Ended(message)) };
        let log = pods.logs(&pod.name_any(), &LogParams::default()).await;
        let log =
            log.map_err(|error| self.request_failed("read the log of", display_name(), error))?;
        if log.trim().is_empty() {
            let reason = containers(&pod).iter().find_map(exit_reason).unwrap_or(message);
            return Ok(JobState::Ended(reason));
        }
        Ok(JobState::Ended(log))
    }

    /// Deletes a Job with its pod. Succeeds if the Job does not exist.
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
        match self.dynamic_api(resource).delete(name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => {
                Err(self.request_failed("delete", format!("{} {name}", resource.kind), error))
            }
            Ok(_) => Ok(()),
        }
    }

    fn owns(&self, object: &DynamicObject) -> bool {
        let labels = object.labels();
        let has_label =
            |key: &str, value: &str| labels.get(key).is_some_and(|label| label == value);
        has_label(PART_OF, &self.name) && has_label(MANAGED_BY, MANAGER)
    }

    /// The application's objects of one kind. One page suffices: a pipeline has few objects of each kind.
    async fn list<K>(&self, api: &Api<K>, plural: &str) -> Result<Vec<K>, ApplicationError>
    where
        K: Clone + fmt::Debug + serde::de::DeserializeOwned,
    {
        let parameters = ListParams::default().labels(&self.selector());
        match api.list(&parameters).await {
            Ok(list) => Ok(list.items),
            // Clusters before 1.34 do not serve claim templates.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(self.request_failed("list", plural.to_owned(), error)),
        }
    }

    fn dynamic_api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn request_failed(
        &self,
        verb: &'static str,
        object: String,
        error: kube::Error,
    ) -> ApplicationError {
        let (namespace, source) = (self.namespace.clone(), error.into());
        ApplicationError::RequestFailed { verb, object, namespace, source }
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Application({}/{})", self.namespace, self.name)
    }
}

// === impl ApplicationError ===

impl ApplicationError {
    /// True if the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::RequestFailed { source, .. } if source.is_transient())
    }
}

/// Kinds of an application's objects, in the order of deletion: owners of pods before the objects that pods use.
fn kinds() -> [ApiResource; 5] {
    [
        ApiResource::erase::<Job>(&()),
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<ResourceClaimTemplate>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
    ]
}

fn kind_and_name(object: &Value) -> (ApiResource, &str) {
    let (kind, name) = (object["kind"].as_str(), object["metadata"]["name"].as_str());
    let resource = kinds().into_iter().find(|resource_kind| Some(&*resource_kind.kind) == kind);
    resource.zip(name).expect("objects of a pipeline have known kinds, and names")
}

fn is_finished(condition: &JobCondition) -> bool {
    ["Complete", "Failed"].contains(&&*condition.type_) && condition.status == "True"
}

/// True for a Deployment whose replicas all have its newest revision and are available.
fn is_complete(deployment: &Deployment) -> bool {
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
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
            .all(|count| count.unwrap_or(0) == desired)
}

/// The reason why a pod does not run; `None` if no container waits.
fn pending_reason(pod: &Pod) -> Option<String> {
    let name = pod.name_any();
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let refusal = conditions.iter().find(|it| it.type_ == "PodScheduled" && it.status == "False");
    if let Some(message) = refusal.and_then(|condition| condition.message.as_deref()) {
        return Some(format!("pod {name}: {message}"));
    }
    let containers = containers(pod);
    if containers.is_empty() {
        return Some(format!("pod {name} has no node yet"));
    }
    containers.iter().find_map(waiting_reason).map(|reason| format!("pod {name}, {reason}"))
}

fn waiting_reason(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or("it waits");
    let message = waiting.message.as_deref().map_or_else(String::new, |text| format!(": {text}"));
    Some(format!("container {}: {reason}{message}", container.name))
}

fn containers(pod: &Pod) -> &[ContainerStatus] {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default()
}

/// Name and last exit of a container that is not running and has reached `MAX_RESTARTS`.
fn crash_loop(container: &ContainerStatus) -> Option<(&str, String)> {
    let terminated = container.last_state.as_ref()?.terminated.as_ref()?;
    let is_running = container.state.as_ref().is_some_and(|state| state.running.is_some());
    (!is_running && container.restart_count >= MAX_RESTARTS).then(|| {
        let times = container.restart_count;
        (
            &*container.name,
            format!("it ended {times} times, with exit code {}", terminated.exit_code),
        )
    })
}

/// Reason of the end of a container.
fn exit_reason(container: &ContainerStatus) -> Option<String> {
    let terminated = container.state.as_ref()?.terminated.as_ref()?;
    let parts = [terminated.reason.as_deref(), terminated.message.as_deref()].into_iter().flatten();
    let parts: Vec<_> = parts.collect();
    Some(format!("exit code {}: {}", terminated.exit_code, parts.join(": ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn a_deployment_is_complete_with_all_replicas_of_its_newest_revision() {
        let complete = |generation: i64, status: Value| {
            is_complete(&parse(json!({
                "metadata": {"generation": generation},
                "spec": {"replicas": 2, "selector": {}, "template": {}},
                "status": status,
            })))
        };
        let complete_status = json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        assert!(complete(3, complete_status.clone()));
        assert!(!complete(4, complete_status), "the controller has not seen the newest generation");
        // A pod of the earlier revision still exists, or a pod is not updated, or a pod is not available.
        for (replicas, updated, available) in [(3, 2, 2), (2, 1, 2), (2, 2, 1)] {
            let status = json!({"observedGeneration": 3, "replicas": replicas, "updatedReplicas": updated,
                "availableReplicas": available});
            assert!(!complete(3, status));
        }
        assert!(!complete(1, Value::Null));
    }

    #[test]
    fn the_reason_of_a_pending_pod_is_copied_from_its_status() {
        let reason_of = |status: Value| {
            pending_reason(&parse(json!({"metadata": {"name": "p"}, "status": status})))
        };
        let unwrap_reason = |status: Value| reason_of(status).expect("a reason");
        assert_eq!(unwrap_reason(json!({"phase": "Pending"})), "pod p has no node yet");
        let refusal = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]});
        assert_eq!(unwrap_reason(refusal), "pod p: 0/2 nodes are available");
        let container = |state: Value| {
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": state}]})
        };
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
        assert_eq!(
            unwrap_reason(container(waiting)),
            "pod p, container c: ErrImagePull: no such image"
        );
        assert_eq!(reason_of(container(json!({"running": {}}))), None);
    }

    #[test]
    fn a_container_that_ends_again_and_again_has_failed() {
        let last_exit = |restarts: i32, state: Value| {
            let container: ContainerStatus =
                parse(json!({"name": "c", "image": "i", "imageID": "",
                "ready": false, "restartCount": restarts, "state": state,
                "lastState": {"terminated": {"exitCode": 64}}}));
            crash_loop(&container).map(|(_, end)| end)
        };
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let expected = Some("it ended 2 times, with exit code 64".to_owned());
        assert_eq!(last_exit(2, waiting.clone()), expected);
        assert_eq!(last_exit(1, waiting), None);
        assert_eq!(
            last_exit(5, json!({"running": {}})),
            None,
            "a running container may have recovered"
        );
    }
}
