//! Syntax of pods on the command line.

use anyhow::{Context as _, Result, bail};
use windlass_kubelet_sim::{Container, Pod};

/// Parses `trainer:nvidia.com/gpu=4,a.com/nic=1`.
pub(super) fn parse(text: &str) -> Result<Pod> {
    let Some((name, limits)) = text.split_once(':') else {
        bail!("{text:?} is not a pod: write NAME:RESOURCE=N, such as trainer:nvidia.com/gpu=4");
    };
    pod(name, limits.split(','))
}

/// Pod with one container and these limits, each `RESOURCE=N`.
pub(super) fn pod<'a>(name: &str, limits: impl IntoIterator<Item = &'a str>) -> Result<Pod> {
    let limits = limits.into_iter().map(limit).collect::<Result<_>>()?;
    Ok(Pod::new(name).container(Container { name: "main".to_owned(), limits }))
}

fn limit(text: &str) -> Result<(String, u64)> {
    let (resource, count) = text.split_once('=').with_context(|| {
        format!("{text:?} is not a limit: write RESOURCE=N, such as nvidia.com/gpu=2")
    })?;
    let number = count.parse().ok().filter(|count| *count > 0);
    let number = number.with_context(|| format!("{count:?} in {text:?}: write a number from 1"))?;
    Ok((resource.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_a_name_and_limits() {
        let pod = parse("trainer:nvidia.com/gpu=4,a.com/nic=1").expect("valid");
        assert_eq!(pod.name, "trainer");
        assert_eq!(pod.containers[0].limits["nvidia.com/gpu"], 4);
        assert_eq!(pod.containers[0].limits["a.com/nic"], 1);
    }

    #[test]
    fn an_invalid_pod_is_refused_with_an_example() {
        for (text, expected) in [
            ("trainer", "NAME:RESOURCE=N"),
            ("t:gpu", "RESOURCE=N"),
            ("t:gpu=x", "\"x\" in \"gpu=x\": write a number from 1"),
            ("t:gpu=-1", "\"-1\" in \"gpu=-1\": write a number from 1"),
            ("t:gpu=0", "write a number from 1"),
        ] {
            let error = format!("{:#}", parse(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
        }
    }
}
