//! What happens in a soak, as data: a seed makes one endless list of steps, and always the same.
//!
//! A step says `which` pod or GPU by a number that is taken modulo how many there are when it is carried
//! out: so the list depends on nothing but the seed.

use std::{collections::BTreeSet, fmt, time::Duration};

use serde::Serialize;
use windlass_machine::state::EventLog;

use super::{
    agent::CALL_DEADLINE, chance::Chance, invariant::Doubted, server::Mischief, strain::Strain,
};

/// Through which of the kubelet's ways pods get GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::demo) enum Ways {
    DevicePlugin,
    /// Through claims too.
    Both,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// A pod with so many GPUs comes.
    Admit { gpus: usize },
    /// A pod with a claim on so many GPUs comes.
    Claim { gpus: usize },
    /// A pod goes.
    Delete { which: usize },
    /// It is counted who holds what, by the kubelet and by the agent.
    Count,
    /// Something bad happens.
    Strike(Blow),
}

/// What can happen to the agent, and to what is around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Blow {
    /// SIGKILL, and a new process.
    AgentKilled,
    /// SIGKILL so long after the kubelet began to admit a pod, and a new process.
    AgentKilledAtAdmission { gpus: usize, after: Duration },
    /// The same while a claim is prepared.
    AgentKilledAtPrepare { gpus: usize, after: Duration },
    /// SIGKILL, and a new process that finds no record of claims.
    RecordLost,
    /// SIGSTOP for a while, in which a pod comes.
    AgentFrozen { gpus: usize, lasts: Duration },
    /// The same while calls to a GPU take so long, so that some are under way.
    AgentFrozenInCalls { which: usize, by: Duration, gpus: usize, lasts: Duration },
    /// While it is frozen, so many notices from the kubelet's folder that the kernel drops the last one: that there is
    /// another folder. Then `kubelet.sock` is bound anew there.
    NoticesLost,
    /// So many restarts of the kubelet in a row.
    KubeletRestarts { times: usize },
    /// The plugin folder with all its sockets is gone until the kubelet restarts.
    PluginFolderRemoved,
    /// The plugins' sockets are deleted, and nobody restarts.
    PluginSocketsDeleted,
    /// `kubelet.sock` is bound anew so many times.
    RegistrationSocketReplaced { times: usize },
    /// The kubelet refuses registrations, or does not answer them, while it restarts.
    RegistrationFails { hangs: Hangs },
    /// The connection to the agent is cut.
    StreamCut,
    /// There is a file where the agent's state folder was, while pods come.
    StateFolderBlocked { gpus: usize },
    /// No file can grow (`RLIMIT_FSIZE`), while pods come.
    DiskFull { gpus: usize },
    /// The folder of CDI documents is gone.
    CdiFolderRemoved,
    /// The driver is unloaded and installed again.
    DriverReplaced,
    /// A GPU is broken until a later step.
    GpuBroken { which: usize, how: Break },
    /// The driver's library ends the agent's process at the next call to a GPU.
    DriverCrashes { which: usize },
    /// A broken GPU is reset.
    GpuReset { which: usize },
    /// A GPU answers late, and late again.
    GpuSlow { which: usize, by: Duration },
    /// The driver tells of errors of a GPU, so many at once, so often within a second.
    XidStorm { which: usize, bursts: u32, events: usize },
    /// A GPU vanishes, so that others have other indices, and comes back with another minor number.
    GpuRenumbered { which: usize },
    /// A network adapter is pulled out and put in so many times, under the agent's looks at sysfs.
    NicFlaps { which: usize, times: usize },
    /// The agent's door, files and nodes are strained.
    Strained { what: Strain, which: usize, gpus: usize },
    /// The API server does something to the agent, while pods come.
    Server { what: Mischief, gpus: usize },
}

/// How calls to a GPU fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Break {
    /// It has fallen off the bus.
    Lost,
    /// They do not return.
    Hang,
    /// They return `NVML_ERROR_IRQ_ISSUE`.
    Error,
    /// They succeed, and write garbage.
    Garbage,
}

/// What a kubelet does that does not register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Hangs {
    /// It answers with an error.
    No,
    /// It does not answer.
    Yes,
}

/// The steps of a seed, without end.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    chance: Chance,
    ways: Ways,
}

/// Pods ask for at most so many GPUs.
const MOST_GPUS: usize = 3;

/// How many events the driver tells in a burst.
const STORM: usize = 1_000;

/// The machine keeps them all for who reads them late.
const _: () = assert!(STORM < EventLog::KEPT);

/// How many bursts are a storm, which lasts a second.
const BURSTS: u32 = 10;

/// How often an adapter comes and goes at most.
const MOST_FLAPS: usize = 40;

/// About what an admission takes, mostly the agent's answers to two calls: a kill within that comes before, between
/// and after them.
const ADMISSION_TAKES: Duration = Duration::from_millis(4);

