//! One program for all of the crate's integration tests: it is linked once.

mod accounting;
mod allocation;
mod churn;
mod decisions;
mod explanations;
mod filling;
mod fragmentation;
mod gang;
mod learning;
mod losses;
mod prices;
mod published;
mod random;
mod shares;
mod trace;
mod victims;
mod world;
