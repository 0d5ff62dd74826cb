//! The API server's wire: the product's own client over real HTTP; only the API server is ours, and
//! keeps the objects that the agent touches as a real one would. With a real one at hand, it is asked
//! too.

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
