//! Schedule of a soak: an endless list of steps, determined by the seed.
//!
//! A step selects a pod or GPU by a number, taken modulo their count at execution. So the list depends on the seed
//! alone.

use std::{collections::BTreeSet, fmt, time::Duration};

use clap::ValueEnum;
use serde::Serialize;
use windlass_machine::state::EventLog;

use super::{
    agent::CALL_DEADLINE, api_server::ApiServerFault, interference::Interference,
    invariant::MaybeUnhealthy, rng::Rng,
};

/// APIs that allocate GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::demo) enum AllocationApis {
    DevicePlugin,
    /// Device plugin API and claims.
    Both,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// Starts a pod with device plugin GPUs.
    Admit { gpus: usize },
    /// Starts a pod with a claim.
    Claim { gpus: usize },
    /// Deletes a pod, chosen by a random number.
    Delete { which: usize },
    /// Compares the holders according to kubelet and agent.
    Count,
    /// Injects a fault.
    Inject(Fault),
}

/// Fault of the agent or of its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Fault {
    /// SIGKILL, then a new process.
    AgentKilled,
    /// SIGKILL during an admission, `after` its start, then a new process.
    AgentKilledAtAdmission { gpus: usize, after: Duration },
    /// SIGKILL during a preparation, `after` its start, then a new process.
    AgentKilledAtPrepare { gpus: usize, after: Duration },
    /// SIGKILL, then a new process without the record of claims.
    RecordLost,
    /// SIGSTOP for a while, during which a pod starts.
    AgentFrozen { gpus: usize, duration: Duration },
    /// SIGSTOP while calls to a slow GPU are in progress.
    AgentFrozenInCalls { which: usize, delay: Duration, gpus: usize, duration: Duration },
    /// Replacement of the plugin folder while the agent is stopped and its inotify queue overflows. Then
    /// `kubelet.sock` is bound again there.
    NoticesLost,
    /// Restart of a kubelet that cannot reach its API server for a while: pod resources lists static pods only.
    KubeletCutOff,
    /// Restarts of the kubelet in a row.
    KubeletRestarts { times: usize },
    /// Removal of the plugin folder until the kubelet restarts.
    PluginFolderRemoved,
    /// Deletion of the plugins' sockets, without a restart.
    PluginSocketsDeleted,
    /// Repeated replacement of `kubelet.sock`.
    RegistrationSocketReplaced { times: usize },
    /// Refused or unanswered registrations during a restart of the kubelet.
    RegistrationFails { how: RegistrationFailure },
    /// A closed connection to the agent.
    StreamCut,
    /// A file in place of the state folder, while pods start.
    StateFolderBlocked { gpus: usize },
    /// Writes fail (`RLIMIT_FSIZE`), while pods start.
    DiskFull { gpus: usize },
    /// Removal of the CDI folder.
    CdiFolderRemoved,
    /// The driver is unloaded and installed again.
    DriverReplaced,
    /// A GPU is broken until a later step.
    GpuBroken { which: usize, how: GpuFailure },
    /// The driver ends the agent's process at the next call to a GPU.
    DriverCrashes { which: usize },
    /// A broken GPU is reset.
    GpuReset { which: usize },
    /// Slow calls to a GPU.
    GpuSlow { which: usize, delay: Duration },
    /// Bursts of XID events of a GPU within a second.
    XidStorm { which: usize, bursts: u32, events: usize },
    /// A GPU vanishes, which changes the indices of others, and returns with another minor number.
    GpuRenumbered { which: usize },
    /// A NIC is removed and added repeatedly while the agent scans sysfs.
    NicFlaps { which: usize, times: usize },
    /// Interference with the agent's HTTP server, files and device nodes.
    Interference { what: Interference, which: usize, gpus: usize },
    /// A fault of the API server, while pods start.
    Server { what: ApiServerFault, gpus: usize },
}

/// Failure of calls to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(super) enum GpuFailure {
    /// The GPU has fallen off the bus.
    Lost,
    /// Calls do not return.
    Hang,
    /// Calls return `NVML_ERROR_IRQ_ISSUE`.
    Error,
    /// Calls succeed with invalid data.
    Garbage,
}

/// Failure of a registration at the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum RegistrationFailure {
    /// The kubelet answers with an error.
    Refused,
    /// The kubelet does not answer.
    Unanswered,
}

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    rng: Rng,
    apis: AllocationApis,
}

/// Maximum number of GPUs per pod.
const MAX_GPUS: usize = 3;

/// XID events per burst.
const EVENTS_PER_BURST: usize = 1_000;

// The machine keeps all events for a late reader.
const _: () = assert!(EVENTS_PER_BURST < EventLog::CAPACITY);

/// Bursts per storm, which lasts a second.
const BURSTS_PER_STORM: u32 = 10;

/// Maximum number of removals of a NIC.
const MAX_FLAPS: usize = 40;

/// Typical duration of an admission. Kills within it come before, between and after the agent's two answers.
const ADMISSION_DURATION: Duration = Duration::from_millis(4);

/// Typical duration of a preparation, with one API request and two file writes.
const PREPARATION_DURATION: Duration = Duration::from_millis(12);

