//! MIG partitions made and removed on demand: what prepares a claim for one asks here, and who wants to know
//! whether a GPU is idle.
//!
//! ```text
//!  PartitionDesk ── orders ──> Cutter ── one at a time for each GPU ──> thread in NVML
//!                                │                                          │
//!      source looks again <──────┴────────────── done <─────────────────────┘
//! ```
//!
//! # Flow
//!
//! [`PartitionDesk::make`] with a [`Partition`] out of `Device::partitions` gives the UUID of a MIG
//! device: the GPU instance at that place, and the compute instance that fills it. The source of the
//! GPU looks at once, so that the device is in the inventory a moment after the answer, with its nodes,
//! its capacities and `Device::partition`. [`PartitionDesk::remove`] undoes it, and the inventory forgets the
//! device, which nobody has any more.
//!
//! A whole GPU is had with [`PartitionDesk::turn_mig_off`], and can be cut after [`PartitionDesk::turn_mig_on`].
//!
//! # Guarantees
//!
//! - To make what stands there gives what stands there; to remove what is gone succeeds.
//! - What is made half, since the driver refuses the compute instance, is undone before the answer.
//!   What cannot be undone is said, and taken up by the next order for that place.
//! - Nothing is removed that a process uses, or that somebody cut into several compute instances. The mode does
//!   not change while a process computes or an instance stands, nor at a later reset.
//! - Orders for a GPU are carried out one after the other. A GPU that hangs holds up no other, and no
//!   task waits longer than the limit: an order that was begun goes on, and the same order later has
//!   its result; one that was not begun is dropped.
//!
//! # Errors
//!
//! [`PartitionError`] says what was to be done to what; its source says why not. [`Why::NoRoom`] and
//! [`Why::InUse`] end when somebody lets go, [`Why::NoDriver`] and [`Why::Overdue`] by themselves.

mod cut;
mod cutter;
mod mode;
mod names;
mod recess;

use std::{fmt, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};
use windlass_core::device::{DeviceId, Partition};
use windlass_host::{deadline, nvidia_smi::NvidiaSmi};
use windlass_nvml::{Nvml, NvmlError};

use self::cutter::Order;
pub(crate) use self::names::{id_of, profile_in};
pub use self::{
    cutter::Cutter,
    recess::{PAUSE, Recess, RecessDesk, Recesses, patiently, rest},
};

/// Where partitions are ordered.
#[derive(Clone, Debug)]
pub struct PartitionDesk {
    orders: mpsc::Sender<Order>,
    cuts: mpsc::Sender<Cut>,
    recesses: RecessDesk,
    nvidia_smi: NvidiaSmi,
    limit: Duration,
}

/// What the source of the GPUs is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A GPU was cut, or left as it was: it is to be looked at again.
    Done(DeviceId),
    /// This MIG device was removed by an order, for good.
    Removed(DeviceId),
}

/// A partition was not made or not removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {task}")]
pub struct PartitionError {
    /// What was to be done.
    pub task: Task,
    /// Why it was not.
    #[source]
    pub why: Why,
}

/// What is to be done to a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Cut this partition.
    Make(Partition),
    /// Remove what stands at this place.
    Remove(Partition),
    /// Remove this MIG device, and nothing that came in its place.
    RemoveDevice {
        /// The GPU that it is a part of.
        gpu: DeviceId,
        /// Its UUID.
        device: DeviceId,
    },
    /// Make it possible to cut this GPU.
    TurnOn(DeviceId),
    /// Make this GPU whole.
    TurnOff(DeviceId),
    /// Find out who computes on this device.
    Look(DeviceId),
    /// Find out how much of this device's memory is used.
    Measure(DeviceId),
}

/// Why a partition was not made or not removed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// Nobody speaks to NVIDIA's driver now.
    #[error("there is no connection to NVIDIA's driver")]
    NoDriver,
    /// It was pulled out, or never was here.
    #[error("the driver knows no such GPU")]
    NoGpu,
    /// The GPU is whole.
    #[error("MIG is off; an administrator turns it on")]
    Off,
    /// A GPU that is cut cannot be whole.
    #[error("MIG instances stand on it: {0}")]
    Standing(String),
    /// Others stand there.
    #[error("no room: {0}")]
    NoRoom(String),
    /// A process uses it.
    #[error("it is in use by a process")]
    InUse,
    /// Somebody else made something of it that is not ours to give away or to remove.
    #[error("somebody cut it into smaller compute instances")]
    Foreign,
    /// It was made, and the driver does not list it.
    #[error("the driver lists no device for it")]
    Unnamed,
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// It was not finished, and what there is of it could not be removed.
    #[error("half of it stands, and cannot be removed ({undo})")]
    HalfMade {
        /// Why it was not finished.
        #[source]
        refused: Box<Self>,
        /// Why the rest is still there.
        undo: Box<Self>,
    },
    /// The driver has not answered.
    #[error("the driver did not answer within {0:?}; the same order later has the result")]
    Overdue(Duration),
    /// The agent stops.
    #[error("the agent stops")]
    Stopped,
}

/// Orders that wait for the one who takes them, beyond which who orders waits.
const WAITING: usize = 64;

