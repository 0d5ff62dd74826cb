//! Pods as they are written on the command line.

use anyhow::{Context as _, Result, bail};
use windlass_kubelet_sim::{Container, Pod};

/// Reads `trainer:nvidia.com/gpu=4,a.com/nic=1`.
pub(super) fn parse(text: &str) -> Result<Pod> {
    let Some((name, limits)) = text.split_once(':') else {
        bail!("{text:?} is no pod: write NAME:RESOURCE=N, such as trainer:nvidia.com/gpu=4");
    };
    pod(name, limits.split(','))
}

/// A pod of one container with these limits, each `RESOURCE=N`.
pub(super) fn pod<'a>(name: &str, limits: impl IntoIterator<Item = &'a str>) -> Result<Pod> {
    let limits = limits.into_iter().map(limit).collect::<Result<_>>()?;
    Ok(Pod::new(name).container(Container { name: "main".to_owned(), limits }))
}

fn limit(text: &str) -> Result<(String, u64)> {
    let (resource, count) = text.split_once('=').with_context(|| {
        format!("{text:?} is no limit: write RESOURCE=N, such as nvidia.com/gpu=2")
    })?;
    let count = count.parse().with_context(|| format!("{count:?} in {text:?} is no number"))?;
    Ok((resource.to_owned(), count))
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
    fn what_is_no_pod_is_answered_with_an_example() {
        for (text, expected) in
            [("trainer", "NAME:RESOURCE=N"), ("t:gpu", "RESOURCE=N"), ("t:gpu=x", "no number")]
        {
            let error = format!("{:#}", parse(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
        }
    }
}
