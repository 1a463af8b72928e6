//! Fields of `Workspace` (app.terraform.io/v1alpha2).

use super::super::fields::{Row, differs, has, lacks};

const HCP: &str = "belongs to HCP Terraform";
const ENVIRONMENT: &str =
    "create a Secret with the names as keys, and add it to `runner.envFromSecrets`";
const TRIGGERS: &str =
    "a commit that changes the module, its local modules or `gitRepo.include` starts a run";

/// Fields below `spec`.
pub(crate) const ROWS: &[Row] = &[
    differs(
        "name",
        "the state is in this workspace: pull it and push it",
    ),
    has("organization", "not used"),
    has("token", "not used and not read"),
    has(
        "applyMethod",
        "`approval.mode: Manual`. For `auto`, set `Auto` after the adoption",
    ),
    lacks("applyRunTrigger", "`approval.mode` applies to all runs").default_is("\"manual\""),
    differs(
        "allowDestroyPlan",
        "`deletionPolicy: Orphan` or `deletionProtection` prevent a destroy",
    )
    .default_is("true"),
    lacks("description", "use annotations"),
    lacks("agentPool", "runs are Jobs in the cluster"),
    lacks("executionMode", "runs are Jobs in the cluster").default_is("\"remote\""),
    lacks("runTasks", "`approval.rules` judge plans in the cluster"),
    lacks("tags", "use labels"),
    lacks("teamAccess", "use RBAC of the namespace (docs/security.md)"),
    has("terraformVersion", "`engine.version`"),
    has("workingDirectory", "`gitRepo.path`"),
    lacks("environmentVariables", ENVIRONMENT),
    has("terraformVariables[].name", "`variables`"),
    lacks(
        "terraformVariables[].description",
        "use `description` of the variable in the module",
    ),
    has(
        "terraformVariables[].hcl",
        "a literal is copied with its type",
    ),
    has(
        "terraformVariables[].sensitive",
        "the value is not copied: put it into a Secret, and use `variablesFrom[].secretRef`",
    ),
    has("terraformVariables[].value", "`variables`"),
    has(
        "terraformVariables[].valueFrom",
        "`variablesFrom[].secretRef` or `configMapRef`",
    ),
    lacks(
        "remoteStateSharing",
        "`variablesFrom[].terraformRef` passes outputs to other resources",
    ),
    lacks(
        "runTriggers",
        "`dependsOn`, or `variablesFrom[].terraformRef`",
    ),
    lacks(
        "versionControl.oAuthTokenID",
        "set `gitRepo.credentialsSecret` or `sshKeySecret`",
    ),
    differs("versionControl.repository", "has no host: set `--url`"),
    has("versionControl.branch", "`gitRepo.branch`"),
    lacks(
        "versionControl.speculativePlans",
        "plans for pull requests do not exist",
    )
    .default_is("true"),
    differs("versionControl.enableFileTriggers", TRIGGERS).default_is("false"),
    differs("versionControl.triggerPatterns", TRIGGERS),
    differs("versionControl.triggerPrefixes", TRIGGERS),
    lacks(
        "sshKey",
        "set `gitRepo.sshKeySecret`: its key also fetches modules",
    ),
    differs(
        "notifications",
        "set `spec.notifications`: signed CloudEvents (docs/notifications.md)",
    ),
    lacks("project", HCP),
    has(
        "deletionPolicy",
        "`deletionPolicy`: `Destroy` for `destroy`, else `Orphan`",
    ),
    lacks(
        "variableSets",
        "put shared values into a ConfigMap or Secret, and use `variablesFrom`",
    ),
];
