//! Kind `Terraform`. Doc comments of its fields are user documentation (`kubectl explain terraform.spec`).

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use kube_core::Duration;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::engine::EngineName;
use crate::notification::Notification;
use crate::references::{KeyRef, NameRef, OBJECT, OBJECT_HELP};
use crate::stack::{DependencyRef, ObjectTest, ObjectsGone, OutputsSpec, VariablesFrom};
use crate::status::TerraformStatus;

const DURATION: &str = r"self.matches('^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')";
const AGE: &str = r"self.matches('^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('8760h')";
const AGE_HELP: &str = "must be a duration from 1h to 8760h, such as 168h";
const DURATION_HELP: &str = "must be a duration from 1s to 8760h, such as 30s, 5m or 1h";

const VERSION: &str = r"self.matches('^[0-9]{1,9}(\\.[0-9]{1,9}){0,2}$') || self.matches('^([0-9]{1,9}\\.){2}[0-9]{1,9}-[0-9A-Za-z.-]+$')";
const VERSION_HELP: &str = "must be a version such as 1.12.6, or a version prefix such as 1.12";

const COMMIT: &str = "self.matches('^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$')";
const COMMIT_HELP: &str = "must be a full commit id of 40 or 64 hexadecimal digits, as printed by `git rev-parse`: git servers do not resolve abbreviated ids";

/// Desired state of a `Terraform` resource.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = r#"x_kube(crates(kube_core = "::kube_core"))"#,
    group = "alustan.io",
    version = "v1alpha1",
    kind = "Terraform",
    namespaced,
    status = "TerraformStatus",
    shortname = "tf",
    category = "alustan",
    derive = "PartialEq",
    doc = "A Terraform (or OpenTofu) module from a git repository. The operator builds an immutable runner image for it in the cluster, applies it in Jobs, and destroys the created objects when the resource is deleted.",
    validation = Rule::new("self.metadata.name.size() <= 50").message("metadata.name: at most 50 characters, because names of Jobs are also label values"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "State of the resource"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Whether the configuration is applied"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Reason of condition Ready"),
    printcolumn(name = "Plan", type_ = "string", json_path = ".status.plan.summary", description = "Changes of the last plan: add, change, destroy"),
    printcolumn(name = "Run", type_ = "integer", json_path = ".status.run", description = "Number of the last run"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.source.revision", description = "Git commit", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "Situation and next step", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.mode) && self.approval.mode == 'Manual' && has(self.scripts) && has(self.scripts.apply)) || has(self.scripts.plan)").message("approval.mode Manual with scripts.apply requires scripts.plan: an approval applies to a plan"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.rules) && self.approval.rules.size() > 0 && has(self.scripts) && has(self.scripts.apply)) || has(self.scripts.plan)").message("approval.rules with scripts.apply require scripts.plan: rules are evaluated on a plan"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.destroy) && self.approval.destroy == 'Manual' && has(self.scripts) && has(self.scripts.destroy))").message("approval.destroy Manual cannot be combined with scripts.destroy: a destroy script has no plan"))]
#[x_kube(validation = Rule::new("!(has(self.backend) && has(self.backend.provider) && self.backend.provider == 'local' && has(self.cache) && has(self.cache.enabled) && !self.cache.enabled)").message("backend.provider local requires cache.enabled: the state is on the cache volume"))]
pub struct TerraformSpec {
    /// Values of variables of the module, by name. Any JSON value is allowed. Example: `region: us-east-1` or `zones: [a, b]`. A `TF_VAR_`
    /// prefix of a key is stripped. Scripts get each value as environment variable `TF_VAR_name`, and also as `name` if that is a shell
    /// identifier. Names that change how programs run, such as `PATH`, are only set with the prefix. Do not put secrets here: users who can
    /// read the resource can read them. The JSON of the whole resource may contain at most 10,000 values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Anything>,

    /// If true, runs fail (`VariableUndeclared`) if `variables` contains a name that the module does not declare. If false, the engine does
    /// not get the variable, and condition Ready and the log of the run contain its name. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_variables: bool,

