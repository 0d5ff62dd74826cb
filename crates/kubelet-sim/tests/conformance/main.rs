//! The conformance catalogue of the device plugin API, played against the embedded kubelet with a
//! plugin that speaks the real protocol. Numbers in comments are the catalogue's.

mod allocation;
mod authority;
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