/// The same of the preparation of a claim, which asks the API server and writes two files.
const PREPARATION_TAKES: Duration = Duration::from_millis(12);

/// What a GPU that is slow takes for a call at least, where calls are to be under way.
const SLOW: Duration = Duration::from_millis(100);

/// Each blow has so many chances of these; one that takes ten seconds to recover from has one.
const BLOWS: usize = 57;

/// Where there are claims, so many more are about them.
const CLAIM_BLOWS: usize = 22;

// === impl Ways ===

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DevicePlugin => "",
            Self::Both => " with claims",
        })
    }
}

// === impl Schedule ===

impl Schedule {
    pub(super) fn new(seed: u64, ways: Ways) -> Self {
        Self { chance: Chance::new(seed), ways }
    }

    fn gpus(&mut self) -> usize {
        1 + self.chance.below(MOST_GPUS)
    }

    fn up_to_ms(&mut self, most: usize) -> Duration {
        Duration::from_millis(self.chance.below(most) as u64)
    }

    fn blow(&mut self) -> Blow {
        let which = self.chance.below(usize::MAX);
        let blows = match self.ways {
            Ways::DevicePlugin => BLOWS,
            Ways::Both => BLOWS + CLAIM_BLOWS,
        };
        match self.chance.below(blows) {
            0..3 => Blow::AgentKilled,
            3..8 => {
                let after = self.moment_within(ADMISSION_TAKES);
                Blow::AgentKilledAtAdmission { gpus: self.gpus(), after }
            }
            8..10 => Blow::AgentFrozen { gpus: self.gpus(), lasts: self.up_to_ms(2_000) },
            10 => Blow::NoticesLost,
            11..13 => Blow::KubeletRestarts { times: 1 },
            13..15 => Blow::KubeletRestarts { times: 2 + self.chance.below(6) },
            15 => Blow::PluginFolderRemoved,
            16..18 => Blow::PluginSocketsDeleted,
            18..20 => Blow::RegistrationSocketReplaced { times: 1 + self.chance.below(5) },
            20 => Blow::RegistrationFails { hangs: [Hangs::No, Hangs::Yes][self.chance.below(2)] },
            21..23 => Blow::StreamCut,
            23..25 => Blow::StateFolderBlocked { gpus: self.gpus() },
            25..27 => Blow::DiskFull { gpus: self.gpus() },
            27 => Blow::CdiFolderRemoved,
            28 => Blow::DriverReplaced,
            29..34 => {
                Blow::GpuBroken { which, how: Break::ALL[self.chance.below(Break::ALL.len())] }
            }
            34..38 => Blow::GpuReset { which },
            38 => Blow::GpuSlow { which, by: self.up_to_ms(300) },
            39 => Blow::XidStorm { which, bursts: BURSTS, events: STORM },
            40 => Blow::GpuRenumbered { which },
            41..43 => Blow::DriverCrashes { which },
            43..45 => Blow::NicFlaps { which, times: 1 + self.chance.below(MOST_FLAPS) },
            45..47 => self.freeze_in_calls(which),
            47..57 => {
                let what = Strain::ALL[self.chance.below(Strain::ALL.len())];
                Blow::Strained { what, which, gpus: self.gpus() }
            }
            57..61 => {
                let after = self.moment_within(PREPARATION_TAKES);
                Blow::AgentKilledAtPrepare { gpus: self.gpus(), after }
            }
            61..63 => Blow::RecordLost,
            _ => Blow::Server {
                what: Mischief::ALL[self.chance.below(Mischief::ALL.len())],
                gpus: self.gpus(),
            },
        }
    }

    fn freeze_in_calls(&mut self, which: usize) -> Blow {
        let (by, gpus) = (SLOW + self.up_to_ms(200), self.gpus());
        let lasts = CALL_DEADLINE + self.up_to_ms(2_000);
        Blow::AgentFrozenInCalls { which, by, gpus, lasts }
    }

    fn moment_within(&mut self, most: Duration) -> Duration {
        let micros = usize::try_from(most.as_micros()).unwrap_or(usize::MAX);
        Duration::from_micros(self.chance.below(micros) as u64)
    }

    fn pod(&mut self) -> Step {
        let gpus = self.gpus();
        match self.ways {
            Ways::Both if self.chance.below(2) == 0 => Step::Claim { gpus },
            Ways::DevicePlugin | Ways::Both => Step::Admit { gpus },
        }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(match self.chance.below(100) {
            0..40 => self.pod(),
            40..75 => Step::Delete { which: self.chance.below(usize::MAX) },
            75..78 => Step::Count,
            _ => Step::Strike(self.blow()),
        })
    }
}

// === impl Break ===

impl Break {
    const ALL: [Self; 4] = [Self::Lost, Self::Hang, Self::Error, Self::Garbage];
}

// === impl Blow ===

