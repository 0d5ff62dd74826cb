//! Web page that shows nodes, their devices and the holders of devices.
//!
//! ```text
//!  cluster half ──┐                      ┌─ assets: HTML, CSS, JavaScript modules
//!                 ├─ NodeView ─> PageState ─> Document, or its changes ─> page in a browser
//!  agent ─────────┘                      └─ history: the differences between two views
//! ```
//!
//! A server answers three requests below any prefix: for the page's files, for `state`, and for `state?after=REVISION`.
//! The page uses no library and no build step, and loads nothing from other servers.

mod assets;
mod board;
mod document;
mod history;
mod revision;

pub use self::{
    assets::{Asset, CONTENT_SECURITY_POLICY},
    board::{PageState, Snapshot},
    document::{
        DeviceView, Document, Event, EventKind, Health, HolderView, LinkView, NodeView, PendingPod,
        RefusedNodes, Source, Summary,
    },
    revision::Revision,
};