    /// References to values of variables in Secrets, ConfigMaps, outputs of other resources and fields of objects. Later entries take
    /// precedence over earlier entries. `variables` takes precedence over all entries. A changed value starts a run, at most one per
    /// minute, and less often while values keep changing (`InputFlapping`). At most 50 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub variables_from: Vec<VariablesFrom>,

    /// Resources that must be ready before this resource is applied. They are destroyed after this resource. Resources in `variablesFrom`
    /// are dependencies without an entry here. At most 100 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub depends_on: Vec<DependencyRef>,

    /// Objects that must exist, or pass a test, before a run plans or applies. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub wait_for: Vec<ObjectTest>,

    /// Objects that must not exist when a destroy starts. Use this field for objects whose controllers need the infrastructure that this
    /// resource created. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub destroy_wait_for: Vec<ObjectsGone>,

    /// Objects that must exist, or pass a test, before the resource becomes ready after an apply. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub health_checks: Vec<ObjectTest>,

    /// Backend that stores the state. Default: the `backend` block of the module if it has one, else provider `managed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendSpec>,

    /// Scripts that replace commands of the engine. The working directory is the folder of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,

    /// Git repository that contains the module.
    pub git_repo: GitRepo,

    /// Container registry for the runner image of this resource.
    pub container_registry: ContainerRegistry,

    /// Engine and its version. Default: the engine in the base image of the operator (`--base-image`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineSpec>,

    /// Approval of plans. Default: every plan is applied, except one that removes every managed object (`emptying`).
    #[serde(default)]
    pub approval: Approval,

    /// Detection and correction of drift. Drift is a difference between the real objects and the configuration.
    #[serde(default)]
    pub drift_detection: DriftDetection,

    /// Retry policy for failures of runs and builds.
    #[serde(default)]
    pub retry: Retry,

    /// Time limits of a run.
    #[serde(default)]
    pub timeouts: Timeouts,

    /// Receivers of notifications about pending approvals, success, failure and drift. The flag `--notifications` of the operator can add
    /// receivers for all resources. At most 8 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub notifications: Vec<Notification>,

    /// Handling of the managed objects when this resource is deleted. `Destroy` destroys them. `Orphan` leaves the objects and the state in
    /// place. Default: Destroy.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,

    /// If true, the API server refuses to delete this resource (policy `alustan-deletion-protection`). If the cluster does not have this
    /// policy, the deleted resource waits (`DeletionProtected`) and nothing is destroyed. Default: false.
    #[serde(default)]
    pub deletion_protection: bool,

    /// If true, no run starts: no apply, no destroy, no drift check. A run that has not started to change objects is cancelled. The
    /// operator sends no requests to the repository and the registry. `status` keeps the last known revision and image. Default: false.
    #[serde(default)]
    pub suspend: bool,

    /// Secret and ConfigMap for the outputs of the module. With `driftDetection.mode` Correct, a change of this field starts an apply, and so does
    /// the deletion of the Secret or the ConfigMap. With other modes, the change or deletion starts no apply, and the next apply writes the Secret
    /// and the ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<OutputsSpec>,

    /// ServiceAccount, environment and architecture of run pods, for example for credentials of providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerSpec>,

    /// Cache volume of this resource: plans, provider cache and engine data.
    #[serde(default)]
    pub cache: CacheSpec,
}

/// Any JSON value, stored as text to save memory: see [`crate::json_size`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anything(Box<str>);

impl Anything {
    /// Parses the value.
    pub fn value(&self) -> Value {
        // The text is always valid JSON: it was formatted from a `Value`.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<Value> for Anything {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for Anything {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl JsonSchema for Anything {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Anything".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
    }
}

