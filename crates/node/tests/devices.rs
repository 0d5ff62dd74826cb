//! Devices of every kind: the real agent on simulated hosts, with the embedded kubelet.

mod amd;
mod boards;
mod cleanup;
mod darwin3;
mod dmem;
mod fpga;
mod gateway;
mod generic;
mod golden;
mod imports;
mod intel;
mod nvme;
mod profiles;
mod rdma;
pub(crate) mod world;
