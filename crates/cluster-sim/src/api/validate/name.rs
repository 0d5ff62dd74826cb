//! Validation of names: DNS labels and subdomains, drivers, pools, C identifiers.
//!
//! The agent has a separate implementation of these checks, so that each can reveal errors in the other.

use crate::api::refusal::{Cause, Problem};

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
                     '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
                     '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                         characters, '-' or '.', and must start and end with an alphanumeric character \
                         (e.g. 'example.com', regex used for validation is \
                         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by \
                          a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  \
                          or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";

/// Length limit of a driver's name and of a domain.
const MAX_DRIVER: usize = 63;
const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;
const MAX_IDENTIFIER: usize = 32;

/// Checks a DNS label: a device, a counter, a counter set.
pub(super) fn label(field: &str, name: &str) -> Vec<Cause> {
    if name.len() > MAX_LABEL {
        let max = format!("must be no more than {MAX_LABEL} bytes");
        return vec![Cause::invalid(field, name, max)];
    }
    refuse_unless(is_label(name), field, name, LABEL)
}

/// Checks the name of a driver, or the domain of an attribute.
pub(super) fn driver(field: &str, name: &str) -> Vec<Cause> {
    if name.is_empty() {
        return vec![Cause::required(field, "")];
    }
    if name.len() > MAX_DRIVER {
        return vec![too_long(field, MAX_DRIVER)];
    }
    // The real server accepts upper case with a warning.
    refuse_unless(is_subdomain(&name.to_lowercase()), field, name, SUBDOMAIN)
}

/// Checks the name of a pool: subdomains with slashes between them.
pub(super) fn pool(field: &str, name: &str) -> Vec<Cause> {
    if name.is_empty() {
        return vec![Cause::required(field, "")];
    }
    let length_cause = (name.len() > MAX_SUBDOMAIN).then(|| too_long(field, MAX_SUBDOMAIN));
    length_cause
        .into_iter()
        .chain(name.split('/').flat_map(|segment| subdomain(field, segment)))
        .collect()
}

pub(super) fn subdomain(field: &str, name: &str) -> Vec<Cause> {
    let is_valid = name.len() <= MAX_SUBDOMAIN && is_subdomain(name);
    refuse_unless(is_valid, field, name, SUBDOMAIN)
}

/// Checks the name of an attribute or a capacity, with or without a domain.
pub(super) fn qualified(field: &str, name: &str) -> Vec<Cause> {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => identifier(field, id),
        [domain, id] => {
            let mut causes = match *domain {
                "" => vec![Cause::invalid(field, "", "the domain must not be empty")],
                domain => driver(field, domain),
            };
            causes.extend(match *id {
                "" => vec![Cause::invalid(field, "", "the name must not be empty")],
                id => identifier(field, id),
            });
            causes
        }
        // The real server accepts names with more slashes.
        _ => Vec::new(),
    }
}

/// Checks the key of a label, taint or condition: a name of up to 63 characters with an optional domain.
pub(super) fn label_key(field: &str, key: &str) -> Vec<Cause> {
    let (domain, name) = key.split_once('/').map_or((None, key), |(d, n)| (Some(d), n));
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_valid = (1..=MAX_LABEL).contains(&name.len())
        && name.starts_with(is_end)
        && name.ends_with(is_end)
        && name.chars().all(is_inner)
        && domain.is_none_or(|domain| domain.len() <= MAX_SUBDOMAIN && is_subdomain(domain));
    refuse_unless(is_valid, field, key, "name part must be a valid label name")
}

fn identifier(field: &str, id: &str) -> Vec<Cause> {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_valid =
        id.starts_with(is_first) && id.chars().all(|c| is_first(c) || c.is_ascii_digit());
    let length_cause = (id.len() > MAX_IDENTIFIER).then(|| too_long(field, MAX_IDENTIFIER));
    length_cause.into_iter().chain(refuse_unless(is_valid, field, id, IDENTIFIER)).collect()
}

pub(super) fn too_long(field: &str, max: usize) -> Cause {
    Cause { field: field.to_owned(), problem: Problem::TooLong(max) }
}

pub(super) fn too_many(field: &str, count: usize, max: usize) -> Option<Cause> {
    let problem = Problem::TooMany(count, max);
    (count > max).then(|| Cause { field: field.to_owned(), problem })
}

fn refuse_unless(is_valid: bool, field: &str, name: &str, detail: &str) -> Vec<Cause> {
    if is_valid { Vec::new() } else { vec![Cause::invalid(field, name, detail)] }
}

fn is_label(name: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(is_end)
        && name.ends_with(is_end)
        && name.chars().all(|c| is_end(c) || c == '-')
}

fn is_subdomain(name: &str) -> bool {
    name.split('.').all(is_label)
}
