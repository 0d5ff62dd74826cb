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
//! [`MigHandle::make`] takes a [`Partition`] of `Device::partitions` and returns the UUID of a MIG
//! device: a GPU instance at that placement, filled by one compute instance. The GPU's source scans at once,
//! so the inventory soon has the device with its nodes, capacities and `Device::partition`.
//!
//! [`MigHandle::remove`] reverts it; the inventory then forgets the device.
//!
//! [`MigHandle::turn_mig_off`] makes a GPU whole; [`MigHandle::turn_mig_on`] permits instances again.
//!
//! # Guarantees
//!
//! - Making an existing partition returns it; removing a missing one succeeds.
//! - A half-made instance is reverted before the answer. If that fails, the error says so, and the next
//!   task for the placement continues from there.
//! - Instances in use and instances divided by others stay. The mode changes only without compute processes
//!   and instances, and never later by a reset.
//! - Tasks of one GPU run in order. A hanging GPU delays no other, and no caller waits longer than the
//!   limit. A started task continues, and the same request later gets its result; others are dropped.
//!
//! # Errors
//!
//! [`PartitionError`] names the failed task; its source has the reason. [`MigFailure::NoRoom`] and [`MigFailure::InUse`]
//! end when a holder lets go, [`MigFailure::NoDriver`] and [`MigFailure::Overdue`] by themselves.

mod cut;
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
use self::worker::Order;
pub use self::{
    nvml_release::{NvmlRelease, NvmlReleaseHandle, NvmlReleaseRequests, PAUSE, patiently, rest},
    worker::MigWorker,
};

/// Handle of the MIG worker.
#[derive(Clone, Debug)]
pub struct MigHandle {
    orders: mpsc::Sender<Order>,
    cuts: mpsc::Sender<MigNotice>,
    recesses: NvmlReleaseHandle,
    nvidia_smi: NvidiaSmi,
    limit: Duration,
}

/// Notice to the source of the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigNotice {
    /// A task on this GPU is done; scan it again.
    Done(DeviceId),
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
    pub why: MigFailure,
}

/// Task on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigTask {
    /// Make this partition.
    Make(Partition),
    /// Remove the instance at this placement.
    Remove(Partition),
    /// Remove this MIG device, but no successor at its placement.
    RemoveDevice {
        /// The parent GPU.
        gpu: DeviceId,
        /// UUID of the device.
        device: DeviceId,
    },
    /// Turn MIG on.
    TurnOn(DeviceId),
    /// Turn MIG off.
    TurnOff(DeviceId),
    /// List the compute processes of a device.
    Look(DeviceId),
    /// Measure the used memory of a device.
    Measure(DeviceId),
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
    Off,
    /// Instances exist, so MIG stays on.
    #[error("it has MIG instances: {0}")]
    Standing(String),
    /// Other instances occupy the placement.
    #[error("no room: {0}")]
    NoRoom(String),
    /// A process uses it.
    #[error("it is in use by a process")]
    InUse,
    /// An administrator divided it into several compute instances.
    #[error("it has further compute instances: remove them with nvidia-smi")]
    Foreign,
    /// The driver does not list the new device.
    #[error("the driver lists no MIG device for it")]
    Unnamed,
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// Half made, and not reverted.
    #[error("it is half-made and cannot be removed ({undo}): try again")]
    HalfMade {
        /// Reason why it was not finished.
        #[source]
        refused: Box<Self>,
        /// Reason why it was not reverted.
        undo: Box<Self>,
    },
    /// The driver did not answer in time.
    #[error("the driver did not answer within {0:?}: try again for the result")]
    Overdue(Duration),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopped,
}

/// Channel capacity; senders wait beyond it.
const WAITING: usize = 64;

/// Creates handle and worker. `library` has NVML while it is initialised. `cuts` gets notices of finished
/// tasks; `recesses` passes requests to shut NVML down.
pub fn open(
    limit: Duration,
    library: watch::Receiver<Option<Nvml>>,
    nvidia_smi: NvidiaSmi,
    (cuts, recesses): (mpsc::Sender<MigNotice>, NvmlReleaseHandle),
) -> (MigHandle, MigWorker) {
    let (send, orders) = mpsc::channel(WAITING);
    let desk = MigHandle { orders: send, cuts: cuts.clone(), recesses, nvidia_smi, limit };
    (desk, MigWorker::new(orders, library, cuts))
}

// === impl MigHandle ===

impl MigHandle {
    /// `nvidia-smi`, for functions that NVML lacks.
    pub fn nvidia_smi(&self) -> &NvidiaSmi {
        &self.nvidia_smi
    }

    /// Makes the partition, or finds it. Returns the UUID of its MIG device.
    pub async fn make(&self, partition: &Partition) -> Result<DeviceId, PartitionError> {
        let wanted = partition.clone();
        let job = move |nvml: &Nvml| cut::make(nvml, &wanted);
        self.order(MigTask::Make(partition.clone()), job).await
    }

