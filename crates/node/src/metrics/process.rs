//! Resource use of the agent's process, under the standard names of Prometheus' client libraries.
//!
//! <https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>

use std::fmt;

use jiff::Timestamp;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use windlass_host::own_process::OwnProcess;

use super::family::{FamilyDescriptor, Value};

/// Reads the process at each scrape.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    /// Read once: two reads may differ by a hundredth of a second.
    start_seconds: Option<f64>,
}

const CPU: FamilyDescriptor =
    FamilyDescriptor::new("cpu", "Processor time of the agent, user and system")
        .with_unit("seconds");
const RESIDENT: FamilyDescriptor =
    FamilyDescriptor::new("resident_memory", "Resident memory of the agent").with_unit("bytes");
const OPEN_FDS: FamilyDescriptor =
    FamilyDescriptor::new("open_fds", "Open file descriptors of the agent");
const MAX_FDS: FamilyDescriptor =
    FamilyDescriptor::new("max_fds", "Most file descriptors that the agent may open");
const START: FamilyDescriptor =
    FamilyDescriptor::new("start_time", "Start of the agent in Unix time").with_unit("seconds");

// === impl ProcessCollector ===

impl ProcessCollector {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { start_seconds: OwnProcess::start_seconds(now) }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let OwnProcess { cpu_seconds, resident_bytes, open_fds, max_fds } = OwnProcess::read();
        let without_labels = |value| (Vec::new(), value);
        CPU.counters(&mut encoder, cpu_seconds.map(Value::Float).map(without_labels))?;
        RESIDENT.gauges(&mut encoder, resident_bytes.map(Value::Integer).map(without_labels))?;
        OPEN_FDS.gauges(&mut encoder, open_fds.map(Value::Integer).map(without_labels))?;
        MAX_FDS.gauges(&mut encoder, max_fds.map(Value::Integer).map(without_labels))?;
        START.gauges(&mut encoder, self.start_seconds.map(Value::Float).map(without_labels))
    }
}
