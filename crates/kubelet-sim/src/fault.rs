//! How an embedded kubelet can be made to behave badly.

/// Settings that hold until they are changed, over restarts too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misbehaviour {
    /// What `Register` does.
    pub registration: RegistrationFault,
    /// What becomes of `ListAndWatch` streams.
    pub streams: StreamFault,
}

/// What `Register` does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationFault {
    /// As it should.
    #[default]
    None,
    /// Answers `Unknown` with this text.
    Refuse(String),
    /// Never answers.
    Hang,
}

/// What becomes of `ListAndWatch` streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamFault {
    /// They are read.
    #[default]
    None,
    /// They are opened and never read.
    NeverRead,
}
