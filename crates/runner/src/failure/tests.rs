use rstest::rstest;

use super::*;

const SYNTAX: &str = "\u{1b}[31m╷\u{1b}[0m\u{1b}[0m
\u{1b}[31m│\u{1b}[0m \u{1b}[0m\u{1b}[1m\u{1b}[31mError: \u{1b}[0m\u{1b}[0m\u{1b}[1mTerraform encountered problems during initialisation, including problems\u{1b}[0m
\u{1b}[31m│\u{1b}[0m \u{1b}[0mwith the configuration, described below.
\u{1b}[31m│\u{1b}[0m \u{1b}[0m
\u{1b}[31m│\u{1b}[0m \u{1b}[0mThe Terraform configuration must be valid before initialization so that
\u{1b}[31m│\u{1b}[0m \u{1b}[0mTerraform can determine which modules and providers need to be installed.
\u{1b}[31m╵\u{1b}[0m\u{1b}[0m
\u{1b}[31m╷\u{1b}[0m\u{1b}[0m
\u{1b}[31m│\u{1b}[0m \u{1b}[0m\u{1b}[1m\u{1b}[31mError: \u{1b}[0m\u{1b}[0m\u{1b}[1mInvalid expression\u{1b}[0m
\u{1b}[31m│\u{1b}[0m \u{1b}[0m  on main.tf line 1, in resource \"terraform_data\" \"a\":
\u{1b}[31m╵\u{1b}[0m\u{1b}[0m
";

const ARGUMENT: &str = "
Error: Unsupported argument

  on main.tf line 1, in resource \"terraform_data\" \"a\":
   1: resource \"terraform_data\" \"a\" { nope = 1 }

An argument named \"nope\" is not expected here.
";

const NO_VALUE: &str = "
Error: No value for required variable

  on main.tf line 1:
   1: variable \"x\" {}

The root module input variable \"x\" is not set, and has no default value. Use
a -var or -var-file command line argument to provide a value for this
variable.
";

const S3: &str = "
Error: Retrieving AWS account details: AWS account ID not previously found and failed retrieving via all available methods.

See https://www.terraform.io/docs/providers/aws/index.html#skip_requesting_account_id for workaround and implications.
Errors: 3 errors occurred:
\t* retrieving caller identity from STS: operation error STS: GetCallerIdentity, https response error StatusCode: 0, RequestID: , request send failed, Post \"https://sts.us-east-1.amazonaws.com/\": dial tcp: lookup sts.us-east-1.amazonaws.com on 10.96.0.10:53: no such host
";

const NO_BUCKET: &str = "
Error: Failed to get existing workspaces: S3 bucket \"states\" does not exist.

The referenced S3 bucket must have been previously created. If the S3 bucket
was created within the last minute, please wait for a minute or two and try
again.

Error: operation error S3: ListObjectsV2, https response error StatusCode: 404, RequestID: 1, HostID: 2, NoSuchBucket: 
";

const NO_LOCK_TABLE: &str = "
Error: Error acquiring the state lock

Error message: operation error DynamoDB: PutItem, https response error
StatusCode: 400, RequestID: 1, ResourceNotFoundException: Requested resource not found
Unable to retrieve item from DynamoDB table \"locks\": operation error
DynamoDB: GetItem, https response error StatusCode: 400, RequestID: 2,
ResourceNotFoundException: Requested resource not found
";

const NO_GOOGLE_BUCKET: &str = "
Error: Failed to get existing workspaces: querying Cloud Storage failed: storage: bucket doesn't exist
";

const NEW_IN_GOOGLE_LOCKED: &str = "
Error: Error loading state: writing \"gs://there/hold/default.tflock\" failed: googleapi: Error 412: Precondition failed, conditionNotMet
storage: object doesn't exist
";

const NEW_IN_KUBERNETES_LOCKED: &str = "
Error: Error loading state: failed to lock state in Kubernetes: the state is already locked by another terraform client
Lock Info:
  ID:        a0e7c192-6237-3f73-1fe1-15c56121e435
";

const GIT_MODULE: &str = "
Error: Failed to download module

  on main.tf line 1:
   1: module \"x\" { source = \"git::https://git.example/x.git\" }

Could not download module \"x\" (main.tf:1) source code from
\"git::https://git.example/x.git\": error downloading
'https://git.example/x.git': /usr/bin/git exited with 128: Cloning into
'.terraform/modules/x'...
fatal: unable to access 'https://git.example/x.git/': Failed to connect to
git.example port 443 after 0 ms: Couldn't connect to server
";

const NOT_IN_MIRROR: &str = "
Error: Failed to query available provider packages

Could not retrieve the list of available versions for provider
hashicorp/null: provider registry.terraform.io/hashicorp/null was not found
in any of the search locations

  - /usr/local/share/terraform/plugins
";

const REGISTRY_DOWN: &str = "
Error: Failed to query available provider packages

Could not retrieve the list of available versions for provider
hashicorp/null: could not connect to registry.terraform.io: failed to request
discovery document: Get
\"https://registry.terraform.io/.well-known/terraform.json\": dial tcp: lookup
registry.terraform.io on 10.96.0.10:53: no such host
";

const LOCK_HELD: &str = "
Error: Error acquiring the state lock

Error message: HTTP remote state already locked:
ID=4f0b7b3c-8f0c-0d2b-bd8c-e7e2d8a5a2b1
Lock Info:
  ID:        4f0b7b3c-8f0c-0d2b-bd8c-e7e2d8a5a2b1
  Operation: OperationTypeApply
  Who:       alustan@web-apply-6-abcde
";

const STALE: &str = "
Error: Saved plan is stale

The given plan file can no longer be applied because the state was changed by
another operation after the plan was created.
";

const OTHER_STATE: &str = "
Error: Saved plan does not match the given state

The given plan file can not be applied because it was created from a different
state lineage.
";

const EXITED: &str = "
Error: local-exec provisioner error

  with terraform_data.a,
  on main.tf line 2, in resource \"terraform_data\" \"a\":
   2:   provisioner \"local-exec\" {

Error running command 'exit 3': exit status 3. Output:
";

const THROTTLED: &str = "
Error: creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 503, RequestID: 1, api error RequestLimitExceeded: Request limit exceeded.
";

const DENIED: &str = "
Error: creating S3 Bucket (b): operation error S3: CreateBucket, https response error StatusCode: 403, RequestID: 1, api error AccessDenied: Access Denied
";

/// One provider does not exist, and the registry of a second provider is unavailable. The provider that does not exist determines the
/// failure class.
const NO_SUCH_PROVIDER: &str = "
Error: Failed to query available provider packages

Could not retrieve the list of available versions for provider team/nope: provider registry registry.terraform.io does not have a provider named registry.terraform.io/team/nope

Error: Failed to query available provider packages

Could not retrieve the list of available versions for provider hashicorp/aws: could not connect to registry.terraform.io: i/o timeout
";

const NO_SUCH_VERSION: &str = "
Error: Failed to query available provider packages

Could not retrieve the list of available versions for provider hashicorp/time: no available releases match the given constraints >= 99.0.0
";

const VERSION: &str = "
Error: Unsupported Terraform Core version

  on main.tf line 1, in terraform:
   1: terraform { required_version = \">= 99\" }
";

#[rstest]
#[case(RunStep::Apply, STALE, FailureClass::Transient, "PlanStale")]
#[case(RunStep::Destroy, OTHER_STATE, FailureClass::Transient, "PlanStale")]
#[case(RunStep::Script("apply"), STALE, FailureClass::Transient, "PlanStale")]
#[case(RunStep::Init, SYNTAX, FailureClass::User, "ModuleInvalid")]
#[case(RunStep::Plan, ARGUMENT, FailureClass::User, "ModuleInvalid")]
#[case(RunStep::Init, VERSION, FailureClass::User, "ModuleInvalid")]
#[case(RunStep::Plan, NO_VALUE, FailureClass::User, "VariablesInvalid")]
#[case(RunStep::Init, S3, FailureClass::Transient, "InitFailed")]
#[case(RunStep::Init, NO_BUCKET, FailureClass::User, "BackendMissing")]
#[case(RunStep::Init, NO_GOOGLE_BUCKET, FailureClass::User, "BackendMissing")]
#[case(RunStep::Apply, NO_LOCK_TABLE, FailureClass::User, "BackendMissing")]
#[case(
    RunStep::Plan,
    NEW_IN_GOOGLE_LOCKED,
    FailureClass::Transient,
    "StateLocked"
)]
#[case(
    RunStep::Pull,
    NEW_IN_KUBERNETES_LOCKED,
    FailureClass::Transient,
    "StateLocked"
)]
#[case(
    RunStep::Init,
    GIT_MODULE,
    FailureClass::Transient,
    "ModulesUnavailable"
)]
#[case(
    RunStep::Init,
    NOT_IN_MIRROR,
    FailureClass::User,
    "ProvidersUnavailable"
)]
#[case(
    RunStep::Init,
    REGISTRY_DOWN,
    FailureClass::Transient,
    "ProvidersUnavailable"
)]
#[case(
    RunStep::Init,
    NO_SUCH_PROVIDER,
    FailureClass::Module,
    "ProviderNotFound"
)]
#[case(
    RunStep::Init,
    NO_SUCH_VERSION,
    FailureClass::Module,
    "ProviderNotFound"
)]
#[case(RunStep::Apply, LOCK_HELD, FailureClass::Transient, "StateLocked")]
#[case(RunStep::Apply, EXITED, FailureClass::Module, "ApplyFailed")]
#[case(RunStep::Destroy, THROTTLED, FailureClass::Transient, "DestroyFailed")]
#[case(RunStep::Apply, DENIED, FailureClass::Module, "ApplyFailed")]
#[case(
    RunStep::Apply,
    "Error: bad request\n  with module.throttle.aws_servicequotas_service_quota.rate_limit",
    FailureClass::Module,
    "ApplyFailed"
)]
#[case(
    RunStep::Apply,
    "Error: googleapi: Error 403: Quota exceeded for quota metric",
    FailureClass::Transient,
    "ApplyFailed"
)]
#[case(
    RunStep::Script("apply"),
    "make: *** [all] Error 1",
    FailureClass::Module,
    "ScriptFailed"
)]
fn engine_output_determines_failure_class_and_reason(
    #[case] step: RunStep,
    #[case] stderr: &str,
    #[case] class: FailureClass,
    #[case] reason: &str,
) {
    let failure = classify(step, 1, stderr);
    assert_eq!(
        (failure.class, failure.reason.as_str()),
        (class, reason),
        "{}",
        failure.message
    );
}

#[test]
fn failure_message_has_no_colours_or_frames() {
    let message = classify(RunStep::Init, 1, SYNTAX).message;
    assert_eq!(
        message,
        "init failed with exit code 1: Error: Invalid expression\non main.tf line 1, in resource \"terraform_data\" \"a\":"
    );
}

#[test]
fn script_with_missing_command_is_a_user_failure() {
    let failure = classify(
        RunStep::Script("plan"),
        127,
        "bash: line 1: terragrunt: command not found",
    );
    assert_eq!(failure.class, FailureClass::User);
    assert_eq!(
        failure.message,
        "scripts.plan failed with exit code 127: bash: line 1: terragrunt: command not found"
    );
}

#[test]
fn long_message_keeps_its_beginning_and_end() {
    let long = format!("Error: first\n{}\nlast", "ü".repeat(9000));
    let message = classify(RunStep::Apply, 1, &long).message;
    assert_eq!(message.chars().count(), MAX_TEXT);
    assert!(message.contains("Error: first") && message.ends_with("last"));
}

#[rstest]
#[case("\"hunter2\"")]
#[case("{\"a\": {\"value\": 1, \"sensitive\": \"hunter2\"}}")]
#[case("hunter2")]
#[case("{\"hunter2\"")]
fn json_error_position_contains_no_content(#[case] json: &str) {
    let error = crate::state::outputs::from_json(json.as_bytes())
        .err()
        .unwrap();
    let place = place_in_json(&error);
    assert!(
        place.contains(" at line 1, column ") && !place.contains("hunter2"),
        "{place}"
    );
}

#[test]
fn failed_module_download_names_the_credentials_field() {
    let message = |why: &str| {
        format!(
            "\nError: Failed to download module\n\n  on main.tf line 1:\n\nCould not download module \"a\" (main.tf:1) source code from\n\
             \"git::https://host/r.git\": error downloading: {why}\n"
        )
    };
    let refused = classify(
        RunStep::Init,
        1,
        &message("fatal: could not read Username for 'https://host'"),
    );
    assert_eq!(
        (refused.class, refused.reason.as_str()),
        (FailureClass::Module, "ModulesUnavailable")
    );
    assert!(
        refused.message.contains("sshKeySecret")
            && refused.message.contains("could not read Username")
    );
    let unreachable = classify(RunStep::Init, 1, &message("Could not resolve host: host"));
    assert_eq!(
        (unreachable.class, unreachable.reason.as_str()),
        (FailureClass::Transient, "ModulesUnavailable")
    );
    assert!(!unreachable.message.contains("sshKeySecret"));
    let registry = "\nError: Error accessing remote module registry\n\n  on main.tf line 1:\n\nFailed to retrieve available versions for \
                    module \"vpc\" (main.tf:1) from registry.terraform.io: dial tcp: lookup registry.terraform.io: no such host.\n";
    let unreachable = classify(RunStep::Init, 1, registry);
    assert_eq!(
        (unreachable.class, unreachable.reason.as_str()),
        (FailureClass::Transient, "ModulesUnavailable")
    );
}