/// Type of the backend. Default: the `backend` block of the module if it has one, else `managed`. `managed`: Secrets in the namespace of
/// the resource, no cloud needed. `aws`: S3. `gcp`: Google Cloud Storage. `azure`: Azure Blob Storage. `kubernetes`: a Secret that the
/// engine writes. `pg`: `PostgreSQL`. `http`: a server with the http protocol of the engine. `local`: a file on the cache volume.
/// `generic`: any other backend of the engine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendProvider {
    /// Secrets in the namespace of the resource, served to the engine by the runner. Needs no cloud.
    Managed,
    /// S3 bucket of AWS or of a server with the S3 API. The lock is an item in a `DynamoDB` table or a file in the bucket. Backend `s3` of
    /// the engine.
    Aws,
    /// Bucket of Google Cloud Storage. Backend `gcs` of the engine.
    Gcp,
    /// Container of Azure Blob Storage. Backend `azurerm` of the engine.
    Azure,
    /// Secret that the engine writes. Backend `kubernetes` of the engine. Runs need permission to read every Secret of the namespace. With
    /// `managed`, they do not need this permission.
    Kubernetes,
    /// `PostgreSQL` database. Backend `pg` of the engine.
    Pg,
    /// Server with the http protocol of the engine. Backend `http` of the engine.
    Http,
    /// File on the cache volume. Backend `local` of the engine. The state is lost with the volume.
    Local,
    /// Any other backend of the engine, configured by `type` and `config`.
    Generic,
}

const HTTP_URL: &str = "self.matches('^https?://[^@ ]+$')";
const HTTP_URL_HELP: &str = "must be an https:// or http:// URL without user information: store credentials in the Secret of secretRef";
const NO_NUMBER: &str = "!self.matches('(^|-)[0-9]+$')";
const NO_NUMBER_HELP: &str =
    "must not end in a number, such as -1: the engine appends numbers to the names of Secrets";

/// Backend that stores the state.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'aws') || (has(self.s3) && self.s3 != '')").message("provider aws requires s3: the name of the bucket"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'aws') || (has(self.region) && self.region != '')").message("provider aws requires region, for example us-east-1"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'aws') || !(has(self.s3) || has(self.dynamoDB) || has(self.lockFile) || has(self.region) || has(self.endpoint) || (has(self.bootstrap) && self.bootstrap))").message("s3, dynamoDB, lockFile, region, endpoint and bootstrap require provider aws"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'gcp') || (has(self.gcs) && self.gcs != '')").message("provider gcp requires gcs: the name of the bucket"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'gcp') || !(has(self.gcs) || has(self.prefix))").message("gcs and prefix require provider gcp"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'azure') || (has(self.storageAccount) && self.storageAccount != '' && has(self.container) && self.container != '')").message("provider azure requires storageAccount and container"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'azure') || !(has(self.storageAccount) || has(self.container) || has(self.resourceGroup))").message("storageAccount, container and resourceGroup require provider azure"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider in ['aws', 'azure']) || !has(self.key)").message("key requires provider aws or azure"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'kubernetes') || !has(self.secretSuffix)").message("secretSuffix requires provider kubernetes"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'pg') || !has(self.schemaName)").message("schemaName requires provider pg"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'http') || has(self.address)").message("provider http requires address: the URL of the state"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'http') || !(has(self.address) || has(self.lockAddress) || has(self.unlockAddress))").message("address, lockAddress and unlockAddress require provider http"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'generic') == has(self.type)").message("provider generic requires type, for example oss; other providers do not allow type"))]
#[x_kube(validation = Rule::new("(has(self.provider) && !(self.provider in ['managed', 'local'])) || !has(self.secretRef)").message("secretRef requires a provider other than managed and local"))]
pub struct BackendSpec {
    /// See [`BackendProvider`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<BackendProvider>,
    /// aws: Name of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<String>,
    /// aws: Name of the `DynamoDB` table with the locks. Default: none, the lock is a file in the bucket.
    #[serde(default, rename = "dynamoDB", skip_serializing_if = "Option::is_none")]
    pub dynamo_db: Option<String>,
    /// aws: If true, the lock is a file in the bucket. Requires Terraform or OpenTofu 1.10. If `dynamoDB` is also set, each run takes both
    /// locks, for a migration from the table to the file. Default: true without `dynamoDB`, else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_file: Option<bool>,
    /// aws: Region of the bucket. Example: `us-east-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// aws: URL of another server with the S3 API. Example: `https://minio.example.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub endpoint: Option<String>,
    /// aws, azure: Key of the state in the bucket or container. Default: `<namespace>/<name>.tfstate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// gcp: Name of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<String>,
    /// gcp: Folder of the state in the bucket. The state is the object `default.tfstate` in this folder. Default: `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// azure: Name of the storage account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_account: Option<String>,
    /// azure: Name of the container in the storage account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// azure: Resource group of the storage account. Required if the engine queries the access key of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// kubernetes: Suffix of the Secret `tfstate-default-<secretSuffix>` that stores the state. Default: `<name>-state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    #[x_kube(validation = Rule::new(NO_NUMBER).message(NO_NUMBER_HELP))]
    pub secret_suffix: Option<String>,
    /// pg: Schema of the state in the database. The engine creates it. Default: `<namespace>_<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub schema_name: Option<String>,
    /// http: URL of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub address: Option<String>,
    /// http: URL that locks the state. Default: none, the state is not locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub lock_address: Option<String>,
    /// http: URL that unlocks the state. Default: `lockAddress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub unlock_address: Option<String>,
    /// generic: Type of the backend in the engine. Example: `oss` or `consul`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z][a-z0-9_]*$')").message("must be a backend type of the engine, for example oss"))]
    pub kind: Option<String>,
    /// Further arguments of the backend block, by the argument names of the engine. Example: `{kms_key_id: alias/state}`. Not allowed for
    /// `managed` and `local`. Put secrets into the Secret of `secretRef`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, Anything>,
    /// Secret with the credentials of the backend. Its keys become environment variables of the engine. Examples: `AWS_ACCESS_KEY_ID`,
    /// `GOOGLE_CREDENTIALS`, `ARM_ACCESS_KEY`, `PG_CONN_STR`. Keys in lower case, such as `conn_str`, become arguments of the backend
    /// block, in a file that only the runner can read. Default: the environment of the run pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<NameRef>,
    /// aws: If true, a missing bucket and a missing `dynamoDB` table are created before the first run. The bucket is versioned, encrypted
    /// and blocks public access. An existing bucket or table is not changed. Default: false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bootstrap: bool,
    /// If true, the resource adopts an existing state that it did not create. The first plan then waits for approval. If false, such a state is
    /// refused (`StateOwnershipConflict`). Default: false.
    #[serde(default)]
    pub adopt: bool,
    /// If true, the next run copies the state when the address of the state differs from that of the last apply. The address changes with
    /// `spec.backend` or with the `backend` block of the module. The state at the old address is kept. If false, nothing is applied after
    /// such a change (`BackendChanged`). Default: false.
    #[serde(default)]
    pub migrate: bool,
}

