//! Conformance tests of device plugins and DRA drivers in any language: a kubelet's expectations, as cases.
//!
//! ```text
//!  catalogue ──> run ──> one Testbed for each case ──> Finding ──> Report
//!                          ├ a folder
//!                          ├ an embedded kubelet in it, which restarts, refuses registrations, cuts connections
//!                          ├ an embedded API server, for drivers, which slows down and stops
//!                          └ the program, which the case starts, calls and kills
//! ```
//!
//! # Flow
//!
//! A [`Subject`] holds the command of the program. [`run`] starts it once to find the APIs that it offers. Cases about
//! another API are not applicable. A program that exits before it serves anything yields only that finding. Otherwise
//! [`run`] runs cases of the [`catalogue`] and reports each [`Finding`] when its case ends. The [`Report`] has all
//! findings in the order of the cases.
//!
//! # Guarantees
//!
//! Each case has its own folder, kubelet and process, so verdicts are independent. The end of a case kills its process
//! group. Only the program itself can touch files outside the case's folder.
//!
//! # Assumptions
//!
//! The embedded kubelet and API server behave like real ones, except for the differences that their crates list.

mod case;
mod cases;
mod clients;
mod offers;
pub mod process;
mod report;
mod run;
mod subject;
mod testbed;

pub use case::{Case, Finding, Verdict};
pub use cases::catalogue;
pub use report::{Report, Totals};
pub use run::run;
pub use subject::{CommandError, Hooks, KubeletPath, Subject, TimeLimits};