impl Blow {
    /// Whether the agent must register again, rather than go on as it was.
    pub(super) fn takes_a_registration(&self) -> bool {
        self.ends_the_agent()
            || matches!(
                self,
                Self::NoticesLost
                    | Self::KubeletRestarts { .. }
                    | Self::PluginFolderRemoved
                    | Self::PluginSocketsDeleted
                    | Self::RegistrationSocketReplaced { .. }
                    | Self::RegistrationFails { .. }
                    | Self::StreamCut
                    | Self::Strained { what: Strain::FolderCleaned, .. }
            )
    }

    /// Whether it ends the agent's process.
    pub(super) fn ends_the_agent(&self) -> bool {
        matches!(
            self,
            Self::AgentKilled
                | Self::AgentKilledAtAdmission { .. }
                | Self::AgentKilledAtPrepare { .. }
                | Self::RecordLost
                | Self::DriverCrashes { .. }
        )
    }

    /// Which GPUs may be told to be unhealthy for it, until the recovery; where it is about one, that is known when it
    /// falls. One that vanishes moves the indices of others: a gap of docs/reliability.md.
    pub(super) fn doubts(&self) -> Doubted {
        match self {
            Self::DriverReplaced | Self::GpuRenumbered { .. } => Doubted::All,
            _ if self.takes_a_registration() => Doubted::All,
            _ => Doubted::These(BTreeSet::new()),
        }
    }

    /// What the table calls it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::AgentKilled => "agent killed",
            Self::AgentKilledAtAdmission { .. } => "agent killed while a pod is admitted",
            Self::AgentKilledAtPrepare { .. } => "agent killed while a claim is prepared",
            Self::RecordLost => "record of claims lost",
            Self::AgentFrozen { .. } => "agent frozen",
            Self::AgentFrozenInCalls { .. } => "agent frozen beside a slow GPU",
            Self::NoticesLost => "notices lost",
            Self::KubeletRestarts { times: 1 } => "kubelet restarted",
            Self::KubeletRestarts { .. } => "kubelet restarted in a storm",
            Self::PluginFolderRemoved => "plugin folder removed",
            Self::PluginSocketsDeleted => "plugin sockets deleted",
            Self::RegistrationSocketReplaced { .. } => "kubelet.sock replaced",
            Self::RegistrationFails { hangs: Hangs::No } => "registration refused",
            Self::RegistrationFails { hangs: Hangs::Yes } => "registration hangs",
            Self::StreamCut => "stream cut",
            Self::StateFolderBlocked { .. } => "state folder blocked",
            Self::DiskFull { .. } => "disk full",
            Self::CdiFolderRemoved => "CDI folder removed",
            Self::DriverReplaced => "driver replaced",
            Self::GpuBroken { how: Break::Lost, .. } => "GPU lost",
            Self::GpuBroken { how: Break::Hang, .. } => "GPU hangs",
            Self::GpuBroken { how: Break::Error, .. } => "GPU fails",
            Self::GpuBroken { how: Break::Garbage, .. } => "GPU tells garbage",
            Self::DriverCrashes { .. } => "driver crashes the agent",
            Self::GpuReset { .. } => "GPU reset",
            Self::GpuSlow { .. } => "GPU slow",
            Self::XidStorm { .. } => "XID storm",
            Self::GpuRenumbered { .. } => "GPU renumbered",
            Self::NicFlaps { .. } => "NIC comes and goes",
            Self::Strained { what, .. } => what.kind(),
            Self::Server { what, .. } => what.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_one_gpu_is_no_reason_to_doubt_the_others() {
        for how in Break::ALL {
            let blow = Blow::GpuBroken { which: 0, how };
            assert_eq!(blow.doubts(), Doubted::These(BTreeSet::new()), "{how:?}");
        }
        assert_eq!(Blow::AgentKilled.doubts(), Doubted::All);
    }

    fn first(seed: u64, count: usize) -> Vec<Step> {
        Schedule::new(seed, Ways::Both).take(count).collect()
    }

    fn kinds(steps: impl Iterator<Item = Step>) -> BTreeSet<&'static str> {
        let kind = |step| match step {
            Step::Strike(blow) => Some(blow.kind()),
            Step::Admit { .. } | Step::Claim { .. } | Step::Delete { .. } | Step::Count => None,
        };
        steps.filter_map(kind).collect()
    }

    #[test]
    fn a_seed_makes_the_same_steps_again_and_another_makes_others() {
        assert_eq!(first(7, 500), first(7, 500));
        assert_ne!(first(7, 500), first(8, 500));
    }

    #[test]
    fn every_kind_of_blow_comes_in_a_few_thousand_steps() {
        let kinds = |ways| kinds(Schedule::new(1, ways).take(5_000));
        let (plugin, both) = (kinds(Ways::DevicePlugin), kinds(Ways::Both));
        assert_eq!((plugin.len(), both.len()), (33, 49), "{both:?}");
        assert!(both.is_superset(&plugin));
    }
}
