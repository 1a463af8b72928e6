//! Fields of `TerraformLayer` and `TerraformRepository` (config.terraform.padok.cloud/v1alpha1).

use super::super::fields::{Row, differs, has, lacks};

const POD: &str = "not copied: images and containers have no option. `containerRegistry.baseImage` sets another base image";
const ARGS: &str = "commands of the engine have fixed arguments; `scripts` replace commands";
const VERSION: &str = "`engine.version` from the catalogue of the operator. A constraint such as `~> 1.3` is not copied";
const TERRAGRUNT: &str = "not copied: `engine.wrapper: terragrunt`";
const TERRAGRUNT_VERSION: &str =
    "not copied: `engine.wrapperVersion`, from the catalogue of the operator";
const HISTORY: &str = "the last three Jobs and the reports of the last runs are kept";

/// Fields of a layer below `spec`.
pub(crate) const LAYER: &[Row] = &[
    has("path", "`gitRepo.path`"),
    has("branch", "`gitRepo.branch`"),
    lacks(
        "additionalTargetRefs",
        "plans for pull requests do not exist",
    ),
    has(
        "terraform.enabled",
        "`engine.name: terraform`, if `terraform.version` is set",
    ),
    differs("terraform.version", VERSION),
    has("opentofu.enabled", "`engine.name: opentofu`"),
    differs("opentofu.version", VERSION),
    lacks("terragrunt.enabled", TERRAGRUNT).default_is("false"),
    lacks("terragrunt.version", TERRAGRUNT_VERSION),
    has("repository.name", "the URL of the `TerraformRepository`"),
    has(
        "repository.namespace",
        "the URL of the `TerraformRepository`",
    ),
    has(
        "remediationStrategy.autoApply",
        "`approval.mode: Manual`. For true, set `Auto` after the adoption",
    ),
    lacks(
        "remediationStrategy.applyWithoutPlanArtifact",
        "only stored plans are applied",
    )
    .default_is("false"),
    has(
        "remediationStrategy.onError.maxRetries",
        "`retry.limit` from 1 to 100",
    ),
    lacks(
        "overrideRunnerSpec.imagePullSecrets",
        "`containerRegistry.secretRef`",
    ),
    lacks("overrideRunnerSpec.image", POD),
    lacks("overrideRunnerSpec.imagePullPolicy", POD),
    differs(
        "overrideRunnerSpec.tolerations",
        "`runner.pod.tolerations`. The operator must allow it (docs/pods.md)",
    ),
    has(
        "overrideRunnerSpec.nodeSelector",
        "`runner.pod.nodeSelector`",
    ),
    has("overrideRunnerSpec.affinity", "`runner.pod.affinity`"),
    differs(
        "overrideRunnerSpec.serviceAccountName",
        "`runner.serviceAccountName`. The ServiceAccount needs annotation `alustan.io/allow-runs`",
    ),
    has("overrideRunnerSpec.resources", "`runner.pod.resources`"),
    differs(
        "overrideRunnerSpec.env",
        "`TF_VAR_x` with a value or a key of a Secret or ConfigMap is a variable. For others create a Secret with the name as the key, and add it to `runner.envFromSecrets`",
    ),
    has(
        "overrideRunnerSpec.envFrom[].secretRef.name",
        "`runner.envFromSecrets`",
    ),
    lacks(
        "overrideRunnerSpec.envFrom[].secretRef.optional",
        "the resource waits for the Secret",
    )
    .default_is("false"),
    lacks(
        "overrideRunnerSpec.envFrom[].prefix",
        "the keys of a Secret are the names of the variables; the Secret is not copied",
    ),
    lacks(
        "overrideRunnerSpec.envFrom[].configMapRef",
        "environment variables come from Secrets: create a Secret with the same keys, and add it to `runner.envFromSecrets`",
    ),
    has(
        "overrideRunnerSpec.volumes",
        "`runner.pod.volumes`. `hostPath` and other types without an equivalent are not copied; `csi` and `persistentVolumeClaim` must be allowed (docs/pods.md)",
    ),
    has(
        "overrideRunnerSpec.volumeMounts",
        "`runner.pod.volumeMounts`",
    ),
    differs(
        "overrideRunnerSpec.metadata.annotations",
        "`runner.pod.annotations`. The operator must allow the keys (docs/pods.md)",
    ),
    differs(
        "overrideRunnerSpec.metadata.labels",
        "`runner.pod.labels`. The operator must allow the keys (docs/pods.md)",
    ),
    lacks("overrideRunnerSpec.initContainers", "`scripts.init`"),
    lacks("overrideRunnerSpec.command", POD),
    lacks("overrideRunnerSpec.args", POD),
    lacks("overrideRunnerSpec.extraInitArgs", ARGS),
    lacks("overrideRunnerSpec.extraPlanArgs", ARGS),
    lacks("overrideRunnerSpec.extraApplyArgs", ARGS),
    lacks("runHistoryPolicy.runs", HISTORY),
];

/// Fields of a repository below `spec`. The fields that a layer also has are the defaults of its layers, and are mapped with the layer.
pub(crate) const REPOSITORY: &[Row] = &[
    has("repository.url", "`gitRepo.url`"),
    has("terraform", "as in the layer"),
    has("opentofu", "as in the layer"),
    has("terragrunt", "as in the layer"),
    has("remediationStrategy", "as in the layer"),
    has("overrideRunnerSpec", "as in the layer"),
    has("runHistoryPolicy", "as in the layer"),
    lacks(
        "maxConcurrentRunnerPods",
        "`--max-concurrent-runs` of the operator limits all runs, shared fairly between namespaces",
    )
    .default_is("0"),
    lacks(
        "syncWindows",
        "there are no windows: `spec.suspend`, or `approval.mode: Manual`",
    ),
];
