//! C: contents of an `Allocate` response, checked for the container runtime.

use std::path::Path;

use windlass_kubelet_api::deviceplugin::ContainerAllocateResponse;

use super::cdi;
use crate::{
    case::{Case, CheckError, CheckResult, failed, not_applicable},
    clients::{allocate_request, call_ok_within},
    testbed::Testbed,
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "C01",
        sentence: "gives device nodes absolute paths, and their host paths exist",
        source: "deviceplugin/v1beta1/api.proto, DeviceSpec; runc, CreateDevices",
        check: |testbed| Box::pin(check_responses(testbed, device_nodes)),
    },
    Case {
        id: "C02",
        sentence: "gives each device node permissions of one or more of r, w and m",
        source: "deviceplugin/v1beta1/api.proto, DeviceSpec.permissions",
        check: |testbed| Box::pin(check_responses(testbed, permissions)),
    },
    Case {
        id: "C03",
        sentence: "gives mounts absolute paths, and their sources exist on the host",
        source: "deviceplugin/v1beta1/api.proto, Mount",
        check: |testbed| Box::pin(check_responses(testbed, mounts)),
    },
    Case {
        id: "C04",
        sentence: "gives variables names that are not empty and have no `=`, and no NUL in names and values",
        source: "environ(7); OCI runtime specification, process.env",
        check: |testbed| Box::pin(check_responses(testbed, variables)),
    },
    Case {
        id: "C05",
        sentence: "gives annotations keys that Kubernetes accepts",
        source: "apimachinery, pkg/api/validation, ValidateAnnotations",
        check: |testbed| Box::pin(check_responses(testbed, annotations)),
    },
    Case {
        id: "C06",
        sentence: "gives CDI names of the form vendor/class=device",
        source: "Container Device Interface 1.0, qualified names",
        check: |testbed| Box::pin(check_responses(testbed, cdi_names)),
    },
    Case {
        id: "C07",
        sentence: "writes the CDI specs of its CDI names before it answers",
        source: "Container Device Interface 1.0: the runtime looks names up when it creates the container",
        check: |testbed| Box::pin(cdi_names_are_resolved(testbed)),
    },
    Case {
        id: "C08",
        sentence: "gives each container at least one edit",
        source: "cm/devicemanager/manager.go, GetDeviceRunContainerOptions",
        check: |testbed| Box::pin(check_responses(testbed, |response| Some(any_edit(response)))),
    },
];

/// Check of a response; `None` if the response has no item that it checks.
type ResponseCheck = fn(&ContainerAllocateResponse) -> Option<Result<(), String>>;

/// Allocates every healthy device alone, and checks each response.
async fn check_responses(testbed: &mut Testbed, check: ResponseCheck) -> CheckResult {
    let mut count = 0;
    for response in allocate_each_device(testbed).await? {
        match check(&response) {
            Some(Err(reason)) => return failed(reason),
            Some(Ok(())) => count += 1,
            None => {}
        }
    }
    if count == 0 {
        not_applicable("no response has an item of this kind")
    } else {
        Ok(format!("{count} responses"))
    }
}

async fn allocate_each_device(
    testbed: &mut Testbed,
) -> Result<Vec<ContainerAllocateResponse>, CheckError> {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    let mut responses = Vec::new();
    for served in &resources {
        let mut client = served.dial().await?;
        for id in served.healthy_ids() {
            let call_name = format!("Allocate of {id}");
            let response =
                call_ok_within(&call_name, limit, client.allocate(allocate_request(&[vec![id]])))
                    .await?;
            responses.extend(response.container_responses);
        }
    }
    Ok(responses)
}

/// Checks each item. `flaw` describes a defect of an item. `None` if there are no items.
fn check_each<'a, T: 'a>(
    items: impl IntoIterator<Item = &'a T>,
    flaw: impl Fn(&T) -> Option<String>,
) -> Option<Result<(), String>> {
    let mut items = items.into_iter().peekable();
    items.peek()?;
    Some(items.find_map(flaw).map_or(Ok(()), Err))
}

fn device_nodes(response: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    check_each(&response.devices, |node| path_flaw(&node.host_path, &node.container_path))
}

fn mounts(response: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    check_each(&response.mounts, |mount| path_flaw(&mount.host_path, &mount.container_path))
}

fn path_flaw(host: &str, container: &str) -> Option<String> {
    if !Path::new(container).is_absolute() {
        return Some(format!("{container:?} is not an absolute path in the container"));
    }
    if !Path::new(host).is_absolute() {
        return Some(format!("{host:?} is not an absolute path on the host"));
    }
    (!Path::new(host).exists()).then(|| format!("{host} does not exist on the host"))
}

fn permissions(response: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    check_each(&response.devices, |node| {
        let letters = &node.permissions;
        let is_known = !letters.is_empty() && letters.chars().all(|c| "rwm".contains(c));
        (!is_known).then(|| format!("{} has permissions {letters:?}", node.host_path))
    })
}

fn variables(response: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    let variables: Vec<_> = response.envs.iter().collect();
    check_each(&variables, |(name, value)| {
        let is_usable = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        (!is_usable).then(|| format!("variable {name:?} is {value:?}"))
    })
}

fn annotations(response: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    let keys: Vec<_> = response.annotations.keys().collect();
    check_each(&keys, |key| (!is_annotation_key(key)).then(|| format!("annotation {key:?}")))
}

/// True for `prefix/name` or `name`, as for labels (`IsQualifiedName`). Capitals are valid in the prefix too, because
/// `ValidateAnnotations` checks the key in lower case.
fn is_annotation_key(key: &str) -> bool {
    let (prefix, name) =
        key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_name = name.len() <= 63
        && is_alphanumeric(name.chars().next())
        && is_alphanumeric(name.chars().last())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let is_prefix = |prefix: &str| {
        let is_label = |part: &str| {
            is_alphanumeric(part.chars().next())
                && is_alphanumeric(part.chars().last())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        prefix.len() <= 253 && prefix.split('.').all(is_label)
    };
    is_name && prefix.is_none_or(is_prefix)
}

fn cdi_names(response: &ContainerAllocateResponse) -> Option<Result<(), String>> {
    check_each(&response.cdi_devices, |device| {
        let is_name = cdi::Name::parse(&device.name).is_some();
        (!is_name).then(|| format!("{:?} is not a CDI name", device.name))
    })
}

fn any_edit(response: &ContainerAllocateResponse) -> Result<(), String> {
    let counts = [
        response.devices.len(),
        response.mounts.len(),
        response.envs.len(),
        response.annotations.len(),
        response.cdi_devices.len(),
    ];
    if counts.iter().sum::<usize>() > 0 { Ok(()) } else { Err("a response is empty".into()) }
}

async fn cdi_names_are_resolved(testbed: &mut Testbed) -> CheckResult {
    let responses = allocate_each_device(testbed).await?;
    let devices = responses.iter().flat_map(|response| &response.cdi_devices);
    let names: Vec<_> = devices.map(|device| &device.name).collect();
    if names.is_empty() {
        return not_applicable("no response has a CDI name");
    }
    let names_in_specs = cdi::device_names(&testbed.cdi_dirs());
    match names.iter().find(|name| !names_in_specs.contains(name.as_str())) {
        Some(name) => failed(format!("{name} is in no CDI spec of {:?}", testbed.cdi_dirs())),
        None => Ok(format!("{} names", names.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_keys_follow_the_rules_of_label_keys() {
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
