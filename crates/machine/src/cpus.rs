//! CPU lists in the kernel's format, `0-55,112-167`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Serialize};

/// CPU ranges, in written order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(Vec<RangeInclusive<u32>>);

/// Syntax error in a CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs, write it like `0-55,112-167`")]
pub struct CpuListSyntaxError(String);

// === impl CpuList ===

impl CpuList {
    /// Every CPU in the list.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().cloned().flatten()
    }

    /// Concatenation of several lists, with adjacent ranges joined.
    pub fn union<'a>(lists: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut ranges: Vec<_> =
            lists.into_iter().flat_map(|list| list.0.iter().cloned()).collect();
        ranges.sort_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u32>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// First CPU that both lists contain.
    pub(crate) fn shared_with(&self, other: &Self) -> Option<u32> {
        let ranges = other.0.iter();
        self.0.iter().find_map(|range| {
            let overlaps = |other: &&RangeInclusive<u32>| {
                other.start() <= range.end() && range.start() <= other.end()
            };
            ranges.clone().find(overlaps).map(|other| *other.start().max(range.start()))
        })
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
    fn a_union_is_sorted_and_joined_as_the_kernel_prints_it() {
        let lists = ["0-3,16-19", "4-7,20-23", "12", "40-41"];
        let lists = lists.map(|text| text.parse::<CpuList>().expect(text));
        assert_eq!(CpuList::union(&lists).to_string(), "0-7,12,16-23,40-41");
    }

    #[test]
    fn descending_ranges_and_words_are_refused() {
        for invalid in ["", "3-1", "all", "0-"] {
            assert!(invalid.parse::<CpuList>().is_err(), "{invalid}");
        }
    }
}
