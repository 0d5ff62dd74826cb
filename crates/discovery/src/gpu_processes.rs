//! Processes on GPUs: the memory that each holds, and its container.

use tokio::sync::watch;
use windlass_core::device::DeviceId;
use windlass_host::{Host, blocking, container::ContainerId};
use windlass_nvml::{Nvml, NvmlError};

/// Reader of the processes on NVIDIA's GPUs. Clones share the driver.
#[derive(Clone, Debug)]
pub struct ProcessReader {
    host: Host,
    library: watch::Receiver<Option<Nvml>>,
}

/// A process that holds memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process id on the host.
    pub pid: u32,
    /// Its container; `None` for a process of the host.
    pub container: Option<ContainerId>,
    /// Memory that it holds, its contexts included, in bytes.
    pub memory_bytes: u64,
}

/// Reason why the processes of a GPU are unknown.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// NVML is not initialised.
    #[error("NVML is not initialised: the driver is missing or failing")]
    NoDriver,
    /// The driver refused, or does not know the GPU.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The driver does not measure the memory of processes.
    #[error("the driver does not say how much memory a process holds")]
    Unmeasured,
    /// The agent does not see the host's processes.
    #[error(
        "the host's processes are hidden: the agent's pod needs hostPID, and the host's /proc below its root"
    )]
    Hidden,
}

// === impl ProcessReader ===

impl ProcessReader {
    pub(crate) fn new(host: Host, library: watch::Receiver<Option<Nvml>>) -> Self {
        Self { host, library }
    }

    /// The host, whose `/proc` has the processes.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Processes on a GPU. Takes as long as the driver does, which may be forever.
    ///
    /// # Errors
    ///
    /// Fails where the driver or the host hides them: an empty list says that there are none.
    pub async fn read(&self, gpu: &DeviceId) -> Result<Vec<GpuProcess>, ProcessError> {
        let (reader, gpu) = (self.clone(), gpu.clone());
        blocking(move || reader.read_now(&gpu)).await
    }

    /// Blocks.
    fn read_now(&self, gpu: &DeviceId) -> Result<Vec<GpuProcess>, ProcessError> {
        // NVML shuts down once nobody has it: this thread keeps it until the driver has answered.
        let nvml = self.library.borrow().clone().ok_or(ProcessError::NoDriver)?;
        if !self.host.shows_own_process() {
            return Err(ProcessError::Hidden);
        }
        let mut all = Vec::new();
        for process in nvml.gpu_with_uuid(gpu.as_str())?.processes()? {
            // One that has ended meanwhile holds nothing.
            let Ok(container) = self.host.container_of(process.pid) else { continue };
            let memory_bytes = process.memory_bytes.ok_or(ProcessError::Unmeasured)?;
            all.push(GpuProcess { pid: process.pid, container, memory_bytes });
        }
        Ok(all)
    }
}
