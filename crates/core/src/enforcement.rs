//! Enforcement of a share's memory: the means that keeps a container to it.

/// The strongest means that keeps a container to its memory of a shared GPU, from none upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcement {
    /// No limit.
    None,
    /// The watchdog measures from outside, and evicts the pod or ends its processes.
    Watched,
    /// An MPS daemon refuses each client process more. A program can run without the daemon.
    Mps,
    /// The driver refuses the container more, by its control group.
    Driver,
    /// The hardware keeps the container to a MIG instance.
    Mig,
}

// === impl Enforcement ===

impl Enforcement {
    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Watched => "watched",
            Self::Mps => "mps",
            Self::Driver => "driver",
            Self::Mig => "mig",
        }
    }
}

impl std::fmt::Display for Enforcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}
