//! Syntax of memory limit faults: the number of an `nvmlReturn_t`, or a word.

use std::{fmt, str::FromStr};

use crate::memory_limits::LimitFault;

/// Syntax error in a memory limit fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a memory limit fault: write an nvmlReturn_t number or `ignored`")]
pub struct LimitFaultSyntaxError(String);

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
    type Err = LimitFaultSyntaxError;

    fn from_str(text: &str) -> Result<Self, LimitFaultSyntaxError> {
        if text == IGNORED {
            return Ok(Self::Ignored);
        }
        text.parse().map(Self::Error).map_err(|_| LimitFaultSyntaxError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_memory_limit_fault_is_refused_with_both_forms() {
        assert_eq!("17".parse(), Ok(LimitFault::Error(17)));
        assert_eq!("ignored".parse(), Ok(LimitFault::Ignored));
        for invalid in ["", "melt", "-1", "4294967296"] {
            let error = invalid.parse::<LimitFault>().expect_err(invalid).to_string();
            let expected = format!(
                "`{invalid}` is not a memory limit fault: \
                 write an nvmlReturn_t number or `ignored`"
            );
            assert_eq!(error, expected);
        }
    }
}