/// Minimum duration of a call to a slow GPU, so that some are in progress.
const MIN_SLOW_CALL: Duration = Duration::from_millis(100);

/// Sum of the weights of all faults. A fault whose recovery takes ten seconds has weight 1.
const FAULT_WEIGHTS: usize = 57;

/// Additional weights of faults that concern claims.
const CLAIM_FAULT_WEIGHTS: usize = 22;

// === impl AllocationApis ===

impl fmt::Display for AllocationApis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DevicePlugin => "",
            Self::Both => " with claims",
        })
    }
}

// === impl Schedule ===

impl Schedule {
    pub(super) fn new(seed: u64, apis: AllocationApis) -> Self {
        Self { rng: Rng::new(seed), apis }
    }

    fn gpus(&mut self) -> usize {
        1 + self.rng.below(MAX_GPUS)
    }

    fn random_value<T: ValueEnum>(&mut self) -> T {
        let variants = T::value_variants();
        variants[self.rng.below(variants.len())].clone()
    }

    fn up_to_ms(&mut self, limit_ms: usize) -> Duration {
        Duration::from_millis(self.rng.below(limit_ms) as u64)
    }

    fn random_fault(&mut self) -> Fault {
        let which = self.rng.below(usize::MAX);
        let weights = match self.apis {
            AllocationApis::DevicePlugin => FAULT_WEIGHTS,
            AllocationApis::Both => FAULT_WEIGHTS + CLAIM_FAULT_WEIGHTS,
        };
        match self.rng.below(weights) {
            0..3 => Fault::AgentKilled,
            3..8 => {
                let after = self.random_delay(ADMISSION_DURATION);
                Fault::AgentKilledAtAdmission { gpus: self.gpus(), after }
            }
            8..10 => Fault::AgentFrozen { gpus: self.gpus(), duration: self.up_to_ms(2_000) },
            10 => Fault::NoticesLost,
            12 if self.apis == AllocationApis::Both => Fault::KubeletCutOff,
            11..13 => Fault::KubeletRestarts { times: 1 },
            13..15 => Fault::KubeletRestarts { times: 2 + self.rng.below(6) },
            15 => Fault::PluginFolderRemoved,
            16..18 => Fault::PluginSocketsDeleted,
            18..20 => Fault::RegistrationSocketReplaced { times: 1 + self.rng.below(5) },
            20 => Fault::RegistrationFails {
                how: [RegistrationFailure::Refused, RegistrationFailure::Unanswered]
                    [self.rng.below(2)],
            },
            21..23 => Fault::StreamCut,
            23..25 => Fault::StateFolderBlocked { gpus: self.gpus() },
            25..27 => Fault::DiskFull { gpus: self.gpus() },
            27 => Fault::CdiFolderRemoved,
            28 => Fault::DriverReplaced,
            29..34 => Fault::GpuBroken { which, how: self.random_value() },
            34..38 => Fault::GpuReset { which },
            38 => Fault::GpuSlow { which, delay: self.up_to_ms(300) },
            39 => Fault::XidStorm { which, bursts: BURSTS_PER_STORM, events: EVENTS_PER_BURST },
            40 => Fault::GpuRenumbered { which },
            41..43 => Fault::DriverCrashes { which },
            43..45 => Fault::NicFlaps { which, times: 1 + self.rng.below(MAX_FLAPS) },
            45..47 => self.freeze_in_calls(which),
            47..57 => Fault::Interference { what: self.random_value(), which, gpus: self.gpus() },
            57..61 => {
                let after = self.random_delay(PREPARATION_DURATION);
                Fault::AgentKilledAtPrepare { gpus: self.gpus(), after }
            }
            61..63 => Fault::RecordLost,
            _ => Fault::Server { what: self.random_value(), gpus: self.gpus() },
        }
    }

    fn freeze_in_calls(&mut self, which: usize) -> Fault {
        let (delay, gpus) = (MIN_SLOW_CALL + self.up_to_ms(200), self.gpus());
        let duration = CALL_DEADLINE + self.up_to_ms(2_000);
        Fault::AgentFrozenInCalls { which, delay, gpus, duration }
    }

    fn random_delay(&mut self, limit: Duration) -> Duration {
        let micros = usize::try_from(limit.as_micros()).unwrap_or(usize::MAX);
        Duration::from_micros(self.rng.below(micros) as u64)
    }

    fn random_pod_step(&mut self) -> Step {
        let gpus = self.gpus();
        match self.apis {
            AllocationApis::Both if self.rng.below(2) == 0 => Step::Claim { gpus },
            AllocationApis::DevicePlugin | AllocationApis::Both => Step::Admit { gpus },
        }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(match self.rng.below(100) {
            0..40 => self.random_pod_step(),
            40..75 => Step::Delete { which: self.rng.below(usize::MAX) },
            75..78 => Step::Count,
            _ => Step::Inject(self.random_fault()),
        })
    }
}

// === impl Fault ===

