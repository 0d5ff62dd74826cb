//! Cleanup steps: the actions on a device between two containers.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::scalar::{Mebibytes, Text, is_default};

/// Steps on a device between two containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CleanupSteps {
    /// Before a container starts with the device.
    #[serde(skip_serializing_if = "is_default")]
    pub prepare: Vec<Step>,
    /// After the last container has released the device. On an FPGA whose `prepare` failed, these steps run at once.
    #[serde(skip_serializing_if = "is_default")]
    pub release: Vec<Step>,
}

/// A section whose keys include those of its steps.
pub(crate) trait HasSteps {
    fn set_steps(&mut self, steps: CleanupSteps);
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "StepKeys", into = "StepKeys")]
pub struct Step {
    /// The action.
    pub action: StepAction,
    /// Time limit.
    pub timeout: Duration,
}

/// Maximum memory in use on an idle GPU, in bytes. The driver counts its own memory separately. `nvidia-smi` shows 0 to
/// about 100 MiB for idle GPUs and MIG instances; a CUDA context alone takes more than 200.
pub const IDLE_MEMORY_BYTES: u64 = 128 << 20;

/// Time limit of a probe or a step by default.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// A GET that has to succeed.
    Http(String),
    /// A program that has to end with 0. No shell is involved.
    Command(Vec<String>),
    /// Text into a file of the device's folder in sysfs.
    Write {
        /// The file.
        file: PathBuf,
        /// The text.
        text: String,
    },
    /// Waiting until the programs on an NVIDIA GPU have ended.
    Processes(Processes),
    /// Waiting until a GPU uses at most this much memory, in bytes.
    Memory {
        /// Maximum memory in use, in bytes.
        max_bytes: u64,
    },
    /// Overwriting of a GPU's memory, once no program uses any.
    Overwrite,
    /// Reset of an NVIDIA GPU.
    Reset(Reset),
    /// Waiting until a network interface is back from a container; then the interface gets this state.
    Link(Link),
}

/// Programs that may compute on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Processes {
    /// None.
    None,
}

/// Treatment of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// All memory has to be free, except the driver's own.
    Free,
    /// The free part is overwritten.
    Overwrite,
}

/// Scope of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reset {
    /// The whole GPU.
    Gpu,
}

/// Required state of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// In the host's network namespace, and up.
    Up,
}

/// One step; exactly one key names the action.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(rename = "Step")]
struct StepKeys {
    /// A URL that has to answer a GET with success.
    #[serde(skip_serializing_if = "is_default")]
    http: Option<String>,
    /// A program with its arguments that has to end with 0; no shell is involved.
    #[serde(skip_serializing_if = "is_default")]
    command: Option<Vec<String>>,
    /// A file in the device's folder of sysfs; `text` is written to it.
    #[serde(skip_serializing_if = "is_default")]
    write: Option<PathBuf>,
    /// The text for `write`.
    #[serde(skip_serializing_if = "is_default")]
    text: Option<String>,
    /// Under `gpu`: waits until no process computes on the GPU; the only value is `none`.
    #[serde(skip_serializing_if = "is_default")]
    processes: Option<Processes>,
    /// Under `gpu`: waits until the memory of the GPU is `free`, or `overwrite`s the free part.
    #[serde(skip_serializing_if = "is_default")]
    memory: Option<Memory>,
    /// With `memory: free`: the maximum memory in use that counts as free. Default: 128Mi.
    #[serde(skip_serializing_if = "is_default")]
    at_most: Option<Text<Mebibytes>>,
    /// Under `gpu`: resets the `gpu`, unless a GPU linked with it is in use.
    #[serde(skip_serializing_if = "is_default")]
    reset: Option<Reset>,
    /// Under `nics`: waits until the interface is back from the container, and sets it `up`.
    #[serde(skip_serializing_if = "is_default")]
    link: Option<Link>,
    /// Time limit. Default: 5s.
    #[serde(skip_serializing_if = "is_default")]
    timeout: Option<Text<Duration>>,
}

// === impl CleanupSteps ===

impl CleanupSteps {
    /// True if devices are reset.
    pub fn resets(&self) -> bool {
        self.steps().any(|step| matches!(step.action, StepAction::Reset(_)))
    }

    /// True if memory is overwritten.
    pub fn overwrites(&self) -> bool {
        self.steps().any(|step| step.action == StepAction::Overwrite)
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.prepare.iter().chain(&self.release)
    }
}

/// Reads a section with its steps.
pub(crate) fn with_steps<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + HasSteps,
{
    let (mut section, steps): (T, CleanupSteps) = Deserialize::deserialize(deserializer)?;
    section.set_steps(steps);
    Ok(section)
}

/// The only present value; `None` if there is no value or several.
pub(crate) fn only_one<T>(all: impl IntoIterator<Item = Option<T>>) -> Option<T> {
    let mut present = all.into_iter().flatten();
    present.next().filter(|_| present.next().is_none())
}

// === impl Step ===

impl TryFrom<StepKeys> for Step {
    type Error = &'static str;

    fn try_from(keys: StepKeys) -> Result<Self, Self::Error> {
        if keys.write.is_some() != keys.text.is_some() {
            return Err("write and text go together");
        }
        if keys.at_most.is_some() && keys.memory != Some(Memory::Free) {
            return Err("atMost belongs to memory: free");
        }
        let text = keys.text.unwrap_or_default();
        let max_bytes = keys.at_most.map_or(IDLE_MEMORY_BYTES, |Text(Mebibytes(bytes))| bytes);
        let action = only_one([
            keys.http.map(StepAction::Http),
            keys.command.map(StepAction::Command),
            keys.write.map(|file| StepAction::Write { file, text }),
            keys.processes.map(StepAction::Processes),
            keys.memory.map(|memory| match memory {
                Memory::Free => StepAction::Memory { max_bytes },
                Memory::Overwrite => StepAction::Overwrite,
            }),
            keys.reset.map(StepAction::Reset),
            keys.link.map(StepAction::Link),
        ]);
        Ok(Self {
            action: action
                .ok_or("write one of http, command, write, processes, memory, reset, link")?,
            timeout: keys.timeout.map_or(DEFAULT_TIMEOUT, |Text(time)| time),
        })
    }
}

impl From<Step> for StepKeys {
    fn from(Step { action, timeout }: Step) -> Self {
        let timeout = Some(timeout).filter(|timeout| *timeout != DEFAULT_TIMEOUT).map(Text);
        let mut keys = Self { timeout, ..Self::default() };
        match action {
            StepAction::Http(url) => keys.http = Some(url),
            StepAction::Command(command) => keys.command = Some(command),
            StepAction::Write { file, text } => {
                keys.write = Some(file);
                keys.text = Some(text);
            }
            StepAction::Processes(processes) => keys.processes = Some(processes),
            StepAction::Memory { max_bytes } => {
                keys.memory = Some(Memory::Free);
                keys.at_most = Some(max_bytes)
                    .filter(|bytes| *bytes != IDLE_MEMORY_BYTES)
                    .map(Mebibytes)
                    .map(Text);
            }
            StepAction::Overwrite => keys.memory = Some(Memory::Overwrite),
            StepAction::Reset(scope) => keys.reset = Some(scope),
            StepAction::Link(state) => keys.link = Some(state),
        }
        keys
    }
}
