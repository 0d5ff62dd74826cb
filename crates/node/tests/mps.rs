//! MPS daemons as real processes: the control program of a simulated machine, which can be made to
//! crash, hang and refuse.

mod clients;
mod life;
mod refused;
mod rig;
