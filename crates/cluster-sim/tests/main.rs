//! One program for all of the crate's integration tests: it is linked once.

mod allocation;
mod api_server;
mod cluster;
mod kubectl;
mod script;
mod validation;
mod watch_lists;
