//! Sources of the module other than a git repository (`spec.source`).

use std::collections::BTreeMap;

use kube_core::Duration;
use kube_derive::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::references::KeyRef;
use crate::spec::duration::{DURATION, DURATION_HELP, MAX_DURATION, seconds};

/// Maximum number of files in `source.inline.files`.
pub const MAX_INLINE_FILES: usize = 64;
/// Maximum total size of the files in `source.inline.files`, in bytes. Lower than the limit of 256 KiB for the annotation of `kubectl apply`,
/// which contains the files as JSON.
pub const MAX_INLINE_BYTES: usize = 128 << 10;

const ONE_KIND: &str =
    "[has(self.module), has(self.inline), has(self.oci)].filter(given, given).size() == 1";
const ONE_KIND_HELP: &str = "exactly one of module, inline and oci must be set";
const VERSIONED: &str = "(!self.source.matches('^(github[.]com|bitbucket[.]org)(:[0-9]+)?/') && self.source.matches('^([0-9A-Za-z-]+([.][0-9A-Za-z-]+)*(:[0-9]+)?/)?[0-9A-Za-z][0-9A-Za-z_-]*/[0-9A-Za-z][0-9A-Za-z_-]*/[0-9a-z]+(//[^?]*)?$')) == has(self.version)";
const VERSIONED_HELP: &str = "version is required for a module of a registry (NAMESPACE/NAME/PROVIDER), and not allowed for other sources: select their version in source, for example with ?ref=v1.2.0";
const REMOTE: &str =
    "self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@?&=+~%-]*$') && !self.matches('(^|::)(file:|[/.])')";
const REMOTE_HELP: &str = "must be a module of a registry or a remote source, not a path: NAMESPACE/NAME/PROVIDER, or git::https://HOST/REPOSITORY";
const VERSION: &str = "self.matches('^[0-9A-Za-z.,<>=!~ +-]+$')";
const VERSION_HELP: &str = "must be a version or a version constraint, such as 5.8.1 or ~> 5.8";
const OUTPUT: &str = "self.matches('^[A-Za-z_][A-Za-z0-9_-]*$')";
const OUTPUT_HELP: &str = "must be the name of an output: letters, digits, '_' and '-'";
const FILE_NAMES: &str = r"self.all(name, name.size() <= 128 && !name.contains('.tfstate') && name.matches('^([A-Za-z0-9_][A-Za-z0-9_.-]*[.](tf|tofu|tfvars|tftpl|tpl|tmpl|hcl|json|yaml|yml|txt|sh|py|pem|rego)|[.]terraform[.]lock[.]hcl)$'))";
const FILE_NAMES_HELP: &str = "each name must be a file name without a folder, at most 128 characters, with one of the suffixes .tf, .tf.json, .tofu, .tfvars, .tftpl, .tpl, .tmpl, .hcl, .json, .yaml, .yml, .txt, .sh, .py, .pem and .rego, or .terraform.lock.hcl";
const FILES_SIZE: &str = "self.map(name, self[name].size()).sum() <= 131072";
const FILES_SIZE_HELP: &str = "must have at most 131072 bytes in total";
const ONE_REFERENCE: &str =
    "[has(self.tag), has(self.semver), has(self.digest)].filter(given, given).size() <= 1";
const ONE_REFERENCE_HELP: &str = "at most one of tag, semver and digest may be set";
const OCI_URL: &str =
    "self.matches('^oci://[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$')";
const OCI_URL_HELP: &str =
    "must be a repository without tag and digest: oci://HOST/REPOSITORY, in lower case";
const TAG: &str = "self.matches('^[A-Za-z0-9_][A-Za-z0-9._-]*$')";
const TAG_HELP: &str = "must be a tag: letters, digits, '_', '.' and '-'";
const DIGEST: &str = "self.matches('^sha256:[0-9a-f]{64}$')";
const DIGEST_HELP: &str = "must be a digest: sha256: and 64 hexadecimal digits in lower case";