/// Makes the desk and the one who serves it, with the library as it is while there is a connection.
/// What is done is told to `cuts`. Who has to have the library let go of asks at `recesses`.
pub fn open(
    limit: Duration,
    library: watch::Receiver<Option<Nvml>>,
    nvidia_smi: NvidiaSmi,
    (cuts, recesses): (mpsc::Sender<Cut>, RecessDesk),
) -> (PartitionDesk, Cutter) {
    let (send, orders) = mpsc::channel(WAITING);
    let desk = PartitionDesk { orders: send, cuts: cuts.clone(), recesses, nvidia_smi, limit };
    (desk, Cutter::new(orders, library, cuts))
}

// === impl PartitionDesk ===

impl PartitionDesk {
    /// For what NVML has no call for.
    pub fn nvidia_smi(&self) -> &NvidiaSmi {
        &self.nvidia_smi
    }

    /// Makes the partition, or finds it. Gives the UUID of its MIG device.
    pub async fn make(&self, partition: &Partition) -> Result<DeviceId, PartitionError> {
        let wanted = partition.clone();
        let job = move |nvml: &Nvml| cut::make(nvml, &wanted);
        self.order(Task::Make(partition.clone()), job).await
    }

    /// Removes what stands at that place with that profile, if anything does.
    pub async fn remove(&self, partition: &Partition) -> Result<(), PartitionError> {
        let (standing, cuts) = (partition.clone(), self.cuts.clone());
        let job = move |nvml: &Nvml| {
            if let Some(device) = cut::remove(nvml, &standing)? {
                removed(&cuts, device);
            }
            Ok(())
        };
        self.order(Task::Remove(partition.clone()), job).await
    }

    /// Removes this MIG device, if it is there: not another that came in its place. What was made half
    /// has no UUID; who knows the place had better [`Self::remove`] that.
    pub async fn remove_device(
        &self,
        gpu: &DeviceId,
        device: &DeviceId,
    ) -> Result<(), PartitionError> {
        let task = Task::RemoveDevice { gpu: gpu.clone(), device: device.clone() };
        let (device, cuts) = (device.clone(), self.cuts.clone());
        let job = move |nvml: &Nvml| {
            cut::remove_device(nvml, &device)?;
            removed(&cuts, device);
            Ok(())
        };
        self.order(task, job).await
    }

    /// Turns MIG on, or finds it on. Whoever asks has seen to it that nobody has the GPU.
    pub async fn turn_mig_on(&self, gpu: &DeviceId) -> Result<(), PartitionError> {
        let id = gpu.clone();
        self.order(Task::TurnOn(id.clone()), move |nvml: &Nvml| mode::turn_on(nvml, &id)).await
    }

    /// Turns MIG off, or finds it off. Whoever asks has seen to it that nobody has a part of the GPU.
    pub async fn turn_mig_off(&self, gpu: &DeviceId) -> Result<(), PartitionError> {
        let id = gpu.clone();
        self.order(Task::TurnOff(id.clone()), move |nvml: &Nvml| mode::turn_off(nvml, &id)).await
    }

    /// The processes that compute on a GPU or a MIG device, by their numbers on the host.
    pub async fn computing(&self, device: &DeviceId) -> Result<Vec<u32>, PartitionError> {
        let task = Task::Look(device.clone());
        let device = device.clone();
        let job = move |nvml: &Nvml| Ok(nvml.gpu_with_uuid(device.as_str())?.computing()?);
        self.order(task, job).await
    }

    /// How many bytes of its memory are used, without what the driver keeps for itself. Drivers before 510
    /// do not tell, nor does a GPU that has the host's memory.
    pub async fn memory_used(&self, device: &DeviceId) -> Result<u64, PartitionError> {
        let task = Task::Measure(device.clone());
        let device = device.clone();
        let job = move |nvml: &Nvml| Ok(nvml.gpu_with_uuid(device.as_str())?.memory_used()?);
        self.order(task, job).await
    }

    /// Waits until NVML is shut down; `None` where the agent ends. An order that is being carried out for another
    /// GPU has it open until that is done.
    pub async fn recess(&self) -> Option<Recess> {
        self.recesses.begin().await
    }

    async fn order<T: Send + 'static>(
        &self,
        task: Task,
        job: impl FnOnce(&Nvml) -> Result<T, Why> + Send + 'static,
    ) -> Result<T, PartitionError> {
        let (answer, wait) = oneshot::channel();
        let order = Order::new(task.gpu().clone(), answer, job);
        let answered = async {
            self.orders.send(order).await.map_err(|_| Why::Stopped)?;
            wait.await.map_err(|_| Why::Stopped)?
        };
        let outcome = deadline::timeout(self.limit, answered).await;
        let outcome = outcome.unwrap_or(Err(Why::Overdue(self.limit)));
        outcome.map_err(|why| PartitionError { task, why })
    }
}

/// Whoever ordered it may have given up, and would not know what it was.
fn removed(cuts: &mpsc::Sender<Cut>, device: DeviceId) {
    // Where there is no room it counts as vanished, of which some are kept.
    let _ = cuts.try_send(Cut::Removed(device));
}

// === impl Task ===

impl Task {
    /// The GPU that it is about.
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

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make(partition) => write!(f, "make MIG partition {partition}"),
            Self::Remove(partition) => write!(f, "remove MIG partition {partition}"),
            Self::TurnOn(gpu) => write!(f, "turn MIG on for {gpu}"),
            Self::TurnOff(gpu) => write!(f, "turn MIG off for {gpu}"),
            Self::Look(device) => write!(f, "tell who computes on {device}"),
            Self::Measure(device) => write!(f, "tell how much memory of {device} is used"),
            Self::RemoveDevice { gpu, device } => write!(f, "remove MIG device {device} of {gpu}"),
        }
    }
}
