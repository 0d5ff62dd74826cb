//! C: contents of an Allocate response, as a container runtime can use them.

use std::path::Path;

use windlass_kubelet_api::deviceplugin::ContainerAllocateResponse;

use super::cdi;
use crate::{
    case::{Case, Checked, Unmet, failed, not_applicable},
    clients::{allocation, granted},
    stage::Stage,
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "C01",
        sentence: "device nodes have absolute paths, and exist on the host",
        source: "deviceplugin/v1beta1/api.proto, DeviceSpec; runc, CreateDevices",
        check: |stage| Box::pin(every_answer(stage, device_nodes)),
    },
    Case {
        id: "C02",
        sentence: "device nodes come with some of r, w and m, and nothing else",
        source: "deviceplugin/v1beta1/api.proto, DeviceSpec.permissions",
        check: |stage| Box::pin(every_answer(stage, permissions)),
    },
    Case {
        id: "C03",
        sentence: "mounts have absolute paths, and their sources exist on the host",
        source: "deviceplugin/v1beta1/api.proto, Mount",
        check: |stage| Box::pin(every_answer(stage, mounts)),
    },
    Case {
        id: "C04",
        sentence: "variables have names without `=`, and no NUL in them",
        source: "environ(7); OCI runtime specification, process.env",
        check: |stage| Box::pin(every_answer(stage, variables)),
    },
    Case {
        id: "C05",
        sentence: "annotations have keys that Kubernetes takes",
        source: "apimachinery, pkg/api/validation, ValidateAnnotations",
        check: |stage| Box::pin(every_answer(stage, annotations)),
    },
    Case {
        id: "C06",
        sentence: "CDI names are vendor/class=device",
        source: "Container Device Interface 1.0, qualified names",
        check: |stage| Box::pin(every_answer(stage, cdi_names)),
    },
    Case {
        id: "C07",
        sentence: "what a CDI name stands for is on disk when the answer comes",
        source: "Container Device Interface 1.0: the runtime looks when it makes the container",
        check: |stage| Box::pin(cdi_names_are_resolved(stage)),
    },
    Case {
        id: "C08",
        sentence: "a container gets something at all",
        source: "cm/devicemanager/manager.go, GetDeviceRunContainerOptions",
        check: |stage| Box::pin(every_answer(stage, |it| Some(something(it)))),
    },
];

/// Check of a response; `None` if the response has nothing of the kind.
type Flaw = fn(&ContainerAllocateResponse) -> Option<Result<(), String>>;

/// Allocates every healthy device alone, and checks each response.
async fn every_answer(stage: &mut Stage, flaw: Flaw) -> Checked {
    let mut seen = 0;
    for answer in answers(stage).await? {
        match flaw(&answer) {
            Some(Err(why)) => return failed(why),
            Some(Ok(())) => seen += 1,
            None => {}
        }
    }
    if seen == 0 { not_applicable("no answer has any") } else { Ok(format!("{seen} answers")) }
}

async fn answers(stage: &mut Stage) -> Result<Vec<ContainerAllocateResponse>, Unmet> {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    let mut answers = Vec::new();
    for served in &all {
        let mut client = served.dial().await?;
        for id in served.healthy() {
            let what = format!("Allocate of {id}");
            let answer = granted(&what, limit, client.allocate(allocation(&[vec![id]]))).await?;
            answers.extend(answer.container_responses);
        }
    }
    Ok(answers)
}

/// Checks each item of a kind. The check returns the flaw.
fn each<'a, T: 'a>(
    all: impl IntoIterator<Item = &'a T>,
    wrong: impl Fn(&T) -> Option<String>,
) -> Option<Result<(), String>> {
    let mut all = all.into_iter().peekable();
    all.peek()?;
    Some(all.find_map(wrong).map_or(Ok(()), Err))
}

fn device_nodes(answer: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    each(&answer.devices, |it| path_problem(&it.host_path, &it.container_path))
}

fn mounts(answer: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    each(&answer.mounts, |it| path_problem(&it.host_path, &it.container_path))
}

fn path_problem(host: &str, container: &str) -> Option<String> {
    if !Path::new(container).is_absolute() {
        return Some(format!("{container:?} is no absolute path in the container"));
    }
    if !Path::new(host).is_absolute() {
        return Some(format!("{host:?} is no absolute path on the host"));
    }
    (!Path::new(host).exists()).then(|| format!("{host} does not exist on the host"))
}

fn permissions(answer: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    each(&answer.devices, |it| {
        let letters = &it.permissions;
        let is_known = !letters.is_empty() && letters.chars().all(|c| "rwm".contains(c));
        (!is_known).then(|| format!("{} has permissions {letters:?}", it.host_path))
    })
}

fn variables(answer: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    let variables: Vec<_> = answer.envs.iter().collect();
    each(&variables, |(name, value)| {
        let is_usable = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        (!is_usable).then(|| format!("variable {name:?} is {value:?}"))
    })
}

fn annotations(answer: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    let keys: Vec<_> = answer.annotations.keys().collect();
    each(&keys, |key| (!is_annotation_key(key)).then(|| format!("annotation {key:?}")))
}

/// True for `prefix/name` or `name`, as for labels (`IsQualifiedName`).
fn is_annotation_key(key: &str) -> bool {
    let (prefix, name) =
        key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_name = name.len() <= 63
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let is_prefix = |prefix: &str| {
        let is_label = |part: &str| {
            is_end(part.chars().next())
                && is_end(part.chars().last())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        prefix.len() <= 253 && prefix.split('.').all(is_label)
    };
    is_name && prefix.is_none_or(is_prefix)
}

fn cdi_names(answer: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    each(&answer.cdi_devices, |it| {
        cdi::Name::parse(&it.name).is_none().then(|| format!("{:?} is no CDI name", it.name))
    })
}

fn something(answer: &ContainerAllocateResponse) -> Result<(), String> {
    let parts = [
        answer.devices.len(),
        answer.mounts.len(),
        answer.envs.len(),
        answer.annotations.len(),
        answer.cdi_devices.len(),
    ];
    if parts.iter().sum::<usize>() > 0 { Ok(()) } else { Err("an answer is empty".into()) }
}

async fn cdi_names_are_resolved(stage: &mut Stage) -> Checked {
    let all = answers(stage).await?;
    let names: Vec<_> = all.iter().flat_map(|it| &it.cdi_devices).map(|it| &it.name).collect();
    if names.is_empty() {
        return not_applicable("no answer has a CDI name");
    }
    let known = cdi::known(&stage.cdi_dirs());
    match names.iter().find(|name| !known.contains(name.as_str())) {
        Some(name) => failed(format!("{name} is in no document of {:?}", stage.cdi_dirs())),
        None => Ok(format!("{} names", names.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_annotations_are_as_those_of_labels() {
        for (key, expected) in [
            ("cdi.k8s.io/x_y", true),
            ("plain", true),
            ("", false),
            ("a/b/c", false),
            ("-a", false),
            ("exa mple/x", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_annotation_key(key), expected, "{key}");
        }
    }
}
