//! The extender against the embedded API server.

mod agents;
mod binding;
mod claim_ranks;
mod claims;
mod competing_gangs;
mod extender_page;
mod gangs;
mod model;
mod page;
mod pending_events;
mod read_only_verbs;
mod rig;
mod several_vendors;
mod virtual_gpus;
