//! OCI state of a container, which the runtime writes to the hook's standard input ("State" of the specification).

use std::io::Read;

use serde::Deserialize;
use windlass_host::files;

use crate::HookError;

/// Fields of the state that the hook uses. It ignores the path of the bundle, because the tenant controls the bundle.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ContainerState {
    /// Container id.
    pub(crate) id: String,
    /// First process of the container, which waits for the hook.
    pub(crate) pid: u32,
    status: String,
}

/// Maximum size of a state, in bytes. Annotations take most of it.
const MAX_STATE: u64 = 1 << 20;

/// Statuses of a container whose `createRuntime` hooks run. Runtimes differ: runc and crun use different statuses.
const STATUSES_BEFORE_START: [&str; 2] = ["creating", "created"];

/// Reads the state of a container that has not started.
pub(crate) fn read(input: impl Read) -> Result<ContainerState, HookError> {
    let invalid = |reason: String| HookError::InvalidState(reason);
    let text = files::read_text(input, MAX_STATE).map_err(|error| invalid(error.to_string()))?;
    let state: ContainerState =
        serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    if state.pid == 0 {
        return Err(invalid("0 is not a valid pid".to_owned()));
    }
    if !STATUSES_BEFORE_START.contains(&state.status.as_str()) {
        let status = &state.status;
        return Err(invalid(format!(
            "the container is {status}, but limits are set before it starts"
        )));
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = r#"{"ociVersion":"1.2.0","id":"a","status":"creating","pid":7,"bundle":"/b","annotations":{"x":"y"}}"#;

    #[test]
    fn states_before_the_start_are_accepted() {
        let expected = ContainerState { id: "a".into(), pid: 7, status: "creating".into() };
        assert_eq!(read(VALID.as_bytes()).expect("valid"), expected);
        read(VALID.replace("creating", "created").as_bytes()).expect("valid");
    }

    #[test]
    fn other_states_are_rejected() {
        for (from, to) in [
            (VALID, ""),
            ("}", ""),
            ("\"pid\":7,", ""),
            ("\"id\":\"a\",", ""),
            (":7", ":0"),
            (":7", ":-1"),
            (":7", ":4294967296"),
            ("creating", "running"),
            ("creating", "stopped"),
        ] {
            let error = read(VALID.replace(from, to).as_bytes()).expect_err(to);
            assert!(matches!(error, HookError::InvalidState(_)), "{error}");
        }
        let endless = std::io::repeat(b' ');
        assert!(matches!(read(endless), Err(HookError::InvalidState(_))), "the read is bounded");
    }
}
