//! What a soak has seen so far, and the tables that it ends in.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use windlass_conformance::process::Usage;

use crate::screen::Table;

/// Counted and measured so far.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tally {
    pub(super) steps: usize,
    /// Pods that were given GPUs.
    pub(super) admitted: usize,
    /// Pods whose claims were prepared.
    pub(super) claims: usize,
    /// GPUs that were given.
    pub(super) gpus_given: usize,
    /// Pods that asked for more than was free, or came while something was broken that they need.
    pub(super) refused: usize,
    /// How often it was counted who holds what.
    pub(super) counts: usize,
    /// Processes of the agent after the first.
    pub(super) agent_restarts: usize,
    /// How often the agent was killed during a call of the kubelet.
    pub(super) killed_during_calls: usize,
    /// How often of these it had not answered.
    pub(super) killed_before_answers: usize,
    /// The longest that one process of the agent was watched.
    pub(super) longest_life_s: u64,
    /// Faults that this host does not allow, and why.
    pub(super) left_out: BTreeMap<&'static str, String>,
    /// The longest admission, by the kubelet's clock; nothing was wrong with the agent then.
    pub(super) worst_allocate_ms: f64,
    /// The longest preparation of a claim.
    pub(super) worst_prepare_ms: f64,
    /// By kind.
    pub(super) faults: BTreeMap<&'static str, Struck>,
    pub(super) at_start: Measured,
    pub(super) at_end: Measured,
    pub(super) most: Measured,
}

/// What is known of a kind of fault.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Struck {
    pub(super) times: usize,
    /// From the end of the fault until everything was as it should be.
    pub(super) worst_recovery_ms: f64,
}

/// What the agent's process takes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Measured {
    pub(super) resident_kib: u64,
    pub(super) descriptors: usize,
    pub(super) threads: u64,
}

// === impl Tally ===

impl Tally {
    pub(super) fn struck(&mut self, kind: &'static str, recovery: Duration) {
        let struck = self.faults.entry(kind).or_default();
        struck.times += 1;
        struck.worst_recovery_ms = struck.worst_recovery_ms.max(ms(recovery));
    }

    /// The agent was killed during a call of the kubelet, which failed for that or not.
    pub(super) fn killed_during_a_call(&mut self, failed: bool) {
        self.killed_during_calls += 1;
        self.killed_before_answers += usize::from(failed);
    }

    pub(super) fn admission_took(&mut self, took: Duration) {
        self.worst_allocate_ms = self.worst_allocate_ms.max(ms(took));
    }

    pub(super) fn preparation_took(&mut self, took: Duration) {
        self.worst_prepare_ms = self.worst_prepare_ms.max(ms(took));
    }

    pub(super) fn measure(&mut self, usage: Usage) {
        self.at_end = usage.into();
        self.most = self.most.or_more(self.at_end);
    }

    /// How many faults there were.
    pub(super) fn struck_in_all(&self) -> usize {
        self.faults.values().map(|struck| struck.times).sum()
    }

    /// What happened, and what it took.
    pub(super) fn tables(&self) -> [Table; 3] {
        [self.work(), self.blows(), self.process()]
    }

    fn work(&self) -> Table {
        let mut table = Table::new(["PODS", ""]);
        table.row(["admitted".into(), self.admitted.to_string()]);
        if self.claims > 0 {
            table.row(["started with claims".into(), self.claims.to_string()]);
        }
        table.row(["GPUs given to them".into(), self.gpus_given.to_string()]);
        table.row(["refused".into(), self.refused.to_string()]);
        table.row(["slowest admission".into(), format!("{:.1} ms", self.worst_allocate_ms)]);
        if self.claims > 0 {
            let prepare = format!("{:.1} ms", self.worst_prepare_ms);
            table.row(["slowest preparation of a claim".into(), prepare]);
        }
        table.row(["holders compared".into(), self.counts.to_string()]);
        let (kills, early) = (self.killed_during_calls, self.killed_before_answers);
        let kills = format!("{kills}, {early} of them before its answer");
        table.row(["agent killed during a call".into(), kills]);
        table.row(["longest life of a process".into(), format!("{} s", self.longest_life_s)]);
        table
    }

    fn blows(&self) -> Table {
        let mut table = Table::new(["FAULT", "TIMES", "SLOWEST RECOVERY"]);
        for (kind, Struck { times, worst_recovery_ms }) in &self.faults {
            let recovery = format!("{worst_recovery_ms:.1} ms");
            table.row([(*kind).to_owned(), times.to_string(), recovery]);
        }
        for (kind, why) in &self.left_out {
            table.row([(*kind).to_owned(), "left out".to_owned(), why.clone()]);
        }
        table
    }

    fn process(&self) -> Table {
        let mut table = Table::new(["AGENT", "MEMORY", "DESCRIPTORS", "THREADS"]);
        let rows =
            [("at the start", self.at_start), ("at the end", self.at_end), ("most", self.most)];
        for (when, Measured { resident_kib, descriptors, threads }) in rows {
            let mib = (resident_kib + 512) / 1024;
            let cells = [format!("{mib} MiB"), descriptors.to_string(), threads.to_string()];
            let [memory, descriptors, threads] = cells;
            table.row([when.to_owned(), memory, descriptors, threads]);
        }
        table
    }
}

// === impl Measured ===

impl Measured {
    fn or_more(self, other: Self) -> Self {
        Self {
            resident_kib: self.resident_kib.max(other.resident_kib),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }
}

impl From<Usage> for Measured {
    fn from(usage: Usage) -> Self {
        let Usage { descriptors, resident_kib, threads } = usage;
        Self { resident_kib, descriptors, threads }
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
