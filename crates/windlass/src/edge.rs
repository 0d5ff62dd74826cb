//! Simulated boards: each stage is a process, each link between boards a TCP connection with the board's rate and delay.
//!
//! ```text
//! stage ──> link (chunks wait for both boards' ports) ──> stage of another board
//!      └──> stage of the same board, directly
//! ```

mod boards;
mod link;
mod port;

pub(crate) use boards::Boards;
