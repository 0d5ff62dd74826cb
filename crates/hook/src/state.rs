//! State of a container, which the runtime writes to the hook's standard input (OCI runtime specification, "State").

use std::io::Read;

use serde::Deserialize;
use windlass_host::files;

use crate::HookError;

/// Fields of the state that the hook uses. The path of the bundle is not among them, because the tenant writes the
/// bundle.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ContainerState {
    /// Container id.
    pub(crate) id: String,
    /// First process of the container, which waits for the hook.
    pub(crate) pid: u32,
    status: String,
}

/// Limit on the bytes of a state. Annotations take most of them.
const MAX_STATE: u64 = 1 << 20;

/// Statuses in which runtimes start `createRuntime` hooks: runc and crun use different ones.
const BEFORE_START: [&str; 2] = ["creating", "created"];

/// Reads the state of a container that has not started.
pub(crate) fn read(from: impl Read) -> Result<ContainerState, HookError> {
    let wrong = |reason: String| HookError::State(reason);
    let text = files::text_of(from, MAX_STATE).map_err(|error| wrong(error.to_string()))?;
    let state: ContainerState =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if state.pid == 0 {
        return Err(wrong("pid 0 is no process".to_owned()));
    }
    if !BEFORE_START.contains(&state.status.as_str()) {
        let status = &state.status;
        return Err(wrong(format!("the container is {status}: limits are set before it starts")));
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"ociVersion":"1.2.0","id":"a","status":"creating","pid":7,"bundle":"/b","annotations":{"x":"y"}}"#;

    #[test]
    fn the_state_of_a_container_that_has_not_started_is_read() {
        let expected = ContainerState { id: "a".into(), pid: 7, status: "creating".into() };
        assert_eq!(read(GOOD.as_bytes()).expect("good"), expected);
        read(GOOD.replace("creating", "created").as_bytes()).expect("good");
    }

    #[test]
    fn any_other_state_is_refused() {
        for (from, to) in [
            (GOOD, ""),
            ("}", ""),
            ("\"pid\":7,", ""),
            ("\"id\":\"a\",", ""),
            (":7", ":0"),
            (":7", ":-1"),
            (":7", ":4294967296"),
            ("creating", "running"),
            ("creating", "stopped"),
        ] {
            let error = read(GOOD.replace(from, to).as_bytes()).expect_err(to);
            assert!(matches!(error, HookError::State(_)), "{error}");
        }
        let endless = std::io::repeat(b' ');
        assert!(matches!(read(endless), Err(HookError::State(_))), "the read is bounded");
    }
}
