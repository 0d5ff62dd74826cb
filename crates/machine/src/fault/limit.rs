//! Syntax of memory limit faults: the number of an `nvmlReturn_t`, or a word.

use std::{fmt, num::ParseIntError, str::FromStr};

use crate::memory_limits::LimitFault;

const IGNORED: &str = "ignored";

impl fmt::Display for LimitFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(code) => code.fmt(f),
            Self::Ignored => f.write_str(IGNORED),
        }
    }
}

impl FromStr for LimitFault {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        match text {
            IGNORED => Ok(Self::Ignored),
            code => code.parse().map(Self::Error),
        }
    }
}
