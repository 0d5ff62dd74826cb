//! Annotation key for CDI device names.

use windlass_config::AnnotationPrefix;
use windlass_core::{name::digest, resource::ResourceName};

/// Maximum length of the name in an annotation key, after the slash.
const MAX_NAME: usize = 63;

/// Annotation key of a resource. The kubelet merges annotations by key, so each resource has its own.
pub(super) fn key(prefix: &AnnotationPrefix, resource: &ResourceName) -> String {
    let name = format!("windlass_{}", resource.as_str().replace('/', "_"));
    let name = if name.len() > MAX_NAME { shortened(&name) } else { name };
    format!("{}{name}", prefix.as_str())
}

/// Keeps the end of the name, which identifies a resource best, and adds a digest of the whole name.
fn shortened(name: &str) -> String {
    let end = &name[name.len() - (MAX_NAME - "windlass_".len() - 17)..];
    format!("windlass_{:016x}_{end}", digest(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(resource: &str) -> String {
        key(&AnnotationPrefix::default(), &resource.parse().expect("valid"))
    }

    #[test]
    fn every_resource_has_a_valid_key() {
        assert_eq!(key_of("nvidia.com/gpu"), "cdi.k8s.io/windlass_nvidia.com_gpu");
        let long = |domain: &str| format!("{domain}.{}.com/{}", "a".repeat(200), "x".repeat(63));
        let (one, other) = (key_of(&long("a")), key_of(&long("b")));
        assert_ne!(one, other, "resources that end alike");
        for key in [one, other] {
            let (_, name) = key.split_once('/').expect("a prefix");
            assert_eq!(name.len(), MAX_NAME);
        }
    }
}