/// Source of the module other than a git repository. Exactly one of `module`, `inline` and `oci` must be set. See docs/sources.md.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(ONE_KIND).message(ONE_KIND_HELP))]
pub struct OtherSource {
    /// Module of a Terraform registry, or another remote module. The operator writes the root module that calls it as `module.main`, with
    /// the values of `spec.variables` and `spec.variablesFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<RemoteModule>,
    /// Files of the root module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<InlineModule>,
    /// Artifact in a container registry that contains the files of the module, as written by `flux push artifact`, or a module package of
    /// OpenTofu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<OciArtifact>,
}

/// Module of a Terraform registry, or another remote module.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(VERSIONED).message(VERSIONED_HELP))]
pub struct RemoteModule {
    /// Source of the module, as in a `module` block: `NAMESPACE/NAME/PROVIDER` or `HOST/NAMESPACE/NAME/PROVIDER` of a registry, or a remote
    /// source such as `git::https://host/repository//folder?ref=v1.2.0`. Paths are not allowed. Example:
    /// `terraform-aws-modules/vpc/aws`. At most 512 characters.
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(REMOTE).message(REMOTE_HELP))]
    pub source: String,
    /// Version of the module, or a version constraint. Required for a module of a registry. Example: `5.8.1` or `~> 5.8`. The build of the
    /// image selects the newest version that matches a constraint. Runs use the version in the image, so a newer version is used after
    /// the next build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new(VERSION).message(VERSION_HELP))]
    pub version: Option<String>,
    /// Outputs of the module that are outputs of the root module, and so of the resource. At most 100 entries. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub outputs: Vec<ModuleOutput>,
}

/// Output of a remote module.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct ModuleOutput {
    /// Name of the output. Example: `vpc_id`. At most 128 characters.
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new(OUTPUT).message(OUTPUT_HELP))]
    pub name: String,
    /// Whether the output is sensitive. Must be true if the value is sensitive in the module: the engine refuses the root module otherwise.
    /// Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}

/// Files of the root module.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct InlineModule {
    /// Texts of the files, by file name. Names have no folder. At most 64 files, and 128 KiB in total. Do not put secrets here: users who
    /// can read the resource can read them, and the files are part of the image.
    #[schemars(schema_with = "files")]
    #[x_kube(validation = Rule::new(FILE_NAMES).message(FILE_NAMES_HELP), validation = Rule::new(FILES_SIZE).message(FILES_SIZE_HELP))]
    pub files: BTreeMap<String, String>,
}

/// Artifact in a container registry.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(ONE_REFERENCE).message(ONE_REFERENCE_HELP))]
pub struct OciArtifact {
    /// Repository of the artifact, without tag and digest. Example: `oci://ghcr.io/owner/modules/network`. At most 512 characters.
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(OCI_URL).message(OCI_URL_HELP))]
    pub url: String,
    /// Tag to follow. A tag that is moved to another artifact is handled as a new commit of a branch. Default: latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new(TAG).message(TAG_HELP))]
    pub tag: Option<String>,
    /// Range of versions. The tag with the highest version in the range is used. Tags without a version, such as `latest`, are ignored.
    /// Pre-releases are used only if the range names one. Example: `>=1.2.0 <2.0.0`, `1.x` or `~1.4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub semver: Option<String>,
    /// Digest of the artifact. The operator sends no further requests to the registry after the artifact is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    #[x_kube(validation = Rule::new(DIGEST).message(DIGEST_HELP))]
    pub digest: Option<String>,
    /// Folder of the module in the artifact. Default: the root of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub path: Option<String>,
    /// Interval at which the operator checks the registry for another artifact. Default: 1m.
    #[serde(default = "one_minute")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub interval: Duration,
    /// Key of a Secret with a docker configuration in JSON format: the credentials for the artifact. If the Secret does not have the key,
    /// `.dockerconfigjson` is used, then `.dockercfg`. Default: the credentials of `containerRegistry` for the same registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyRef>,
}

/// Returns the schema of the files of a module. The API server requires upper bounds for the CEL rules.
fn files(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": MAX_INLINE_BYTES},
        "minProperties": 1,
        "maxProperties": MAX_INLINE_FILES,
    })
}

fn one_minute() -> Duration {
    seconds(60)
}
