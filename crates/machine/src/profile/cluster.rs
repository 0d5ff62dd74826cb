//! NVLink fabric that the GPUs of several machines share.

use serde::{Deserialize, Serialize};

/// Cluster and clique of a machine on a shared fabric, such as a rack of GB200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// UUID of the cluster.
    pub cluster: ClusterUuid,
    /// Clique of this machine's GPUs in the cluster.
    pub clique: u32,
}

/// UUID in the form `8a3cc1f2-0b1d-4c4e-9d1f-6d0a52f3b7e4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterUuid(pub [u8; 16]);

/// Syntax error in a UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a UUID such as 8a3cc1f2-0b1d-4c4e-9d1f-6d0a52f3b7e4")]
pub struct InvalidCluster(String);

// === impl ClusterUuid ===

impl TryFrom<String> for ClusterUuid {
    type Error = InvalidCluster;

    fn try_from(text: String) -> Result<Self, InvalidCluster> {
        let digits = text.replace('-', "");
        let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
        number.map(|number| Self(number.to_be_bytes())).ok_or(InvalidCluster(text))
    }
}

impl From<ClusterUuid> for String {
    fn from(ClusterUuid(bytes): ClusterUuid) -> Self {
        let digits = format!("{:032x}", u128::from_be_bytes(bytes));
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        parts.join("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_round_trips_through_its_text_and_invalid_text_is_refused() {
        let text = "8a3cc1f2-0b1d-4c4e-9d1f-6d0a52f3b7e4".to_owned();
        let cluster = ClusterUuid::try_from(text.clone()).expect("a UUID");
        assert_eq!(String::from(cluster), text);
        for invalid in ["", "8a3c", "8a3cc1f2-0b1d-4c4e-9d1f-6d0a52f3b7eg"] {
            ClusterUuid::try_from(invalid.to_owned()).expect_err(invalid);
        }
    }
}
