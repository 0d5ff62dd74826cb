//! A simulated Darwin3 board: its two servers on sockets, with the behaviour that trips plugins.
//!
//! The vendor's runtime serves HTTP on port 6001 for control and TCP on port 6000 for data, both without
//! authentication. What is known of them is in `docs/devices/handover.md`; what is not known is made up here
//! in the simplest way and said at its place.
//!
//! ```text
//!   control: GET /chip_reset  /set_frequency?freq=333  /last_running_time  /last_tcp_time
//!   data:    header of 20 bytes (type, four lengths in flits) + flits  ->  the same, to the end 0xffffffff
//! ```
//!
//! One data client is served at a time. One that connects and closes without a byte wedges the data port:
//! nobody is served there until the board's server is started anew. A chip reset reloads the drivers and
//! leaves the server's loop as it is, so it does not help; a probe of the data port can so take a board out
//! of service for good, which is what this is here to show.
//!
//! ```no_run
//! use windlass_machine::{Board, BoardAddresses};
//!
//! let board = Board::start(&BoardAddresses::any())?;
//! assert_ne!(board.control(), board.data(), "control and data are two ports");
//! # Ok::<(), std::io::Error>(())
//! ```

mod control;
mod data;
mod server;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use self::server::Server;

/// A board that runs until it is dropped.
#[derive(Debug)]
pub struct Board {
    control: Server,
    data: Server,
    chip: Chip,
}

/// Where a board listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardAddresses {
    /// HTTP; 6001 on a real board.
    pub control: SocketAddr,
    /// Flits; 6000 on a real board.
    pub data: SocketAddr,
}

/// Something that happened to a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardEvent {
    /// `GET /chip_reset`
    Reset,
    /// `GET /set_frequency`, in MHz.
    Frequency(u32),
    /// Another GET.
    Asked(String),
    /// A GET was refused.
    Refused(String),
    /// A network was deployed, with so many flits.
    Deployed(usize),
    /// It ran, with so many flits of spikes.
    Ran(usize),
    /// Its state was read or written, with so many flits.
    State(usize),
    /// A data client broke the protocol.
    Nonsense(String),
    /// A data client connected and closed without a byte: the data port serves nobody any more.
    Wedged,
}

/// What can befall a board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BoardFault {
    /// It works.
    #[default]
    None,
    /// It takes connections to its control port and says nothing.
    Hangs,
    /// It answers every GET with 500.
    Refuses,
}

/// The one chip behind both ports.
#[derive(Clone, Debug, Default)]
struct Chip(Arc<Mutex<Model>>);

/// What is remembered of it.
#[derive(Debug, Default)]
struct Model {
    frequency_mhz: u32,
    is_deployed: bool,
    is_wedged: bool,
    fault: BoardFault,
    running_time: Duration,
    transfer_time: Duration,
    events: Vec<BoardEvent>,
}

/// The presets of the board's clock, in MHz. The interface's own page names 20 and 333.
const FREQUENCIES_MHZ: [u32; 8] = [20, 32, 50, 100, 200, 333, 400, 500];

/// What a chip runs at after a reset.
const USUAL_MHZ: u32 = 333;

// === impl BoardAddresses ===

impl BoardAddresses {
    /// Free ports of this machine.
    pub fn any() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { control: any, data: any }
    }
}

// === impl Board ===

impl Board {
    /// Starts a board that has just been switched on.
    pub fn start(at: &BoardAddresses) -> io::Result<Self> {
        let chip = Chip::default();
        chip.model().frequency_mhz = USUAL_MHZ;
        let (control, data) = (chip.clone(), chip.clone());
        Ok(Self {
            control: Server::start(at.control, move |stream| control::serve(stream, &control))?,
            data: Server::start(at.data, move |stream| data::serve(stream, &data))?,
            chip,
        })
    }

    /// Where it is controlled.
    pub fn control(&self) -> SocketAddr {
        self.control.address()
    }

    /// Where it takes flits.
    pub fn data(&self) -> SocketAddr {
        self.data.address()
    }

    /// Lets something befall it, or mends it.
    pub fn inject(&self, fault: BoardFault) {
        self.chip.model().fault = fault;
    }

    /// Takes what happened since this was last asked.
    pub fn take_events(&self) -> Vec<BoardEvent> {
        std::mem::take(&mut self.chip.model().events)
    }

    /// What it runs at.
    pub fn frequency_mhz(&self) -> u32 {
        self.chip.model().frequency_mhz
    }

    /// Whether a network lies on it, its user's or the one before's.
    pub fn is_deployed(&self) -> bool {
        self.chip.model().is_deployed
    }

    /// Whether the data port serves nobody any more.
    pub fn is_wedged(&self) -> bool {
        self.chip.model().is_wedged
    }

    /// Starts its servers anew, as somebody who goes to the board does.
    pub fn restart(&self) {
        let mut model = self.chip.model();
        let events = std::mem::take(&mut model.events);
        *model = Model { frequency_mhz: USUAL_MHZ, events, ..Model::default() };
    }
}

// === impl Chip ===

impl Chip {
    fn model(&self) -> MutexGuard<'_, Model> {
        // A thread that panicked while it held a plain value has left a plain value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happened(&self, event: BoardEvent) {
        self.model().events.push(event);
    }

    /// Drivers are loaded anew, and what lay on the chip is gone. The server's loop goes on as it is.
    fn reset(&self) {
        let mut model = self.model();
        (model.is_deployed, model.frequency_mhz) = (false, USUAL_MHZ);
        model.events.push(BoardEvent::Reset);
    }

    fn set_frequency(&self, mhz: u32) -> Result<(), String> {
        if !FREQUENCIES_MHZ.contains(&mhz) {
            return Err(format!("{mhz} MHz is no preset of the clock"));
        }
        let mut model = self.model();
        model.frequency_mhz = mhz;
        model.events.push(BoardEvent::Frequency(mhz));
        Ok(())
    }

    /// One transfer was served.
    fn ran(&self, event: BoardEvent, begun: Instant) {
        let mut model = self.model();
        model.transfer_time = begun.elapsed();
        match &event {
            BoardEvent::Deployed(_) => model.is_deployed = true,
            BoardEvent::Ran(_) => model.running_time = begun.elapsed(),
            _ => {}
        }
        model.events.push(event);
    }

    fn wedge(&self) {
        let mut model = self.model();
        model.is_wedged = true;
        model.events.push(BoardEvent::Wedged);
    }
}

#[cfg(test)]
mod tests;
