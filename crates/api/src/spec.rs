//! The `Terraform` resource. Field docs are user docs: `kubectl explain terraform.spec` shows them.

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use kube::core::Duration;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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
const VERSION_HELP: &str = "must be a version such as 1.12.6, or its first numbers, such as 1.12";

const COMMIT: &str = "self.matches('^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$')";
const COMMIT_HELP: &str = "must be a full commit id, all 40 (or 64) hexadecimal digits as `git rev-parse` prints them: hosts do not find a commit by a part of it";

/// What is applied, with what values, and how.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "alustan.io",
    version = "v1alpha1",
    kind = "Terraform",
    namespaced,
    status = "TerraformStatus",
    shortname = "tf",
    category = "alustan",
    derive = "PartialEq",
    doc = "A Terraform (or OpenTofu) module from a git repository. The operator builds an immutable runner image for it in the cluster, applies it in Jobs, and destroys what it made when the resource is deleted.",
    validation = Rule::new("self.metadata.name.size() <= 50").message("metadata.name: at most 50 characters, so that the names of its Jobs fit into a label"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "What goes on"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Whether the configuration is applied"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Why"),
    printcolumn(name = "Plan", type_ = "string", json_path = ".status.plan.summary", description = "Changes of the last plan: add, change, destroy"),
    printcolumn(name = "Run", type_ = "integer", json_path = ".status.run", description = "Number of the last run"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.source.revision", description = "The commit", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "What happens next", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.mode) && self.approval.mode == 'Manual' && has(self.scripts) && has(self.scripts.apply)) || has(self.scripts.plan)").message("approval.mode Manual with scripts.apply needs scripts.plan: what is approved must be a plan"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.rules) && self.approval.rules.size() > 0 && has(self.scripts) && has(self.scripts.apply)) || has(self.scripts.plan)").message("approval.rules with scripts.apply need scripts.plan: they judge a plan"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.destroy) && self.approval.destroy == 'Manual' && has(self.scripts) && has(self.scripts.destroy))").message("approval.destroy Manual does not go with scripts.destroy: nobody can tell beforehand what a script destroys"))]
#[x_kube(validation = Rule::new("!(has(self.backend) && has(self.backend.provider) && self.backend.provider == 'local' && has(self.cache) && has(self.cache.enabled) && !self.cache.enabled)").message("backend.provider local needs cache.enabled: the state is on the cache volume"))]
pub struct TerraformSpec {
    /// Values of the module's variables: any JSON value by name, for example `region: us-east-1`
    /// or `zones: [a, b]`. Scripts see them in their environment as `TF_VAR_name`, and by the
    /// bare name where that is a legal shell identifier that does not change how programs run.
    /// A `TF_VAR_` prefix in a key is stripped. Not for secrets: who may read the resource reads them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Anything>,

    /// Whether runs fail if `variables` has a name that the module does not declare (`VariableUndeclared`). With `false`, the
    /// engine does not get the variable, and condition Ready and the log of the run name it. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_variables: bool,

    /// Values of variables that are found elsewhere: in Secrets and ConfigMaps, among the outputs of
    /// other resources, in fields of any object. Later entries win over earlier ones, and
    /// `variables` over all. A changed value is applied at once, at most once a minute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub variables_from: Vec<VariablesFrom>,

    /// Resources that must be ready before anything of this one is applied, and that are destroyed
    /// after it. Those of `variablesFrom` need not be repeated here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub depends_on: Vec<DependencyRef>,

    /// Objects that must be there, or pass a test, before anything is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub wait_for: Vec<ObjectTest>,

    /// Objects that must be gone before anything is destroyed: those whose controllers still need
    /// what this resource made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub destroy_wait_for: Vec<ObjectsGone>,

    /// Objects that must be there, or pass a test, for this resource to be ready once it is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub health_checks: Vec<ObjectTest>,

    /// Where the state lives. Absent: the module's own backend if it has one, else `managed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendSpec>,

    /// Scripts that replace the engine's own commands. Their working directory is the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,

