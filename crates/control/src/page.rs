//! Web page of the cluster: nodes, devices and their holders.
//!
//! ```text
//!  index ──changed nodes──> feed ──> board ──document──> site ──> browser
//!                                                         │
//!                            gate ── TokenReview, SubjectAccessReview ──> API server
//! ```
//!
//! # Guarantees
//!
//! The page is read-only. Its listener has its own connection limit, so that readers take no connection from
//! kube-scheduler. All readers share one read of the index per second. The read is split into steps, and binds run
//! between them.

mod feed;
mod gate;
mod site;
mod view;

pub(crate) use self::{
    feed::Feed,
    gate::Gate,
    site::{Guard, PageSite},
};
