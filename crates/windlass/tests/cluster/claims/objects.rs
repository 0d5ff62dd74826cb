//! Objects of the tests: a device class of GPUs, claim templates and pods.

const CLASS: &str = "windlass-e2e-gpu";

/// Name of the claim template for a number of GPUs.
pub(super) fn template(gpus: usize) -> String {
    format!("windlass-e2e-{gpus}")
}

/// A class of GPUs, and templates of claims for one, two and three of them.
pub(super) fn objects() -> Vec<String> {
    let class = format!(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {CLASS}}}\nspec:\n  \
         selectors: [{{cel: {{expression: 'device.driver == \"windlass.dev\" && \
         device.attributes[\"windlass.dev\"].type == \"gpu\"'}}}}]\n"
    );
    let templates = (1..=3).map(|gpus| {
        format!(
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\n\
             metadata: {{name: {}}}\nspec: {{spec: {{devices: {{requests: [{{name: gpu, exactly: \
             {{deviceClassName: {CLASS}, count: {gpus}}}}}]}}}}}}\n",
            template(gpus)
        )
    });
    [class].into_iter().chain(templates).collect()
}

/// Pod that has GPUs by a claim until it is deleted.
pub(super) fn pod(name: &str, gpus: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  \
         resourceClaims: [{{name: gpus, resourceClaimTemplateName: {}}}]\n  \
         containers: [{{name: main, image: \"docker.io/local/app:1\", imagePullPolicy: Never, \
         resources: {{claims: [{{name: gpus}}]}}}}]\n",
        template(gpus)
    )
}
