//! Configured network endpoints as candidates, without a scan.

use super::find::{Candidate, FindResult};

/// One candidate per address, in configured order.
pub(super) fn candidates(endpoints: &[String]) -> FindResult {
    let candidates = endpoints.iter().map(|endpoint| candidate(endpoint)).collect();
    FindResult { candidates, ..FindResult::default() }
}

fn candidate(endpoint: &str) -> Candidate {
    let (host, port) = split_host_port(endpoint);
    let (identity, origin) = (endpoint.to_owned(), endpoint.to_owned());
    let mut candidate = Candidate { identity, origin, ..Candidate::default() };
    candidate.add_text("endpoint", Some(endpoint));
    candidate.add_text("host", Some(host));
    candidate.add_text("port", port);
    candidate.add_text("name", Some(host));
    candidate
}

/// Host and port. An IPv6 address before a port is in brackets.
pub(crate) fn split_host_port(endpoint: &str) -> (&str, Option<&str>) {
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (endpoint, None),
    };
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_distinguished_from_the_end_of_an_ipv6_address() {
        for (endpoint, host, port) in [
            ("172.31.111.35", "172.31.111.35", None),
            ("board-1.lab:6001", "board-1.lab", Some("6001")),
            ("fd00::1", "fd00::1", None),
            ("[fd00::1]:6001", "fd00::1", Some("6001")),
        ] {
            assert_eq!(split_host_port(endpoint), (host, port), "{endpoint}");
        }
    }
}
