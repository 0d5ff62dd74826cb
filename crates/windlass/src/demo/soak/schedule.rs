//! What happens in a soak, as data: a seed makes one endless list of steps, and always the same.
//!
//! A step says `which` pod or GPU by a number that is taken modulo how many there are when it is carried
//! out: so the list depends on nothing but the seed.

use std::time::Duration;

use serde::Serialize;

use super::chance::Chance;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// A pod with so many GPUs comes.
    Admit { gpus: usize },
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
    /// SIGKILL so long after the first write to its folders while a pod is admitted, and a new process.
    AgentKilledAtWrite { gpus: usize, after: Duration },
    /// SIGSTOP for a while, in which a pod comes.
    AgentFrozen { gpus: usize, lasts: Duration },
    /// So many notices from the kubelet's folder while it is frozen that the kernel drops some.
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
    /// A broken GPU is reset.
    GpuReset { which: usize },
    /// A GPU answers late, and late again.
    GpuSlow { which: usize, by: Duration },
    /// The driver tells of so many errors of a GPU at once.
    XidStorm { which: usize, events: usize },
    /// A GPU vanishes, and comes back with another index and another minor number.
    GpuRenumbered { which: usize },
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
pub(super) struct Schedule(Chance);

/// Pods ask for at most so many GPUs.
const MOST_GPUS: usize = 3;

/// How many events the driver tells in a storm.
const STORM: usize = 10_000;

/// Each blow has so many chances of these; one that takes ten seconds to recover from has one.
const BLOWS: usize = 41;

// === impl Schedule ===

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        Self(Chance::new(seed))
    }

    fn gpus(&mut self) -> usize {
        1 + self.0.below(MOST_GPUS)
    }

    fn up_to_ms(&mut self, most: usize) -> Duration {
        Duration::from_millis(self.0.below(most) as u64)
    }

    fn blow(&mut self) -> Blow {
        let which = self.0.below(usize::MAX);
        match self.0.below(BLOWS) {
            0..3 => Blow::AgentKilled,
            3..8 => Blow::AgentKilledAtWrite {
                gpus: self.gpus(),
                after: Duration::from_micros(self.0.below(5_000) as u64),
            },
            8..10 => Blow::AgentFrozen { gpus: self.gpus(), lasts: self.up_to_ms(2_000) },
            10 => Blow::NoticesLost,
            11..13 => Blow::KubeletRestarts { times: 1 },
            13..15 => Blow::KubeletRestarts { times: 2 + self.0.below(6) },
            15 => Blow::PluginFolderRemoved,
            16..18 => Blow::PluginSocketsDeleted,
            18..20 => Blow::RegistrationSocketReplaced { times: 1 + self.0.below(5) },
            20 => Blow::RegistrationFails { hangs: [Hangs::No, Hangs::Yes][self.0.below(2)] },
            21..23 => Blow::StreamCut,
            23..25 => Blow::StateFolderBlocked { gpus: self.gpus() },
            25..27 => Blow::DiskFull { gpus: self.gpus() },
            27 => Blow::CdiFolderRemoved,
            28 => Blow::DriverReplaced,
            29..34 => Blow::GpuBroken {
                which,
                how: [Break::Lost, Break::Hang, Break::Error][self.0.below(3)],
            },
            34..38 => Blow::GpuReset { which },
            38 => Blow::GpuSlow { which, by: self.up_to_ms(300) },
            39 => Blow::XidStorm { which, events: STORM },
            _ => Blow::GpuRenumbered { which },
        }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(match self.0.below(100) {
            0..40 => Step::Admit { gpus: self.gpus() },
            40..75 => Step::Delete { which: self.0.below(usize::MAX) },
            75..78 => Step::Count,
            _ => Step::Strike(self.blow()),
        })
    }
}

// === impl Blow ===

impl Blow {
    /// Whether the agent must register again, rather than go on as it was.
    pub(super) fn takes_a_registration(&self) -> bool {
        matches!(
            self,
            Self::AgentKilled
                | Self::AgentKilledAtWrite { .. }
                | Self::NoticesLost
                | Self::KubeletRestarts { .. }
                | Self::PluginFolderRemoved
                | Self::PluginSocketsDeleted
                | Self::RegistrationSocketReplaced { .. }
                | Self::RegistrationFails { .. }
                | Self::StreamCut
        )
    }

    /// What the table calls it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::AgentKilled => "agent killed",
            Self::AgentKilledAtWrite { .. } => "agent killed while it writes",
            Self::AgentFrozen { .. } => "agent frozen",
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
            Self::GpuReset { .. } => "GPU reset",
            Self::GpuSlow { .. } => "GPU slow",
            Self::XidStorm { .. } => "XID storm",
            Self::GpuRenumbered { .. } => "GPU renumbered",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn first(seed: u64, count: usize) -> Vec<Step> {
        Schedule::new(seed).take(count).collect()
    }

    #[test]
    fn a_seed_makes_the_same_steps_again_and_another_makes_others() {
        assert_eq!(first(7, 500), first(7, 500));
        assert_ne!(first(7, 500), first(8, 500));
    }

    #[test]
    fn every_kind_of_blow_comes_in_a_few_thousand_steps() {
        let steps = first(1, 5_000);
        let kinds: BTreeSet<_> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Strike(blow) => Some(blow.kind()),
                Step::Admit { .. } | Step::Delete { .. } | Step::Count => None,
            })
            .collect();
        assert_eq!(kinds.len(), 23, "{kinds:?}");
    }
}
