//! Conformance of device plugins and DRA drivers: what a kubelet expects of them, as cases that any program
//! can be held against, whatever it is written in.
//!
//! ```text
//!  catalogue ──> run ──> one Stage for each case ──> Finding ──> Report
//!                          ├ a folder
//!                          ├ an embedded kubelet in it, which the case restarts, refuses, cuts
//!                          ├ an embedded API server, for drivers, which the case slows and stops
//!                          └ the program, which the case starts, calls and kills
//! ```
//!
//! # Flow
//!
//! A [`Subject`] says how the program is started. [`run`] starts it once, and leaves out what the program does not
//! offer; if it ends at once, that is the finding. Then it plays cases of the [`catalogue`] and tells each
//! [`Finding`] as it comes; the [`Report`] has all of them in the catalogue's order.
//!
//! # Guarantees
//!
//! Each case has a folder, a kubelet and a process of its own, so no verdict depends on another. What a case
//! started is dead when it ends, with its children. Nothing outside the case's folder is touched, unless the
//! program does so itself.
//!
//! # Assumptions
//!
//! What embedded kubelet and API server do is what real ones do; their own documentation says where that ends.

mod case;
mod cases;
mod clients;
mod offers;
pub mod process;
mod report;
mod run;
mod stage;
mod subject;

pub use case::{Case, Finding, Verdict};
pub use cases::catalogue;
pub use report::{Report, Totals};
pub use run::run;
pub use subject::{Hooks, Place, Subject, Unstartable, Within};
