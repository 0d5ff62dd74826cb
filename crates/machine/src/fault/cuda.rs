//! Syntax of CUDA faults: the number of a `CUresult`, or a word.

use std::{fmt, str::FromStr};

use crate::state::CudaFault;

/// Syntax error in a CUDA fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a CUDA fault: write a CUresult number, `hang` or `stale`")]
pub struct CudaFaultSyntaxError(String);

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
    type Err = CudaFaultSyntaxError;

    fn from_str(text: &str) -> Result<Self, CudaFaultSyntaxError> {
        match text {
            "hang" => Ok(Self::Hang),
            "stale" => Ok(Self::Stale),
            code => {
                code.parse().map(Self::Error).map_err(|_| CudaFaultSyntaxError(code.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_cuda_fault_is_refused_with_all_forms() {
        assert_eq!("802".parse(), Ok(CudaFault::Error(802)));
        let error = "melt".parse::<CudaFault>().expect_err("no fault").to_string();
        let expected = "`melt` is not a CUDA fault: write a CUresult number, `hang` or `stale`";
        assert_eq!(error, expected);
    }
}
