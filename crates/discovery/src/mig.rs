//! MIG instances on demand: a handle for claims, and the worker that calls NVML.
//!
//! ```text
//!  handle ── tasks ──> worker ── one at a time for each GPU ──> thread in NVML
//!                        │                                          │
//!    source scans <──────┴────────────── done <─────────────────────┘
//! ```
//!
//! # Flow
//!
//! [`MigHandle::create`] takes a [`Partition`] of `Device::partitions` and returns the UUID of a MIG
//! device: a GPU instance at that placement, filled by one compute instance. The GPU's source scans at once,
//! so the inventory soon has the device with its nodes, capacities and `Device::partition`.
//!
//! [`MigHandle::remove`] deletes the instance; the device then leaves the inventory.
//!
//! [`MigHandle::disable_mig`] disables MIG mode on a GPU; [`MigHandle::enable_mig`] enables it again.
//!
//! # Guarantees
//!
//! - Making a partition that exists returns its device; removing a missing partition succeeds.
//! - An incomplete instance is removed before the task returns. If the removal fails, the error reports the instance,
//!   and the next task for the placement continues from there.
//! - Instances in use are not removed, nor are instances that an administrator divided. The MIG mode of a GPU without
//!   compute processes and instances changes at once. Otherwise it does not change: no change stays pending until a
//!   reset.
//! - Tasks of one GPU run in order. A hanging GPU delays no other, and no caller waits longer than the limit. A
//!   started task continues after the limit, and a repeated request finds its result. A task that has not started
//!   by then is dropped.
//!
//! # Errors
//!
//! [`PartitionError`] names the failed task; its source has the reason. [`MigFailure::PlacementOccupied`] and
//! [`MigFailure::InUse`] clear when a holder releases its instance. [`MigFailure::NoDriver`] and
//! [`MigFailure::Timeout`] may clear without action.

mod instance;
mod mode;
mod names;
mod nvml_release;
mod worker;

use std::{fmt, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};
use windlass_core::device::{DeviceId, Partition};
use windlass_host::{deadline, nvidia_smi::NvidiaSmi};
use windlass_nvml::{Nvml, NvmlError};

pub(crate) use self::names::{id_of, mig_profile_in};
use self::worker::MigRequest;
pub use self::{
    nvml_release::{
        NvmlShutdownGuard, NvmlShutdownHandle, NvmlShutdownRequests, RETRY_DELAY,
        grant_until_dropped, retry_until_initialised,
    },
    worker::MigWorker,
};

/// Handle of the MIG worker.
#[derive(Clone, Debug)]
pub struct MigHandle {
    requests: mpsc::Sender<MigRequest>,
    notices: mpsc::Sender<MigNotice>,
    shutdown_handle: NvmlShutdownHandle,
    nvidia_smi: NvidiaSmi,
    timeout: Duration,
}

/// Notice to the source of the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigNotice {
    /// A task on this GPU is done; scan it again.
    TaskDone(DeviceId),
    /// This MIG device was removed on request.
    Removed(DeviceId),
}

/// Error of a MIG task.
#[derive(Debug, thiserror::Error)]
#[error("cannot {task}")]
pub struct PartitionError {
    /// The failed task.
    pub task: MigTask,
    /// Reason of the failure.
    #[source]
    pub failure: MigFailure,
}

/// Task on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigTask {
    /// Make this partition.
    Create(Partition),
    /// Remove the instance at this placement.
    Remove(Partition),
    /// Remove this MIG device, but no other device that has its placement now.
    RemoveDevice {
        /// The parent GPU.
        gpu: DeviceId,
        /// UUID of the device.
        device: DeviceId,
    },
    /// Turn MIG on.
    EnableMig(DeviceId),
    /// Turn MIG off.
    DisableMig(DeviceId),
    /// List the compute processes of a device.
    ListProcesses(DeviceId),
    /// Measure the used memory of a device.
    ReadMemory(DeviceId),
}

