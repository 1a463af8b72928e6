//! Backend that stores the state (`spec.backend`).

use std::collections::BTreeMap;

use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::anything::Anything;
use crate::references::{NameRef, OBJECT, OBJECT_HELP};
use crate::spec::boolean::is_false;

const HTTP_URL: &str = "self.matches('^https?://[^@ ]+$')";
const HTTP_URL_HELP: &str = "must be an https:// or http:// URL without user information: store credentials in the Secret of secretRef";
const NO_NUMBER: &str = "!self.matches('(^|-)[0-9]+$')";
const NO_NUMBER_HELP: &str =
    "must not end in a number, such as -1: the engine appends numbers to the names of Secrets";

/// Type of the backend. Default: the `backend` block of the module if it has one, else `managed`. `managed`: Secrets in the namespace of
/// the resource, no cloud needed. `aws`: S3. `gcp`: Google Cloud Storage. `azure`: Azure Blob Storage. `kubernetes`: a Secret that the
/// engine writes. `pg`: `PostgreSQL`. `http`: a server with the http protocol of the engine. `local`: a file on the cache volume.
/// `generic`: any other backend of the engine.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema, strum::VariantArray,
)]
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

impl BackendProvider {
    /// All providers.
    pub const VARIANTS: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;
}

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
    #[schemars(length(max = 255))]
    pub s3: Option<String>,
    /// aws: Name of the `DynamoDB` table with the locks. Default: none, the lock is a file in the bucket.
    #[serde(default, rename = "dynamoDB", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub dynamo_db: Option<String>,
    /// aws: If true, the lock is a file in the bucket. Requires Terraform or OpenTofu 1.10. If `dynamoDB` is also set, each run takes both
    /// locks, for a migration from the table to the file. Default: true without `dynamoDB`, else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_file: Option<bool>,
    /// aws: Region of the bucket. Example: `us-east-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub region: Option<String>,
    /// aws: URL of another server with the S3 API. Example: `https://minio.example.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new(HTTP_URL).message(HTTP_URL_HELP))]
    pub endpoint: Option<String>,
    /// aws, azure: Key of the state in the bucket or container. Default: `<namespace>/<name>.tfstate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub key: Option<String>,
    /// gcp: Name of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub gcs: Option<String>,
    /// gcp: Folder of the state in the bucket. The state is the object `default.tfstate` in this folder. Default: `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub prefix: Option<String>,
    /// azure: Name of the storage account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub storage_account: Option<String>,
    /// azure: Name of the container in the storage account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub container: Option<String>,
    /// azure: Resource group of the storage account. Required if the engine queries the access key of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
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
