//! Revision of the page's state, which readers send with their requests.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Number of a state of one [`PageState`](crate::PageState). Its text is opaque to readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Distinguishes the instance of the page's state from the instances of earlier processes.
    pub(crate) instance: i64,
    pub(crate) number: u64,
}

// === impl Revision ===

impl Revision {
    /// Finds the text of the revision in a query: `after=REVISION`.
    pub fn in_query(query: &str) -> Option<&str> {
        query.split('&').find_map(|pair| pair.strip_prefix("after="))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (instance, number) = text.rsplit_once('-')?;
        Some(Self { instance: instance.parse().ok()?, number: number.parse().ok()? })
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.instance, self.number)
    }
}

impl Serialize for Revision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Revision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not a revision")))
    }
}
