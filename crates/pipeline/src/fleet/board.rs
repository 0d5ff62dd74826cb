//! Profiles of edge boards: CPUs, devices and network, from the manufacturers' data sheets.

use super::NodeLink;
use crate::quantity::{BitRate, Seconds};

/// Profile of a board.
#[derive(Clone, Copy, Debug)]
pub struct BoardProfile {
    /// Name in boards files.
    pub name: &'static str,
    /// One-line description, for display.
    pub description: &'static str,
    /// CPU cores.
    pub cpus: u32,
    /// Memory of the common model, in GiB.
    pub memory_gib: u32,
    /// Extended resources, each with its number of devices.
    pub devices: &'static [(&'static str, u32)],
    /// Rate of the network port in bits per second.
    pub rate: f64,
}

/// One-way delay in seconds through a switch on a local network.
const DELAY: f64 = 0.000_1;

// === impl BoardProfile ===

impl BoardProfile {
    /// All profiles.
    pub const ALL: [Self; 7] = [
        Self {
            name: "raspberry-pi-5",
            description: "Raspberry Pi 5: four Cortex-A76, no accelerator",
            cpus: 4,
            memory_gib: 4,
            devices: &[],
            rate: 1e9,
        },
        Self {
            name: "raspberry-pi-5-coral",
            description: "Raspberry Pi 5 with a Coral USB Accelerator",
            cpus: 4,
            memory_gib: 4,
            devices: &[("coral.ai/tpu", 1)],
            rate: 1e9,
        },
        Self {
            name: "coral-dev-board",
            description: "Coral Dev Board: four Cortex-A53, an Edge TPU",
            cpus: 4,
            memory_gib: 1,
            devices: &[("coral.ai/tpu", 1)],
            rate: 1e9,
        },
        Self {
            name: "jetson-orin-nano",
            description: "Jetson Orin Nano: six Cortex-A78AE, an Ampere GPU",
            cpus: 6,
            memory_gib: 8,
            devices: &[("nvidia.com/gpu", 1)],
            rate: 1e9,
        },
        Self {
            name: "rk3588",
            description: "RK3588 board: eight cores, a neural processor of three cores",
            cpus: 8,
            memory_gib: 8,
            devices: &[("windlass.dev/rknpu", 3)],
            rate: 1e9,
        },
        Self {
            name: "darwin3-pc",
            description: "PC with a Darwin3 board",
            cpus: 8,
            memory_gib: 16,
            devices: &[("zj.com/darwin3", 1)],
            rate: 1e9,
        },
        Self {
            name: "kria-k26",
            description: "Kria K26: four Cortex-A53, programmable logic",
            cpus: 4,
            memory_gib: 4,
            devices: &[("windlass.dev/fpga-xilinx-zynqmp", 1)],
            rate: 1e9,
        },
    ];

    /// Looks a profile up by its name.
    pub fn named(name: &str) -> Option<&'static Self> {
        const ALL: &[BoardProfile] = &BoardProfile::ALL;
        ALL.iter().find(|board| board.name == name)
    }

    /// Link through the board's network port.
    pub fn link(&self) -> NodeLink {
        NodeLink { rate: BitRate(self.rate), delay: Seconds(DELAY) }
    }
}