    /// Removes the instance at that placement, if it exists.
    pub async fn remove(&self, partition: &Partition) -> Result<(), PartitionError> {
        let (standing, cuts) = (partition.clone(), self.cuts.clone());
        let job = move |nvml: &Nvml| {
            if let Some(device) = cut::remove(nvml, &standing)? {
                removed(&cuts, device);
            }
            Ok(())
        };
        self.order(MigTask::Remove(partition.clone()), job).await
    }

    /// Removes this MIG device, if it exists, but no successor at its placement. A half-made instance has no
    /// UUID; [`Self::remove`] handles it.
    pub async fn remove_device(
        &self,
        gpu: &DeviceId,
        device: &DeviceId,
    ) -> Result<(), PartitionError> {
        let task = MigTask::RemoveDevice { gpu: gpu.clone(), device: device.clone() };
        let (device, cuts) = (device.clone(), self.cuts.clone());
        let job = move |nvml: &Nvml| {
            cut::remove_device(nvml, &device)?;
            removed(&cuts, device);
            Ok(())
        };
        self.order(task, job).await
    }

    /// Turns MIG on. The caller ensures that nobody holds the GPU.
    pub async fn turn_mig_on(&self, gpu: &DeviceId) -> Result<(), PartitionError> {
        let id = gpu.clone();
        self.order(MigTask::TurnOn(id.clone()), move |nvml: &Nvml| mode::turn_on(nvml, &id)).await
    }

    /// Turns MIG off. The caller ensures that nobody holds a part of the GPU.
    pub async fn turn_mig_off(&self, gpu: &DeviceId) -> Result<(), PartitionError> {
        let id = gpu.clone();
        self.order(MigTask::TurnOff(id.clone()), move |nvml: &Nvml| mode::turn_off(nvml, &id)).await
    }

    /// Host process ids that compute on a GPU or MIG device.
    pub async fn computing(&self, device: &DeviceId) -> Result<Vec<u32>, PartitionError> {
        let task = MigTask::Look(device.clone());
        let device = device.clone();
        let job = move |nvml: &Nvml| Ok(nvml.gpu_with_uuid(device.as_str())?.computing()?);
        self.order(task, job).await
    }

    /// Used memory of a device in bytes, without the driver's own. Unavailable before driver 510 and on GPUs
    /// that share the host's memory.
    pub async fn memory_used(&self, device: &DeviceId) -> Result<u64, PartitionError> {
        let task = MigTask::Measure(device.clone());
        let device = device.clone();
        let job = move |nvml: &Nvml| Ok(nvml.gpu_with_uuid(device.as_str())?.memory_used()?);
        self.order(task, job).await
    }

    /// Waits until NVML is shut down; `None` if the agent stops. Running tasks on other GPUs delay the
    /// shutdown.
    pub async fn recess(&self) -> Option<NvmlRelease> {
        self.recesses.begin().await
    }

    async fn order<T: Send + 'static>(
        &self,
        task: MigTask,
        job: impl FnOnce(&Nvml) -> Result<T, MigFailure> + Send + 'static,
    ) -> Result<T, PartitionError> {
        let (answer, wait) = oneshot::channel();
        let order = Order::new(task.gpu().clone(), answer, job);
        let answered = async {
            self.orders.send(order).await.map_err(|_| MigFailure::Stopped)?;
            wait.await.map_err(|_| MigFailure::Stopped)?
        };
        let outcome = deadline::timeout(self.limit, answered).await;
        let outcome = outcome.unwrap_or(Err(MigFailure::Overdue(self.limit)));
        outcome.map_err(|why| PartitionError { task, why })
    }
}

/// Notifies the source itself: the caller may have given up.
fn removed(cuts: &mpsc::Sender<MigNotice>, device: DeviceId) {
    // With a full channel the device counts as vanished, of which a bounded number is kept.
    let _ = cuts.try_send(MigNotice::Removed(device));
}

// === impl MigTask ===

impl MigTask {
    /// The GPU of the task.
    pub fn gpu(&self) -> &DeviceId {
        match self {
            Self::Make(partition) | Self::Remove(partition) => &partition.gpu,
            Self::RemoveDevice { gpu, .. }
            | Self::TurnOn(gpu)
            | Self::TurnOff(gpu)
            | Self::Look(gpu)
            | Self::Measure(gpu) => gpu,
        }
    }
}

impl fmt::Display for MigTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make(partition) => write!(f, "make MIG partition {partition}"),
            Self::Remove(partition) => write!(f, "remove MIG partition {partition}"),
            Self::TurnOn(gpu) => write!(f, "turn MIG on for {gpu}"),
            Self::TurnOff(gpu) => write!(f, "turn MIG off for {gpu}"),
            Self::Look(device) => write!(f, "list the processes on {device}"),
            Self::Measure(device) => write!(f, "read the memory use of {device}"),
            Self::RemoveDevice { gpu, device } => write!(f, "remove MIG device {device} of {gpu}"),
        }
    }
}