    /// The repository that the module is in.
    pub git_repo: GitRepo,

    /// The registry that the runner image of this resource is pushed to.
    pub container_registry: ContainerRegistry,

    /// The engine, and its version. Absent: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineSpec>,

    /// Who says whether a plan is applied. Default: every plan is.
    #[serde(default)]
    pub approval: Approval,

    /// How differences between the real objects and the configuration are handled.
    #[serde(default)]
    pub drift_detection: DriftDetection,

    /// How often a failing configuration is tried again.
    #[serde(default)]
    pub retry: Retry,

    /// Time limits of a run.
    #[serde(default)]
    pub timeouts: Timeouts,

    /// Who is told what happens: a plan that waits for a person, success, failure, drift. The
    /// operator may tell others besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub notifications: Vec<Notification>,

    /// What becomes of what the module made when this resource is deleted: `Destroy` it, or
    /// `Orphan` it: everything is left as it is, and so is the state. Default: Destroy.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,

    /// Whether a deletion of this resource is refused, as long as this is true; where the cluster
    /// lacks the policy that refuses it, the deleted resource says so and waits. Default: false.
    #[serde(default)]
    pub deletion_protection: bool,

    /// Whether no new runs begin, neither to apply nor to destroy nor to look for drift. A run that
    /// has not begun to change anything is cancelled. The repository and the registry are not asked: `status` keeps the last known
    /// commit and image. Default: false.
    #[serde(default)]
    pub suspend: bool,

    /// Where the module's outputs go. Where drift is corrected, a change is applied at once; elsewhere
    /// with the next apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<OutputsSpec>,

    /// Environment of the runner, for credentials of providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerSpec>,

    /// The volume that keeps plans, providers and engine data between runs.
    #[serde(default)]
    pub cache: CacheSpec,
}

/// Any JSON value.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct Anything(pub Value);

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

/// Who keeps the state. Absent: the module's own backend if it has one, else `managed`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendProvider {
    /// Secrets in the resource's namespace, kept by the operator; needs no cloud.
    Managed,
    /// An S3 bucket, of AWS or of anything that speaks S3, with locks in a `DynamoDB` table or in
    /// the bucket (the engine's `s3`).
    Aws,
    /// A bucket of Google Cloud Storage (`gcs`).
    Gcp,
    /// A container of Azure Blob Storage (`azurerm`).
    Azure,
    /// A Secret, written by the engine itself (`kubernetes`). It must be allowed to read every Secret
    /// of the namespace: `managed` needs no such right.
    Kubernetes,
    /// A `PostgreSQL` database (`pg`).
    Pg,
    /// A server that speaks the engine's own protocol (`http`).
    Http,
    /// A file on the cache volume (`local`): the state is lost with the volume.
    Local,
    /// Any other, by `type` and `config`.
    Generic,
}

const HTTP_URL: &str = "self.matches('^https?://[^@ ]+$')";
const HTTP_URL_HELP: &str = "must be a URL with https:// or http:// and without a user: credentials go into the Secret of secretRef";
const NO_NUMBER: &str = "!self.matches('(^|-)[0-9]+$')";
const NO_NUMBER_HELP: &str = "must not end in a number, which the engine takes for that of a part";

