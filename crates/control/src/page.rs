//! The page of the cluster: nodes, devices and their holders, for browsers.
//!
//! ```text
//!  index ──changed nodes──> feed ──> board ──document──> site ──> browser
//!                                                         │
//!                            gate ── TokenReview, SubjectAccessReview ──> API server
//! ```
//!
//! # Guarantees
//!
//! The page changes nothing. Its listener has connections of its own, so that readers take none from kube-scheduler.
//! Readers share one look at the index per second, which is taken in steps between which binds go on.

mod feed;
mod gate;
mod site;
mod view;

pub(crate) use self::{
    feed::Feed,
    gate::Gate,
    site::{Guard, PageSite},
};
