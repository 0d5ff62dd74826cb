//! MPS daemons as real processes: the control program of a simulated machine, which crashes, hangs and refuses on
//! demand.

mod clients;
mod daemon_lifecycle;
mod rig;
mod start_failures;