/// Where the state lives.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'aws') || (has(self.s3) && self.s3 != '')").message("provider aws needs s3: the name of the bucket"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'aws') || (has(self.region) && self.region != '')").message("provider aws needs region, for example us-east-1"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'aws') || !(has(self.s3) || has(self.dynamoDB) || has(self.lockFile) || has(self.region) || has(self.endpoint) || (has(self.bootstrap) && self.bootstrap))").message("s3, dynamoDB, lockFile, region, endpoint and bootstrap belong to provider aws"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'gcp') || (has(self.gcs) && self.gcs != '')").message("provider gcp needs gcs: the name of the bucket"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'gcp') || !(has(self.gcs) || has(self.prefix))").message("gcs and prefix belong to provider gcp"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'azure') || (has(self.storageAccount) && self.storageAccount != '' && has(self.container) && self.container != '')").message("provider azure needs storageAccount and container"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'azure') || !(has(self.storageAccount) || has(self.container) || has(self.resourceGroup))").message("storageAccount, container and resourceGroup belong to provider azure"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider in ['aws', 'azure']) || !has(self.key)").message("key belongs to providers aws and azure"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'kubernetes') || !has(self.secretSuffix)").message("secretSuffix belongs to provider kubernetes"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'pg') || !has(self.schemaName)").message("schemaName belongs to provider pg"))]
#[x_kube(validation = Rule::new("!(has(self.provider) && self.provider == 'http') || has(self.address)").message("provider http needs address: the URL of the state"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'http') || !(has(self.address) || has(self.lockAddress) || has(self.unlockAddress))").message("address, lockAddress and unlockAddress belong to provider http"))]
#[x_kube(validation = Rule::new("(has(self.provider) && self.provider == 'generic') == has(self.type)").message("provider generic needs type, for example oss, and no other has it"))]
#[x_kube(validation = Rule::new("(has(self.provider) && !(self.provider in ['managed', 'local'])) || !has(self.secretRef)").message("secretRef belongs to a provider, other than managed and local"))]
pub struct BackendSpec {
    /// Who keeps the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<BackendProvider>,
    /// aws: name of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<String>,
    /// aws: name of the `DynamoDB` table with the locks. Absent: a lock file in the bucket.
    #[serde(default, rename = "dynamoDB", skip_serializing_if = "Option::is_none")]
    pub dynamo_db: Option<String>,
    /// aws: whether there is a lock file in the bucket, which needs Terraform or `OpenTofu` 1.10.
    /// Default: only where there is no `dynamoDB`. With both, both locks are taken: to move from
    /// one to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_file: Option<bool>,
    /// aws: region of the bucket, for example `us-east-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// aws: URL of a server other than AWS that speaks S3, for example `https://minio.example.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub endpoint: Option<String>,
    /// aws, azure: key of the state in the bucket or container. Default:
    /// `<namespace>/<name>.tfstate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// gcp: name of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<String>,
    /// gcp: folder of the state in the bucket, where it is `default.tfstate`. Default:
    /// `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// azure: name of the storage account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_account: Option<String>,
    /// azure: name of the container in the storage account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// azure: the resource group of the storage account, where the engine is to look up its access
    /// key there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// kubernetes: the state is in Secret `tfstate-default-<secretSuffix>`. Default: `<name>-state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    #[x_kube(validation = Rule::new(NO_NUMBER).message(NO_NUMBER_HELP))]
    pub secret_suffix: Option<String>,
    /// pg: schema of the state in the database, which the engine makes. Default: `<namespace>_<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub schema_name: Option<String>,
    /// http: URL of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub address: Option<String>,
    /// http: URL that locks the state. Absent: nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub lock_address: Option<String>,
    /// http: URL that releases the lock. Default: `lockAddress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub unlock_address: Option<String>,
    /// generic: the engine's type of backend, for example `oss` or `consul`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z][a-z0-9_]*$')").message("must be the type of a backend as the engine names it, for example oss"))]
    pub kind: Option<String>,
    /// More of the engine's backend block, by its own names, for example `{kms_key_id: alias/state}`.
    /// Not for secrets: those go into the Secret of `secretRef`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, Anything>,
    /// A Secret with the backend's credentials. Its keys become environment of the engine:
    /// `AWS_ACCESS_KEY_ID`, `GOOGLE_CREDENTIALS`, `ARM_ACCESS_KEY`, `PG_CONN_STR`, …; those in lower
    /// case, such as `conn_str`, become part of the backend block, in a file that only the runner
    /// can read. Absent: what the runner's pod has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<NameRef>,
    /// aws: whether the bucket (versioned, encrypted, closed to the public) and the table are made
    /// before the first run, where they are not there. What is there is never changed. Default:
    /// false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bootstrap: bool,
    /// Whether a state that is there already, and was not made by this resource, is taken over. Its
    /// first plan then waits for approval. Default: false, which refuses such a state
    /// (`StateNotOurs`).
    #[serde(default)]
    pub adopt: bool,
    /// Whether the state moves along when this backend, or that of the module, names another place
    /// than that of the last apply: it is copied there, and the copy at the old place is left as it
    /// was. Default: false, which applies nothing then (`BackendChanged`).
    #[serde(default)]
    pub migrate: bool,
}