/// Scripts that replace commands of the engine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// Replaces `terraform init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Script>,
    /// Replaces `terraform plan`. Exit code 0 means no changes, 2 means changes, any other code is a failure. The script writes its plan to
    /// the file in environment variable `ALUSTAN_PLAN_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Script>,
    /// Replaces `terraform apply`. The script can write outputs, in the format of `terraform output -json`, to the file in environment
    /// variable `ALUSTAN_OUTPUTS_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Script>,
    /// Replaces `terraform destroy` when the resource is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<Script>,
}

/// A script, inline or in a ConfigMap. The `#!` line selects the interpreter. Default: `bash -e`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.inline) != has(self.configMapRef)").message("exactly one of inline and configMapRef must be set"))]
pub struct Script {
    /// Text of the script, at most 64 KiB. A larger script is refused (`InputTooLarge`), because the run record, a Secret, contains all
    /// scripts. Put a larger script into the module and call it from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub inline: Option<String>,
    /// Key of a ConfigMap with the text of the script, at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyRef>,
}

/// Git repository that contains the module.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.branch), has(self.tag), has(self.commit)].filter(given, given).size() <= 1").message("at most one of branch, tag and commit may be set"))]
pub struct GitRepo {
    /// URL of the repository: `https://host/owner/repo`, `ssh://git@host/owner/repo.git` or `git@host:owner/repo.git`. A suffix `//folder` is the
    /// folder of the module. On github.com and bitbucket.org, the path after `owner/repo` is also the folder. Example:
    /// `https://github.com/owner/repo/folder`.
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub url: String,
    /// Branch to follow. Default: the default branch of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Tag to follow. A moved tag is handled as a new commit. An annotated tag resolves to its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub tag: Option<String>,
    /// Full id of a commit. Later pushes have no effect. After the commit is fetched, the operator sends no further requests to the
    /// repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(COMMIT).message(COMMIT_HELP))]
    pub commit: Option<String>,
    /// Folder of the module, relative to the folder of `url`. Default: the folder of `url`, else the root of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Files and folders outside the module that the module reads. Example: `shared/policies`. They are part of the context: a commit that
    /// changes them is handled as a commit to the module. Local modules (`source = "../x"`) are included without an entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Interval at which the operator checks the repository for new commits. Default: 1m.
    #[serde(default = "one_minute")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub interval: Duration,
    /// If true, the context contains the git submodules that the module needs. If false, a module that needs a submodule fails with a
    /// message. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub submodules: bool,
    /// Key of a Secret with the private ssh key for the repository, and for modules that the build fetches by ssh. The optional key
    /// `known_hosts` of the same Secret contains trusted host keys. Default of `known_hosts`: built-in host keys of github.com, gitlab.com
    /// and bitbucket.org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_secret: Option<KeyRef>,
    /// Secret with credentials for https: `username`, and `password` or a token as `password`. They also apply to modules that the build
    /// fetches by https from the same host. The optional key `ca.crt` contains certificate authorities to trust in addition to those of the
    /// system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<NameRef>,
    /// Certificate authorities in PEM format to trust in addition to those of the system. They apply to the repository and to modules that
    /// the build fetches with git by https. At most 65,536 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.contains('-----BEGIN CERTIFICATE-----')").message("must contain certificates in PEM format: -----BEGIN CERTIFICATE-----"), validation = Rule::new("self.size() <= 65536").message("must have at most 65536 characters"))]
    pub ca_bundle: Option<String>,
}

