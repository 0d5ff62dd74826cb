//! Conformance of device plugins and DRA drivers: a kubelet's expectations, as cases for a program in any language.
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
//! A [`Subject`] holds the command of the program. [`run`] starts it once, and leaves out every API that the program
//! does not offer. A program that exits at once yields that as its only finding. Otherwise [`run`] plays cases of the
//! [`catalogue`] and reports each [`Finding`] as it comes. The [`Report`] has all findings in the catalogue's order.
//!
//! # Guarantees
//!
//! Each case has a folder, a kubelet and a process of its own, so verdicts are independent. At the end of a case its
//! processes are dead, with their children. Only the program itself can touch files outside the case's folder.
//!
//! # Assumptions
//!
//! Embedded kubelet and API server behave as real ones do. Their own documentation lists the exceptions.

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
