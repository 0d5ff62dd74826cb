//! Measurements of a device at one moment.

use std::collections::BTreeSet;

use jiff::Timestamp;

/// Measurements of a device; unsupported ones are absent. Counters start at zero when the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time of the read.
    pub read_at: Timestamp,
    /// Time after which the sample is stale.
    pub stale_at: Timestamp,
    /// Used memory.
    pub memory_used_bytes: Option<u64>,
    /// Total memory.
    pub memory_bytes: Option<u64>,
    /// Share of time in which kernels ran.
    pub compute_percent: Option<u32>,
    /// Share of time in which memory was accessed.
    pub memory_percent: Option<u32>,
    /// Temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// Temperature of the memory.
    pub memory_temperature_celsius: Option<u32>,
    /// Power draw.
    pub power_milliwatts: Option<u64>,
    /// Power limit in force.
    pub power_limit_milliwatts: Option<u64>,
    /// Energy drawn.
    pub energy_millijoules: Option<u64>,
    /// Clock of the compute units.
    pub compute_clock_hertz: Option<u64>,
    /// Clock of the memory.
    pub memory_clock_hertz: Option<u64>,
    /// Reasons for reduced clocks; empty if the clocks are not reduced.
    pub throttled: Option<BTreeSet<ThrottleReason>>,
    /// Current PCIe generation of the link.
    pub pcie_generation: Option<u32>,
    /// Lanes of the PCIe link.
    pub pcie_width: Option<u32>,
    /// PCIe packets that were retransmitted.
    pub pcie_replays: Option<u64>,
    /// Memory errors that ECC corrected.
    pub corrected_errors: Option<u64>,
    /// Memory errors that ECC could not correct.
    pub uncorrected_errors: Option<u64>,
    /// Memory rows that were replaced by spare rows.
    pub remapped_rows: Option<RemappedRows>,
    /// NVLinks of a GPU that has any.
    pub nvlinks: Option<NvLinkSample>,
    /// Ports of a network function's RDMA device.
    pub ports: Vec<PortSample>,
}

/// Reason for reduced clocks. Idle clocks and clocks that an operator set do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThrottleReason {
    /// The hardware reduces its clocks because of temperature or power.
    HwSlowdown,
    /// The hardware reduces its clocks to protect itself from overheating.
    HwThermal,
    /// The driver reduces the clocks to stay below a temperature limit.
    SwThermal,
    /// The board is at its power limit, which is normal for a busy GPU.
    PowerCap,
    /// The power supply asserts the power brake signal.
    PowerBrake,
}

/// Memory rows that were replaced by spare rows over the life of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedRows {
    /// Rows replaced after corrected errors.
    pub corrected: u32,
    /// Rows replaced after uncorrected errors.
    pub uncorrected: u32,
    /// A row waits for the next reset.
    pub pending: bool,
    /// A row could not be replaced and stays in use.
    pub failed: bool,
}

/// NVLinks of a GPU, with traffic and errors of all links together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvLinkSample {
    /// Active links.
    pub up: usize,
    /// Links that were active at some time since the start of the agent and are down now.
    pub down: usize,
    /// Bytes sent.
    pub sent_bytes: Option<u64>,
    /// Bytes received.
    pub received_bytes: Option<u64>,
    /// Checksum errors of flow control units.
    pub crc_flit_errors: Option<u64>,
    /// Checksum errors of data.
    pub crc_data_errors: Option<u64>,
    /// Retransmitted packets.
    pub replays: Option<u64>,
    /// Retrained links.
    pub recoveries: Option<u64>,
}

/// A port of an RDMA device. Its counters start at zero when the driver is loaded, or at a reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSample {
    /// Number of the port, from 1.
    pub port: String,
    /// True if the port is active.
    pub is_active: Option<bool>,
    /// Bytes received, of all virtual lanes.
    pub received_bytes: Option<u64>,
    /// Bytes sent, of all virtual lanes.
    pub sent_bytes: Option<u64>,
    /// Packets received with an error.
    pub receive_errors: Option<u64>,
    /// Packets that were not sent: the port was down or congested.
    pub send_discards: Option<u64>,
    /// Errors of symbols on the wire.
    pub symbol_errors: Option<u64>,
    /// Successful recoveries of the link.
    pub link_recoveries: Option<u64>,
    /// Failed recoveries, after which the link went down.
    pub link_downs: Option<u64>,
}