/// Container registry for the runner image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.dockerfile) || (self.dockerfile != '' && !self.dockerfile.startsWith('/') && !self.dockerfile.split('/').exists(part, part == '..'))").message("dockerfile must be a path in the repository, without '..', such as docker/Dockerfile"))]
#[x_kube(validation = Rule::new("!has(self.dockerfile) || !has(self.builder) || !has(self.builder.kind) || self.builder.kind != 'Append'").message("builder.kind Append cannot build a dockerfile: use Kaniko, or remove dockerfile"))]
pub struct ContainerRegistry {
    /// Image repository without a tag. Example: `docker.io/owner/name` or `registry.example.com:5000/x`.
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub image_name: String,
    /// Key of a Secret with a docker configuration in JSON format: the credentials of the registry. If the Secret does not have the key,
    /// `.dockerconfigjson` is used, then `.dockercfg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyRef>,
    /// Base image of the runner image. It must contain the engine. It takes precedence over `spec.engine`. Default: the base image of the
    /// operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_image: Option<String>,
    /// Path of a Dockerfile in the repository. The runner image is based on the image that the Dockerfile builds. The Dockerfile must start
    /// with `ARG ALUSTAN_BASE` and `FROM ${ALUSTAN_BASE}`. Only allowed if the operator runs with `--allow-dockerfiles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub dockerfile: Option<String>,
    /// Provider of the registry. With `aws` (ECR), `gcp` (Artifact Registry) and `azure` (ACR), the operator and the build pod authenticate
    /// with the workload identity of their ServiceAccount and need no Secret. These providers are only allowed for registries in
    /// `--identity-registry` of the operator. Default: generic.
    #[serde(default)]
    pub provider: RegistryProvider,
    /// ServiceAccount of the build pod. With a `provider` other than generic, its workload identity needs permission to push images. The
    /// pod gets no token for the Kubernetes API. The ServiceAccount must be allowed as described in `spec.runner.serviceAccountName`.
    /// Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub service_account_name: Option<String>,
    /// If true, the registry is accessed by plain http. Use it only in a trusted network. Default: false.
    #[serde(default)]
    pub insecure: bool,
    /// Builder of the runner image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<Builder>,
    /// Removal of old images from the image repository `imageName`. Default: no image is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
}

/// Provider of a container registry.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
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

impl GitRepo {
    /// Whether requests to the repository use credentials.
    pub fn has_credentials(&self) -> bool {
        self.ssh_key_secret.is_some() || self.credentials_secret.is_some()
    }
}