/// Scripts in place of the engine's own commands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// In place of `terraform init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Script>,
    /// In place of `terraform plan`. Exit code 0: no changes, 2: changes, others: failure. It
    /// writes its plan to the file named by `ALUSTAN_PLAN_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Script>,
    /// In place of `terraform apply`. It may write outputs, as `terraform output -json` prints
    /// them, to the file named by `ALUSTAN_OUTPUTS_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Script>,
    /// In place of `terraform destroy`, when the resource is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<Script>,
}

/// A script, inline or from a ConfigMap. It runs with the interpreter of its `#!` line, else
/// with `bash -e`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.inline) != has(self.configMapRef)").message("exactly one of inline and configMapRef must be given"))]
pub struct Script {
    /// The script's text, at most 64 KiB: the run record, which is a Secret, has the text of all scripts. A larger one
    /// is `InputTooLarge`; put it in the module, and call it from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub inline: Option<String>,
    /// Where the script's text is, at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyRef>,
}

/// The repository that the module is in.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.branch), has(self.tag), has(self.commit)].filter(given, given).size() <= 1").message("at most one of branch, tag and commit may be given"))]
pub struct GitRepo {
    /// `https://host/owner/repo`, `ssh://git@host/owner/repo.git` or `git@host:owner/repo.git`;
    /// `//subdir` at the end names the module's folder, and so does a third part of the path on
    /// github.com and bitbucket.org: `https://github.com/owner/repo/subdir`.
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub url: String,
    /// The branch to follow. Default: the repository's own default branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The tag to follow: one that is moved is a change. Annotated tags stand for their commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub tag: Option<String>,
    /// The commit, by its full id: nothing that is pushed later changes anything, and the
    /// repository is asked for nothing once the module is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(COMMIT).message(COMMIT_HELP))]
    pub commit: Option<String>,
    /// Folder of the module in the repository. Default: its root, or what the URL says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Folders and files outside the module that it reads, for example `shared/policies`. They
    /// come with the module, and a commit that touches them counts as a change. Local modules
    /// (`source = "../x"`) are found without this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// How often the repository is asked for new commits. Default: 1m.
    #[serde(default = "one_minute")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub interval: Duration,
    /// Whether submodules of git come with the folders that they are in. Default: false, and a
    /// module that needs one says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub submodules: bool,
    /// The private key for ssh, also for modules that the module fetches by ssh. A key
    /// `known_hosts` in the same Secret says which host keys to trust; those of github.com,
    /// gitlab.com and bitbucket.org are built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key_secret: Option<KeyRef>,
    /// A Secret with `username` and `password` (or a token as password) for https, also for
    /// modules that the module fetches by https from the same host; and `ca.crt`, certificate
    /// authorities to trust besides the usual ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<NameRef>,
    /// Certificate authorities (PEM) to trust besides the usual ones, here and for modules that
    /// the module fetches by https with git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.contains('-----BEGIN CERTIFICATE-----')").message("must hold certificates in PEM: -----BEGIN CERTIFICATE-----"), validation = Rule::new("self.size() <= 65536").message("must have at most 65536 characters"))]
    pub ca_bundle: Option<String>,
}

