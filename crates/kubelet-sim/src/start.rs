//! Start of a container: call `PreStartContainer`, allocate missing devices, merge the run options.

use crate::{
    admission::allocate_missing,
    event::Event,
    grant::RunContainerOptions,
    manager::{Manager, ManagerError, Request, device_count},
    manager_task::{ManagerHandle, ManagerTask},
    plugin::{Plugin, RpcError},
    pod::{Container, Pod},
    status::PodPhase,
};

/// Reasons of a failed container start. The real kubelet retries with the pod's back-off; here the
/// caller retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Waiting reason `CreateContainerConfigError`, with its message.
    #[error("CreateContainerConfigError: {0}")]
    CreateContainerConfig(String),
    /// The pod's event `FailedPrepareDynamicResources`, with its message.
    #[error("FailedPrepareDynamicResources: {0}")]
    PrepareClaims(String),
    /// The pod or the container does not exist.
    #[error("pod {pod} has no container {container} on this node")]
    Unknown {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
    },
    /// The pod is pending or has ended, so none of its containers may run.
    #[error("pod {0} is not admitted")]
    NotAdmitted(String),
    /// The kubelet was stopped, or ended in a panic.
    #[error("the kubelet was stopped before the container of pod {0} started")]
    Stopped(String),
}

/// Plugin and device ids of a `PreStartContainer` call; `None` if no call is needed.
type PreStartCall = Option<(Result<Plugin, RpcError>, crate::device::DeviceIds)>;

/// Starts a container of an admitted pod.
pub(crate) async fn start(
    handle: &ManagerHandle,
    pod: &str,
    container: &str,
) -> Result<RunContainerOptions, StartError> {
    let (uid, name) = (pod.to_owned(), container.to_owned());
    let lookup = handle
        .read(move |task| task.manager.find_container(&uid, &name))
        .await
        .map_err(|_| StartError::Stopped(pod.to_owned()))?;
    let (pod, container) = lookup?;
    start_admitted(handle, &pod, &container).await.map_err(|error| match error {
        ManagerError::Stopped | ManagerError::Panic(_) => StartError::Stopped(pod.uid.clone()),
        error => StartError::CreateContainerConfig(error.to_string()),
    })
}

async fn start_admitted(
    handle: &ManagerHandle,
    pod: &Pod,
    container: &Container,
) -> Result<RunContainerOptions, ManagerError> {
    for (resource, quantity) in container.limits.iter().filter(|(_, quantity)| **quantity > 0) {
        let request = Request {
            pod: pod.uid.clone(),
            container: container.name.clone(),
            resource: resource.clone(),
            size: device_count(*quantity),
        };
        pre_start(handle, request).await?;
    }
    let (uid, container_copy) = (pod.uid.clone(), container.clone());
    if handle.read(move |task| task.manager.lacks_devices(&uid, &container_copy)).await? {
        allocate_missing(handle, pod, container).await?;
    }
    let (pod, name) = (pod.clone(), container.name.clone());
    handle.update(move |task| task.container_started(&pod, &name)).await?
}

async fn pre_start(handle: &ManagerHandle, request: Request) -> Result<(), ManagerError> {
    let request_copy = request.clone();
    let plan = move |task: &ManagerTask| {
        let timeout = task.config.pre_start_timeout;
        task.manager.plan_pre_start(&request_copy).map(|call| (call, timeout))
    };
    let (Some((plugin, devices)), timeout) = handle.read(plan).await?? else { return Ok(()) };
    let plugin = plugin.map_err(ManagerError::PreStart)?;
    plugin.pre_start(&devices, timeout).await.map_err(ManagerError::PreStart)?;
    let log = move |task: &ManagerTask| task.events.push(Event::pre_started(&request, devices));
    Ok(handle.read(log).await?)
}

// === impl Manager, for the start of containers ===

impl Manager {
    /// Finds a container of an admitted pod.
    fn find_container(&self, pod: &str, name: &str) -> Result<(Pod, Container), StartError> {
        let unknown = || StartError::Unknown { pod: pod.to_owned(), container: name.to_owned() };
        let record = self.pods.get(pod).ok_or_else(unknown)?;
        let container = record.pod.find(name).ok_or_else(unknown)?;
        if record.phase != PodPhase::Admitted {
            return Err(StartError::NotAdmitted(pod.to_owned()));
        }
        Ok((record.pod.clone(), container.clone()))
    }

    /// Arguments of `PreStartContainer` for a resource of the container; `None` if the plugin does not
    /// require the call, or the device manager does not know the resource.
    fn plan_pre_start(&self, request: &Request) -> Result<PreStartCall, ManagerError> {
        let Request { pod, container, resource, .. } = request;
        if !self.is_known(resource) {
            return Ok(None);
        }
        let endpoint = self.endpoints.get(resource);
        let endpoint = endpoint.ok_or_else(|| ManagerError::NoEndpoint(resource.clone()))?;
        if !endpoint.requires_pre_start() {
            return Ok(None);
        }
        let holding = self.holdings.get(pod, container, resource);
        let holding = holding.ok_or_else(|| ManagerError::NoAllocatedDevices {
            pod: pod.clone(),
            container: container.clone(),
            resource: resource.clone(),
        })?;
        Ok(Some((endpoint.plugin(resource), holding.ids())))
    }

    /// True if a container of an active pod requests a plugin resource without holding a device of it.
    fn lacks_devices(&self, pod: &str, container: &Container) -> bool {
        let is_active = self.pods.get(pod).is_some_and(crate::manager::PodRecord::is_active);
        let requested = container.limits.iter().filter(|(_, quantity)| **quantity > 0);
        is_active
            && requested
                .filter(|(resource, _)| self.is_known(resource))
                .any(|(resource, _)| self.holdings.get(pod, &container.name, resource).is_none())
    }
}

// === impl ManagerTask, for the start of containers ===

impl ManagerTask {
    /// Records the container as running. Returns its merged run options, with the CDI devices of its
    /// claims.
    fn container_started(
        &mut self,
        pod: &Pod,
        container: &str,
    ) -> Result<RunContainerOptions, ManagerError> {
        let claim_devices = self.dra.claims.cdi_devices(pod, container);
        let mut cdi_devices =
            claim_devices.map_err(|error| ManagerError::Claims(error.to_string()))?;
        if let Some(record) = self.manager.pods.get_mut(&pod.uid) {
            record.running.insert(container.to_owned());
        }
        let holdings = self.manager.holdings.container(&pod.uid, container);
        let all_options = holdings.into_iter().flatten().map(|(_, holding)| &holding.run_options);
        let (run_options, conflicts) = RunContainerOptions::merge(all_options);
        for conflict in conflicts {
            tracing::warn!(pod = %pod.uid, container, ?conflict, "plugins disagree, the first one wins");
        }
        // Names of claims come before names of plugins. A name in both stays twice.
        cdi_devices.extend(run_options.cdi_devices);
        Ok(RunContainerOptions { cdi_devices, ..run_options })
    }
}
