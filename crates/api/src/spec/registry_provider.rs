//! Providers of container registries (`spec.containerRegistry.provider`). A new provider requires a variant,
//! an arm in [`RegistryProvider::identity`], its credential helper in `images/cloud-helpers/Dockerfile`, and a row in `docs/registries.md`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Provider of a container registry.
#[derive(
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    JsonSchema,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
pub enum RegistryProvider {
    /// Any registry. Credentials come from a Secret, or access is anonymous.
    #[default]
    Generic,
    /// Amazon ECR.
    Aws,
    /// Google Artifact Registry.
    Gcp,
    /// Azure Container Registry.
    Azure,
}

/// Access to a container registry with the workload identity of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadIdentity {
    /// Docker credential helper that exchanges the identity for credentials of the registry: a program in the image of the operator, which
    /// `images/cloud-helpers/Dockerfile` adds.
    pub helper: &'static str,
    /// Environment of the credential helper. Each variable must be unknown to the helpers of other providers, or have the same effect there.
    pub helper_environment: &'static [(&'static str, &'static str)],
    /// Value of `--credential-helpers` of kaniko.
    pub kaniko_helper: &'static str,
    /// Label of the pods in which the webhook of the cloud injects a token. `None` if the annotations of the ServiceAccount suffice.
    pub pod_label: Option<(&'static str, &'static str)>,
    /// Annotation of a pod with the name of a container in which the webhook of the cloud injects no token. `None` if the cloud has no such
    /// annotation.
    pub skip_container: Option<&'static str>,
}

impl RegistryProvider {
    /// Every provider.
    pub const VARIANTS: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns how pods access the registry with their workload identity. `None` if the provider has no workload identity.
    pub const fn identity(self) -> Option<WorkloadIdentity> {
        match self {
            Self::Generic => None,
            Self::Aws => Some(WorkloadIdentity {
                helper: "docker-credential-ecr-login",
                // Disables the cache: the helper would write it to the home directory, which may be read-only.
                helper_environment: &[("AWS_ECR_DISABLE_CACHE", "true")],
                kaniko_helper: "ecr",
                pod_label: None,
                // <https://github.com/aws/amazon-eks-pod-identity-webhook#pod-annotations>
                skip_container: Some("eks.amazonaws.com/skip-containers"),
            }),
            Self::Gcp => Some(WorkloadIdentity {
                helper: "docker-credential-gcr",
                helper_environment: &[],
                kaniko_helper: "google",
                pod_label: None,
                skip_container: None,
            }),
            // Label and annotation:
            // <https://azure.github.io/azure-workload-identity/docs/topics/service-account-labels-and-annotations.html>
            Self::Azure => Some(WorkloadIdentity {
                helper: "docker-credential-acr-env",
                helper_environment: &[],
                kaniko_helper: "acr",
                pod_label: Some(("azure.workload.identity/use", "true")),
                skip_container: Some("azure.workload.identity/skip-containers"),
            }),
        }
    }

    /// Returns the workload identities of all providers.
    pub fn identities() -> impl Iterator<Item = WorkloadIdentity> {
        Self::VARIANTS
            .iter()
            .filter_map(|provider| provider.identity())
    }
}
