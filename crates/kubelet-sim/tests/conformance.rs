//! The conformance catalogue of the device plugin API, played against the embedded kubelet with a
//! plugin that speaks the real protocol, numbers in comments being the catalogue's; and what a DRA
//! driver meets, in `dra`.

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
