//! Results of a soak and their tables.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use windlass_conformance::process::Usage;

use crate::screen::Table;

/// Counts and measurements so far.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tally {
    pub(super) steps: usize,
    pub(super) admitted: usize,
    pub(super) claims: usize,
    pub(super) gpus_given: usize,
    /// Pods that requested more GPUs than were free, or that a fault affected.
    pub(super) refused: usize,
    /// Comparisons of holders.
    pub(super) counts: usize,
    /// Number of agent processes after the first.
    pub(super) agent_restarts: usize,
    pub(super) killed_during_calls: usize,
    /// Kills after which the call failed: the agent had not answered.
    pub(super) killed_before_answers: usize,
    /// Longest observation of one process.
    pub(super) longest_life_s: u64,
    /// Faults that this host does not allow, with the reason.
    pub(super) left_out: BTreeMap<&'static str, String>,
    /// Slowest admission without a fault.
    pub(super) worst_allocate_ms: f64,
    /// Slowest preparation of a claim.
    pub(super) worst_prepare_ms: f64,
    pub(super) faults: BTreeMap<&'static str, FaultStats>,
    pub(super) at_start: Usage,
    pub(super) at_end: Usage,
    pub(super) most: Usage,
}

/// Results of one kind of fault.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FaultStats {
    pub(super) times: usize,
    /// Slowest recovery, from the end of the fault.
    pub(super) worst_recovery_ms: f64,
}

// === impl Tally ===

impl Tally {
    pub(super) fn record_fault(&mut self, kind: &'static str, recovery: Duration) {
        let stats = self.faults.entry(kind).or_default();
        stats.times += 1;
        stats.worst_recovery_ms = stats.worst_recovery_ms.max(ms(recovery));
    }

    /// Counts a kill during a call; `failed` if the call failed.
    pub(super) fn record_kill(&mut self, failed: bool) {
        self.killed_during_calls += 1;
        self.killed_before_answers += usize::from(failed);
    }

    pub(super) fn record_admission(&mut self, duration: Duration) {
        self.worst_allocate_ms = self.worst_allocate_ms.max(ms(duration));
    }

    pub(super) fn record_preparation(&mut self, duration: Duration) {
        self.worst_prepare_ms = self.worst_prepare_ms.max(ms(duration));
    }

    pub(super) fn record_usage(&mut self, usage: Usage) {
        self.at_end = usage;
        self.most = Usage {
            resident_kib: self.most.resident_kib.max(usage.resident_kib),
            descriptors: self.most.descriptors.max(usage.descriptors),
            threads: self.most.threads.max(usage.threads),
        };
    }

    pub(super) fn fault_count(&self) -> usize {
        self.faults.values().map(|stats| stats.times).sum()
    }

    /// Tables of pods, faults and process.
    pub(super) fn tables(&self) -> [Table; 3] {
        [self.pod_table(), self.fault_table(), self.process_table()]
    }

    fn pod_table(&self) -> Table {
        let mut table = Table::new(["PODS", ""]);
        table.add_row(["admitted".into(), self.admitted.to_string()]);
        if self.claims > 0 {
            table.add_row(["started with claims".into(), self.claims.to_string()]);
        }
        table.add_row(["GPUs given to them".into(), self.gpus_given.to_string()]);
        table.add_row(["refused".into(), self.refused.to_string()]);
        table.add_row(["slowest admission".into(), format!("{:.1} ms", self.worst_allocate_ms)]);
        if self.claims > 0 {
            let prepare = format!("{:.1} ms", self.worst_prepare_ms);
            table.add_row(["slowest preparation of a claim".into(), prepare]);
        }
        table.add_row(["holders compared".into(), self.counts.to_string()]);
        let (kills, early) = (self.killed_during_calls, self.killed_before_answers);
        let kills = format!("{kills}, {early} of them before its answer");
        table.add_row(["agent killed during a call".into(), kills]);
        table.add_row(["longest life of a process".into(), format!("{} s", self.longest_life_s)]);
        table
    }

    fn fault_table(&self) -> Table {
        let mut table = Table::new(["FAULT", "TIMES", "SLOWEST RECOVERY"]);
        for (kind, FaultStats { times, worst_recovery_ms }) in &self.faults {
            let recovery = format!("{worst_recovery_ms:.1} ms");
            table.add_row([(*kind).to_owned(), times.to_string(), recovery]);
        }
        for (kind, why) in &self.left_out {
            table.add_row([(*kind).to_owned(), "left out".to_owned(), why.clone()]);
        }
        table
    }

    fn process_table(&self) -> Table {
        let mut table = Table::new(["AGENT", "MEMORY", "DESCRIPTORS", "THREADS"]);
        let rows =
            [("at the start", self.at_start), ("at the end", self.at_end), ("most", self.most)];
        for (label, Usage { resident_kib, descriptors, threads }) in rows {
            let mib = (resident_kib + 512) / 1024;
            table.add_row([
                label.to_owned(),
                format!("{mib} MiB"),
                descriptors.to_string(),
                threads.to_string(),
            ]);
        }
        table
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
