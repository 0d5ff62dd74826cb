//! Web page of the cluster: nodes, devices and their holders.
//!
//! ```text
//!  Index ──changed nodes──> Feed ──> PageState ──document──> PageHandler ──> browser
//!                                                                 │
//!                              Authorizer ── TokenReview, SubjectAccessReview ──> API server
//! ```
//!
//! # Guarantees
//!
//! The page is read-only. Its listener has its own connection limit, so readers cannot use up kube-scheduler's
//! connections. All readers share one read of the index per second. The read is split into steps, and binds run
//! between the steps.

mod feed;
mod gate;
mod site;
mod view;

pub(crate) use self::{
    feed::Feed,
    gate::Authorizer,
    site::{AccessPolicy, PageHandler},
};
