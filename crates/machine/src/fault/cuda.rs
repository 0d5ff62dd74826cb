//! Syntax of CUDA faults: the number of a `CUresult`, or a word.

use std::{fmt, num::ParseIntError, str::FromStr};

use crate::state::CudaFault;

impl fmt::Display for CudaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(code) => code.fmt(f),
            Self::Hang => f.write_str("hang"),
            Self::Stale => f.write_str("stale"),
        }
    }
}

impl FromStr for CudaFault {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        match text {
            "hang" => Ok(Self::Hang),
            "stale" => Ok(Self::Stale),
            code => code.parse().map(Self::Error),
        }
    }
}
