//! Conformance tests of the device plugin API: the embedded kubelet against a plugin that speaks
//! the real protocol. Numbers in comments are rows of the conformance catalogue. `dra` tests the
//! DRA manager with a driver.

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