/// The registry that the runner image is pushed to.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.dockerfile) || (self.dockerfile != '' && !self.dockerfile.startsWith('/') && !self.dockerfile.split('/').exists(part, part == '..'))").message("dockerfile must be a path in the repository, without '..', such as docker/Dockerfile"))]
#[x_kube(validation = Rule::new("!has(self.dockerfile) || !has(self.builder) || !has(self.builder.kind) || self.builder.kind != 'Append'").message("builder.kind Append cannot build a dockerfile: use Kaniko, or remove dockerfile"))]
pub struct ContainerRegistry {
    /// The image's repository, without a tag: `docker.io/owner/name`, `registry.example.com:5000/x`.
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub image_name: String,
    /// The Secret with the registry's credentials, a docker configuration as JSON. Its key is
    /// `key` if the Secret has it, else `.dockerconfigjson`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyRef>,
    /// The image that the runner image is built from, with the engine in it. It goes before
    /// `spec.engine`. Default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_image: Option<String>,
    /// A Dockerfile in the repository, from which the runner image is built instead of from the base
    /// image alone; it begins with `ARG ALUSTAN_BASE` and `FROM ${ALUSTAN_BASE}`. Only where the
    /// operator allows it (`--allow-dockerfiles`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub dockerfile: Option<String>,
    /// Whose registry it is. With `aws` (ECR), `gcp` (Artifact Registry) and `azure` (ACR) operator and
    /// build pod sign in by the identity that the cloud gives to their service accounts, and need no
    /// Secret; only where the operator allows it (`--identity-registry`). Default: generic.
    #[serde(default)]
    pub provider: RegistryProvider,
    /// The ServiceAccount of the build pod: with `provider`, the one whose identity may push. No token
    /// of it is mounted. Only one whose owner says so, as with `spec.runner.serviceAccountName`.
    /// Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub service_account_name: Option<String>,
    /// Speak plain http to this registry: only for those in a trusted network. Default: false.
    #[serde(default)]
    pub insecure: bool,
    /// How the runner image is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<Builder>,
    /// Which images of this repository are removed once nobody needs them. Absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
}

/// Whose registry it is.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RegistryProvider {
    /// One that takes the credentials of a Secret, or none.
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
    /// Whether the repository is read with something secret.
    pub fn has_credentials(&self) -> bool {
        self.ssh_key_secret.is_some() || self.credentials_secret.is_some()
    }
}

impl RegistryProvider {
    /// The program that knows how to sign in: its standard credential helper.
    pub fn helper(self) -> Option<&'static str> {
        match self {
            Self::Generic => None,
            Self::Aws => Some("docker-credential-ecr-login"),
            Self::Gcp => Some("docker-credential-gcr"),
            Self::Azure => Some("docker-credential-acr-env"),
        }
    }
}

/// How the runner image is built.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.kind) || self.kind != 'Append' || !(has(self.image) || has(self.cacheRepository) || has(self.cacheLifetime))").message("image, cacheRepository and cacheLifetime are for kind Kaniko: remove them, or use Kaniko"))]
pub struct Builder {
    /// Builder kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<BuilderKind>,
    /// An image whose entrypoint takes kaniko's arguments. Default: the operator's, a pinned
    /// kaniko.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// Whether kaniko keeps layers in the registry for the next build; `Append` finds layers by their digest.
    /// Default: true.
    #[serde(default = "yes")]
    pub cache: bool,
    /// The repository that layers are kept in. Default: that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub cache_repository: Option<String>,
    /// How long a kept layer is good. Default: the builder's, with kaniko two weeks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub cache_lifetime: Option<Duration>,
}

/// `Kaniko`: a builder container unpacks the base image, copies the module into it and pushes the result. It runs
/// as root, so the namespace must allow PodSecurity *baseline*. `Append`: the build pod adds the module to the base
/// image as layers, without a builder container and without root (PodSecurity *restricted*). Both make the same
/// files. Changing the kind triggers neither a build nor a run. Default: Kaniko with `image`, `cacheRepository`,
/// `cacheLifetime` or `containerRegistry.dockerfile`, else the operator's (`--builder`).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum BuilderKind {
    /// By kaniko, or a program that takes its arguments, as root in its container.
    #[default]
    Kaniko,
    /// By adding layers to the base image in its registry, without root.
    Append,
}

