//! Whether one device serves one container or several.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::placement::{self, shares::Span};

/// Whether one device serves one container or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// One.
    #[default]
    Exclusive,
    /// Several.
    Shared(Shared),
    /// Several, each of which gets all devices of the resource.
    Pooled(Pooled),
}

/// How a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// What keeps the containers apart.
    pub method: SharingMethod,
    /// How many containers one device serves.
    pub replicas: Replicas,
    /// How many replicas one container may ask for.
    pub per_container: PerContainer,
}

/// How all devices of a resource are shared together. Nothing keeps the containers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    /// How many containers the pool serves.
    pub tokens: Replicas,
    /// How many tokens one container may ask for; each stands for the same devices.
    pub per_container: PerContainer,
}

/// What keeps the containers on one device apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SharingMethod {
    /// Nothing but the driver's time slices: memory and faults are shared.
    TimeSlicing,
    /// Nothing at all: the device takes several users by itself, as an RDMA interface and `/dev/kvm` do.
    Shared,
    /// An MPS daemon, which gives each client process an equal part of memory and threads.
    Mps,
}

/// How many replicas one container may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PerContainer {
    /// One: more would not give it more time.
    One,
    /// As many as it likes.
    Any,
}

/// A number of replicas that a kubelet can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replicas(NonZeroU32);

/// A number of replicas that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} replicas: write a number from 1 to {max}", max = Replicas::MAX)]
pub struct InvalidReplicas(u64);

// === impl Sharing ===

impl Sharing {
    /// Whether an MPS daemon serves the containers on a device.
    pub fn is_by_mps(self) -> bool {
        matches!(self, Self::Shared(shared) if shared.method == SharingMethod::Mps)
    }

    /// How many containers share a device, or a pool of them; `None` if one has it alone.
    pub fn replicas(self) -> Option<Replicas> {
        match self {
            Self::Exclusive => None,
            Self::Shared(shared) => Some(shared.replicas),
            Self::Pooled(pooled) => Some(pooled.tokens),
        }
    }

    /// How devices are chosen where nothing is said: close together, or, if containers share them,
    /// where the fewest containers are.
    pub fn usual_placement(self) -> placement::Policy {
        match self {
            Self::Exclusive => placement::Policy::Aligned,
            Self::Shared(_) => placement::Policy::Distributed,
            // One token is as good as another.
            Self::Pooled(_) => placement::Policy::First,
        }
    }
}

// === impl SharingMethod ===

impl SharingMethod {
    /// How many devices one container may have replicas of: a client of MPS talks to one daemon, and
    /// each device has its own.
    pub fn span(self) -> Span {
        match self {
            Self::TimeSlicing | Self::Shared => Span::AnyDevices,
            Self::Mps => Span::OneDevice,
        }
    }
}

// === impl Replicas ===

impl Replicas {
    /// The most replicas of one device. The kubelet takes messages of at most 4 MiB (gRPC's default),
    /// and 16 devices with this many replicas make a list of about 1 MiB.
    pub const MAX: u32 = 1024;

    /// A device that serves one.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// How many.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl TryFrom<u64> for Replicas {
    type Error = InvalidReplicas;

    fn try_from(count: u64) -> Result<Self, Self::Error> {
        let within = u32::try_from(count).ok().filter(|count| *count <= Self::MAX);
        within.and_then(NonZeroU32::new).map(Self).ok_or(InvalidReplicas(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_none_or_of_too_many_are_refused() {
        for good in [1, 2, 1024] {
            assert_eq!(u64::from(Replicas::try_from(good).expect("valid").get()), good);
        }
        for bad in [0, 1025, 100_000, u64::MAX] {
            let error = Replicas::try_from(bad).expect_err("invalid").to_string();
            assert_eq!(error, format!("{bad} replicas: write a number from 1 to 1024"));
        }
    }
}
