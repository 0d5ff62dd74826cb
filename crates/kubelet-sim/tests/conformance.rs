//! Conformance tests of the embedded kubelet. A scripted plugin speaks the device plugin API over real
//! sockets, and a scripted driver the DRA API (`dra`).

mod allocation;
mod authority;
mod dra;
mod list_and_watch;
mod plugin;
mod pod_resources;
mod preference;
mod real_plugin;
mod registration;
mod restart;
mod start;
mod support;
mod topology;