/// Which images are removed: those that the operator built for this namespace, that are beyond the
/// newest `keep`, that are older than `olderThan`, and that no resource needs. The module that went
/// into an image goes with it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// How many of the newest stay, needed or not; 1 to 1000. Default: 10.
    #[serde(default = "ten")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1000").message("must be between 1 and 1000"))]
    pub keep: i32,
    /// How old one must be; at least 1h. An image that Append built is as old as its commit. Default: 168h.
    #[serde(default = "one_week")]
    #[x_kube(validation = Rule::new(AGE).message(AGE_HELP))]
    pub older_than: Duration,
}

/// The engine, and its version.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EngineSpec {
    /// `terraform` or `opentofu`. Default: terraform.
    #[serde(default)]
    pub name: EngineName,
    /// A version that the operator has: `1.12.6`, or `1.12` for the newest that begins so. It is
    /// looked up once, and again when this field or `name` changes: a newer one in the operator's
    /// catalogue changes nothing. Default: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new(VERSION).message(VERSION_HELP))]
    pub version: Option<String>,
    /// Whether what exists may be applied with another engine, or with an older version, than it was
    /// the last time. Their states differ, and there may be no way back. Default: false
    /// (`EngineSwitch`).
    #[serde(default)]
    pub allow_switch: bool,
}

/// Who says whether a plan is applied.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// `Auto` applies every plan, `Manual` only one that a person approved. Default: Auto.
    #[serde(default)]
    pub mode: ApprovalMode,
    /// The id of the plan that may be applied, as `status.plan.id` tells it. It is good once, for
    /// that very plan; any other plan is waited for again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub plan: Option<String>,
    /// Name of the user who approves `plan`, as `kubectl auth whoami` prints it. The API server refuses the name of another user
    /// (policy `alustan-approvals`), so that `status.plan.approvedBy` is the user of the API server. Absent: no user is recorded
    /// in status. `kubectl alustan approve` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub by: Option<String>,
    /// The same as `mode`, for what is destroyed when the resource is deleted. Default: Auto.
    #[serde(default)]
    pub destroy: ApprovalMode,
    /// Plans that need a person, or that are never applied, whatever `mode` says. They are about
    /// what is applied; `destroy` and `deletionProtection` are about a deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<ApprovalRule>,
    /// What happens to a plan that deletes or forgets every managed object of the state, whatever it creates beside them:
    /// `Ask` waits for approval, `Allow` treats it as any other plan. A module whose files were moved or emptied by mistake makes
    /// such a plan. Deleting the resource is not affected. `scripts.apply` without `scripts.plan` makes no plan.
    /// With `Ask`, once something was applied, its run is refused (`NoConfiguration`) if the folder has neither configuration files
    /// nor `*.hcl` files of a wrapper. Default: Ask.
    #[serde(default)]
    pub emptying: EmptyingPolicy,
}

/// What happens to a plan that removes every managed object of the state.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum EmptyingPolicy {
    /// The plan waits for approval.
    #[default]
    Ask,
    /// The plan is treated as any other.
    Allow,
}

/// Whether a person is asked.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ApprovalMode {
    /// Nobody is asked.
    #[default]
    Auto,
    /// A person is.
    Manual,
}

/// Plans that need a person, or that are never applied.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRule {
    /// Which plans: an expression in CEL over `plan`, which has the numbers `add`, `change` and
    /// `destroy`, and the list `resources`, each with `address`, `type`, `name`, `module` and
    /// `action` (`create`, `update`, `replace`, `delete`, `forget` or `import`). For example
    /// `plan.destroy > 0`, or
    /// `plan.resources.exists(r, r.type == 'aws_db_instance' && r.action in ['delete', 'replace'])`.
    #[schemars(length(min = 1, max = 1000))]
    pub when: String,
    /// `Ask` waits for a person, `Deny` never applies it.
    pub then: RuleAction,
}

