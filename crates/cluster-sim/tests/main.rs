//! All integration tests of the crate, in one binary to link only once.

mod api_server;
mod cluster;
mod kubectl;
mod script;
mod validation;
mod watch_lists;
