//! Replica ids: shares of a device, which the kubelet counts as devices.

use std::{fmt, str::FromStr};

use crate::device::DeviceId;

/// Id of a replica, `GPU-5c8e::3`.
///
/// The format is that of NVIDIA's device plugin, so checkpoint entries of that plugin remain valid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The shared device.
    pub device: DeviceId,
    /// Number of the replica, from 0.
    pub number: u32,
}

/// Text that is not a replica id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no replica: write a device's id, '::' and a number without leading zeros")]
pub struct InvalidReplicaId(String);

/// Separator of device id and number.
const SEPARATOR: &str = "::";

/// The device of an id that the kubelet uses: a device id or a replica id.
pub fn device_of_id(id: &str) -> Option<DeviceId> {
    ReplicaId::split(id).map_or(id, |(device, _)| device).parse().ok()
}

/// Number of a token id; `None` for other ids. The kubelet counts tokens, and each stands for any device of a pool.
pub fn token_number(id: &str) -> Option<u32> {
    let number: u32 = id.parse().ok()?;
    (number.to_string() == id).then_some(number)
}

serialize_as_text!(ReplicaId);

// === impl ReplicaId ===

impl ReplicaId {
    /// Splits a replica id into device id and number, without allocation or validation of the device id.
    /// `None` for other text, such as the id of an unshared device.
    pub fn split(text: &str) -> Option<(&str, u32)> {
        let (device, digits) = text.rsplit_once(SEPARATOR)?;
        let is_canonical =
            digits == "0" || digits.starts_with(|first: char| ('1'..='9').contains(&first));
        let number = digits.parse().ok().filter(|_| is_canonical)?;
        Some((device, number))
    }
}

impl FromStr for ReplicaId {
    type Err = InvalidReplicaId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = Self::split(text)
            .and_then(|(device, number)| Some(Self { device: device.parse().ok()?, number }));
        parsed.ok_or_else(|| InvalidReplicaId(text.to_owned()))
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SEPARATOR}{}", self.device, self.number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_canonical_number_names_a_replica() {
        for good in ["GPU-5c8e::0", "MIG-1::10", "0000:1b:00.0::4294967295"] {
            assert_eq!(good.parse::<ReplicaId>().expect(good).to_string(), good);
        }
        for bad in
            ["GPU-1", "GPU-1::", "GPU-1::01", "GPU-1::+1", "GPU-1::-1", "GPU-1::4294967296", "::0"]
        {
            let error = bad.parse::<ReplicaId>().expect_err(bad).to_string();
            assert!(error.starts_with(&format!("{bad:?} names no replica")), "{error}");
        }
    }

    #[test]
    fn replicas_of_a_device_are_ordered_by_number() {
        let id = |text: &str| text.parse::<ReplicaId>().expect("valid");
        assert!(id("GPU-1::2") < id("GPU-1::10"));
    }

    proptest! {
        #[test]
        fn every_replica_is_read_back_as_it_was_written(
            device in "[A-Za-z0-9_.:-]{1,63}", number: u32,
        ) {
            let replica = ReplicaId { device: device.parse().expect("valid"), number };
            prop_assert_eq!(replica.to_string().parse::<ReplicaId>(), Ok(replica));
        }

        #[test]
        fn a_plain_id_is_no_replica(id in "(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}") {
            prop_assert!(id.parse::<DeviceId>().is_ok());
            prop_assert_eq!(ReplicaId::split(&id), None);
        }

        #[test]
        fn a_text_that_is_read_is_written_the_same(text in "[a-z0:]{0,4}(::)?[0-9]{0,11}") {
            if let Ok(replica) = text.parse::<ReplicaId>() {
                prop_assert_eq!(replica.to_string(), text);
            }
        }
    }
}
