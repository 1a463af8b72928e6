//! Kind `Terraform`. Doc comments of its fields are user documentation (`kubectl explain terraform.spec`).

mod approval;
mod backend;
mod boolean;
mod drift;
mod duration;
mod engine;
mod git;
mod history;
mod limits;
mod mode;
mod pod;
mod registry;
mod registry_provider;
mod runner;
mod scripts;
mod source;
mod terraform_registry;

use std::collections::BTreeMap;

use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::anything::Anything;
use crate::notification::Notification;
use crate::stack::{DependencyRef, ObjectTest, ObjectsGone, OutputsSpec, VariablesFrom};
use crate::status::TerraformStatus;
use crate::wrapper::WrapperName;

pub use approval::{Approval, ApprovalMode, ApprovalRule, EmptyingPolicy, RuleAction};
pub use backend::{BackendProvider, BackendSpec};
pub use drift::{DriftDetection, DriftMode};
pub use engine::EngineSpec;
pub use git::{GitHubApp, GitRepo};
pub use history::{RecordedValues, RunHistory};
pub use limits::{Retry, Timeouts};
pub use mode::Mode;
pub use pod::{PodOptions, PodResources, PodVolume, PodVolumeMount};
pub use registry::{Builder, BuilderKind, ContainerRegistry, Prune};
pub use registry_provider::{RegistryProvider, WorkloadIdentity};
pub use runner::{CacheSpec, IdentityToken, RunnerSpec};
pub use scripts::{Script, Scripts};
pub use source::{
    InlineModule, MAX_INLINE_BYTES, MAX_INLINE_FILES, ModuleOutput, OciArtifact, OtherSource,
    RemoteModule,
};
pub use terraform_registry::{
    MAX_TERRAFORM_REGISTRIES, TerraformRegistry, check_registry_host, parse_registry_token,
};

/// Workspace of the engine that every backend has.
pub const DEFAULT_WORKSPACE: &str = "default";

const VAR_FILES: &str =
    r"self.all(path, path.matches('^[^/\\x00-\\x1f][^\\x00-\\x1f]*[.]tfvars([.]json)?$'))";
const VAR_FILES_HELP: &str =
    "must be paths of .tfvars or .tfvars.json files, relative to the folder of the module";

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
    doc = "A Terraform (or OpenTofu) module from a git repository or another source. The operator builds an immutable runner image for it in the cluster, applies it in Jobs, and destroys the created objects when the resource is deleted.",
    validation = Rule::new("self.metadata.name.size() <= 50").message("metadata.name: at most 50 characters, because names of Jobs are also label values"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "State of the resource"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Whether the configuration is applied"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Reason of condition Ready"),
    printcolumn(name = "Plan", type_ = "string", json_path = ".status.plan.summary", description = "Changes of the last plan that had changes: add, change, destroy"),
    printcolumn(name = "Run", type_ = "integer", json_path = ".status.run", description = "Number of the last run"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Objects", type_ = "integer", json_path = ".status.inventory.count", description = "Number of managed objects in the state", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.source.revision", description = "Git commit, or digest of the source", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "Situation and next step", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.gitRepo) != has(self.source)").message("exactly one of gitRepo and source must be set"))]
