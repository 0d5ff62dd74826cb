//! Parameters of lists and watches, validated as in the real server.

use std::time::Duration;

use super::{
    refusal::{Cause, Problem, Refusal},
    request::ApiRequest,
};

/// Options of a list or a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListOptions {
    /// `limit`: the maximum number of objects.
    pub(crate) limit: Option<usize>,
    /// `continue`: the position after the previous page.
    pub(crate) continue_token: Option<String>,
    /// `resourceVersion`; `None` if it is empty. 0 accepts any version.
    pub(crate) version: Option<u64>,
    /// `resourceVersionMatch=Exact`: the list has the objects at exactly that version.
    pub(crate) is_exact_version: bool,
    /// `sendInitialEvents`: a watch starts with all existing objects.
    pub(crate) send_initial_events: bool,
    /// `allowWatchBookmarks`.
    pub(crate) bookmarks: bool,
    /// `timeoutSeconds`: the duration of a watch.
    pub(crate) timeout: Option<Duration>,
}

const EXACT: &str = "Exact";
const NOT_OLDER: &str = "NotOlderThan";

// === impl ListOptions ===

impl ListOptions {
    /// Parses and validates the options of a request (`validation.ValidateListOptions` of `k8s.io/apimachinery`).
    pub(crate) fn of(request: &ApiRequest) -> Result<Self, Refusal> {
        let (is_watch, send_initial) = (request.is_watch(), request.flag("sendInitialEvents"));
        let (version, version_match) =
            (request.parameter("resourceVersion"), request.parameter("resourceVersionMatch"));
        let causes = if is_watch {
            watch_problems(request, send_initial)
        } else {
            list_problems(request, send_initial)
        };
        if !causes.is_empty() {
            return Err(Refusal::invalid_options(&causes));
        }
        // Without a version, a watch starts with all existing objects (`SetListOptionsDefaults`).
        let starts_with_objects = version_match.is_empty() && ["", "0"].contains(&version);
        let continue_token = Some(request.parameter("continue")).filter(|token| !token.is_empty());
        let version = if version.is_empty() { None } else { Some(parse_version(version)?) };
        let seconds = request.number("timeoutSeconds")?;
        Ok(Self {
            limit: request.number("limit")?.and_then(|limit| usize::try_from(limit).ok()),
            continue_token: continue_token.map(str::to_owned),
            version,
            is_exact_version: version_match == EXACT,
            send_initial_events: send_initial.unwrap_or(starts_with_objects),
            bookmarks: request.flag("allowWatchBookmarks").unwrap_or_default(),
            timeout: seconds.map(Duration::from_secs),
        })
    }
}

fn watch_problems(request: &ApiRequest, send_initial: Option<bool>) -> Vec<Cause> {
    let version_match = request.parameter("resourceVersionMatch");
    let mut causes = Vec::new();
    let mut forbid = |detail| causes.push(Cause::forbidden("resourceVersionMatch", detail));
    if send_initial.is_some() && version_match != NOT_OLDER {
        forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if version_match.is_empty() {
        return causes;
    }
    if send_initial.is_none() {
        forbid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
    }
    if version_match != NOT_OLDER {
        causes.push(unsupported(version_match, &[NOT_OLDER]));
    }
    if !request.parameter("continue").is_empty() {
        let detail = "resourceVersionMatch is forbidden when continue is provided";
        causes.push(Cause::forbidden("resourceVersionMatch", detail));
    }
    causes
}

fn list_problems(request: &ApiRequest, send_initial: Option<bool>) -> Vec<Cause> {
    let version_match = request.parameter("resourceVersionMatch");
    let version = request.parameter("resourceVersion");
    let mut causes = Vec::new();
    let mut forbid = |detail| causes.push(Cause::forbidden("resourceVersionMatch", detail));
    if !version_match.is_empty() {
        if version.is_empty() {
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !request.parameter("continue").is_empty() {
            forbid("resourceVersionMatch is forbidden when continue is provided");
        }
        if version_match == EXACT && version == "0" {
            forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if ![EXACT, NOT_OLDER].contains(&version_match) {
            causes.push(unsupported(version_match, &[EXACT, NOT_OLDER, ""]));
        }
    }
    if send_initial.is_some() {
        let detail = "sendInitialEvents is forbidden for list";
        causes.push(Cause::forbidden("sendInitialEvents", detail));
    }
    causes
}

fn unsupported(version_match: &str, supported: &'static [&'static str]) -> Cause {
    let problem = Problem::Unsupported(version_match.to_owned(), supported);
    Cause { field: "resourceVersionMatch".to_owned(), problem }
}

/// Parses a version as clients send it.
fn parse_version(text: &str) -> Result<u64, Refusal> {
    text.parse().map_err(|_| {
        let reason = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        Refusal::bad_request(format!("invalid resource version: {reason}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::request;

    fn options(query: &str) -> Result<ListOptions, (u16, String)> {
        let request = ApiRequest { query: request::query(query), ..ApiRequest::default() };
        ListOptions::of(&request).map_err(|refusal| (refusal.code, refusal.message))
    }

    #[test]
    fn watches_without_a_version_start_with_all_objects() {
        for (query, initial) in [
            ("watch=true", true),
            ("watch=1&resourceVersion=0", true),
            ("watch=true&resourceVersion=7", false),
            (
                "watch=true&resourceVersion=7&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
                true,
            ),
            ("watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", false),
        ] {
            assert_eq!(
                options(query).map(|options| options.send_initial_events),
                Ok(initial),
                "{query}"
            );
        }
    }

    #[test]
    fn contradicting_options_are_refused_in_the_real_servers_words() {
        for (query, code, words) in [
            (
                "watch=true&sendInitialEvents=true",
                422,
                "requires setting resourceVersionMatch to NotOlderThan",
            ),
            (
                "watch=true&resourceVersionMatch=NotOlderThan",
                422,
                "forbidden for watch unless sendInitialEvents",
            ),
            (
                "watch=true&sendInitialEvents=true&resourceVersionMatch=Exact",
                422,
                "supported values: \"NotOlderThan\"",
            ),
            ("resourceVersionMatch=Exact", 422, "forbidden unless resourceVersion is provided"),
            (
                "resourceVersionMatch=Exact&resourceVersion=0",
                422,
                "\"exact\" is forbidden for resourceVersion \"0\"",
            ),
            ("resourceVersionMatch=Nearly&resourceVersion=1", 422, "Unsupported value: \"Nearly\""),
            ("sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"),
            ("resourceVersion=x", 400, "invalid resource version"),
            ("limit=many", 400, "many"),
        ] {
            let (actual, message) = options(query).expect_err("invalid options");
            assert_eq!(actual, code, "{query}: {message}");
            assert!(message.contains(words), "{query}: {message}");
        }
    }
}
