//! Lists of CPUs as the kernel writes them, `0-55,112-167`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Serialize};

/// CPUs as ranges, in the order written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(Vec<RangeInclusive<u32>>);

/// Text that is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs, write it like `0-55,112-167`")]
pub struct CpuListSyntaxError(String);

// === impl CpuList ===

impl CpuList {
    /// Every CPU in the list.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().cloned().flatten()
    }

    /// The CPUs of several lists, one after the other.
    pub fn union<'a>(lists: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(lists.into_iter().flat_map(|list| list.0.iter().cloned()).collect())
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for CpuList {
    type Err = CpuListSyntaxError;

    fn from_str(text: &str) -> Result<Self, CpuListSyntaxError> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some(first..=last)
        };
        let ranges = text.split(',').map(range).collect::<Option<Vec<_>>>();
        ranges.map(Self).ok_or_else(|| CpuListSyntaxError(text.to_owned()))
    }
}

impl TryFrom<String> for CpuList {
    type Error = CpuListSyntaxError;

    fn try_from(text: String) -> Result<Self, CpuListSyntaxError> {
        text.parse()
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_prints_as_it_was_written() {
        for text in ["0", "0-3", "0-55,112-167", "1,3,5"] {
            assert_eq!(text.parse::<CpuList>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn ranges_that_run_backwards_and_words_are_refused() {
        for wrong in ["", "3-1", "all", "0-"] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong}");
        }
    }
}