/// Reason why a MIG task failed.
#[derive(Debug, thiserror::Error)]
pub enum MigFailure {
    /// NVML is not initialised.
    #[error("NVML is not initialised: the driver is missing or failing")]
    NoDriver,
    /// The GPU is absent.
    #[error("no GPU has this UUID")]
    NoGpu,
    /// MIG is off.
    #[error("MIG is off: an administrator turns it on")]
    MigDisabled,
    /// Instances exist, so MIG stays on.
    #[error("it has MIG instances: {0}")]
    HasInstances(String),
    /// Other instances occupy the placement.
    #[error("no room: {0}")]
    PlacementOccupied(String),
    /// A process uses the instance.
    #[error("it is in use by a process")]
    InUse,
    /// An administrator divided the GPU instance into several compute instances.
    #[error("it has further compute instances: remove them with nvidia-smi")]
    SeveralComputeInstances,
    /// The driver does not list the new device.
    #[error("the driver lists no MIG device for it")]
    NoDevice,
    /// The driver refused the call.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The task failed midway, and so did its reversal.
    #[error("it is half-made and cannot be removed ({rollback}): try again")]
    RollbackFailed {
        /// Reason why the instance was not finished.
        #[source]
        cause: Box<Self>,
        /// Reason why the instance was not removed.
        rollback: Box<Self>,
    },
    /// The driver did not answer in time.
    #[error("the driver did not answer within {0:?}: try again for the result")]
    Timeout(Duration),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopped,
}

/// Capacity of the request channel; senders wait while it is full.
const MAX_REQUESTS: usize = 64;

/// Creates handle and worker. `library` has NVML while it is initialised. `notices` receives finished tasks;
/// `releases` passes on requests to shut NVML down. A caller waits for a task no longer than `timeout`.
pub fn channel(
    timeout: Duration,
    library: watch::Receiver<Option<Nvml>>,
    nvidia_smi: NvidiaSmi,
    (notices, releases): (mpsc::Sender<MigNotice>, NvmlShutdownHandle),
) -> (MigHandle, MigWorker) {
    let (request_sender, requests) = mpsc::channel(MAX_REQUESTS);
    let handle = MigHandle {
        requests: request_sender,
        notices: notices.clone(),
        shutdown_handle: releases,
        nvidia_smi,
        timeout,
    };
    (handle, MigWorker::new(requests, library, notices))
}

// === impl MigHandle ===

impl MigHandle {
    /// `nvidia-smi`, for functions that NVML lacks.
    pub fn nvidia_smi(&self) -> &NvidiaSmi {
        &self.nvidia_smi
    }

    /// Makes the partition unless it exists. Returns the UUID of its MIG device.
    pub async fn create(&self, partition: &Partition) -> Result<DeviceId, PartitionError> {
        let requested_partition = partition.clone();
        let job = move |nvml: &Nvml| instance::create(nvml, &requested_partition);
        self.request(MigTask::Create(partition.clone()), job).await
    }

    /// Removes the instance at that placement, if it exists.
    pub async fn remove(&self, partition: &Partition) -> Result<(), PartitionError> {
        let (existing_partition, notices) = (partition.clone(), self.notices.clone());
        let job = move |nvml: &Nvml| {
            if let Some(device) = instance::remove(nvml, &existing_partition)? {
                notify_removed(&notices, device);
            }
            Ok(())
        };
        self.request(MigTask::Remove(partition.clone()), job).await
    }

    /// Removes this MIG device, if it exists, but no other device that has its placement now. An incomplete instance
    /// has no UUID; [`Self::remove`] handles it.
    pub async fn remove_device(
        &self,
        gpu: &DeviceId,
        device: &DeviceId,
    ) -> Result<(), PartitionError> {
        let task = MigTask::RemoveDevice { gpu: gpu.clone(), device: device.clone() };
        let (device, notices) = (device.clone(), self.notices.clone());
        let job = move |nvml: &Nvml| {
            instance::remove_device(nvml, &device)?;
            notify_removed(&notices, device);
            Ok(())
        };
        self.request(task, job).await
    }

