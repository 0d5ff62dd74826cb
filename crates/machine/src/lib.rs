//! Simulated machines: a profile in YAML becomes a fake host tree and a model of GPUs, with faults.
//!
//! [`Machine::create`] makes a folder that looks like a host: `host/` with sysfs, procfs and device nodes,
//! `libnvidia-ml.so.1`, and `state.json`. The library reads the state at each call. [`Machine::inject`]
//! changes the state, and with it the library's answers.
//!
//! ```no_run
//! use std::path::Path;
//! use windlass_machine::{Machine, MachineProfile, find_driver};
//!
//! let profile = MachineProfile::named("dgx-h100")?;
//! let machine = Machine::create(Path::new("/tmp/m"), &profile, &find_driver()?)?;
//! machine.inject(&"xid:79@3".parse()?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use board::{Board, BoardAddresses, BoardEvent, BoardFault};
pub use card::{Architecture, Brand, Card};
pub use driver::{driver_from_env, find_driver};
pub use fault::{DeviceEvent, Fault, FaultSyntaxError};
pub use machine::{Machine, MachineError};
pub use memory_limits::{CgroupLimits, LimitFault};
pub use mig::MigError;
pub use mps::MpsFault;
pub use profile::{Attached, MachineProfile, ProfileError};
pub use state::Model;

mod amd;
pub mod board;
pub mod card;
pub mod cpus;
mod driver;
pub mod fault;
mod installed;
mod machine;
mod memory_limits;
pub mod mig;
mod mps;
pub mod pci;
pub mod profile;
pub mod state;
mod tree;
