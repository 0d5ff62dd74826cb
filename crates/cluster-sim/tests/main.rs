//! Single binary for all integration tests of the crate: it is linked once.

mod api_server;
mod cluster;
mod kubectl;
mod script;
mod validation;
mod watch_lists;