#[x_kube(validation = Rule::new("!(has(self.source) && has(self.source.module) && has(self.varFiles) && self.varFiles.size() > 0)").message("varFiles cannot be combined with source.module: a remote module has no variable files of its own; use variables"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.mode) && self.approval.mode == 'Manual' && has(self.scripts) && has(self.scripts.apply)) || has(self.scripts.plan)").message("approval.mode Manual with scripts.apply requires scripts.plan: an approval applies to a plan"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.rules) && self.approval.rules.size() > 0 && has(self.scripts) && has(self.scripts.apply)) || has(self.scripts.plan)").message("approval.rules with scripts.apply require scripts.plan: rules are evaluated on a plan"))]
#[x_kube(validation = Rule::new("!(has(self.approval) && has(self.approval.destroy) && self.approval.destroy == 'Manual' && has(self.scripts) && has(self.scripts.destroy))").message("approval.destroy Manual cannot be combined with scripts.destroy: a destroy script has no plan"))]
#[x_kube(validation = Rule::new("!(has(self.backend) && has(self.backend.provider) && self.backend.provider == 'local' && has(self.cache) && ((has(self.cache.enabled) && !self.cache.enabled) || has(self.cache.claimName)))").message("backend.provider local requires a cache volume of the resource, which has the state: cache.enabled must not be false, and cache.claimName must not be set"))]
#[x_kube(validation = Rule::new("!(has(self.engine) && has(self.engine.wrapper) && has(self.scripts))").message("engine.wrapper cannot be combined with scripts: a script calls the wrapper itself"))]
#[x_kube(validation = Rule::new("!(has(self.workspace) && self.workspace != 'default' && has(self.backend) && has(self.backend.provider) && self.backend.provider in ['managed', 'http', 'local'])").message("workspace requires a backend with several workspaces: managed, http and local have only the workspace default"))]
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

    /// Paths of files with values of variables (`.tfvars` or `.tfvars.json`) in the repository, relative to the folder of the module. Example:
    /// `[common.tfvars, ../environments/prod.tfvars]`. The engine gets them with `-var-file`, in this order: later files take precedence over
    /// earlier files, and all of them over `terraform.tfvars` and `*.auto.tfvars` of the module. `variables` and `variablesFrom` take precedence
    /// over the files. Files outside the folder of the module need no entry in `gitRepo.include`: they are part of the context, and a commit
    /// that changes them is handled as a commit to the module. A missing file is refused (`VarFileNotFound`), and so is a path outside the
    /// repository (`InvalidPath`). The files are in git, so their values are not masked. At most 20 entries of at most 512 characters.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(length(max = 512)))]
    #[x_kube(validation = Rule::new(VAR_FILES).message(VAR_FILES_HELP))]
    pub var_files: Vec<String>,

    /// References to values of variables in Secrets, ConfigMaps, outputs of other resources and fields of objects. Later entries take
    /// precedence over earlier entries. `variables` takes precedence over all entries. A changed value starts a run, at most one per
    /// minute, and less often while values keep changing (`InputFlapping`). At most 50 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub variables_from: Vec<VariablesFrom>,

    /// Resources that must be ready before this resource is applied. They are destroyed after this resource. Resources in `variablesFrom`
    /// are dependencies without an entry here. A resource with `mode: PlanOnly` is not ready for its dependents while its plan has changes. At most 100 entries.
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

    /// Workspace of the engine in which runs plan, apply and destroy (`TF_WORKSPACE`). Example: `staging`. The engine creates a missing
    /// workspace. The workspace is part of the address of the state: a change is handled as a change of `backend`, see `backend.migrate`. The
    /// backends `managed`, `http` and `local` have one workspace: another name is refused (`WorkspaceUnsupported`). Takes precedence over
    /// `TF_WORKSPACE` in `runner.envFromSecrets`. Letters, digits, `_`, `.` and `-`, at most 90 characters. Default: default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 90))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*$')").message("must consist of letters, digits, '_', '.' and '-', and must not start with '.' or '-'"))]
    pub workspace: Option<String>,

    /// Scripts that replace commands of the engine. The working directory is the folder of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,

    /// Git repository that contains the module. Exactly one of `gitRepo` and `source` must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_repo: Option<GitRepo>,

    /// Source of the module other than a git repository: a module of a registry, files in this resource, or an OCI artifact. Exactly one of
    /// `gitRepo` and `source` must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<OtherSource>>,

    /// Container registry for the runner image of this resource.
    pub container_registry: ContainerRegistry,

    /// Tokens of private registries of modules and providers, by host. Only the step of a build that runs `init` gets the tokens, and
    /// never an image, a log or a status. A changed token starts no build and no run: the next build uses it. If the module uses neither a
    /// module nor a provider of a host, the message of condition Ready names the field and
    /// the host after the next run. Example:
    /// `[{host: registry.example.com, secretRef: {name: terraform-registry}}]`. At most 16 entries with different hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["host".into()]))]
    pub terraform_registries: Vec<TerraformRegistry>,

    /// Engine, its version, and arguments of its commands. Default: the engine in the base image of the operator (`--base-image`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineSpec>,

    /// `Apply`: plans are applied, with `approval` if it is configured. `PlanOnly`: plans are reported in status and never applied. A plan is
    /// created for each new commit, each change of the spec or of an input, and at each interval of `driftDetection`. `Ready` is `True` if the
    /// plan has no changes (`NoChanges`) or has changes that are not applied (`ChangesPlanned`); `InSync` is `False` with changes. No run
    /// writes the state, and `approval` and `outputs` have no effect. A deleted resource that has applied changes waits (`PlanOnly`) and
    /// nothing is destroyed, unless `deletionPolicy` is `Orphan`. A change of `PlanOnly` to `Apply` plans and applies as usual. A change of
    /// `Apply` to `PlanOnly` does not interrupt an apply that has started to change objects. Default: Apply.
    #[serde(default)]
    pub mode: Mode,

    /// Approval of plans. Default: every plan is applied, except one that removes every managed object (`emptying`).
    #[serde(default)]
    pub approval: Approval,

    /// Detection and correction of drift. Drift is a difference between the real objects and the configuration.
    #[serde(default)]
    pub drift_detection: DriftDetection,

    /// Retry policy for failures of runs and builds.
    #[serde(default)]
    pub retry: Retry,

    /// Records of finished runs.
    #[serde(default)]
    pub history: RunHistory,

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

    /// ServiceAccount, environment, architecture and pod options of runs, for example for credentials of providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerSpec>,

    /// Cache volume of this resource: approved plans, and provider packages that the base image lacks.
    #[serde(default)]
    pub cache: CacheSpec,
}

impl TerraformSpec {
    /// Returns the workspace of the engine; `None` for the workspace `default`.
    pub fn workspace(&self) -> Option<&str> {
        self.workspace
            .as_deref()
            .filter(|name| *name != DEFAULT_WORKSPACE)
    }

    /// Returns the wrapper of the engine.
    pub fn wrapper(&self) -> Option<WrapperName> {
        self.engine.as_ref()?.wrapper
    }
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
