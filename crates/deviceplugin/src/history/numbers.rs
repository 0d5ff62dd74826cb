//! Compact text form of replica numbers: `0-998,1000`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use windlass_config::Replicas;

/// Set of replica numbers, stored as ascending ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNumbers(Vec<RangeInclusive<u32>>);

/// Text that is not a list of replica numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} lists no replicas: write ascending numbers below {max}, such as 0-2,5", max = Replicas::MAX)]
pub struct InvalidReplicaNumbers(String);

// === impl ReplicaNumbers ===

impl ReplicaNumbers {
    /// True if the set has no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// Appends a range; its numbers are above all earlier ones.
    fn push(&mut self, range: RangeInclusive<u32>) {
        match self.0.last_mut() {
            Some(last) if last.end() + 1 == *range.start() => *last = *last.start()..=*range.end(),
            _ => self.0.push(range),
        }
    }
}

impl FromIterator<u32> for ReplicaNumbers {
    /// Accepts any order and duplicates.
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut sorted: Vec<_> = numbers.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut ranges = Self::default();
        for number in sorted {
            ranges.push(number..=number);
        }
        ranges
    }
}

impl fmt::Display for ReplicaNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for ReplicaNumbers {
    type Err = InvalidReplicaNumbers;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || InvalidReplicaNumbers(text.to_owned());
        let mut numbers = Self::default();
        // An empty text is the empty set, and not one empty part.
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let range = parse_range(part).ok_or_else(error)?;
            if numbers.0.last().is_some_and(|last| last.end() >= range.start()) {
                return Err(error());
            }
            numbers.push(range);
        }
        Ok(numbers)
    }
}

/// Parses `3` or `0-2`. The limit bounds the work of iterating over the range.
fn parse_range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < Replicas::MAX).then_some(first..=last)
}

impl Serialize for ReplicaNumbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReplicaNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_are_written_by_their_ends() {
        for (numbers, expected) in
            [(&[][..], ""), (&[3], "3"), (&[2, 1, 0, 1, 5], "0-2,5"), (&[0, 2, 4], "0,2,4")]
        {
            let set: ReplicaNumbers = numbers.iter().copied().collect();
            assert_eq!(set.to_string(), expected);
        }
        for bad in ["a", "1,", "2,1", "0-3,3", "3-1", "0-4294967295", "1024", "-1"] {
            let error = bad.parse::<ReplicaNumbers>().expect_err(bad).to_string();
            assert!(error.starts_with(&format!("{bad:?} lists no replicas")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_numbers_are_read_back(set in proptest::collection::btree_set(0..Replicas::MAX, 0..50)) {
            let numbers: ReplicaNumbers = set.iter().copied().collect();
            prop_assert_eq!(numbers.to_string().parse::<ReplicaNumbers>(), Ok(numbers.clone()));
            prop_assert!(numbers.iter().eq(set));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[0-9,-]{0,20}") {
            let _ = text.parse::<ReplicaNumbers>();
        }
    }
}
