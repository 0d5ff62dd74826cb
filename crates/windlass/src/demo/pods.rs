//! Pods of the demo, sized to the machine.

use windlass_kubelet_sim::{Container, Pod};

/// Pods that fit into `free` devices: one with half of them, one with two, one whose init container shares the main
/// container's device, and one with a single device.
pub(super) fn fitting(resource: &str, free: usize) -> Vec<Pod> {
    let half = if free > 1 { free / 2 } else { 1 };
    let mut remaining = free;
    let mut pods = Vec::new();
    for (name, size) in [("trainer", half), ("pair", 2), ("prepared", 1), ("notebook", 1)] {
        if size <= remaining {
            remaining -= size;
            let main = container("main", resource, size);
            pods.push(match name {
                "prepared" => {
                    Pod::new(name).init_container(container("fetch", resource, 1)).container(main)
                }
                _ => Pod::new(name).container(main),
            });
        }
    }
    pods
}

/// Pod that requests one device more than is free.
pub(super) fn oversized(resource: &str, free: usize) -> Pod {
    Pod::new("too-large").container(container("main", resource, free + 1))
}

pub(super) fn with_one_device(name: &str, resource: &str) -> Pod {
    Pod::new(name).container(container("main", resource, 1))
}

fn container(name: &str, resource: &str, size: usize) -> Container {
    let limits = [(resource.to_owned(), size as u64)].into();
    Container { name: name.to_owned(), limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_request_at_most_the_free_devices() {
        let size = |pod: &Pod| pod.containers[0].limits["r"];
        for (free, expected) in [(8, vec![4, 2, 1, 1]), (2, vec![1, 1]), (1, vec![1]), (0, vec![])]
        {
            let sizes: Vec<_> = fitting("r", free).iter().map(size).collect();
            assert_eq!(sizes, expected, "{free} free");
        }
    }
}