impl Fault {
    /// True if the agent has to register again.
    pub(super) fn needs_registration(&self) -> bool {
        self.ends_agent()
            || matches!(
                self,
                Self::NoticesLost
                    | Self::KubeletCutOff
                    | Self::KubeletRestarts { .. }
                    | Self::PluginFolderRemoved
                    | Self::PluginSocketsDeleted
                    | Self::RegistrationSocketReplaced { .. }
                    | Self::RegistrationFails { .. }
                    | Self::StreamCut
                    | Self::Interference { what: Interference::FolderCleaned, .. }
            )
    }

    /// True if the agent's process ends.
    pub(super) fn ends_agent(&self) -> bool {
        matches!(
            self,
            Self::AgentKilled
                | Self::AgentKilledAtAdmission { .. }
                | Self::AgentKilledAtPrepare { .. }
                | Self::RecordLost
                | Self::DriverCrashes { .. }
        )
    }

    /// GPUs that may be reported unhealthy until the recovery. A vanished GPU changes the indices of others: a gap in
    /// docs/reliability.md. Faults of one GPU add it when they are injected.
    pub(super) fn maybe_unhealthy(&self) -> MaybeUnhealthy {
        match self {
            Self::DriverReplaced | Self::GpuRenumbered { .. } => MaybeUnhealthy::All,
            _ if self.needs_registration() => MaybeUnhealthy::All,
            _ => MaybeUnhealthy::Only(BTreeSet::new()),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::AgentKilled => "agent killed",
            Self::AgentKilledAtAdmission { .. } => "agent killed while a pod is admitted",
            Self::AgentKilledAtPrepare { .. } => "agent killed while a claim is prepared",
            Self::RecordLost => "record of claims lost",
            Self::AgentFrozen { .. } => "agent frozen",
            Self::AgentFrozenInCalls { .. } => "agent frozen beside a slow GPU",
            Self::NoticesLost => "notices lost",
            Self::KubeletCutOff => "kubelet restarted without its API server",
            Self::KubeletRestarts { times: 1 } => "kubelet restarted",
            Self::KubeletRestarts { .. } => "kubelet restarted in a storm",
            Self::PluginFolderRemoved => "plugin folder removed",
            Self::PluginSocketsDeleted => "plugin sockets deleted",
            Self::RegistrationSocketReplaced { .. } => "kubelet.sock replaced",
            Self::RegistrationFails { how: RegistrationFailure::Refused } => "registration refused",
            Self::RegistrationFails { how: RegistrationFailure::Unanswered } => {
                "registration hangs"
            }
            Self::StreamCut => "stream cut",
            Self::StateFolderBlocked { .. } => "state folder blocked",
            Self::DiskFull { .. } => "disk full",
            Self::CdiFolderRemoved => "CDI folder removed",
            Self::DriverReplaced => "driver replaced",
            Self::GpuBroken { how: GpuFailure::Lost, .. } => "GPU lost",
            Self::GpuBroken { how: GpuFailure::Hang, .. } => "GPU hangs",
            Self::GpuBroken { how: GpuFailure::Error, .. } => "GPU fails",
            Self::GpuBroken { how: GpuFailure::Garbage, .. } => "GPU tells garbage",
            Self::DriverCrashes { .. } => "driver crashes the agent",
            Self::GpuReset { .. } => "GPU reset",
            Self::GpuSlow { .. } => "GPU slow",
            Self::XidStorm { .. } => "XID storm",
            Self::GpuRenumbered { .. } => "GPU renumbered",
            Self::NicFlaps { .. } => "NIC comes and goes",
            Self::Interference { what, .. } => what.kind(),
            Self::Server { what, .. } => what.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_one_gpu_allows_no_other_gpu_to_be_unhealthy() {
        for &how in GpuFailure::value_variants() {
            let fault = Fault::GpuBroken { which: 0, how };
            assert_eq!(fault.maybe_unhealthy(), MaybeUnhealthy::Only(BTreeSet::new()), "{how:?}");
        }
        assert_eq!(Fault::AgentKilled.maybe_unhealthy(), MaybeUnhealthy::All);
    }

    fn first_steps(seed: u64, count: usize) -> Vec<Step> {
        Schedule::new(seed, AllocationApis::Both).take(count).collect()
    }

    fn kinds(steps: impl Iterator<Item = Step>) -> BTreeSet<&'static str> {
        let kind = |step| match step {
            Step::Inject(fault) => Some(fault.kind()),
            Step::Admit { .. } | Step::Claim { .. } | Step::Delete { .. } | Step::Count => None,
        };
        steps.filter_map(kind).collect()
    }

    #[test]
    fn steps_depend_on_the_seed_alone() {
        assert_eq!(first_steps(7, 500), first_steps(7, 500));
        assert_ne!(first_steps(7, 500), first_steps(8, 500));
    }

    #[test]
    fn every_kind_of_fault_occurs_in_five_thousand_steps() {
        let kinds = |apis| kinds(Schedule::new(1, apis).take(5_000));
        let (plugin, both) = (kinds(AllocationApis::DevicePlugin), kinds(AllocationApis::Both));
        assert_eq!((plugin.len(), both.len()), (33, 50), "{both:?}");
        assert!(both.is_superset(&plugin));
    }
}