impl RegistryProvider {
    /// Returns the name of the docker credential helper of the provider.
    pub fn helper(self) -> Option<&'static str> {
        match self {
            Self::Generic => None,
            Self::Aws => Some("docker-credential-ecr-login"),
            Self::Gcp => Some("docker-credential-gcr"),
            Self::Azure => Some("docker-credential-acr-env"),
        }
    }
}

/// Builder of the runner image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.kind) || self.kind != 'Append' || !(has(self.image) || has(self.cacheRepository) || has(self.cacheLifetime))").message("image, cacheRepository and cacheLifetime require kind Kaniko"))]
pub struct Builder {
    /// See [`BuilderKind`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<BuilderKind>,
    /// Image of the builder. Its entrypoint must accept the arguments of kaniko. Default: the builder image of the operator
    /// (`--builder-image`), a pinned kaniko.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// If true, kaniko caches layers in the registry for the next build. `Append` does not use this cache: it finds layers by digest.
    /// Default: true.
    #[serde(default = "yes")]
    pub cache: bool,
    /// Repository for cached layers. Default: `imageName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub cache_repository: Option<String>,
    /// Lifetime of cached layers. Default: the default of the builder; two weeks for kaniko.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub cache_lifetime: Option<Duration>,
}

/// Kind of builder. `Kaniko`: a builder container unpacks the base image, copies the module into it and pushes the result. It runs as root, so the
/// namespace must allow PodSecurity *baseline*. `Append`: the build pod adds the module to the base image as layers, without a builder container
/// and without root (PodSecurity *restricted*). The images of both kinds contain the same files. A change of the kind starts neither a build nor a
/// run. Default: Kaniko with `image`, `cacheRepository`, `cacheLifetime` or `containerRegistry.dockerfile`, else the kind of the operator
/// (`--builder`).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum BuilderKind {
    /// Kaniko, or a program with the arguments of kaniko. Runs as root in its container.
    #[default]
    Kaniko,
    /// Adds layers to the base image in the registry. Runs without root.
    Append,
}

/// Conditions for the removal of an image. The operator removes an image, with its context, if all conditions are met: the image was built for this
/// namespace, it is not one of the `keep` newest images, it is older than `olderThan`, and no resource uses it for the next run, for its last runs
/// or in its pin.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// Number of newest images to keep, whether resources use them or not. Between 1 and 1000. Default: 10.
    #[serde(default = "ten")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1000").message("must be between 1 and 1000"))]
    pub keep: i32,
    /// Minimum age of a removed image. At least 1h. The age of an image of builder kind Append is the age of its git commit. Default: 168h.
    #[serde(default = "one_week")]
    #[x_kube(validation = Rule::new(AGE).message(AGE_HELP))]
    pub older_than: Duration,
}

/// Engine and its version.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct EngineSpec {
    /// Engine: `terraform` or `opentofu`. Default: terraform.
    #[serde(default)]
    pub name: EngineName,
    /// Version in the catalogue of the operator (flag `--engine`). Example: `1.12.6`, or `1.12` for the newest release of 1.12. The
    /// operator resolves this field once, and again if this field or `name` changes. A newer version that is added to the catalogue later
    /// has no effect. Default: the newest release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new(VERSION).message(VERSION_HELP))]
    pub version: Option<String>,
    /// If true, runs may use another engine, or an older version of the engine, than the last apply. The new engine may not be able to read
    /// the state, and a change back may not be possible. If false, such a run is refused (`EngineChangeNotAllowed`). Default: false.
    #[serde(default)]
    pub allow_switch: bool,
}