    /// Turns MIG on. The caller ensures that no container holds the GPU.
    pub async fn enable_mig(&self, gpu: &DeviceId) -> Result<(), PartitionError> {
        let id = gpu.clone();
        self.request(MigTask::EnableMig(id.clone()), move |nvml: &Nvml| mode::enable(nvml, &id))
            .await
    }

    /// Turns MIG off. The caller ensures that no container holds an instance of the GPU.
    pub async fn disable_mig(&self, gpu: &DeviceId) -> Result<(), PartitionError> {
        let id = gpu.clone();
        self.request(MigTask::DisableMig(id.clone()), move |nvml: &Nvml| mode::disable(nvml, &id))
            .await
    }

    /// Compute processes on a GPU or MIG device, by their process ids on the host.
    pub async fn compute_pids(&self, device: &DeviceId) -> Result<Vec<u32>, PartitionError> {
        let task = MigTask::ListProcesses(device.clone());
        let device = device.clone();
        let job = move |nvml: &Nvml| Ok(nvml.gpu_with_uuid(device.as_str())?.compute_pids()?);
        self.request(task, job).await
    }

    /// Used memory of a device in bytes, excluding memory that the driver reserves. Fails before driver 510, and on
    /// GPUs that share the host's memory.
    pub async fn memory_used(&self, device: &DeviceId) -> Result<u64, PartitionError> {
        let task = MigTask::ReadMemory(device.clone());
        let device = device.clone();
        let job = move |nvml: &Nvml| Ok(nvml.gpu_with_uuid(device.as_str())?.memory_used()?);
        self.request(task, job).await
    }

    /// Requests a shutdown of NVML and waits until NVML is shut down; `None` if the agent stops. NVML stays shut down
    /// until the returned value is dropped. Running tasks on other GPUs delay the shutdown.
    pub async fn shut_down_nvml(&self) -> Option<NvmlShutdownGuard> {
        self.shutdown_handle.request().await
    }

    async fn request<T: Send + 'static>(
        &self,
        task: MigTask,
        job: impl FnOnce(&Nvml) -> Result<T, MigFailure> + Send + 'static,
    ) -> Result<T, PartitionError> {
        let (reply, result) = oneshot::channel();
        let request = MigRequest::new(task.gpu().clone(), reply, job);
        let send_and_wait = async {
            self.requests.send(request).await.map_err(|_| MigFailure::Stopped)?;
            result.await.map_err(|_| MigFailure::Stopped)?
        };
        let outcome = deadline::timeout(self.timeout, send_and_wait).await;
        let outcome = outcome.unwrap_or(Err(MigFailure::Timeout(self.timeout)));
        outcome.map_err(|failure| PartitionError { task, failure })
    }
}

/// Notifies the source from the worker thread, because the caller may have timed out.
fn notify_removed(notices: &mpsc::Sender<MigNotice>, device: DeviceId) {
    // Without the notice, the source keeps the device as vanished. The number of vanished devices is bounded.
    let _ = notices.try_send(MigNotice::Removed(device));
}

// === impl MigTask ===

impl MigTask {
    /// The GPU of the task.
    pub fn gpu(&self) -> &DeviceId {
        match self {
            Self::Create(partition) | Self::Remove(partition) => &partition.gpu,
            Self::RemoveDevice { gpu, .. }
            | Self::EnableMig(gpu)
            | Self::DisableMig(gpu)
            | Self::ListProcesses(gpu)
            | Self::ReadMemory(gpu) => gpu,
        }
    }
}

impl fmt::Display for MigTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(partition) => write!(f, "make MIG partition {partition}"),
            Self::Remove(partition) => write!(f, "remove MIG partition {partition}"),
            Self::EnableMig(gpu) => write!(f, "turn MIG on for {gpu}"),
            Self::DisableMig(gpu) => write!(f, "turn MIG off for {gpu}"),
            Self::ListProcesses(device) => write!(f, "list the processes on {device}"),
            Self::ReadMemory(device) => write!(f, "read the memory use of {device}"),
            Self::RemoveDevice { gpu, device } => write!(f, "remove MIG device {device} of {gpu}"),
        }
    }
}
