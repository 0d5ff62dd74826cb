//! The page that shows nodes, their devices and who has them.
//!
//! ```text
//!  cluster half ──┐                  ┌─ assets: HTML, CSS, JavaScript modules
//!                 ├─ NodeView ─> Board ─> Document, or its changes ─> page in a browser
//!  agent ─────────┘                  └─ history: the differences between two views
//! ```
//!
//! The page needs three requests, below any prefix: its files, `state`, and `state?after=REVISION`. It has no library and
//! no build step, and loads nothing from elsewhere.

mod assets;
mod board;
mod document;
mod history;
mod revision;

pub use self::{
    assets::{Asset, CONTENT_SECURITY_POLICY},
    board::{Board, Snapshot},
    document::{
        DeviceView, Document, Event, EventKind, Health, HolderView, LinkView, NodeView, PendingPod,
        RefusedNodes, Source, Summary,
    },
    revision::Revision,
};