/// Approval of plans.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// `Auto`: plans are applied without approval. `rules`, `emptying` and `backend.adopt` can still require the approval of a plan. `Manual`: only
    /// approved plans are applied. Default: Auto.
    #[serde(default)]
    pub mode: ApprovalMode,
    /// Id of the approved plan: the value of `status.plan.id`. An approval is valid once and for this plan only. Every other plan waits for
    /// its own approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub plan: Option<String>,
    /// Name of the user who approves `plan`, as `kubectl auth whoami` prints it. The API server refuses the name of another user (policy
    /// `alustan-approvals`). `status.plan.approvedBy` is a copy of this field. Absent: no user is recorded in status. `kubectl alustan approve`
    /// sets this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub by: Option<String>,
    /// Approval of the destroy plan when the resource is deleted. `Auto`: the plan is applied without approval. `Manual`: the plan waits for
    /// approval. Default: Auto.
    #[serde(default)]
    pub destroy: ApprovalMode,
    /// Rules that make a plan wait for approval (`then: Ask`) or forbid its apply (`then: Deny`), whatever `mode` is. They do not apply to
    /// destroy plans: see `destroy` and `deletionProtection`. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<ApprovalRule>,
    /// Handling of a plan that deletes or forgets every managed object of the state, even if it creates other objects. `Ask`: the plan waits for
    /// approval. `Allow`: the plan is handled as any other plan. A module whose files were moved or emptied by mistake causes such a plan. Deletion
    /// of the resource is not affected. `scripts.apply` without `scripts.plan` creates no plan. In that case, `Ask` refuses a run (`NoConfiguration`)
    /// if an earlier run has started to change objects, and the folder of the module has no configuration files and no `*.hcl` files, such as
    /// `terragrunt.hcl`. Default: Ask.
    #[serde(default)]
    pub emptying: EmptyingPolicy,
}

/// Handling of a plan that removes every managed object of the state.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum EmptyingPolicy {
    /// The plan waits for approval.
    #[default]
    Ask,
    /// The plan is handled as any other plan.
    Allow,
}

/// Whether plans need approval.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ApprovalMode {
    /// Plans need no approval.
    #[default]
    Auto,
    /// Each plan with changes needs approval.
    Manual,
}

/// Approval rule: plans that match `when` wait for approval, or are never applied.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRule {
    /// CEL expression over `plan`. The rule applies to a plan for which the expression is true. `plan` has the numbers `add`, `change` and
    /// `destroy`, and the list `resources`. Each resource has `address`, `type`, `name`, `module` and `action` (`create`, `update`, `replace`,
    /// `delete`, `forget` or `import`). Example: `plan.destroy > 0`, or
    /// `plan.resources.exists(r, r.type == 'aws_db_instance' && r.action in ['delete', 'replace'])`. At most 1,000 characters.
    #[schemars(length(min = 1, max = 1000))]
    pub when: String,
    /// `Ask`: the plan waits for approval. `Deny`: the plan is never applied.
    pub then: RuleAction,
}

/// Effect of a rule on a plan.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
pub enum RuleAction {
    /// The plan waits for approval.
    Ask,
    /// The plan is never applied.
    Deny,
}

/// Handling of the managed objects when the resource is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DeletionPolicy {
    /// Managed objects are destroyed.
    #[default]
    Destroy,
    /// Managed objects and the state are left in place.
    Orphan,
}

/// Handling of drift.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DriftMode {
    /// Drift is detected and corrected by an apply.
    #[default]
    Correct,
    /// Drift is detected and reported in status.
    Report,
    /// Drift is not detected.
    Ignore,
}

/// Detection and correction of drift.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct DriftDetection {
    /// `Correct` corrects drift by an apply. `Report` reports drift in status. `Ignore` does not check for drift. Default: Correct.
    #[serde(default)]
    pub mode: DriftMode,
    /// Interval between drift checks. The checks of different resources are spread over the interval. The first drift check after an apply
    /// starts after at least half an interval, or immediately if the apply was a correction. Default: 1h.
    #[serde(default = "one_hour")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub interval: Duration,
}

impl Default for DriftDetection {
    fn default() -> Self {
        Self {
            mode: DriftMode::default(),
            interval: one_hour(),
        }
    }
}

/// Retry policy for failures of runs and builds. Transient failures (network, throttling, eviction, locks) are retried without limit.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Number of consecutive failures with the same configuration after which the resource is `Stalled`. Transient failures are not included. Between
    /// 1 and 100. Default: 5.
    #[serde(default = "five")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 100").message("must be between 1 and 100"))]
    pub limit: i32,
    /// Delay before the first retry. It doubles with each further failure. Default: 10s.
    #[serde(default = "ten_seconds")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub min_backoff: Duration,
    /// Maximum delay between retries. Default: 10m.
    #[serde(default = "ten_minutes")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub max_backoff: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            limit: five(),
            min_backoff: ten_seconds(),
            max_backoff: ten_minutes(),
        }
    }
}

