//! Requests to the API server: the product's own client over real HTTP. Only the server is simulated; it keeps the
//! objects that the agent touches as a real one would. Some tests also run against a real one, if there is one.

mod account;
mod admission;
mod api_server;
mod devices;
mod events;
mod kustomize;
mod labels;
mod leases;
mod manifests;
mod node_label;
mod objects;
mod options;
mod parameters;
mod privileges;
mod real;
mod real_parameters;
mod real_slices;
mod slice_store;
mod slices;
mod whole_agent;
