//! Simulated Darwin3 board: its control and data servers, with the behaviour that breaks plugins.
//!
//! The vendor's runtime serves HTTP on port 6001 for control and TCP on port 6000 for data. Both ports lack
//! authentication. `docs/devices/cleanup.md` lists the known behaviour. Comments mark each assumption.
//!
//! ```text
//!   control: GET /chip_reset  /set_frequency?freq=333  /last_running_time  /last_tcp_time
//!   data:    type and four lengths in bytes, flits  ->  four lengths in bytes, flits
//! ```
//!
//! The board serves one data client at a time, with one message. A client that closes without a message wedges the
//! data port. The port then serves no client until a person restarts the board's server. A chip reset reloads
//! the drivers and leaves the server's loop unchanged, so the port stays wedged. A probe of the data port
//! can therefore disable a board until that restart. The simulation reproduces this hazard.
//!
//! ```no_run
//! use windlass_machine::{Board, BoardAddresses};
//!
//! let board = Board::start(&BoardAddresses::ephemeral())?;
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

/// Simulated board. It runs until dropped.
#[derive(Debug)]
pub struct Board {
    control: Server,
    data: Server,
    chip: Chip,
}

/// Listening addresses of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardAddresses {
    /// HTTP address; port 6001 on a real board.
    pub control: SocketAddr,
    /// Flit address; port 6000 on a real board.
    pub data: SocketAddr,
}

/// Event on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardEvent {
    /// `GET /chip_reset`
    Reset,
    /// `GET /set_frequency`, with the frequency in MHz.
    Frequency(u32),
    /// `GET /last_running_time` or `GET /last_tcp_time`, with its path.
    Get(String),
    /// A refused GET, with its target.
    Refused(String),
    /// A network deployment, with its length in flits.
    Deployed(usize),
    /// A run of the network, with the length of its spikes in flits.
    Ran(usize),
    /// A read or write of neuron state, with its length in flits.
    State(usize),
    /// A protocol violation by a data client.
    ProtocolViolation(String),
    /// A data client closed without a message. The data port serves no more clients.
    Blocked,
}

/// Injectable fault of a board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BoardFault {
    /// The board works.
    #[default]
    None,
    /// The control port accepts connections and sends nothing.
    Hangs,
    /// The control port answers every GET with 500.
    Refuses,
}

/// The chip behind both ports.
#[derive(Clone, Debug, Default)]
struct Chip(Arc<Mutex<ChipState>>);

/// State of the chip.
#[derive(Debug, Default)]
struct ChipState {
    frequency_mhz: u32,
    is_deployed: bool,
    is_wedged: bool,
    fault: BoardFault,
    running_time: Duration,
    transfer_time: Duration,
    events: Vec<BoardEvent>,
}

/// Clock presets of the board, in MHz. The vendor's documentation names 20 and 333.
const FREQUENCIES_MHZ: [u32; 8] = [20, 32, 50, 100, 200, 333, 400, 500];

/// Clock of the chip after power-on and after a reset, in MHz.
const DEFAULT_MHZ: u32 = 333;

// === impl BoardAddresses ===

impl BoardAddresses {
    /// Free ports on the local machine.
    pub fn ephemeral() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { control: address, data: address }
    }
}

// === impl Board ===

impl Board {
    /// Starts a freshly powered board.
    pub fn start(addresses: &BoardAddresses) -> io::Result<Self> {
        let chip = Chip::default();
        chip.model().frequency_mhz = DEFAULT_MHZ;
        let (control, data) = (chip.clone(), chip.clone());
        Ok(Self {
            control: Server::start(addresses.control, move |stream| {
                control::serve(stream, &control);
            })?,
            data: Server::start(addresses.data, move |stream| data::serve(stream, &data))?,
            chip,
        })
    }

    /// Address of the control port.
    pub fn control(&self) -> SocketAddr {
        self.control.address()
    }

    /// Address of the data port.
    pub fn data(&self) -> SocketAddr {
        self.data.address()
    }

    /// Injects a fault, or clears it with [`BoardFault::None`].
    pub fn inject(&self, fault: BoardFault) {
        self.chip.model().fault = fault;
    }

    /// Takes the events since the last call.
    pub fn take_events(&self) -> Vec<BoardEvent> {
        std::mem::take(&mut self.chip.model().events)
    }

    /// Clock of the chip, in MHz.
    pub fn frequency_mhz(&self) -> u32 {
        self.chip.model().frequency_mhz
    }

    /// True if the chip holds a network, of the current or of an earlier user.
    pub fn is_deployed(&self) -> bool {
        self.chip.model().is_deployed
    }

    /// True if the data port serves no more clients.
    pub fn is_wedged(&self) -> bool {
        self.chip.model().is_wedged
    }

    /// Resets the board's state except for its events, as a restart of both servers does.
    pub fn restart(&self) {
        let mut model = self.chip.model();
        let events = std::mem::take(&mut model.events);
        *model = ChipState { frequency_mhz: DEFAULT_MHZ, events, ..ChipState::default() };
    }
}

// === impl Chip ===

impl Chip {
    fn model(&self) -> MutexGuard<'_, ChipState> {
        // A poisoned lock still guards a plain, valid value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, event: BoardEvent) {
        self.model().events.push(event);
    }

    /// Reloads the drivers and clears the chip. The server's loop is unchanged.
    fn reset(&self) {
        let mut model = self.model();
        (model.is_deployed, model.frequency_mhz) = (false, DEFAULT_MHZ);
        model.events.push(BoardEvent::Reset);
    }

    fn set_frequency(&self, mhz: u32) -> Result<(), String> {
        if !FREQUENCIES_MHZ.contains(&mhz) {
            return Err(format!("{mhz} MHz is not a clock preset"));
        }
        let mut model = self.model();
        model.frequency_mhz = mhz;
        model.events.push(BoardEvent::Frequency(mhz));
        Ok(())
    }

    /// Records one served transfer.
    fn record_transfer(&self, event: BoardEvent, started_at: Instant) {
        let mut model = self.model();
        model.transfer_time = started_at.elapsed();
        match &event {
            BoardEvent::Deployed(_) => model.is_deployed = true,
            BoardEvent::Ran(_) => model.running_time = started_at.elapsed(),
            _ => {}
        }
        model.events.push(event);
    }

    fn wedge_data_port(&self) {
        let mut model = self.model();
        model.is_wedged = true;
        model.events.push(BoardEvent::Blocked);
    }
}

#[cfg(test)]
mod tests;