/// What a rule does.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
pub enum RuleAction {
    /// A person is asked.
    Ask,
    /// It is never applied.
    Deny,
}

/// What becomes of what the module made when the resource is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DeletionPolicy {
    /// It is destroyed.
    #[default]
    Destroy,
    /// It is left as it is.
    Orphan,
}

/// What to do about drift.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DriftMode {
    /// Apply the configuration again.
    #[default]
    Correct,
    /// Say so in status, change nothing.
    Report,
    /// Do not look.
    Ignore,
}

/// How drift is handled.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriftDetection {
    /// `Correct` applies the configuration again, `Report` only says so, `Ignore` does not look.
    /// Default: Correct.
    #[serde(default)]
    pub mode: DriftMode,
    /// How often to look. Each resource has its own moment within the interval; the first look after
    /// an apply comes half an interval later at the soonest. Default: 1h.
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

/// How often a failing configuration is tried again. Failures of the world (network,
/// throttling, eviction, locks, …) cost nothing and are tried again as long as they last.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Failures in a row with one configuration before the resource is `Stalled`; 1 to 100.
    /// Default: 5.
    #[serde(default = "five")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 100").message("must be between 1 and 100"))]
    pub limit: i32,
    /// Wait after the first failure; it doubles with each further one. Default: 10s.
    #[serde(default = "ten_seconds")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub min_backoff: Duration,
    /// The longest wait. Default: 10m.
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

/// Time limits of a run. A run that passes one is interrupted as gently as by a node's drain. Longer
/// ones than the operator's `--max-timeout` (24h) count as that.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// For init and plan. Default: 30m.
    #[serde(default = "thirty_minutes")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub plan: Duration,
    /// For apply. Default: 1h.
    #[serde(default = "one_hour")]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub apply: Duration,
    /// For destroy. Default: 1h.
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

/// As whom runs act, and their environment.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tokens) || self.tokens.all(one, self.tokens.exists_one(other, other.name == one.name))").message("tokens must have different names"))]
pub struct RunnerSpec {
    /// The ServiceAccount of this resource's runs, in its namespace: one with an identity in a cloud
    /// by its annotations (`eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`,
    /// `azure.workload.identity/client-id`), or rights in the cluster. Only one whose owner says so: it
    /// has the annotation `alustan.io/allow-runs: "true"`, or, where the operator's list
    /// `serviceAccounts` exists, that names it (`ServiceAccountNotAllowed`). Runs give it the right to
    /// their own record and state. Default: one of the resource's own, `<name>-runner`, with nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub service_account_name: Option<String>,
    /// Tokens of that ServiceAccount for others than this cluster, as files that are always fresh:
    /// `/var/run/secrets/alustan.io/tokens/<name>`. For example `{name: aws, audience:
    /// sts.amazonaws.com}`, for `web_identity_token_file` of the provider, where no webhook of the cloud
    /// adds one by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub tokens: Vec<IdentityToken>,
    /// Secrets whose keys become environment variables of the engine and of scripts, for example
    /// `AWS_ACCESS_KEY_ID`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub env_from_secrets: Vec<NameRef>,
    /// CPU architecture: see [`Architecture`], whose description the CRD has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
}

/// A token of a ServiceAccount for somebody outside of the cluster. It is good for an hour, and replaced
/// before that.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct IdentityToken {
    /// The name of its file, such as `aws`.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("!format.dns1123Label().validate(self).hasValue()").message("must be of small letters, digits and '-'"))]
    pub name: String,
    /// For whom it is: `sts.amazonaws.com`, `api://AzureADTokenExchange`.
    #[schemars(length(min = 1, max = 253))]
    pub audience: String,
}

/// The cache volume.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CacheSpec {
    /// Whether there is one. It holds only what can be made again, unless `backend.provider` is
    /// `local`: losing it, or having none, costs time. Default: true.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Its size. Default: 5Gi.
    #[serde(default = "five_gibibytes")]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity such as 5Gi"))]
    pub size: String,
    /// Its storage class. Default: the cluster's.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
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
