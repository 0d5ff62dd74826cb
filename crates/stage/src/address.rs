//! Addresses of stages: a host with a port, or a unix socket.

use std::{fmt, io, net::SocketAddr, path::PathBuf, str::FromStr};

use tokio::net::lookup_host;

/// One address, written `host:port`, `tcp:host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port. The name of the host can resolve to several replicas.
    Tcp {
        /// Name or IP address, without the brackets of IPv6.
        host: String,
        /// Port.
        port: u16,
    },
    /// Absolute path of a unix socket.
    Unix(PathBuf),
}

/// Addresses of the replicas of one stage, written as a list with commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<Address>);

/// Reason that an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The port is missing.
    #[error("{0:?} has no port: write host:port, or unix:/path")]
    NoPort(String),
    /// The port is not a number from 0 to 65535.
    #[error("{0:?} has a port that is not a number from 0 to 65535")]
    Port(String),
    /// The host is missing.
    #[error("{0:?} has no host: write host:port, such as 0.0.0.0:7000")]
    NoHost(String),
    /// The host is neither a name nor an IP address, as in `stage=host`.
    #[error("{0:?} has an invalid host: write host:port, such as detect:7000")]
    Host(String),
    /// The path of a unix socket is relative.
    #[error("{0:?} is not an absolute path: write unix:/path")]
    Relative(String),
}

/// Resolved address of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ResolvedAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

// === impl Address ===

impl Address {
    /// Resolves the address. A DNS name can have several replicas.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<ResolvedAddress>> {
        match self {
            Self::Unix(path) => Ok(vec![ResolvedAddress::Unix(path.clone())]),
            Self::Tcp { host, port } => {
                Ok(lookup_host((host.as_str(), *port)).await?.map(ResolvedAddress::Tcp).collect())
            }
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let input = || text.to_owned();
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(AddressError::Relative(input()))
            };
        }
        let host_and_port = text.strip_prefix("tcp:").unwrap_or(text);
        let (host, port) =
            host_and_port.rsplit_once(':').ok_or_else(|| AddressError::NoPort(input()))?;
        let port = port.parse().map_err(|_| AddressError::Port(input()))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(AddressError::NoHost(input()));
        }
        // A percent sign begins the zone of an IPv6 address.
        if !host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:%".contains(c)) {
            return Err(AddressError::Host(input()));
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl Addresses ===

impl Addresses {
    /// The addresses in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.0.iter()
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl FromIterator<Address> for Addresses {
    fn from_iter<I: IntoIterator<Item = Address>>(addresses: I) -> Self {
        Self(addresses.into_iter().collect())
    }
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.split(',').map(|address| address.trim().parse()).collect()
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

// === impl ResolvedAddress ===

impl fmt::Display for ResolvedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_text() {
        for text in ["classify:7000", "[::1]:80", "unix:/run/stage.sock", "a:1,b:2,unix:/c"] {
            let addresses: Addresses = text.parse().expect(text);
            assert_eq!(addresses.to_string(), text);
        }
        let address: Address = "tcp:classify:7000".parse().expect("an address");
        assert_eq!(address.to_string(), "classify:7000");
    }

    #[test]
    fn an_invalid_address_gives_the_matching_error() {
        let error = |text: &str| text.parse::<Address>().expect_err(text);
        assert_eq!(error("classify"), AddressError::NoPort("classify".into()));
        assert_eq!(error("classify:http"), AddressError::Port("classify:http".into()));
        assert_eq!(error(":7000"), AddressError::NoHost(":7000".into()));
        assert_eq!(error("a=b:7000"), AddressError::Host("a=b:7000".into()));
        assert_eq!(error("unix:run/x"), AddressError::Relative("unix:run/x".into()));
    }
}