/// Time limits of a run. When a limit is exceeded, the runner interrupts the engine. The engine then has the grace period of the pod to end, as on
/// a node drain. `--max-timeout` of the operator (24h) is the upper limit of each value.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Time limit of init and plan. Default: 30m.
    #[serde(default = "thirty_minutes")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub plan: Duration,
    /// Time limit of apply. Default: 1h.
    #[serde(default = "one_hour")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub apply: Duration,
    /// Time limit of destroy. Default: 1h.
    #[serde(default = "one_hour")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub destroy: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            plan: thirty_minutes(),
            apply: one_hour(),
            destroy: one_hour(),
        }
    }
}

/// ServiceAccount, environment and architecture of run pods.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tokens) || self.tokens.all(one, self.tokens.exists_one(other, other.name == one.name))").message("tokens must have different names"))]
pub struct RunnerSpec {
    /// ServiceAccount of run pods, in the namespace of the resource. Use it for workload identity (annotations
    /// `eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`, `azure.workload.identity/client-id`) or for permissions in the
    /// cluster. The ServiceAccount must have the annotation `alustan.io/allow-runs: "true"`. If ConfigMap `alustan-allowed` of the operator
    /// has the list `serviceAccounts`, the list must contain the ServiceAccount, and the annotation is not needed. Any other ServiceAccount
    /// is refused (`ServiceAccountNotAllowed`). The operator grants the ServiceAccount access to the run record, the run report and the
    /// managed state of this resource. Default: a ServiceAccount of this resource, `<name>-runner`, with no other permissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub service_account_name: Option<String>,
    /// Projected tokens of the ServiceAccount for external audiences, in files `/var/run/secrets/alustan.io/tokens/<name>`. Use them for
    /// `web_identity_token_file` of a provider if no webhook of the cloud adds a token.
    /// Example: `{name: aws, audience: sts.amazonaws.com}`. At most 10 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub tokens: Vec<IdentityToken>,
    /// Secrets whose keys become environment variables of the engine and of scripts. Example of a key: `AWS_ACCESS_KEY_ID`. At most 100
    /// entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub env_from_secrets: Vec<NameRef>,
    /// See [`Architecture`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
}

/// Projected ServiceAccount token for an external audience. Valid for one hour, rotated by the kubelet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct IdentityToken {
    /// Name of the file with the token. Lower case letters, digits and `-`. Example: `aws`.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("!format.dns1123Label().validate(self).hasValue()").message("must consist of lowercase letters, digits and '-'"))]
    pub name: String,
    /// Audience of the token. Example: `sts.amazonaws.com` or `api://AzureADTokenExchange`.
    #[schemars(length(min = 1, max = 253))]
    pub audience: String,
}

/// Cache volume of a resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct CacheSpec {
    /// If true, the resource has a cache volume. Without a volume, or after its loss, runs take longer and nothing else changes.
    /// Exceptions: with `backend.provider` local the volume contains the state, and the volume may contain a state that a run could not
    /// save. Default: true.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Size of the volume. Default: 5Gi.
    #[serde(default = "five_gibibytes")]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity such as 5Gi"))]
    pub size: String,
    /// Storage class of the volume. Default: the default storage class of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub storage_class_name: Option<String>,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self {
            enabled: yes(),
            size: five_gibibytes(),
            storage_class_name: None,
        }
    }
}

fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde requires this signature"
)]
fn is_false(value: &bool) -> bool {
    !value
}

fn five() -> i32 {
    5
}

fn ten() -> i32 {
    10
}

fn one_week() -> Duration {
    seconds(604_800)
}

fn five_gibibytes() -> String {
    "5Gi".to_owned()
}

fn seconds(seconds: u64) -> Duration {
    StdDuration::from_secs(seconds).into()
}

fn ten_seconds() -> Duration {
    seconds(10)
}

fn one_minute() -> Duration {
    seconds(60)
}

fn ten_minutes() -> Duration {
    seconds(600)
}

fn thirty_minutes() -> Duration {
    seconds(1_800)
}

fn one_hour() -> Duration {
    seconds(3_600)
}
